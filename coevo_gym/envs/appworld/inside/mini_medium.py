"""Scenarios of difficulty 2: several steps in one app, or a look in one and an act in another."""

from typing import Any

from .mini_people import NOW, related
from .mini_scenario import Asker, Change, Outcome, Scenario


def _likes(w: Asker) -> Outcome:
    spotify, user_id = w.models.spotify, w.user_id("spotify")
    liked = {like.song_id for like in spotify.SongLike.find_all(user_id=user_id)}
    songs = [row.song for row in spotify.UserLibrarySong.find_all(user_id=user_id)]
    new = [song for song in songs if song.genre == w["genre"] and song.id not in liked]
    return Outcome(
        changes={
            "spotify.SongLike": Change(added=[{"user_id": user_id, "song_id": s.id} for s in new]),
            "spotify.Song": Change(
                updated=[{"id": song.id, "like_count": song.like_count + 1} for song in new]
            ),
        }
    )


def _old_songs(w: Asker) -> Outcome:
    spotify, user_id = w.models.spotify, w.user_id("spotify")
    albums = {row.album_id for row in spotify.UserLibraryAlbum.find_all(user_id=user_id)}
    library = {row.song_id for row in spotify.UserLibrarySong.find_all(user_id=user_id)}
    new_id = max(playlist.id for playlist in spotify.Playlist.all()) + 1
    songs = [
        {"playlist_id": new_id, "song_id": song.id}
        for song in spotify.Song.all()
        if (song.id in library or song.album_id in albums) and song.release_date.year < w["year"]
    ]
    playlist = {"user_id": user_id, "title": w["title"], "is_public": False}
    return Outcome(
        changes={
            "spotify.Playlist": Change(added=[playlist]),
            "spotify.PlaylistSong": Change(added=songs),
        }
    )


def _approvals(w: Asker) -> Outcome:
    venmo, me = w.models.venmo, w.user_id("venmo")
    theirs = {w.user_id("venmo", name) for name in related(w.name, w["relation"])}
    requests = [
        row
        for row in venmo.PaymentRequest.find_all(receiver_id=me)
        if row.sender_id in theirs and row.pending
    ]
    balances = {user.id: user.venmo_balance for user in venmo.User.all()}
    for row in requests:
        balances[me] -= row.amount
        balances[row.sender_id] += row.amount
    return Outcome(
        changes={
            "venmo.PaymentRequest": Change(
                updated=[{"id": row.id, "approved_at": NOW.isoformat()} for row in requests]
            ),
            "venmo.Transaction": Change(
                added=[
                    {"sender_id": me, "receiver_id": row.sender_id, "amount": row.amount}
                    for row in requests
                ]
            ),
            "venmo.User": Change(
                updated=[
                    {"id": user_id, "venmo_balance": balances[user_id]}
                    for user_id in {me, *(row.sender_id for row in requests)}
                ]
            ),
            "venmo.Notification": Change(added=[{"user_id": row.sender_id} for row in requests]),
        }
    )


def _requests(w: Asker) -> Outcome:
    return requested(w, {name: w["amount"] for name in related(w.name, w["relation"])})


def requested(w: Asker, amounts: dict[str, float]) -> Outcome:
    """A Venmo request to each of these people, with the note of the task."""
    ids = {name: w.user_id("venmo", name) for name in amounts}
    asked = [
        {
            "sender_id": w.user_id("venmo"),
            "receiver_id": ids[name],
            "amount": amount,
            "description": w["note"],
        }
        for name, amount in amounts.items()
    ]
    told = [{"user_id": user_id} for user_id in ids.values()]
    return Outcome(
        changes={
            "venmo.PaymentRequest": Change(added=asked),
            "venmo.Notification": Change(added=told),
        }
    )


def _top_payer(w: Asker) -> Outcome:
    splitwise = w.models.splitwise
    group = splitwise.Group.find_one(name=w["group"])
    paid: dict[int, float] = {}
    for expense in splitwise.Expense.find_all(group_id=group.id):
        paid[expense.payer_id] = paid.get(expense.payer_id, 0) + expense.amount
    payer = splitwise.User.by_id(max(paid, key=lambda user_id: paid[user_id]))
    return Outcome(answer=f"{payer.first_name} {payer.last_name}")


def _packing(w: Asker) -> Outcome:
    user_id = w.user_id("todoist")
    project = w.models.todoist.Project.find_one(user_id=user_id, name=w["project"])
    lines = w.note("Packing list").content.splitlines()
    todo = [line.removeprefix("[ ] ") for line in lines if line.startswith("[ ]")]
    tasks = [{"user_id": user_id, "project_id": project.id, "title": title} for title in todo]
    return Outcome(changes={"todoist.Task": Change(added=tasks)})


def _mail(w: Asker) -> Outcome:
    (other,) = related(w.name, w["relation"])
    return mailed(w, [other], w["subject"], w["body"])


