"""Scenarios about Venmo."""

from typing import Any

from .people import NOW, related
from .scenario import Asker, Change, Changes, Scenario


def _received(w: Asker) -> float:
    transactions = w.models.venmo.Transaction.find_all(
        sender_id=w.user_id("venmo", w["friend"].split()[0]), receiver_id=w.user_id("venmo")
    )
    total: float = sum(row.amount for row in transactions)
    return round(total, 2)


def _paid(w: Asker, amounts: list[tuple[int, float]], **fields: Any) -> Changes:
    """Return the database changes caused by the supervisor's payments to other users."""
    me = w.user_id("venmo")
    balances = {user.id: user.venmo_balance for user in w.models.venmo.User.all()}
    for user_id, amount in amounts:
        balances[me] -= amount
        balances[user_id] += amount
    users = sorted({me, *(user_id for user_id, _ in amounts)})
    transactions = [
        {"sender_id": me, "receiver_id": user_id, "amount": amount, **fields}
        for user_id, amount in amounts
    ]
    new = [{"id": user_id, "venmo_balance": balances[user_id]} for user_id in users]
    return {
        "venmo.Transaction": Change(added=transactions),
        "venmo.User": Change(updated=new),
        "venmo.Notification": Change(added=[{"user_id": user_id} for user_id, _ in amounts]),
    }


def _approvals(w: Asker) -> Changes:
    theirs = {w.user_id("venmo", name) for name in related(w.name, w["relation"])}
    received = w.models.venmo.PaymentRequest.find_all(receiver_id=w.user_id("venmo"))
    requests = [row for row in received if row.sender_id in theirs and row.pending]
    approved = [{"id": row.id, "approved_at": NOW.isoformat()} for row in requests]
    return {
        "venmo.PaymentRequest": Change(updated=approved),
        **_paid(w, [(row.sender_id, row.amount) for row in requests]),
    }


def _requested(w: Asker, amounts: dict[str, float]) -> Changes:
    """Return the database changes caused by Venmo requests to the named people."""
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
    notifications = [{"user_id": user_id} for user_id in ids.values()]
    return {
        "venmo.PaymentRequest": Change(added=asked),
        "venmo.Notification": Change(added=notifications),
    }


def _requests(w: Asker) -> Changes:
    return _requested(w, {name: w["amount"] for name in related(w.name, w["relation"])})


def _pay_back(w: Asker) -> Changes:
    (other,) = related(w.name, w["relation"])
    (text,) = [text for text in w.texts_from(other) if "$" in text]
    amount = float(text.partition("$")[2].partition(",")[0])
    to = w.user_id("venmo", other)
    return _paid(w, [(to, amount)], description=w["note"], payment_card_digits=None)


def _collect(w: Asker) -> Changes:
    lines = w.note("Trip costs").content.splitlines()
    return _requested(w, {line.split()[0]: float(line.partition("$")[2]) for line in lines})


def _friends(w: Asker) -> Changes:
    wanted = {w.user_id("venmo", name) for name in related(w.name, w["relation"])}
    friendships = w.own("venmo.Friendship")
    missing = sorted(wanted - {row.friend_id for row in friendships})
    added = [{"user_id": w.user_id("venmo"), "friend_id": user_id} for user_id in missing]
    removed = [row.id for row in friendships if row.friend_id not in wanted]
    return {"venmo.Friendship": Change(added=added, removed=removed)}


VENMO = (
    Scenario(
        name="money from a friend",
        split="train",
        difficulty=1,
        instruction="How many dollars has {friend} sent me on Venmo, over all transactions?",
        variants=(("Ada", "Dan Marsh"), ("Bo", "Finn Nord"), ("Eva", "Cleo Marsh")),
        solution="""
rows = pages(apis.venmo.show_transactions, access_token=venmo_token, direction="received")
total = sum(row["amount"] for row in rows if row["sender"]["name"] == friend)
apis.supervisor.complete_task(answer=round(total, 2))
""",
        answer=_received,
    ),
    Scenario(
        name="approve requests",
        split="train",
        difficulty=2,
        instruction=(
            "Approve all Venmo requests that are still pending from people who are down as my "
            "{relation} in my phone contacts. Pay from my Venmo balance."
        ),
        variants=(("Ada", "roommate"), ("Dan", "friend"), ("Finn", "roommate")),
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
""",
        changes=_approvals,
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
            ("Bo", 12.5, "roommate", "New kettle"),
            ("Eva", 18, "friend", "Theatre"),
            ("Cleo", 7.25, "roommate", "Light bulbs"),
        ),
        solution="""
for contact in pages(apis.phone.search_contacts, access_token=phone_token, relationship=relation):
    apis.venmo.create_payment_request(
        user_email=contact["email"], amount=amount, description=note, access_token=venmo_token
    )
""",
        changes=_requests,
    ),
    Scenario(
        name="pay back what a text says",
        split="train",
        difficulty=3,
        instruction=(
            "My {relation} sent me a text message about what I have to pay for an outing. Send "
            'that amount to them on Venmo, from my balance there and with the note "{note}".'
        ),
        variants=(
            ("Ada", "sibling", "Thanks again"),
            ("Bo", "coworker", "My part"),
            ("Cleo", "friend", "For the outing"),
        ),
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
""",
        changes=_pay_back,
    ),
    Scenario(
        name="collect what a note says",
        split="train",
        difficulty=3,
        instruction=(
            'My note "Trip costs" in Simple Note says what people owe me. Request these amounts '
            'from them on Venmo, with the note "{note}". They are all in my phone contacts.'
        ),
        variants=(("Finn", "Trip"), ("Eva", "Our trip in April"), ("Bo", "Train and tent")),
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
""",
        changes=_collect,
    ),
    Scenario(
        name="same friends on venmo",
        split="test_normal",
        difficulty=3,
        instruction=(
            "Make my friend list on Venmo agree with my phone contacts: everybody who is down "
            "there as my {relation} should be on it, and nobody else."
        ),
        variants=(("Ada", "friend"), ("Eva", "friend"), ("Cleo", "sibling")),
        solution="""
contacts = pages(apis.phone.search_contacts, access_token=phone_token, relationship=relation)
wanted = {contact["email"] for contact in contacts}
friends = pages(apis.venmo.search_friends, access_token=venmo_token)
present = {friend["email"] for friend in friends}
for email in sorted(wanted - present):
    apis.venmo.add_friend(user_email=email, access_token=venmo_token)
for email in sorted(present - wanted):
    apis.venmo.remove_friend(user_email=email, access_token=venmo_token)
""",
        changes=_friends,
    ),
)
