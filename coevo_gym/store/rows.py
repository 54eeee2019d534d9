"""What a run store tells of rounds, verdicts and tasks, a row at a time."""

from __future__ import annotations

from typing import Literal, NamedTuple

from coevo_gym.core.evolution import Round, RoundResult, Verdict
from coevo_gym.core.task import Task


class StoredRound(NamedTuple):
    """A round as it was applied in an arm.

    Attributes:
        arm: name of the arm.
        step: the arm's step at which it was applied.
        arm_env_steps: env steps that the arm had spent then, the round's own included.
        pool_size: tasks in the arm's pool after it.
        round: the order.
        result: what came of it.
    """

    arm: str
    step: int
    arm_env_steps: int
    pool_size: int
    round: Round
    result: RoundResult

    @property
    def is_first(self) -> bool:
        """Whether it is the round that found the tasks that the arm began with (D_0)."""
        return self.step == 0 and (self.round.n_enough > 0 or not self.round.contexts)


class TaskCount(NamedTuple):
    """How often an arm practised a task."""

    arm: str
    task_id: str
    episodes: int
    successes: int


class HeldTask(NamedTuple):
    """A task that passed every gate of a round, but waited there for a person.

    Attributes:
        arm: name of the arm.
        round_id: the round that found it.
        step: the arm's step at which that round was applied.
        task: the task.
        verdict: why it was held, and the gates that it had passed.
    """

    arm: str
    round_id: str
    step: int
    task: Task
    verdict: Verdict


class VerdictPlace(NamedTuple):
    """Where a verdict is kept.

    Attributes:
        draft_id: the draft that it is about; "" for a context that was left out.
        task_id: the task that was built from it; "" if none was.
        accepted: whether it passed every gate.
        gate: the gate that rejected it.
        round_id: the round.
        position: its place among the round's verdicts.
        key: equal for arms that share the round's result.
        arm: name of the arm.
        step: the arm's step at which the round was applied.
    """

    draft_id: str
    task_id: str
    accepted: bool
    gate: str
    round_id: str
    position: int
    key: str
    arm: str
    step: int


class Decision(NamedTuple):
    """What a person decided about a task.

    Attributes:
        task_id: the task.
        what: ``released`` or ``rejected`` after it was held, or ``imported`` from a file.
        reason: why, in the person's words; or "".
        at: when, in UTC.
        verdict: of an imported task: that of the gates it went through.
    """

    task_id: str
    what: Literal["released", "rejected", "imported"]
    reason: str = ""
    at: str = ""
    verdict: Verdict | None = None
