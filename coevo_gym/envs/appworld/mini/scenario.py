"""Scenarios of the mini world: one template, three askers, and the expected outcomes."""

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
    """The expected difference of one table.

    Attributes:
        added: the relevant fields of each new row.
        updated: the id and the new values of each changed row.
        removed: ids of the removed rows.
    """

    added: Rows = field(default_factory=list)
    updated: Rows = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """The expected outcome of a task.

    Attributes:
        answer: the answer to a question; None without a question.
        changes: the expected change of each table that must differ; no other table may.
    """

    answer: Any = None
    changes: dict[str, Change] = field(default_factory=dict)


@dataclass(frozen=True)
class Asker:
    """The base world from the point of view of one person's task.

    Attributes:
        models: the models of all apps, on the base databases.
        name: first name of the supervisor.
        values: values of the instruction's placeholders.
    """

    models: Any
    name: str
    values: dict[str, Any]

    def user_id(self, app: str, name: str = "") -> int:
        """Return a person's id in an app; the supervisor's id if no name is specified."""
        return int(account(self.models, app, name or self.name).id)

    def note(self, title: str) -> Any:
        """Return the supervisor's note with this title."""
        user_id = self.user_id("simple_note")
        return self.models.simple_note.Note.find_one(user_id=user_id, title=title)

    def texts_from(self, name: str) -> list[str]:
        """Return all text messages from a person to the supervisor, oldest first."""
        sent = self.models.phone.GlobalTextMessage.find_all(
            sender_id=self.user_id("phone", name), receiver_id=self.user_id("phone")
        )
        return [text.message for text in sorted(sent, key=lambda text: text.created_at)]

    def __getitem__(self, key: str) -> Any:
        """Return one of the values."""
        return self.values[key]


@dataclass(frozen=True)
class Scenario:
    """A template of tasks with different askers and values.

    Attributes:
        name: unique name; the ids are derived from it.
        split: the data set that all its tasks belong to.
        difficulty: 1 (one query or one kind of change) to 3 (several apps, or several dependent
            steps).
        instruction: the instruction, with the values' names in braces.
        variants: for each task, the supervisor's first name and the values.
        apps: apps to log in to.
        solution: code that follows the logins, with the values as variables.
        outcome: function that computes the expected outcome from the databases, without the
            solution.
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
        """One id per variant: seven hexadecimal digits and the number, as in the official ids."""
        name = sha256(f"mini world: {self.name}".encode()).hexdigest()[:7]
        return tuple(f"{name}_{place}" for place in range(1, len(self.variants) + 1))

    def code(self, values: dict[str, Any]) -> str:
        """Return the reference solution for these values: logins, a blank line, and the work."""
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
