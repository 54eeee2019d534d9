"""The built-in world's text apps: notes, to-dos, files, messages, alarms and mail."""

from itertools import permutations
from random import Random
from typing import Any

from .money import PRODUCTS
from .people import FLATS, NOW, PEOPLE, account, related

FILMS = ("Alien", "Heat", "Amelie", "Spirited Away", "Casablanca", "Paddington", "Vertigo")
GEAR = ("tent", "rain jacket", "torch", "first aid kit", "water filter", "map", "wool socks")
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday")
OUTINGS = ("concert", "pizza night", "boat hire", "escape room", "bowling evening")
CHORES = {
    "Home": ("Fix the tap", "Defrost the freezer", "Call the landlord", "Wash the curtains"),
    "Work": ("Send the invoice", "Review the slides", "Book the room", "Order new badges"),
    "Garden": ("Plant the beans", "Trim the hedge", "Sharpen the shears", "Empty the compost"),
}
SUBJECTS = ("Minutes of the meeting", "Photos from Sunday", "Draft contract", "Spare key")
ALARMS = (("06:15", "Run"), ("06:45", "Wake up"), ("07:30", "Bus"), ("09:10", "Standup"))
LATE_ALARMS = (("12:45", "Lunch"), ("18:20", "Medicine"), ("21:40", "Read"), ("22:30", "Sleep"))
HUES = ("green", "blue", "orange")


def add_words(models: Any) -> None:
    """Create data for Simple Note, Todoist, File System, Phone and Gmail."""
    rng = Random("mini world: words")  # noqa: S311 - content, nothing secret
    titles = [song.title for song in models.spotify.Song.all()]
    for person in PEOPLE:
        _add_notes(models, rng, person.first)
        _add_todos(models, rng, person.first)
        _add_files(models, rng, person.first)
        _add_alarms(models, rng, person.first)
    for number, (one, other) in enumerate(permutations([p.first for p in PEOPLE], 2)):
        _add_texts(models, rng, number, (one, other), titles)
        _add_mails(models, rng, number, (one, other))


def _add_notes(models: Any, rng: Random, name: str) -> None:
    owing = related(name, "roommate") + related(name, "coworker")
    films, gear = rng.sample(FILMS, 4), rng.sample(GEAR, 6)
    notes = (
        ("Packing list", "\n".join(f"[{'x '[n % 2]}] {item}" for n, item in enumerate(gear))),
        ("Films to watch", "\n".join(f"- {film}" for film in films)),
        ("Shopping list", "\n".join(f"- {kind}" for kind in rng.sample(list(PRODUCTS)[:-1], 3))),
        ("Training plan", "\n".join(f"{d}: {rng.randrange(20, 46)} minutes" for d in DAYS)),
        ("Trip costs", "\n".join(f"{o} owes me ${rng.randrange(900, 9900) / 100}" for o in owing)),
        ("Book club", f"Next book: page {rng.randrange(20, 300)}"),
        ("Wifi", f"Guest code {rng.randrange(10**6, 10**7)}"),
        ("Doctor", f"Ask about the left knee, visit {rng.randrange(2, 9)}"),
    )
    for number, (title, content) in enumerate(notes):
        when = NOW.subtract(days=30 - number)
        models.simple_note.Note.create_save(
            user_id=account(models, "simple_note", name).id,
            title=title,
            content=content,
            tags=["lists"] if number < 3 else [],
            pinned=number == 5,
            created_at=when,
            updated_at=when,
        )


def _add_todos(models: Any, rng: Random, name: str) -> None:
    todoist = models.todoist
    user_id = account(models, "todoist", name).id
    for number, (project_name, chores) in enumerate(CHORES.items()):
        date = NOW.subtract(days=80 - number)
        project = todoist.Project.create_save(
            user_id=user_id, name=project_name, color=HUES[number], created_at=date
        )
        todoist.ProjectCollaboratorLink.create_save(
            project_id=project.id, user_id=user_id, created_at=date
        )
        days = rng.sample(range(-16, 16), 2 * len(chores))
        titles = [*chores, *(f"{chore} again" for chore in chores)]
        for place, (title, day) in enumerate(zip(titles, days, strict=True)):
            todoist.Task.create_save(
                project_id=project.id,
                user_id=user_id,
                title=title,
                description="",
                due_date=NOW.add(days=day).start_of("day"),
                priority=("high", "medium", "low")[(place + number) % 3],
                is_completed=place in (1, 6),
                order_index=place,
                created_at=date.add(hours=place),
            )


