"""Rows of stored evaluations: the result of each episode, and the instruction of its task."""

from __future__ import annotations

from typing import NamedTuple


class Evaluated(NamedTuple):
    """The result of an evaluation episode.

    Attributes:
        task_id: id of its task.
        success: binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: reason why it ended.
        steps: number of env steps taken.
        sample: index of the episode among those of its task, from 0.
    """

    task_id: str
    success: bool
    score: float
    end_reason: str
    steps: int
    sample: int = 0


class EvaluatedTask(NamedTuple):
    """The stored fields of an evaluated task, without its verifier or solution.

    Attributes:
        id: id of the task.
        name: name of the task.
        split: split of the task: train, validation or test.
        subset: the benchmark's own name for a part, or "".
        scenario: unit that belongs entirely to one split.
        instruction: instruction of the task.
        tags: topics of the task, each as ``"kind:value"``.
    """

    id: str
    name: str
    split: str
    subset: str
    scenario: str
    instruction: str
    tags: tuple[str, ...]
