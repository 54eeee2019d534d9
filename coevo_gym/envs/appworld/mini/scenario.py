"""What a scenario of the mini world is: one template, three people who ask, and what is right."""

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from .people import account

_PASSWORDS = (
    'passwords = {row["account_name"]: row["password"] '
    "for row in apis.supervisor.show_account_passwords()}"
)
_PROFILE = "me = apis.supervisor.show_profile()"
_PAGES = """\
def pages(api, **arguments):
    rows, page_index = [], 0
    while page := api(page_index=page_index, page_limit=20, **arguments):
        rows += page
        page_index += 1
    return rows"""

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Change:
    """How one table must differ in the end.

    Attributes:
        added: of each new row, the fields that matter.
        updated: of each row with new values, its id and all those values.
        removed: ids of the rows that are gone.
    """

    added: Rows = field(default_factory=list)
    updated: Rows = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """What is right at the end of a task.

    Attributes:
        answer: to a question; None where nothing was asked.
        changes: of each table that must differ, how; no other table may.
    """

    answer: Any = None
    changes: dict[str, Change] = field(default_factory=dict)


@dataclass(frozen=True)
class Asker:
    """The base world as one person's task sees it.

    Attributes:
        models: the models of all apps, on the base databases.
        name: first name of the supervisor.
        values: what stands in the places of the instruction.
    """

    models: Any
    name: str
    values: dict[str, Any]

    def user_id(self, app: str, name: str = "") -> int:
        """Id in an app of somebody; of the supervisor if no name is given."""
        return int(account(self.models, app, name or self.name).id)

    def note(self, title: str) -> Any:
        """The supervisor's note of this title."""
        user_id = self.user_id("simple_note")
        return self.models.simple_note.Note.find_one(user_id=user_id, title=title)

    def texts_from(self, name: str) -> list[str]:
        """All text messages that somebody sent to the supervisor, oldest first."""
        sent = self.models.phone.GlobalTextMessage.find_all(
            sender_id=self.user_id("phone", name), receiver_id=self.user_id("phone")
        )
        return [text.message for text in sorted(sent, key=lambda text: text.created_at)]

    def __getitem__(self, key: str) -> Any:
        """One of the values."""
        return self.values[key]


@dataclass(frozen=True)
class Scenario:
    """A template of tasks that differ in who asks and in the values.

    Attributes:
        name: a name that no other scenario has; the ids come from it.
        split: the data set that all its tasks are in.
        difficulty: 1 (one look or one kind of change) to 3 (several apps, or several steps that
            depend on one another).
        instruction: with the values' names in braces.
        variants: for each task the supervisor's first name and the values.
        apps: those to log in to.
        solution: code that follows the logins, in which the values are variables.
        outcome: what is right, worked out from the databases and not by the solution.
    """

    name: str
    split: str
    difficulty: int
    instruction: str
    variants: tuple[tuple[str, dict[str, Any]], ...]
    apps: tuple[str, ...]
    solution: str
    outcome: Callable[[Asker], Outcome]

    @property
    def task_ids(self) -> tuple[str, ...]:
        """One id a variant: seven hexadecimal digits and the place, as in the official ids."""
        name = sha256(f"mini world: {self.name}".encode()).hexdigest()[:7]
        return tuple(f"{name}_{place}" for place in range(1, len(self.variants) + 1))

    def code(self, values: dict[str, Any]) -> str:
        """The reference solution for these values: logins, a blank line, and the work."""
        setup = [_PASSWORDS, _PROFILE]
        for app in self.apps:
            key = "phone_number" if app == "phone" else "email"
            setup.append(
                f'{app}_token = apis.{app}.login(username=me["{key}"], '
                f'password=passwords["{app}"])["access_token"]'
            )
        if "pages(" in self.solution:
            setup.append(_PAGES)
        given = [f"{name} = {value!r}" for name, value in values.items()]
        return "\n".join([*setup, "", *given, self.solution.strip()]) + "\n"
