"""Measures of a whole run: practice, evolution, costs, and the task sets of its arms."""

from __future__ import annotations

from coevo_gym.core.spend import Usage
from coevo_gym.view.shapes.base import Shape


class ArmMeasures(Shape):
    """Practice of an arm, and costs and results of its rounds.

    Attributes:
        arm: name of the arm.
        numbers: the latest value of each metric of its curriculum, by name without the prefix
            ``curriculum.``; null if it is not finite.
        signals: number of signals that fired in the arm; the sum of its ``ArmRow.signals``.
        rounds: number of rounds of evolution, without the round that found D_0.
        round_time: share of the arm's wall time spent in these rounds; null without rounds.
    """

    arm: str
    numbers: dict[str, float | None]
    signals: int
    rounds: int
    round_time: float | None


class PurposeUsage(Shape):
    """Model usage for one purpose.

    Attributes:
        arm: name of the arm; ``D_0`` for the first task set, which all arms share.
        purpose: purpose of the requests.
        usage: requests, tokens and cost, and what became of the answers to questions.
    """

    arm: str
    purpose: str
    usage: Usage


class Lengths(Shape):
    """The lengths of a policy's episodes in its last evaluation on held-out tasks.

    Attributes:
        policy: name of the arm or baseline.
        solved: env steps of each successful episode.
        failed: env steps of each failed episode.
    """

    policy: str
    solved: tuple[int, ...]
    failed: tuple[int, ...]


class CrossRow(Shape):
    """The outcomes of an arm and the last arm on the same held-out tasks.

    Attributes:
        baseline: name of the first arm.
        ours: name of the last arm.
        both: number of tasks solved by both.
        only_baseline: number of tasks solved only by ``baseline``.
        only_ours: number of tasks solved only by ``ours``.
        neither: number of tasks solved by neither.
    """

    baseline: str
    ours: str
    both: int
    only_baseline: int
    only_ours: int
    neither: int


class RunMeasures(Shape):
    """Measures of a whole run.

    Attributes:
        arms: practice and evolution, one row per arm with at least one step.
        cross: outcomes of each arm and the last arm on the same tasks, at their latest evaluations.
        final: success rates on the final tasks, by column and policy; empty if the run scores none.
        lengths: episode lengths of the last evaluation of each policy, if stored.
        usage: model usage in rounds, by arm and purpose.
        warmup_loss: loss of each imitation step before training; null if it is not finite.
    """

    arms: tuple[ArmMeasures, ...]
    cross: tuple[CrossRow, ...]
    final: dict[str, dict[str, float]]
    lengths: tuple[Lengths, ...]
    usage: tuple[PurposeUsage, ...]
    warmup_loss: tuple[float | None, ...]


class ArmTaskSet(Shape):
    """The tasks of an arm, and their diversity from round to round.

    Attributes:
        arm: name of the arm.
        self_similarity: SR@5 of the pool after each round, the first task set first: the mean
            cosine of a task to its 5 nearest tasks; null if undefined.
        distance: ED_rel after each round: the energy distance of the evolved tasks from the first
            task set; null if undefined.
    """

    arm: str
    self_similarity: tuple[float | None, ...]
    distance: tuple[float | None, ...]


class Similarity(Shape):
    """The similarity of a set of tasks to the held-out tasks.

    Attributes:
        label: name of the set, such as ``D_0``.
        counts: number of tasks by highest cosine to a held-out task, in equal bins over [0, 1].
    """

    label: str
    counts: tuple[int, ...]


class TaskSet(Shape):
    """The task sets of the arms that evolved, compared by hashed words of their instructions.

    Attributes:
        arms: one entry per arm that evolved.
        similarity: similarity of the first task set and of each arm's evolved tasks to the held-out
            tasks; empty if the benchmark is not installed.
    """

    arms: tuple[ArmTaskSet, ...]
    similarity: tuple[Similarity, ...]
