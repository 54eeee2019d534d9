"""The people of the built-in world: their names, relations and accounts."""

import hashlib
from itertools import permutations
from typing import Any, NamedTuple

from appworld.apps.api_lib import CompanyNotifier
from appworld.common.datetime import DateTime

NOW = DateTime(2023, 5, 18, 12, 0, 0)
JOINED = DateTime(2022, 1, 10, 9, 0, 0)
APPS = (
    "amazon",
    "file_system",
    "gmail",
    "simple_note",
    "splitwise",
    "spotify",
    "todoist",
    "venmo",
    "phone",
)


class Person(NamedTuple):
    """A person in the built-in world who can be the supervisor (the user) of a task."""

    first: str
    last: str
    sex: str
    birthday: str
    phone: str

    @property
    def email(self) -> str:
        """The email address that this person uses for all accounts."""
        return f"{self.first}.{self.last}@gmail.com".lower()

    def login(self, app: str) -> dict[str, str]:
        """Return the field that identifies this person in an app."""
        return {"phone_number": self.phone} if app == "phone" else {"email": self.email}


PEOPLE = (
    Person("Ada", "Nord", "female", "1991-02-03", "5550100001"),
    Person("Bo", "Lind", "male", "1989-07-21", "5550100002"),
    Person("Cleo", "Marsh", "female", "1993-11-12", "5550100003"),
    Person("Dan", "Marsh", "male", "1990-04-30", "5550100004"),
    Person("Eva", "Lind", "female", "1994-09-08", "5550100005"),
    Person("Finn", "Nord", "male", "1992-12-17", "5550100006"),
)
BY_NAME = {person.first: person for person in PEOPLE}
FLATS = {"Maple Flat": ("Ada", "Bo", "Cleo"), "Harbour Flat": ("Dan", "Eva", "Finn")}
RELATIONS = {
    ("Ada", "Bo"): ("roommate", "friend"),
    ("Ada", "Cleo"): ("roommate",),
    ("Bo", "Cleo"): ("roommate",),
    ("Dan", "Eva"): ("roommate", "friend"),
    ("Dan", "Finn"): ("roommate",),
    ("Eva", "Finn"): ("roommate",),
    ("Ada", "Finn"): ("sibling",),
    ("Bo", "Eva"): ("sibling",),
    ("Cleo", "Dan"): ("sibling",),
    ("Ada", "Dan"): ("friend",),
    ("Bo", "Finn"): ("friend",),
    ("Cleo", "Eva"): ("friend",),
    ("Ada", "Eva"): ("coworker",),
    ("Bo", "Dan"): ("coworker",),
    ("Cleo", "Finn"): ("coworker",),
}


def relations(one: str, other: str) -> tuple[str, ...]:
    """Return the relations between two people, which are all symmetric."""
    return RELATIONS[min(one, other), max(one, other)]


def related(name: str, relation: str) -> list[str]:
    """Return the first names of all people with this relation to `name`."""
    return [p.first for p in PEOPLE if p.first != name and relation in relations(name, p.first)]


def account(models: Any, app: str, name: str) -> Any:
    """Return a person's user record in an app."""
    return models[app].User.find_one(**BY_NAME[name].login(app))


def password(person: Person, app: str) -> str:
    """Return a person's password for an app. It reveals nothing about other passwords."""
    return f"{_hash_of(person, app):016x}"[:10]


def _hash_of(person: Person, what: str) -> int:
    """Hash ``what`` and a person's email address to 64 bits, the same on all machines."""
    return int(hashlib.sha256(f"{person.email} {what}".encode()).hexdigest()[:16], 16)


def add_people(models: Any) -> None:
    """Create all people, each with app accounts, a payment card and contacts."""
    for company in APPS:
        CompanyNotifier(company.replace("_", " ")).create_accounts(skip_if_exists=True)
    for number, person in enumerate(PEOPLE, 1):
        main_user = models.admin.MainUser.create_save(
            first_name=person.first,
            last_name=person.last,
            email=person.email,
            phone_number=person.phone,
            birthday=person.birthday,
            sex=person.sex,
        )
        for app in APPS:
            _add_account(models, app, person, password(person, app))
            models.admin.AccountPassword.create_save(
                main_user_id=main_user.id, account_name=app, password=password(person, app)
            )
        card = {
            "owner_name": f"{person.first} {person.last}",
            "card_name": "Visa",
            "card_number": 4_000_000_000_000_000 + _hash_of(person, "card number") % 10**15,
            "expiry_year": 2027,
            "expiry_month": number,
            "cvv_number": 100 + _hash_of(person, "cvv number") % 900,
        }
        models.admin.PaymentCard.create_save(main_user_id=main_user.id, balance=500.0, **card)
        for app in ("amazon", "spotify", "venmo"):
            user_id = account(models, app, person.first).id
            models[app].PaymentCard.create_save(user_id=user_id, **card)
    _add_contacts(models)


def _add_account(models: Any, app: str, person: Person, password: str) -> None:
    table = models[app].User
    user = table.create_save(
        first_name=person.first,
        last_name=person.last,
        password=password,
        created_at=JOINED,
        last_logged_in=JOINED,
        **person.login(app),
        **({"verified": True} if "verified" in table.__fields__ else {}),
    )
    if app == "spotify":
        models.spotify.MusicPlayer.create_save(user_id=user.id)
    elif app == "todoist":
        inbox = models.todoist.Project.create_save(
            user_id=user.id, name="Inbox", is_inbox=True, created_at=JOINED
        )
        models.todoist.ProjectCollaboratorLink.create_save(
            project_id=inbox.id, user_id=user.id, created_at=JOINED
        )
    elif app == "file_system":
        for path in ("/", "/home/", user.home_directory_path):
            models.file_system.Directory.create_save(
                path=path, user_id=user.id, created_at=JOINED, updated_at=JOINED
            )


def _add_contacts(models: Any) -> None:
    for number, (owner, other) in enumerate(permutations(PEOPLE, 2)):
        models.phone.Contact.create_save(
            user_id=account(models, "phone", owner.first).id,
            first_name=other.first,
            last_name=other.last,
            email=other.email,
            phone_number=other.phone,
            relationships=list(relations(owner.first, other.first)),
            birthday=other.birthday,
            created_at=JOINED.add(hours=number),
        )
