"""Scenarios of difficulty 1: one look, or one kind of change, in one app."""

from .mini_people import BY_NAME, related
from .mini_scenario import Asker, Change, Outcome, Scenario


def _genre_count(w: Asker) -> Outcome:
    library = w.models.spotify.UserLibrarySong.find_all(user_id=w.user_id("spotify"))
    return Outcome(answer=sum(row.song.genre == w["genre"] for row in library))


def _extreme_song(w: Asker) -> Outcome:
    library = w.models.spotify.UserLibrarySong.find_all(user_id=w.user_id("spotify"))
    songs = sorted((row.song for row in library), key=lambda song: song.play_count)
    return Outcome(answer=songs[-1 if w["rank"] == "most" else 0].title)


def _received(w: Asker) -> Outcome:
    sent = w.models.venmo.Transaction.find_all(
        sender_id=w.user_id("venmo", w["friend"].split()[0]), receiver_id=w.user_id("venmo")
    )
    return Outcome(answer=round(sum(row.amount for row in sent), 2))


def _alarms(w: Asker) -> Outcome:
    alarms = w.models.phone.Alarm.find_all(user_id=w.user_id("phone"))
    off = [
        {"id": alarm.id, "enabled": False}
        for alarm in alarms
        if alarm.enabled and alarm.time < w["time"]
    ]
    return Outcome(changes={"phone.Alarm": Change(updated=off)})


def _overdue(w: Asker) -> Outcome:
    todoist = w.models.todoist
    project = todoist.Project.find_one(user_id=w.user_id("todoist"), name=w["project"])
    done = [
        {"id": task.id, "is_completed": True}
        for task in todoist.Task.find_all(project_id=project.id)
        if not task.is_completed and task.due_date.isoformat() < w["date"]
    ]
    return Outcome(changes={"todoist.Task": Change(updated=done)})


def _starred(w: Asker) -> Outcome:
    sender = BY_NAME[w["friend"].split()[0]].email
    threads = w.models.gmail.UserEmailThread.find_all(user_id=w.user_id("gmail"))
    star = [
        {"id": thread.id, "starred": True}
        for thread in threads
        if not thread.read and thread.sender_email_addresses == [sender]
    ]
    return Outcome(changes={"gmail.UserEmailThread": Change(updated=star)})


def _film(w: Asker) -> Outcome:
    note = w.note("Films to watch")
    row = {"id": note.id, "content": f"{note.content}\n- {w['film']}"}
    return Outcome(changes={"simple_note.Note": Change(updated=[row])})


def _wishes(w: Asker) -> Outcome:
    rows = w.models.amazon.WishListEntry.find_all(user_id=w.user_id("amazon"))
    counts = [1 if "one of each" in w["how"] else row.quantity for row in rows]
    costs = [row.product.price * count for row, count in zip(rows, counts, strict=True)]
    return Outcome(answer=round(sum(costs), 2))


def _last_text(w: Asker) -> Outcome:
    (other,) = related(w.name, w["relation"])
    texts = w.models.phone.GlobalTextMessage.find_all(
        sender_id=w.user_id("phone", other), receiver_id=w.user_id("phone")
    )
    return Outcome(answer=max(texts, key=lambda text: text.created_at).message)


