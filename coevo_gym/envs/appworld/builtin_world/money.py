"""The built-in world's money apps: Venmo, Splitwise and Amazon."""

from itertools import permutations
from random import Random
from typing import Any

from .people import FLATS, NOW, PEOPLE, account, relations

REASONS = ("Lunch", "Cinema", "Groceries", "Taxi", "Petrol", "Birthday gift", "Museum")
SHARED = ("Internet", "Water", "Cleaning", "Groceries", "Repairs", "Heating", "Furniture")
PRODUCTS = {
    "headphones": ("Clearwave", "Northtone", "Budline", "Echo Nest"),
    "mug": ("Stoneware", "Trailmate", "Porcelain Duo", "Enamel"),
    "notebook": ("Dotted Field", "Linen", "Pocket", "Ruled Quarto"),
    "lamp": ("Arc", "Tripod", "Reading", "Moonlight"),
    "backpack": ("Ridge", "Commuter", "Canvas Roll", "Daytrip"),
    "kettle": ("Copper", "Swift", "Gooseneck", "Camp"),
    "umbrella": ("Stormproof", "Compact", "Clear Dome", "Walking"),
}


def add_money(models: Any) -> None:
    """Create data for Venmo, Splitwise and Amazon."""
    rng = Random("mini world: money")  # noqa: S311 - content, nothing secret
    _add_venmo(models, rng)
    _add_splitwise(models, rng)
    _add_amazon(models, rng)


def _cents(rng: Random, low: int, high: int) -> float:
    return rng.randrange(low * 100, high * 100) / 100


def _add_venmo(models: Any, rng: Random) -> None:
    venmo = models.venmo
    users = {person.first: account(models, "venmo", person.first) for person in PEOPLE}
    for number, user in enumerate(users.values()):
        user.venmo_balance = 600.0 + 35 * number
        user.save()
    pairs = list(permutations(users, 2))
    for number, (one, other) in enumerate(pairs):
        # Venmo friends overlap with the friends in the contact book without being the same.
        if {"roommate", "coworker"} & set(relations(one, other)):
            venmo.Friendship.create_save(
                user_id=users[one].id,
                friend_id=users[other].id,
                created_at=NOW.subtract(days=300 - number),
            )
    for number, (one, other) in enumerate(pairs * 3):
        when = NOW.subtract(days=180 - number * 2, hours=number % 7)
        venmo.Transaction.create_save(
            sender_id=users[one].id,
            receiver_id=users[other].id,
            amount=_cents(rng, 5, 60),
            description=rng.choice(REASONS),
            created_at=when,
            updated_at=when,
        )
    for number, (one, other) in enumerate(pairs):
        when = NOW.subtract(days=40 - number, hours=3)
        for step in range(2):
            # One of the two requests is still open; the order differs by pair.
            closed = (number + step) % 2 == 0
            venmo.PaymentRequest.create_save(
                sender_id=users[one].id,
                receiver_id=users[other].id,
                amount=_cents(rng, 5, 40),
                description=rng.choice(REASONS),
                created_at=when.add(minutes=step),
                updated_at=when.add(minutes=step),
                denied_at=when.add(hours=1) if closed else None,
            )


def _add_splitwise(models: Any, rng: Random) -> None:
    splitwise = models.splitwise
    users = {person.first: account(models, "splitwise", person.first) for person in PEOPLE}
    groups = {**FLATS, "Ski Trip": tuple(users)}
    for number, (name, members) in enumerate(groups.items()):
        group = splitwise.Group.create_save(
            user_id=users[members[0]].id,
            name=name,
            created_at=NOW.subtract(days=200 - number),
            invitation_code=f"mini-{number:04d}",
        )
        for member in members:
            splitwise.GroupMember.create_save(
                group_id=group.id, user_id=users[member].id, joined_at=NOW.subtract(days=199)
            )
        debtors = [users[member].id for member in members]
        for place in range(14):
            when = NOW.subtract(days=120 - 8 * place, hours=number)
            share = rng.randrange(400, 3000) / 100
            expense = splitwise.Expense.create_save(
                user_id=users[members[0]].id,
                group_id=group.id,
                payer_id=users[rng.choice(members)].id,
                debtor_ids=debtors,
                description=f"{SHARED[place % len(SHARED)]} {when.format('MMMM')}",
                amount=round(share * len(members), 2),
                created_at=when,
            )
            for debtor in debtors:
                splitwise.ExpenseShare.create_save(
                    expense_id=expense.id, debtor_id=debtor, share_amount=share, created_at=when
                )


def _add_amazon(models: Any, rng: Random) -> None:
    amazon = models.amazon
    sellers = [
        amazon.Seller.create_save(name=name, rating=rating).id
        for name, rating in (("Oak & Co", 4.2), ("Parcel Bay", 3.7), ("Quick Crate", 4.6))
    ]
    ids: dict[str, list[int]] = {}
    for kind, names in PRODUCTS.items():
        prices = rng.sample(range(900, 9900), len(names))
        for number, name in enumerate(names):
            product = amazon.Product.create_save(
                product_type=kind,
                name=f"{name} {kind}",
                description=f"A {kind} by {name}.",
                seller_id=sellers[number % len(sellers)],
                price=prices[number] / 100,
                delivery_days=2 + number,
                inventory_quantity=20 + number,
                weight=0.5,
                length=10.0,
                width=6.0,
                height=4.0,
                rating=rng.randrange(20, 50) / 10,
            )
            ids.setdefault(kind, []).append(product.id)
    everything = [product_id for kind in ids.values() for product_id in kind]
    for person in PEOPLE:
        user_id = account(models, "amazon", person.first).id
        for product_id in rng.sample(everything, 6):
            amazon.WishListEntry.create_save(
                user_id=user_id, product_id=product_id, quantity=rng.randrange(1, 4)
            )
        amazon.CartEntry.create_save(user_id=user_id, product_id=rng.choice(ids["umbrella"]))