def mailed(w: Asker, names: list[str], subject: str, body: str) -> Outcome:
    """One new mail from the supervisor to these people."""
    me, ids = w.user_id("gmail"), [w.user_id("gmail", name) for name in names]
    mail: dict[str, Any] = {"sender_id": me, "recipient_ids": ids, "subject": subject, "body": body}
    return Outcome(
        changes={
            "gmail.Email": Change(added=[mail]),
            "gmail.GlobalEmailThread": Change(added=[{}]),
            "gmail.UserEmailThread": Change(added=[{"user_id": user_id} for user_id in (me, *ids)]),
        }
    )


def _bills(w: Asker) -> Outcome:
    files = w.models.file_system.File.find_all(user_id=w.user_id("file_system"))
    total = sum(
        float(file.content.partition("$")[2].split()[0])
        for file in files
        if f"/{w['kind']}_{w['year']}" in file.path
    )
    return Outcome(answer=round(total, 2))


def _longest(w: Asker) -> Outcome:
    lengths = playlist_seconds(w)
    pick = max if w["rank"] == "longest" else min
    return Outcome(answer=pick(lengths, key=lambda title: lengths[title]))


def playlist_seconds(w: Asker) -> dict[str, int]:
    """How long each playlist of the supervisor takes."""
    spotify = w.models.spotify
    return {
        playlist.title: sum(
            row.song.duration for row in spotify.PlaylistSong.find_all(playlist_id=playlist.id)
        )
        for playlist in spotify.Playlist.find_all(user_id=w.user_id("spotify"))
    }


