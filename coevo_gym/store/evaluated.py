"""What is stored of evaluations: how each episode ended, and what its task asked for."""

from __future__ import annotations

from typing import NamedTuple


class Evaluated(NamedTuple):
    """How an evaluation episode ended.

    Attributes:
        task_id: id of its task.
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why it ended.
        steps: env steps taken.
        sample: which of the task's episodes it is, from 0.
    """

    task_id: str
    success: bool
    score: float
    end_reason: str
    steps: int
    sample: int = 0


class EvaluatedTask(NamedTuple):
    """What is kept of a task that was evaluated: nothing of what judges or solves it.

    Attributes:
        id: its id.
        name: its name.
        split: side of the train / validation / test border.
        subset: the benchmark's own name for a part, or "".
        scenario: the unit that stays on one side of a split.
        instruction: what it asks for.
        tags: what it is about, ``"kind:value"`` each.
    """

    id: str
    name: str
    split: str
    subset: str
    scenario: str
    instruction: str
    tags: tuple[str, ...]
