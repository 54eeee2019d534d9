"""Rows of a user's data: their fields and prompts."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from coevo_gym.core.task import canonical_json, fold_strings, freeze
from coevo_gym.envs.tags import TAG

_LABELS = {"id", "split", "tags", "answer", "reference"}
"""Fields of a row that do not describe its task."""


class ChatMessage(BaseModel):
    """A message in a prompt. Only the user's functions read its other fields."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: str


class PromptRow(BaseModel):
    """The fields of a row that this package reads. A row may have other fields.

    Attributes:
        id: the row's name; "" to use its index.
        prompt: the prompt, if there are no ``messages``.
        messages: the prompt as a chat, which ends with a user message.
        split: the row's split; None to derive it from the prompt.
        tags: topics, each as ``kind:value``.
        choices: the answers to choose from, if the answer is not free text.
        answer: a correct answer, for demonstrations and for the user's functions.
    """

    model_config = ConfigDict(extra="allow")

    id: str | int = ""
    prompt: str = ""
    messages: tuple[ChatMessage, ...] = ()
    split: Literal["train", "val", "test"] | None = None
    tags: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    answer: str | bool | int | float | None = None

    @property
    def system(self) -> str:
        """The system message, or ""."""
        return "\n\n".join(one.content for one in self.messages if one.role == "system")

    @property
    def content(self) -> str:
        """The fields that describe the task, as JSON, for rows without a prompt."""
        return canonical_json(self.model_dump(mode="json", exclude=_LABELS, exclude_unset=True))

    @property
    def scenario(self) -> str:
        """The hash of the prompt."""
        return scenario_of(self.request or self.content, self.system)

    @property
    def request(self) -> str:
        """The prompt: the user's message, or a transcript of the conversation up to it."""
        spoken = [one for one in self.messages if one.role != "system"]
        if not spoken:
            return self.prompt
        if len(spoken) == 1:
            return spoken[0].content
        return "\n\n".join(f"{one.role.capitalize()}: {one.content}" for one in spoken)


def parse_row(value: object, *, prompted: bool, name: str = "The row") -> PromptRow:
    """Parse and check a row.

    Args:
        value: the row.
        prompted: True if it needs a prompt.
        name: the row's name in messages.

    Raises:
        ValueError: if the row is invalid.
    """
    try:
        row = PromptRow.model_validate(freeze(value))
    except ValueError as error:
        problem = _describe_error(error) if isinstance(error, ValidationError) else str(error)
        raise ValueError(f"{name} is invalid: {problem}. Got {str(value)[:200]}.") from error
    if prompted and not row.request.strip():
        raise ValueError(f"{name} has neither a prompt nor messages: {str(value)[:200]}.")
    if row.messages and row.messages[-1].role != "user":
        raise ValueError(f"{name}: the last message must be from the user.")
    if wrong := next((tag for tag in row.tags if not TAG.fullmatch(tag)), None):
        raise ValueError(f"{name}: a tag must have the form 'kind:value', got {wrong!r}.")
    return row


def _describe_error(error: ValidationError) -> str:
    """Describe the first error in a row, and name its field."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else str(first["msg"])


def row_to_json(row: PromptRow) -> dict[str, Any]:
    """Convert a row to JSON, leaving out fields that are not set."""
    return row.model_dump(mode="json", exclude_unset=True)


def scenario_of(request: str, system: str) -> str:
    """Return a hash of a prompt that ignores case, whitespace and invisible characters."""
    return hashlib.sha256(canonical_json(fold_strings([system, request])).encode()).hexdigest()
