"""Base classes for responses, and summaries of tasks and signals."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from coevo_gym.core.task import JsonObject, Task
from coevo_gym.runs.folders.listing import OnDisk

BRIEF = 300


class Shape(BaseModel):
    """Immutable pydantic base class for responses. Non-finite numbers become ``null``."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")


class Rated(Shape):
    """A base class for rows with a success rate.

    Attributes:
        success: success rate in [0, 1].
        low: lower bound of its 95% confidence interval.
        high: upper bound of that interval.
    """

    success: float | None = None
    low: float | None = None
    high: float | None = None


class FolderRow(Rated):
    """A base class for rows that describe the folder of a run or an evaluation.

    Attributes:
        id: id of the run or evaluation, used in paths.
        name: its name.
        path: path of its folder, for display.
        benchmark: name of the benchmark; "" if the folder cannot be read.
        model: short name of the policy's model; "" for a baseline.
        problem: why the folder cannot be read and what to do, or "".
        on_disk: the state of the folder, for listings in a terminal.
    """

    id: str
    name: str
    path: str
    benchmark: str = ""
    model: str = ""
    problem: str = ""
    on_disk: OnDisk | None = Field(default=None, exclude=True)


class ListRow(Shape):
    """Base class for the rows of filterable lists.

    Attributes:
        words: text that word searches cover; not part of responses.
    """

    words: str = Field(default="", exclude=True)

    def to_export_json(self) -> dict[str, Any]:
        """Return the row as JSON for exported pages, including the fields that only filters use."""
        filtered = {
            f"_{name}": getattr(self, name)
            for name, field in type(self).model_fields.items()
            if field.exclude
        }
        return {**self.model_dump(mode="json"), **filtered}


class Paged(Shape):
    """One page of a list; subclasses add ``rows``.

    Attributes:
        total: number of rows that match the filters, on all pages.
        page: number of this page, from 1.
        pages: number of pages; 1 for an empty list.
        per_page: maximum number of rows on a page.
    """

    total: int
    page: int
    pages: int
    per_page: int


def one_line(text: str) -> str:
    """Return a string as a single line, truncated if it is too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= BRIEF else f"{flat[: BRIEF - 1].rstrip()}…"


def truncate(text: str, most: int) -> str:
    """Truncate a string to the given number of characters, marking the truncation with ``…``."""
    return text if len(text) <= most else f"{text[:most]}…"


class TaskBrief(Shape):
    """A short description of a task.

    Attributes:
        id: id of the task, used in paths; "" if the task is no longer known.
        name: display name.
        instruction: the task's instruction, truncated to 300 characters.
        origin: ``native``, ``evolved`` or ``open``; "" if unknown.
    """

    id: str
    name: str
    instruction: str
    origin: str = ""

    @classmethod
    def of(cls, task: Task) -> TaskBrief:
        """Return a short description of a task."""
        return cls(
            id=task.id, name=task.name, instruction=one_line(task.instruction), origin=task.origin
        )


class SignalView(Shape):
    """A signal found in an episode, which indicates a weakness of the policy.

    Attributes:
        kind: kind of the signal.
        evidence: the numbers that the signal's rule evaluated.
    """

    kind: str
    evidence: JsonObject
