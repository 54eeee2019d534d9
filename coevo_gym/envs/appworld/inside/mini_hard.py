"""Scenarios of difficulty 3: what one app says has to be worked out and acted upon in another."""

from .mini_medium import mailed, playlist_seconds, requested
from .mini_people import FLATS, related
from .mini_scenario import Asker, Change, Outcome, Scenario


def _texts(w: Asker, other: str) -> list[str]:
    sent = w.models.phone.GlobalTextMessage.find_all(
        sender_id=w.user_id("phone", other), receiver_id=w.user_id("phone")
    )
    return [text.message for text in sent]


def _pay_back(w: Asker) -> Outcome:
    (other,) = related(w.name, w["relation"])
    (text,) = [text for text in _texts(w, other) if "$" in text]
    amount = float(text.partition("$")[2].partition(",")[0])
    me, them = w.user_id("venmo"), w.user_id("venmo", other)
    users = {user.id: user for user in w.models.venmo.User.all()}
    paid = {
        "sender_id": me,
        "receiver_id": them,
        "amount": amount,
        "description": w["note"],
        "payment_card_digits": None,
    }
    return Outcome(
        changes={
            "venmo.Transaction": Change(added=[paid]),
            "venmo.User": Change(
                updated=[
                    {"id": me, "venmo_balance": users[me].venmo_balance - amount},
                    {"id": them, "venmo_balance": users[them].venmo_balance + amount},
                ]
            ),
            "venmo.Notification": Change(added=[{"user_id": them}]),
        }
    )


def _share_bill(w: Asker) -> Outcome:
    files = w.models.file_system.File.find_all(user_id=w.user_id("file_system"))
    bill = max((f for f in files if f"/{w['kind']}_" in f.path), key=lambda f: f.path)
    amount = float(bill.content.partition("$")[2].split()[0])
    me = w.user_id("splitwise")
    members = [w.user_id("splitwise", name) for name in FLATS[w["group"]]]
    expense = {
        "payer_id": me,
        "group_id": w.models.splitwise.Group.find_one(name=w["group"]).id,
        "amount": amount,
        "description": w["description"],
    }
    share = amount / len(members)
    return Outcome(
        changes={
            "splitwise.Expense": Change(added=[expense]),
            "splitwise.ExpenseShare": Change(
                added=[{"debtor_id": user_id, "share_amount": share} for user_id in members]
            ),
            "splitwise.Notification": Change(
                added=[{"user_id": user_id} for user_id in members if user_id != me]
            ),
        }
    )


def _collect(w: Asker) -> Outcome:
    lines = w.note("Trip costs").content.splitlines()
    return requested(w, {line.split()[0]: float(line.partition("$")[2]) for line in lines})


def _songs(w: Asker) -> Outcome:
    spotify = w.models.spotify
    (other,) = related(w.name, w["relation"])
    (text,) = [text for text in _texts(w, other) if text.startswith("Songs")]
    titles = text.partition(": ")[2].split("; ")
    playlist = spotify.Playlist.find_one(user_id=w.user_id("spotify"), title=w["playlist"])
    there = {row.song_id for row in spotify.PlaylistSong.find_all(playlist_id=playlist.id)}
    new = {spotify.Song.find_one(title=title).id for title in titles} - there
    songs = [{"playlist_id": playlist.id, "song_id": song_id} for song_id in sorted(new)]
    return Outcome(changes={"spotify.PlaylistSong": Change(added=songs)})


def _shopping(w: Asker) -> Outcome:
    kinds = [line.removeprefix("- ") for line in w.note("Shopping list").content.splitlines()]
    cart = []
    for kind in kinds:
        products = w.models.amazon.Product.find_all(product_type=kind)
        cheapest = min(products, key=lambda product: product.price)
        cart.append(
            {
                "user_id": w.user_id("amazon"),
                "product_id": cheapest.id,
                "quantity": w["quantity"],
                "gift_wrap_quantity": 0,
            }
        )
    return Outcome(changes={"amazon.CartEntry": Change(added=cart)})


def _training(w: Asker) -> Outcome:
    (line,) = [row for row in w.note("Training plan").content.splitlines() if w["day"] in row]
    needed = 60 * int(line.split()[1])
    enough = {title: time for title, time in playlist_seconds(w).items() if time >= needed}
    return Outcome(answer=min(enough, key=lambda title: enough[title]))


