"""Scenarios about costs: bills, shopping and shared expenses."""

from collections import defaultdict

from .people import FLATS
from .scenario import Asker, Change, Changes, Scenario


def _wishes(w: Asker) -> float:
    single = "one of each" in w["how"]
    rows = w.own("amazon.WishListEntry")
    total: float = sum(row.product.price * (1 if single else row.quantity) for row in rows)
    return round(total, 2)


def _top_payer(w: Asker) -> str:
    splitwise = w.models.splitwise
    group = splitwise.Group.find_one(name=w["group"])
    paid: dict[int, float] = defaultdict(float)
    for expense in splitwise.Expense.find_all(group_id=group.id):
        paid[expense.payer_id] += expense.amount
    payer = splitwise.User.by_id(max(paid, key=lambda user_id: paid[user_id]))
    return f"{payer.first_name} {payer.last_name}"


def _bill_amounts(w: Asker, name: str) -> dict[str, float]:
    """Map the path of each bill whose path contains ``/name`` to the bill's amount."""
    return {
        file.path: float(file.content.partition("$")[2].split()[0])
        for file in w.own("file_system.File")
        if f"/{name}" in file.path
    }


def _bills(w: Asker) -> float:
    return round(sum(_bill_amounts(w, f"{w['kind']}_{w['year']}").values()), 2)


def _share_bill(w: Asker) -> Changes:
    _, amount = max(_bill_amounts(w, f"{w['kind']}_").items())
    me = w.user_id("splitwise")
    members = [w.user_id("splitwise", name) for name in FLATS[w["group"]]]
    expense = {
        "payer_id": me,
        "group_id": w.models.splitwise.Group.find_one(name=w["group"]).id,
        "amount": amount,
        "description": w["description"],
    }
    share = amount / len(members)
    shares = [{"debtor_id": user_id, "share_amount": share} for user_id in members]
    notifications = [{"user_id": user_id} for user_id in members if user_id != me]
    return {
        "splitwise.Expense": Change(added=[expense]),
        "splitwise.ExpenseShare": Change(added=shares),
        "splitwise.Notification": Change(added=notifications),
    }


def _shopping(w: Asker) -> Changes:
    user_id, cart = w.user_id("amazon"), []
    for line in w.note("Shopping list").content.splitlines():
        products = w.models.amazon.Product.find_all(product_type=line.removeprefix("- "))
        cheapest = min(products, key=lambda product: product.price).id
        entry = {"user_id": user_id, "product_id": cheapest, "quantity": w["quantity"]}
        cart.append({**entry, "gift_wrap_quantity": 0})
    return {"amazon.CartEntry": Change(added=cart)}


COSTS = (
    Scenario(
        name="cost of the wish list",
        split="test_normal",
        difficulty=1,
        instruction=(
            "What would everything on my Amazon wish list cost in dollars, {how}? Leave out tax "
            "and fees."
        ),
        variants=(
            ("Cleo", "in the quantities noted there"),
            ("Eva", "if I took one of each"),
            ("Finn", "in the quantities noted there"),
        ),
        solution="""
rows = apis.amazon.show_wish_list(access_token=amazon_token)
single = how == "if I took one of each"
total = sum(row["price"] * (1 if single else row["quantity"]) for row in rows)
apis.supervisor.complete_task(answer=round(total, 2))
""",
        answer=_wishes,
    ),
    Scenario(
        name="who paid most",
        split="train",
        difficulty=2,
        instruction=(
            "Who has paid the most for expenses of our Splitwise group {group}, all of them taken "
            "together? Answer with the full name."
        ),
        variants=(("Bo", "Maple Flat"), ("Eva", "Harbour Flat"), ("Ada", "Ski Trip")),
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
        answer=_top_payer,
    ),
    Scenario(
        name="bills of a year",
        split="dev",
        difficulty=2,
        instruction=(
            "The folder ~/documents/bills of my file system has a text file for each bill, named "
            "after its kind and month. How many dollars do the {kind} bills of {year} add up to?"
        ),
        variants=(("Ada", "electricity", 2022), ("Bo", "internet", 2023), ("Eva", "water", 2022)),
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
        answer=_bills,
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
            ("Cleo", "internet", "Maple Flat", "Internet, latest"),
            ("Dan", "water", "Harbour Flat", "Water bill"),
            ("Ada", "electricity", "Maple Flat", "Power"),
        ),
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
""",
        changes=_share_bill,
    ),
    Scenario(
        name="cheapest of each kind",
        split="train",
        difficulty=3,
        instruction=(
            'My Simple Note "Shopping list" names product types that Amazon has. Add {quantity} of '
            "the cheapest product of each of these types to my Amazon cart."
        ),
        variants=(("Eva", 1), ("Bo", 2), ("Dan", 3)),
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
""",
        changes=_shopping,
    ),
)