def _add_files(models: Any, rng: Random, name: str) -> None:
    user = account(models, "file_system", name)
    home = user.home_directory_path
    for path in ("documents/", "documents/bills/"):
        models.file_system.Directory.create_save(
            path=home + path, user_id=user.id, created_at=NOW, updated_at=NOW
        )
    for kind, high in (("electricity", 90), ("internet", 50), ("water", 40)):
        for month in range(12, 0, -1):
            when = NOW.subtract(months=month)
            # A multiple of three cents, so that three people can share it.
            amount = 3 * rng.randrange(900, 100 * high // 2) / 100
            models.file_system.File.create_save(
                path=f"{home}documents/bills/{kind}_{when.format('YYYY-MM')}.txt",
                user_id=user.id,
                content=f"Provider: {kind.title()} Ltd\nTotal: ${amount:.2f}\nPaid: no",
                created_at=when,
                updated_at=when,
            )


def _add_alarms(models: Any, rng: Random, name: str) -> None:
    for number, (time, label) in enumerate([*ALARMS, *LATE_ALARMS]):
        models.phone.Alarm.create_save(
            user_id=account(models, "phone", name).id,
            time=time,
            label=label,
            repeat_days=list(DAYS),
            enabled=rng.random() < 0.7,
            created_at=NOW.subtract(days=70 - number),
        )


def _add_texts(
    models: Any, rng: Random, number: int, names: tuple[str, str], titles: list[str]
) -> None:
    sender, receiver = (account(models, "phone", name).id for name in names)
    outing = OUTINGS[number % len(OUTINGS)]
    amount = rng.randrange(700, 6000) / 100
    flat = next(flat for flat, members in FLATS.items() if names[0] in members)
    texts = [
        f"Hi {names[1]}, are you home tonight?",
        f"Your part of the {outing} comes to ${amount:.2f}, just send it on Venmo.",
        f"Songs you should hear: {'; '.join(rng.sample(titles, 3))}",
        f"We are cooking at {flat} on Friday, bring {number % 3 + 1} bottles.",
    ]
    for place, text in enumerate(texts[: 3 + number % 2]):
        when = NOW.subtract(days=25 - 6 * place, minutes=7 * number)
        message = models.phone.GlobalTextMessage.create_save(
            sender_id=sender, receiver_id=receiver, message=text, created_at=when
        )
        for user_id in (sender, receiver):
            models.phone.UserTextMessage.create_save(
                global_text_message_id=message.id, user_id=user_id, created_at=when
            )


def _add_mails(models: Any, rng: Random, number: int, names: tuple[str, str]) -> None:
    gmail = models.gmail
    sender, receiver = (account(models, "gmail", name).id for name in names)
    for place, subject in enumerate(rng.sample(SUBJECTS, 3)):
        when = NOW.subtract(days=50 - 15 * place, minutes=11 * number)
        email = gmail.Email.create_save(
            sender_id=sender,
            recipient_ids=[receiver],
            subject=subject,
            body=f"Dear {names[1]}, see below. Best, {names[0]}",
            created_at=when,
        )
        thread = gmail.GlobalEmailThread.create_save(
            email_ids=[email.id], created_at=when, updated_at=when
        )
        for user_id in (sender, receiver):
            gmail.UserEmailThread.create_save(
                global_email_thread_id=thread.id,
                user_id=user_id,
                email_ids=[email.id],
                incoming=user_id == receiver,
                outgoing=user_id == sender,
                read=user_id == sender or (number + place) % 3 == 0,
                created_at=when,
                updated_at=when,
            )