def _urgent(w: Asker) -> Outcome:
    todoist = w.models.todoist
    project = todoist.Project.find_one(user_id=w.user_id("todoist"), name=w["project"])
    tasks = todoist.Task.find_all(project_id=project.id, priority="high", is_completed=False)
    (other,) = related(w.name, w["relation"])
    me, them = w.user_id("phone"), w.user_id("phone", other)
    text = ", ".join(sorted(task.title for task in tasks))
    return Outcome(
        changes={
            "phone.GlobalTextMessage": Change(
                added=[{"sender_id": me, "receiver_id": them, "message": text}]
            ),
            "phone.UserTextMessage": Change(added=[{"user_id": me}, {"user_id": them}]),
        }
    )


def _friends(w: Asker) -> Outcome:
    me = w.user_id("venmo")
    wanted = {w.user_id("venmo", name) for name in related(w.name, w["relation"])}
    friendships = w.models.venmo.Friendship.find_all(user_id=me)
    missing = wanted - {row.friend_id for row in friendships}
    return Outcome(
        changes={
            "venmo.Friendship": Change(
                added=[{"user_id": me, "friend_id": user_id} for user_id in sorted(missing)],
                removed=[row.id for row in friendships if row.friend_id not in wanted],
            )
        }
    )


def _flat_total(w: Asker) -> Outcome:
    group = w.models.splitwise.Group.find_one(name=w["group"])
    total = sum(
        expense.amount
        for expense in w.models.splitwise.Expense.find_all(group_id=group.id)
        if expense.description.startswith(w["kind"])
    )
    others = related(w.name, "roommate")
    return mailed(w, others, w["kind"], f"Total: ${total:.2f}")