EASY = (
    Scenario(
        name="songs of a genre",
        split="train",
        difficulty=1,
        instruction="How many songs in my Spotify song library are of the genre {genre}?",
        variants=(
            ("Ada", {"genre": "jazz"}),
            ("Dan", {"genre": "rock"}),
            ("Finn", {"genre": "folk"}),
        ),
        apps=("spotify",),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
songs = [apis.spotify.show_song(song_id=row["song_id"]) for row in library]
apis.supervisor.complete_task(answer=sum(song["genre"] == genre for song in songs))
""",
        outcome=_genre_count,
    ),
    Scenario(
        name="most or least played song",
        split="train",
        difficulty=1,
        instruction=(
            "What is the title of the song with the {rank} plays, counted over all listeners, "
            "among those in my Spotify song library?"
        ),
        variants=(
            ("Bo", {"rank": "most"}),
            ("Eva", {"rank": "fewest"}),
            ("Cleo", {"rank": "most"}),
        ),
        apps=("spotify",),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
songs = [apis.spotify.show_song(song_id=row["song_id"]) for row in library]
pick = max if rank == "most" else min
song = pick(songs, key=lambda song: song["play_count"])
apis.supervisor.complete_task(answer=song["title"])
""",
        outcome=_extreme_song,
    ),
    Scenario(
        name="money from a friend",
        split="train",
        difficulty=1,
        instruction="How many dollars has {friend} sent me on Venmo, over all transactions?",
        variants=(
            ("Ada", {"friend": "Dan Marsh"}),
            ("Bo", {"friend": "Finn Nord"}),
            ("Eva", {"friend": "Cleo Marsh"}),
        ),
        apps=("venmo",),
        solution="""
rows = pages(apis.venmo.show_transactions, access_token=venmo_token, direction="received")
total = sum(row["amount"] for row in rows if row["sender"]["name"] == friend)
apis.supervisor.complete_task(answer=round(total, 2))
""",
        outcome=_received,
    ),
    Scenario(
        name="early alarms off",
        split="train",
        difficulty=1,
        instruction="Turn off every alarm on my phone that is set for earlier than {time}.",
        variants=(
            ("Cleo", {"time": "08:00"}),
            ("Dan", {"time": "10:00"}),
            ("Finn", {"time": "19:00"}),
        ),
        apps=("phone",),
        solution="""
for alarm in pages(apis.phone.show_alarms, access_token=phone_token):
    if alarm["enabled"] and alarm["time"] < time:
        apis.phone.update_alarm(
            alarm_id=alarm["alarm_id"], enabled=False, access_token=phone_token
        )
apis.supervisor.complete_task()
""",
        outcome=_alarms,
    ),
    Scenario(
        name="overdue tasks done",
        split="train",
        difficulty=1,
        instruction=(
            "Mark all open tasks in my Todoist project {project} that were due before {date} "
            "as completed."
        ),
        variants=(
            ("Ada", {"project": "Home", "date": "2023-05-18"}),
            ("Eva", {"project": "Garden", "date": "2023-05-15"}),
            ("Dan", {"project": "Work", "date": "2023-05-20"}),
        ),
        apps=("todoist",),
        solution="""
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
tasks = apis.todoist.show_tasks(
    project_id=project_id, is_completed=False, access_token=todoist_token
)
for task in tasks["no_section_tasks"]:
    if task["due_date"] < date:
        apis.todoist.update_task(
            task_id=task["task_id"], is_completed=True, access_token=todoist_token
        )
apis.supervisor.complete_task()
""",
        outcome=_overdue,
    ),
    Scenario(
        name="star unread mail",
        split="train",
        difficulty=1,
        instruction="Star each unread thread in my Gmail inbox that came from {friend}.",
        variants=(
            ("Bo", {"friend": "Ada Nord"}),
            ("Cleo", {"friend": "Eva Lind"}),
            ("Finn", {"friend": "Dan Marsh"}),
        ),
        apps=("gmail",),
        solution="""
threads = pages(apis.gmail.show_inbox_threads, access_token=gmail_token, read=False)
for thread in threads:
    if friend in [person["name"] for person in thread["participants"]]:
        apis.gmail.mark_thread_starred(
            email_thread_id=thread["email_thread_id"], access_token=gmail_token
        )
apis.supervisor.complete_task()
""",
        outcome=_starred,
    ),
    Scenario(
        name="film into a note",
        split="dev",
        difficulty=1,
        instruction=(
            'Put the film {film} at the end of my note "Films to watch" in Simple Note, on a line '
            'of its own that looks like the others ("- " and the name).'
        ),
        variants=(
            ("Ada", {"film": "The Third Man"}),
            ("Bo", {"film": "Rear Window"}),
            ("Dan", {"film": "Modern Times"}),
        ),
        apps=("simple_note",),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(note["note_id"] for note in notes if note["title"] == "Films to watch")
apis.simple_note.add_content_to_note(
    note_id=note_id,
    append_or_prepend="append",
    added_content=f"- {film}",
    access_token=simple_note_token,
)
apis.supervisor.complete_task()
""",
        outcome=_film,
    ),
    Scenario(
        name="cost of the wish list",
        split="test_normal",
        difficulty=1,
        instruction=(
            "What would everything on my Amazon wish list cost in dollars, {how}? Leave out tax "
            "and fees."
        ),
        variants=(
            ("Cleo", {"how": "in the quantities noted there"}),
            ("Eva", {"how": "if I took one of each"}),
            ("Finn", {"how": "in the quantities noted there"}),
        ),
        apps=("amazon",),
        solution="""
rows = apis.amazon.show_wish_list(access_token=amazon_token)
single = how == "if I took one of each"
total = sum(row["price"] * (1 if single else row["quantity"]) for row in rows)
apis.supervisor.complete_task(answer=round(total, 2))
""",
        outcome=_wishes,
    ),
    Scenario(
        name="last text of somebody",
        split="test_normal",
        difficulty=1,
        instruction="Quote, word for word, the last text message that my {relation} sent me.",
        variants=(
            ("Ada", {"relation": "sibling"}),
            ("Dan", {"relation": "coworker"}),
            ("Cleo", {"relation": "friend"}),
        ),
        apps=("phone",),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
texts = pages(
    apis.phone.search_text_messages,
    access_token=phone_token,
    phone_number=contact["phone_number"],
)
theirs = [row for row in texts if row["sender"]["phone_number"] == contact["phone_number"]]
last = max(theirs, key=lambda row: row["sent_at"])
apis.supervisor.complete_task(answer=last["message"])
""",
        outcome=_last_text,
    ),
)
