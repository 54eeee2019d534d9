"""Scenarios of the built-in world: templates for three tasks each, with expected outcomes."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from .people import account

_PASSWORDS = (
    'passwords = {row["account_name"]: row["password"] '
    "for row in apis.supervisor.show_account_passwords()}"
)
_COMPLETE = "apis.supervisor.complete_task("
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
    """The expected changes to one table.

    Attributes:
        added: the relevant fields of each new row.
        updated: the id and the new values of each changed row.
        removed: ids of the removed rows.
    """

    added: Rows = field(default_factory=list)
    updated: Rows = field(default_factory=list)
    removed: list[int] = field(default_factory=list)


Changes = dict[str, Change]
"""The expected change of each table that must differ; no other table may."""


@dataclass(frozen=True)
class Asker:
    """One person's view of the base world, from which a task is built.

    Attributes:
        models: the models of all apps, on the base databases.
        name: first name of the supervisor.
        values: values of the instruction's placeholders.
    """

    models: Any
    name: str
    values: dict[str, Any]

    def user_id(self, app: str, name: str = "") -> int:
        """Return a person's id in an app, or the supervisor's id if ``name`` is empty."""
        return int(account(self.models, app, name or self.name).id)

    def own(self, table: str, **fields: Any) -> list[Any]:
        """Return the supervisor's rows that match ``fields`` in a table such as ``phone.Alarm``."""
        app, _, model = table.partition(".")
        rows: list[Any] = self.models[app][model].find_all(user_id=self.user_id(app), **fields)
        return rows

    def note(self, title: str) -> Any:
        """Return the supervisor's note with this title."""
        (note,) = self.own("simple_note.Note", title=title)
        return note

    def texts_from(self, name: str) -> list[str]:
        """Return all text messages from a person to the supervisor, oldest first."""
        messages = self.models.phone.GlobalTextMessage.find_all(
            sender_id=self.user_id("phone", name), receiver_id=self.user_id("phone")
        )
        return [text.message for text in sorted(messages, key=lambda text: text.created_at)]

    def __getitem__(self, key: str) -> Any:
        """Return the value of the placeholder named ``key``."""
        return self.values[key]


@dataclass(frozen=True)
class Scenario:
    """A template for tasks with different supervisors and values.

    Attributes:
        name: unique name; the ids are derived from it.
        split: the data set that all its tasks belong to.
        difficulty: 1 (one query or one kind of change) to 3 (several apps, or several dependent
            steps).
        instruction: the instruction, with placeholders in braces.
        variants: for each task, the supervisor's first name and the placeholders' values, in order.
        solution: code that follows the logins, with the values as variables. Without an answer, it
            need not complete the task.
        answer: function that computes the answer from the databases, without the solution; None
            without a question.
        changes: function that computes the expected changes in the same way; None for no changes.
    """

    name: str
    split: str
    difficulty: int
    instruction: str
    variants: tuple[tuple[Any, ...], ...]
    solution: str
    answer: Callable[[Asker], Any] | None = None
    changes: Callable[[Asker], Changes] | None = None

    @property
    def task_ids(self) -> tuple[str, ...]:
        """One id per variant: seven hexadecimal digits and a number, as in the official ids."""
        name = sha256(f"mini world: {self.name}".encode()).hexdigest()[:7]
        return tuple(f"{name}_{place}" for place in range(1, len(self.variants) + 1))

    def variant(self, task_id: str) -> tuple[str, dict[str, Any]]:
        """Return the first name of a task's supervisor, and the task's placeholder values."""
        name, *values = self.variants[self.task_ids.index(task_id)]
        fields = dict.fromkeys(re.findall(r"{(\w+)}", self.instruction))
        return name, dict(zip(fields, values, strict=True))

    def code(self, values: dict[str, Any]) -> str:
        """Return the reference solution (logins, then the scenario's code) for the given values."""
        setup = [_PASSWORDS, _PROFILE]
        for app in dict.fromkeys(re.findall(r"=(\w+)_token\b", self.solution)):
            key = "phone_number" if app == "phone" else "email"
            setup.append(
                f'{app}_token = apis.{app}.login(username=me["{key}"], '
                f'password=passwords["{app}"])["access_token"]'
            )
        if "pages(" in self.solution:
            setup.append(_PAGES)
        assignments = [f"{name} = {value!r}" for name, value in values.items()]
        end = [] if _COMPLETE in self.solution else [f"{_COMPLETE})"]
        return "\n".join([*setup, "", *assignments, self.solution.strip(), *end]) + "\n"