HARD = (
    Scenario(
        name="pay back what a text says",
        split="train",
        difficulty=3,
        instruction=(
            "My {relation} sent me a text message about what I have to pay for an outing. Send "
            'that amount to them on Venmo, from my balance there and with the note "{note}".'
        ),
        variants=(
            ("Ada", {"relation": "sibling", "note": "Thanks again"}),
            ("Bo", {"relation": "coworker", "note": "My part"}),
            ("Cleo", {"relation": "friend", "note": "For the outing"}),
        ),
        apps=("phone", "venmo"),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
texts = pages(
    apis.phone.search_text_messages,
    access_token=phone_token,
    phone_number=contact["phone_number"],
)
for text in texts:
    amount = re.search(r"Your part .* [$]([0-9.]+)", text["message"])
    if amount and text["sender"]["phone_number"] == contact["phone_number"]:
        apis.venmo.create_transaction(
            receiver_email=contact["email"],
            amount=float(amount.group(1)),
            description=note,
            access_token=venmo_token,
        )
apis.supervisor.complete_task()
""",
        outcome=_pay_back,
    ),
    Scenario(
        name="share the latest bill",
        split="train",
        difficulty=3,
        instruction=(
            "I have paid the latest {kind} bill in ~/documents/bills of my file system. Record it "
            "as an expense in our Splitwise group {group}, shared equally by all its members, me "
            'included, with the description "{description}".'
        ),
        variants=(
            (
                "Cleo",
                {"kind": "internet", "group": "Maple Flat", "description": "Internet, latest"},
            ),
            (
                "Dan",
                {"kind": "water", "group": "Harbour Flat", "description": "Water bill"},
            ),
            (
                "Ada",
                {"kind": "electricity", "group": "Maple Flat", "description": "Power"},
            ),
        ),
        apps=("file_system", "splitwise"),
        solution="""
paths = apis.file_system.show_directory(
    directory_path="~/documents/bills", substring=f"/{kind}_", access_token=file_system_token
)
bill = apis.file_system.show_file(file_path=max(paths), access_token=file_system_token)
groups = pages(apis.splitwise.show_groups, access_token=splitwise_token)
ours = next(row for row in groups if row["name"] == group)
apis.splitwise.record_expense(
    description=description,
    paid_amount=float(re.search(r"Total: [$]([0-9.]+)", bill["content"]).group(1)),
    payer_email=me["email"],
    debtor_emails=[member["email"] for member in ours["members"]],
    group_id=ours["group_id"],
    access_token=splitwise_token,
)
apis.supervisor.complete_task()
""",
        outcome=_share_bill,
    ),
    Scenario(
        name="collect what a note says",
        split="train",
        difficulty=3,
        instruction=(
            'My note "Trip costs" in Simple Note says what people owe me. Request these amounts '
            'from them on Venmo, with the note "{note}". They are all in my phone contacts.'
        ),
        variants=(
            ("Finn", {"note": "Trip"}),
            ("Eva", {"note": "Our trip in April"}),
            ("Bo", {"note": "Train and tent"}),
        ),
        apps=("simple_note", "phone", "venmo"),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(row["note_id"] for row in notes if row["title"] == "Trip costs")
costs = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)["content"]
contacts = pages(apis.phone.search_contacts, access_token=phone_token)
emails = {contact["first_name"]: contact["email"] for contact in contacts}
for name, amount in re.findall(r"(\\w+) owes me [$]([0-9.]+)", costs):
    apis.venmo.create_payment_request(
        user_email=emails[name], amount=float(amount), description=note, access_token=venmo_token
    )
apis.supervisor.complete_task()
""",
        outcome=_collect,
    ),
    Scenario(
        name="songs from a text",
        split="dev",
        difficulty=3,
        instruction=(
            "In a text message my {relation} named some songs that I should hear. Add them to my "
            "Spotify playlist {playlist}, leaving out any that it has already."
        ),
        variants=(
            ("Dan", {"relation": "sibling", "playlist": "Long Drive"}),
            ("Finn", {"relation": "coworker", "playlist": "Gym Hour"}),
            ("Ada", {"relation": "sibling", "playlist": "Rainy Sunday"}),
        ),
        apps=("phone", "spotify"),
        solution="""
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
texts = pages(
    apis.phone.search_text_messages,
    access_token=phone_token,
    phone_number=contact["phone_number"],
)
titles = [
    title
    for text in texts
    if text["sender"]["phone_number"] == contact["phone_number"]
    and text["message"].startswith("Songs you should hear: ")
    for title in text["message"].partition(": ")[2].split("; ")
]
playlists = pages(apis.spotify.show_playlist_library, access_token=spotify_token)
mine = next(row for row in playlists if row["title"] == playlist)
for title in titles:
    found = pages(apis.spotify.search_songs, query=title)
    song_id = next(song["song_id"] for song in found if song["title"] == title)
    if song_id not in mine["song_ids"]:
        apis.spotify.add_song_to_playlist(
            playlist_id=mine["playlist_id"], song_id=song_id, access_token=spotify_token
        )
apis.supervisor.complete_task()
""",
        outcome=_songs,
    ),
    Scenario(
        name="cheapest of each kind",
        split="train",
        difficulty=3,
        instruction=(
            'My Simple Note "Shopping list" names product types that Amazon has. Add {quantity} of '
            "the cheapest product of each of these types to my Amazon cart."
        ),
        variants=(
            ("Eva", {"quantity": 1}),
            ("Bo", {"quantity": 2}),
            ("Dan", {"quantity": 3}),
        ),
        apps=("simple_note", "amazon"),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(row["note_id"] for row in notes if row["title"] == "Shopping list")
note = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)
for line in note["content"].splitlines():
    products = pages(apis.amazon.search_products, product_type=line.removeprefix("- "))
    cheapest = min(products, key=lambda product: product["price"])
    apis.amazon.add_product_to_cart(
        product_id=cheapest["product_id"], quantity=quantity, access_token=amazon_token
    )
apis.supervisor.complete_task()
""",
        outcome=_shopping,
    ),
    Scenario(
        name="playlist for a training day",
        split="train",
        difficulty=3,
        instruction=(
            'My Simple Note "Training plan" says for how long I train on a {day}. Which is the '
            "shortest of my Spotify playlists that plays for at least that long? Answer with its "
            "title."
        ),
        variants=(
            ("Cleo", {"day": "monday"}),
            ("Finn", {"day": "wednesday"}),
            ("Ada", {"day": "friday"}),
        ),
        apps=("simple_note", "spotify"),
        solution="""
notes = pages(apis.simple_note.search_notes, access_token=simple_note_token)
note_id = next(row["note_id"] for row in notes if row["title"] == "Training plan")
note = apis.simple_note.show_note(note_id=note_id, access_token=simple_note_token)
minutes = int(re.search(rf"{day}: (\\d+) minutes", note["content"]).group(1))
enough = {}
for playlist in pages(apis.spotify.show_playlist_library, access_token=spotify_token):
    songs = [apis.spotify.show_song(song_id=song_id) for song_id in playlist["song_ids"]]
    seconds = sum(song["duration"] for song in songs)
    if seconds >= 60 * minutes:
        enough[playlist["title"]] = seconds
apis.supervisor.complete_task(answer=min(enough, key=enough.get))
""",
        outcome=_training,
    ),
    Scenario(
        name="text the urgent tasks",
        split="dev",
        difficulty=3,
        instruction=(
            "Text my {relation} the titles of all open high-priority tasks in my Todoist project "
            "{project}: only the titles, in alphabetical order, with a comma and a space between "
            "them."
        ),
        variants=(
            ("Bo", {"relation": "coworker", "project": "Work"}),
            ("Eva", {"relation": "sibling", "project": "Home"}),
            ("Dan", {"relation": "sibling", "project": "Garden"}),
        ),
        apps=("todoist", "phone"),
        solution="""
projects = pages(apis.todoist.show_projects, access_token=todoist_token)
project_id = next(row["project_id"] for row in projects if row["name"] == project)
tasks = apis.todoist.show_tasks(
    project_id=project_id, priority="high", is_completed=False, access_token=todoist_token
)
contact = apis.phone.search_contacts(relationship=relation, access_token=phone_token)[0]
apis.phone.send_text_message(
    phone_number=contact["phone_number"],
    message=", ".join(sorted(task["title"] for task in tasks["no_section_tasks"])),
    access_token=phone_token,
)
apis.supervisor.complete_task()
""",
        outcome=_urgent,
    ),
    Scenario(
        name="same friends on venmo",
        split="test_normal",
        difficulty=3,
        instruction=(
            "Make my friend list on Venmo agree with my phone contacts: everybody who is down "
            "there as my {relation} should be on it, and nobody else."
        ),
        variants=(
            ("Ada", {"relation": "friend"}),
            ("Eva", {"relation": "friend"}),
            ("Cleo", {"relation": "sibling"}),
        ),
        apps=("phone", "venmo"),
        solution="""
contacts = pages(apis.phone.search_contacts, access_token=phone_token, relationship=relation)
wanted = {contact["email"] for contact in contacts}
friends = pages(apis.venmo.search_friends, access_token=venmo_token)
present = {friend["email"] for friend in friends}
for email in sorted(wanted - present):
    apis.venmo.add_friend(user_email=email, access_token=venmo_token)
for email in sorted(present - wanted):
    apis.venmo.remove_friend(user_email=email, access_token=venmo_token)
apis.supervisor.complete_task()
""",
        outcome=_friends,
    ),
    Scenario(
        name="mail a total to the flat",
        split="test_normal",
        difficulty=3,
        instruction=(
            "Add up all expenses of our Splitwise group {group} whose description begins with "
            '{kind}. Send the result in one email to all my roommates: subject "{kind}", body '
            '"Total: $" followed by the amount with two decimals. Their addresses are in my phone '
            "contacts."
        ),
        variants=(
            ("Bo", {"group": "Maple Flat", "kind": "Internet"}),
            ("Finn", {"group": "Harbour Flat", "kind": "Heating"}),
            ("Dan", {"group": "Harbour Flat", "kind": "Repairs"}),
        ),
        apps=("splitwise", "phone", "gmail"),
        solution="""
groups = pages(apis.splitwise.show_groups, access_token=splitwise_token)
group_id = next(row["group_id"] for row in groups if row["name"] == group)
expenses = pages(
    apis.splitwise.show_group_expenses, access_token=splitwise_token, group_id=group_id
)
total = sum(row["paid_amount"] for row in expenses if row["description"].startswith(kind))
contacts = pages(apis.phone.search_contacts, access_token=phone_token, relationship="roommate")
apis.gmail.send_email(
    email_addresses=[contact["email"] for contact in contacts],
    subject=kind,
    body=f"Total: ${total:.2f}",
    access_token=gmail_token,
)
apis.supervisor.complete_task()
""",
        outcome=_flat_total,
    ),
)