MEDIUM = (
    Scenario(
        name="like a genre",
        split="train",
        difficulty=2,
        instruction=(
            "Like all {genre} songs in my Spotify song library, apart from those that I like "
            "already."
        ),
        variants=(
            ("Ada", {"genre": "rock"}),
            ("Bo", {"genre": "pop"}),
            ("Eva", {"genre": "jazz"}),
        ),
        apps=("spotify",),
        solution="""
likes = pages(apis.spotify.show_liked_songs, access_token=spotify_token)
liked = {row["song_id"] for row in likes}
for row in pages(apis.spotify.show_song_library, access_token=spotify_token):
    song_id = row["song_id"]
    if song_id not in liked and apis.spotify.show_song(song_id=song_id)["genre"] == genre:
        apis.spotify.like_song(song_id=song_id, access_token=spotify_token)
apis.supervisor.complete_task()
""",
        outcome=_likes,
    ),
    Scenario(
        name="playlist of old songs",
        split="train",
        difficulty=2,
        instruction=(
            'Make a new private playlist "{title}" on Spotify out of all songs that were released '
            "before {year} and that are in my song library or on an album in my album library."
        ),
        variants=(
            ("Cleo", {"title": "Way Back", "year": 2018}),
            ("Dan", {"title": "Old but Gold", "year": 2019}),
            ("Finn", {"title": "Oldies", "year": 2017}),
        ),
        apps=("spotify",),
        solution="""
library = pages(apis.spotify.show_song_library, access_token=spotify_token)
song_ids = {row["song_id"] for row in library}
for album in pages(apis.spotify.show_album_library, access_token=spotify_token):
    song_ids |= set(album["song_ids"])
playlist_id = apis.spotify.create_playlist(title=title, access_token=spotify_token)["playlist_id"]
for song_id in sorted(song_ids):
    released = apis.spotify.show_song(song_id=song_id)["release_date"]
    if int(released[:4]) < year:
        apis.spotify.add_song_to_playlist(
            playlist_id=playlist_id, song_id=song_id, access_token=spotify_token
        )
apis.supervisor.complete_task()
""",
        outcome=_old_songs,
    ),
    Scenario(
        name="approve requests",
        split="train",
        difficulty=2,
        instruction=(
            "Approve all Venmo requests that are still pending from people who are down as my "
            "{relation} in my phone contacts. Pay from my Venmo balance."
        ),
        variants=(
            ("Ada", {"relation": "roommate"}),
            ("Dan", {"relation": "friend"}),
            ("Finn", {"relation": "roommate"}),
        ),
        apps=("phone", "venmo"),
        solution="""
contacts = pages(apis.phone.search_contacts, access_token=phone_token, relationship=relation)
emails = {contact["email"] for contact in contacts}
requests = pages(
    apis.venmo.show_received_payment_requests, access_token=venmo_token, status="pending"
)
for request in requests:
    if request["sender"]["email"] in emails:
        apis.venmo.approve_payment_request(
            payment_request_id=request["payment_request_id"], access_token=venmo_token
        )
apis.supervisor.complete_task()
""",
        outcome=_approvals,
    ),
    Scenario(
        name="request from several people",
        split="train",
        difficulty=2,
        instruction=(
            "Request ${amount} on Venmo from everybody who is down as my {relation} in my phone "
            'contacts, each time with the note "{note}".'
        ),
        variants=(
            ("Bo", {"amount": 12.5, "relation": "roommate", "note": "New kettle"}),
            ("Eva", {"amount": 18, "relation": "friend", "note": "Theatre"}),
            ("Cleo", {"amount": 7.25, "relation": "roommate", "note": "Light bulbs"}),
        ),
        apps=("phone", "venmo"),
        solution="""
for contact in pages(apis.phone.search_contacts, access_token=phone_token, relationship=relation):
    apis.venmo.create_payment_request(
        user_email=contact["email"], amount=amount, description=note, access_token=venmo_token
    )
apis.supervisor.complete_task()
""",
        outcome=_requests,
    ),
    Scenario(
        name="who paid most",
        split="train",
        difficulty=2,
        instruction=(
            "Who has paid the most for expenses of our Splitwise group {group}, all of them taken "
            "together? Answer with the full name."
        ),
        variants=(
            ("Bo", {"group": "Maple Flat"}),
            ("Eva", {"group": "Harbour Flat"}),
            ("Ada", {"group": "Ski Trip"}),
        ),
        apps=("splitwise",),
        solution="""
groups = pages(apis.splitwise.show_groups, access_token=splitwise_token)
group_id = next(row["group_id"] for row in groups if row["name"] == group)
expenses = pages(
    apis.splitwise.show_group_expenses, access_token=splitwise_token, group_id=group_id
)
paid = Counter()
for expense in expenses:
    paid[expense["payer"]["name"]] += expense["paid_amount"]
apis.supervisor.complete_task(answer=paid.most_common(1)[0][0])
""",
        outcome=_top_payer,
    ),
    Scenario(
        name="pack what is missing",
        split="dev",
        difficulty=2,
        instruction=(
            'My Simple Note "Packing list" marks with [x] what is packed. Add a task to my Todoist '
            "project {project} for each thing that is not packed, with its name as the title."
        ),
        variants=(
            ("Dan", {"project": "Home"}),
            ("Cleo", {"project": "Inbox"}),
            ("Finn", {"project": "Garden"}),
        ),
        apps=("simple_note", "todoist"),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(note["note_id"] for note in notes if note["title"] == "Packing list")
note = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
for line in note["content"].splitlines():
    if line.startswith("[ ] "):
        apis.todoist.create_task(
            project_id=project_id, title=line[4:], access_token=todoist_token
        )
apis.supervisor.complete_task()
""",
        outcome=_packing,
    ),
    Scenario(
        name="mail to a relation",
        split="test_normal",
        difficulty=2,
        instruction=(
            "Send my {relation} an email; the address is in my phone contacts. The subject is "
            '"{subject}" and the body "{body}".'
        ),
        variants=(
            ("Eva", {"relation": "coworker", "subject": "Monday", "body": "I start at ten."}),
            ("Bo", {"relation": "sibling", "subject": "Keys", "body": "They are with me."}),
            ("Finn", {"relation": "friend", "subject": "Climbing", "body": "Saturday at two?"}),
        ),
        apps=("phone", "gmail"),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
apis.gmail.send_email(
    email_addresses=[contact["email"]], subject=subject, body=body, access_token=gmail_token
)
apis.supervisor.complete_task()
""",
        outcome=_mail,
    ),
    Scenario(
        name="bills of a year",
        split="dev",
        difficulty=2,
        instruction=(
            "The folder ~/documents/bills of my file system has a text file for each bill, named "
            "after its kind and month. How many dollars do the {kind} bills of {year} add up to?"
        ),
        variants=(
            ("Ada", {"kind": "electricity", "year": 2022}),
            ("Bo", {"kind": "internet", "year": 2023}),
            ("Eva", {"kind": "water", "year": 2022}),
        ),
        apps=("file_system",),
        solution="""
paths = apis.file_system.show_directory(
    directory_path="~/documents/bills", access_token=file_system_token
)
total = 0
for path in paths:
    if f"/{kind}_{year}-" in path:
        file = apis.file_system.show_file(file_path=path, access_token=file_system_token)
        total += float(re.search(r"Total: [$]([0-9.]+)", file["content"]).group(1))
apis.supervisor.complete_task(answer=round(total, 2))
""",
        outcome=_bills,
    ),
    Scenario(
        name="longest playlist",
        split="test_normal",
        difficulty=2,
        instruction=(
            "Which of my Spotify playlists takes the {rank} time to play from start to end? Answer "
            "with its title."
        ),
        variants=(
            ("Dan", {"rank": "longest"}),
            ("Ada", {"rank": "shortest"}),
            ("Cleo", {"rank": "longest"}),
        ),
        apps=("spotify",),
        solution="""
playlists = pages(apis.spotify.show_playlist_library, access_token=spotify_token)
seconds = {}
for playlist in playlists:
    songs = [apis.spotify.show_song(song_id=song_id) for song_id in playlist["song_ids"]]
    seconds[playlist["title"]] = sum(song["duration"] for song in songs)
pick = max if rank == "longest" else min
apis.supervisor.complete_task(answer=pick(seconds, key=seconds.get))
""",
        outcome=_longest,
    ),
)
