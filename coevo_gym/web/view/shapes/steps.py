"""What an arm did over time: steps of the learner, groups of rollouts, rounds of evolution."""

from __future__ import annotations

from coevo_gym.web.view.shapes.base import Paged, Shape
from coevo_gym.web.view.shapes.brief import ContextView, TaskBrief
from coevo_gym.web.view.shapes.drafts import DraftRow
from coevo_gym.web.view.shapes.trajectories import TrajectoryRow


class RoundRow(Shape):
    """One pass of evolution.

    Attributes:
        id: unique within its arm.
        arm: whose.
        step: the arm's step after which it was applied.
        env_steps: env steps that the arm had spent then.
        first: whether it is the one that found the tasks that the arm began with (D_0).
        kinds: contexts given to the explorer, by kind.
        contexts: how many; of a round without guidance, how many tasks it looked for.
        drafts: drafts that were tried.
        accepted: those that passed every gate.
        held: those that wait for a person.
        rejected: rejected drafts by gate, most first.
        pool_size: tasks in the pool after it.
        steps_spent: env steps that it took.
        gate_steps: those of them that gates spent.
        seconds: wall time.
        calls: requests that models answered.
        tokens: tokens that they read and wrote.
        usd: price of these in US dollars.
    """

    id: str
    arm: str
    step: int
    env_steps: int
    first: bool
    kinds: dict[str, int]
    contexts: int
    drafts: int
    accepted: int
    held: int
    rejected: dict[str, int]
    pool_size: int
    steps_spent: int
    gate_steps: int
    seconds: float
    calls: int = 0
    tokens: int = 0
    usd: float = 0.0


class StepTable(Shape):
    """All steps of an arm, by column; the arrays are equally long.

    Attributes:
        arm: whose.
        step: number of each step, from 1.
        env_steps: env steps spent by its end.
        groups: groups that it recorded.
        episodes: episodes in them.
        successes: those that solved their task.
        signals: signals that fired in it, by kind.
        stored: episodes of it that are stored.
        series: every number that the run wrote down of a step, by its name; null where a step has
            no such number.
        rounds: rounds that were applied, each with the step after which it was.
    """

    arm: str
    step: tuple[int, ...]
    env_steps: tuple[int | None, ...]
    groups: tuple[int, ...]
    episodes: tuple[int, ...]
    successes: tuple[int, ...]
    signals: dict[str, tuple[int, ...]]
    stored: tuple[int, ...]
    series: dict[str, tuple[float | None, ...]]
    rounds: tuple[RoundRow, ...]


class GroupRow(Shape):
    """A group: K rollouts of one task.

    Filters: ``step``, ``step_from``, ``step_to``, ``task`` (id), ``outcome`` (``all``, ``some``,
    ``none`` of its rollouts succeeded), ``signal`` (kind), ``stored`` (``true``), ``q`` (words of
    the task).

    Attributes:
        id: unique within its arm.
        arm: whose.
        step: step of the learner that recorded it.
        task: what was practised.
        size: K.
        episodes: rollouts that arrived.
        successes: those that solved the task.
        score: their mean score.
        signals: kinds that fired in it, each once.
        stored: whether its episodes are stored.
    """

    id: str
    arm: str
    step: int
    task: TaskBrief
    size: int
    episodes: int
    successes: int
    score: float
    signals: tuple[str, ...]
    stored: bool


class GroupPage(Paged):
    """Groups of an arm, in order of their steps."""

    rows: tuple[GroupRow, ...]


class GroupDetail(Shape):
    """A group with its rollouts.

    Attributes:
        group: the group.
        trajectories: its rollouts by place; none if they are not stored.
        before: id of the arm's group before it that practised the same task; null if none.
        after: likewise after it.
    """

    group: GroupRow
    trajectories: tuple[TrajectoryRow, ...]
    before: str | None = None
    after: str | None = None


class RoundList(Shape):
    """The rounds of an arm, in order."""

    rows: tuple[RoundRow, ...]


class RoundDetail(Shape):
    """A round: from where it explored, and what became of every draft.

    Attributes:
        round: the round.
        contexts: where it explored.
        drafts: every draft in the order in which they were judged.
        usage: what models were asked, by purpose: ``calls``, ``cached``, ``prompt_tokens``,
            ``completion_tokens``, ``usd``, ``seconds``, and of its answers ``used``, ``repaired``,
            ``by_rule``.
    """

    round: RoundRow
    contexts: tuple[ContextView, ...]
    drafts: tuple[DraftRow, ...]
    usage: dict[str, dict[str, float]]
