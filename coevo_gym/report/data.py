"""The data of a run report: plain frozen values, independent of their source.

A loader fills :class:`ReportData` from a run folder, and tests fill it by hand; the drawing code
uses nothing else. Every sequence may be empty and every number may be NaN. A part without data is
omitted or shows a note.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from coevo_gym.core.spend import Usage
from coevo_gym.run.table import NO_SCORES, FinalScores, TableRow

NAN = math.nan


class CurvePoint(NamedTuple):
    """One measurement on a curve.

    Attributes:
        env_steps: env steps used so far, including exploration.
        success: success rate in [0, 1], or NaN.
        low: lower end of the 95 % interval, or NaN.
        high: upper end of the 95 % interval, or NaN.
    """

    env_steps: float
    success: float
    low: float = NAN
    high: float = NAN


@dataclass(frozen=True)
class ArmCount:
    """The number of drafts of one arm that a gate rejected."""

    arm: str
    gate: str
    count: int


class Similarity(NamedTuple):
    """The similarity of a set of tasks to the held-out tasks.

    Attributes:
        label: name of the set, such as ``D_0`` or ``evolved``.
        counts: number of tasks by highest cosine to a held-out task, in equal bins over [0, 1].
    """

    label: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """The success of one arm over env steps, in order."""

    arm: str
    points: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class RoundRow:
    """One round of evolution.

    Attributes:
        arm: name of the round's arm.
        id: id of the round, unique within its arm.
        env_steps: env steps that the arm had used when the round was applied.
        signals: number of signals that led to the round, by kind (``forgetting``, ``boundary``,
            ``rare``).
        contexts: number of contexts explored.
        drafts: number of drafts tried.
        accepted: number of drafts that passed all gates.
        pool_size: number of tasks in the pool after the round.
        forgetting: number of forgetting signals by value of a visit: its largest outcome (``max``)
            or the ``mean``; {} in runs of older versions.
    """

    arm: str
    id: str
    env_steps: float
    signals: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    contexts: int = 0
    drafts: int = 0
    accepted: int = 0
    pool_size: int = 0
    forgetting: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def pass_rate(self) -> float:
        """Share of the drafts that passed all gates; NaN without drafts."""
        return self.accepted / self.drafts if self.drafts else NAN


@dataclass(frozen=True)
class PracticeRow:
    """Statistics of an arm's practice and of its pool at the end.

    Attributes:
        arm: name of the arm.
        groups: number of practised groups.
        mixed: share of groups with both successes and failures.
        mixed_recent: share of mixed groups in the last 64.
        fail_share: share of practice env steps in groups without a success.
        mixed_share: share of practice env steps in mixed groups.
        pass_share: share of practice env steps in groups without a failure.
        reserve: expected number of mixed groups if each task that is not used up is tried once
            more.
        tags: number of distinct tags of the pool's tasks, or NaN.
    """

    arm: str
    groups: float
    mixed: float
    mixed_recent: float = NAN
    fail_share: float = NAN
    mixed_share: float = NAN
    pass_share: float = NAN
    reserve: float = NAN
    tags: float = NAN


@dataclass(frozen=True)
class EvolutionRow:
    """The costs and yields of an arm's evolution, and its effect on the task set.

    Attributes:
        arm: name of the arm.
        signals: number of signals that fired.
        contexts: number of contexts explored.
        drafts: number of drafts tried.
        accepted: number of drafts that passed all gates.
        per_context: drafts per context (yield).
        pass_rate: share of drafts that were accepted.
        per_signal: accepted tasks per signal (conversion).
        likeness_before: SR@5 of the first task set: mean cosine to the 5 nearest tasks, or NaN.
        likeness_after: SR@5 of the pool at the end, or NaN.
        distance: ED_rel of the evolved tasks from the first task set, or NaN.
        time_share: share of the arm's wall time spent in rounds, or NaN.
        explore_share: share of the arm's env steps used for exploration, or NaN.
        gate_share: share of the arm's env steps used to build and replay drafts, or NaN.
    """

    arm: str
    signals: int
    contexts: int
    drafts: int
    accepted: int
    per_context: float = NAN
    pass_rate: float = NAN
    per_signal: float = NAN
    likeness_before: float = NAN
    likeness_after: float = NAN
    distance: float = NAN
    time_share: float = NAN
    explore_share: float = NAN
    gate_share: float = NAN


class Spread(NamedTuple):
    """The diversity of an arm's pool after a round.

    Attributes:
        round: number of the round within its arm; 0 is the first task set.
        likeness: SR@5 of the pool: mean cosine to the 5 nearest tasks, or NaN.
        distance: ED_rel of all evolved tasks from the first task set, or NaN.
    """

    round: int
    likeness: float
    distance: float


@dataclass(frozen=True)
class ArmSpread:
    """The diversity of an arm's pool, round by round."""

    arm: str
    rounds: tuple[Spread, ...]


class Place(NamedTuple):
    """The position of a task on the map.

    Attributes:
        x: horizontal coordinate, without unit.
        y: vertical coordinate, without unit.
        round: number of the round that found it; 0 for the first task set.
        about: description of the task, or "".
    """

    x: float
    y: float
    round: int = 0
    about: str = ""


@dataclass(frozen=True)
class ArmMap:
    """The map of one arm's tasks and of the held-out tasks, by their words.

    Attributes:
        arm: name of the arm.
        tasks: the first task set and the evolved tasks, in order of arrival.
        held_out: the held-out tasks.
        shares: share of the variance of all tasks that each axis shows.
    """

    arm: str
    tasks: tuple[Place, ...]
    held_out: tuple[Place, ...] = ()
    shares: tuple[float, float] = (NAN, NAN)


@dataclass(frozen=True)
class ArmLengths:
    """The lengths of a policy's evaluation episodes.

    Attributes:
        arm: name of the policy.
        solved: env steps of each successful episode.
        failed: env steps of each failed episode.
    """

    arm: str
    solved: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True)
class UsageRow:
    """The model usage for one purpose in the rounds of an arm.

    Attributes:
        arm: name of the arm, or of the shared first task set.
        purpose: purpose of the answers.
        usage: usage, with counts of valid and invalid answers. Answers are not counted for agents
            that only choose actions, or by versions that did not count.
    """

    arm: str
    purpose: str
    usage: Usage


class LabelBin(NamedTuple):
    """A range of consecutive learner steps.

    Attributes:
        first: first step, counted from 1.
        last: last step.
        env_steps: env steps that the arm had used by the end of the range, or NaN.
        n: number of notes of the kind that have a label.
        counts: number of notes with each label, in the order of the labels.
    """

    first: int
    last: int
    env_steps: float
    n: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ArmLabels:
    """Labels that studies gave to an arm's episodes or their turns, over time.

    Attributes:
        arm: name of the arm.
        kind: kind of the notes.
        labels: the most frequent labels, in descending order of frequency.
        bins: ranges from the first to the last learner step.
        left: number of other labels.
        thirds: for each label, the number of notes about turns in the first, the middle and the
            last third of an episode with several turns; () without such notes.
    """

    arm: str
    kind: str
    labels: tuple[str, ...]
    bins: tuple[LabelBin, ...]
    left: int = 0
    thirds: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class VersionRow:
    """An interface version used for episodes of an arm.

    Attributes:
        arm: name of the arm.
        version: short version of the interface.
        step: learner step of its first use.
        env_steps: env steps that the arm had used by the end of that step, or NaN.
        says: lines that the interface adds to the env's own text.
        again: learner steps at which it was used again after other versions.
    """

    arm: str
    version: str
    step: int
    env_steps: float = NAN
    says: tuple[str, ...] = ()
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class CrossRow:
    """A cross table of two arms on the same held-out tasks.

    Attributes:
        baseline: name of the first arm.
        ours: name of the second arm.
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


@dataclass(frozen=True)
class LineageRow:
    """The origin of one evolved task, and the agent's success on it.

    Attributes:
        task: short name or id of the task.
        instruction: instruction of the task.
        arm: name of the arm whose pool contains the task.
        round_id: id of the round that found the task.
        signal: kind of the signal, or ``unguided`` / ``blind``.
        context: the weakness, in one sentence.
        parent: short name of the parent task, or "".
        parent_instruction: instruction of the parent task, or "".
        actions: actions of the draft's reference solution.
        verdict: the gates that the task passed, as text.
        served: number of training episodes on the task.
        success: training success rate on the task; None if it was never used.
    """

    task: str
    instruction: str
    arm: str = ""
    round_id: str = ""
    signal: str = ""
    context: str = ""
    parent: str = ""
    parent_instruction: str = ""
    actions: tuple[str, ...] = ()
    verdict: str = ""
    served: int = 0
    success: float | None = None


@dataclass(frozen=True)
class RejectedRow:
    """A draft that a gate rejected.

    Attributes:
        instruction: instruction of the draft.
        gate: name of the gate.
        reason: reason for the rejection.
        signal: kind of the signal that led to the draft.
        round_id: id of the draft's round.
        arm: name of the arm.
    """

    instruction: str
    gate: str
    reason: str = ""
    signal: str = ""
    round_id: str = ""
    arm: str = ""


@dataclass(frozen=True)
class ReportData:
    """All data of a report. Every part except the title may be empty.

    Attributes:
        title: title of the report.
        subtitle: one line below the title: benchmark, policy, date or name of the run.
        manifest: the run's manifest, as nested JSON values.
        table: final success on held-out tasks, in display order; the main arm comes last.
        final: scores on the final tasks.
        curves: held-out success over env steps, one curve per arm.
        training: success on training tasks over env steps, one curve per arm.
        cross: cross tables of each arm and the main arm on the same tasks.
        rounds: rounds of evolution of all arms, in order of env steps.
        practice: statistics of practice, one row per arm.
        evolution: costs and yields of evolution, one row per arm that evolved.
        spreads: diversity of the tasks of each arm that evolved, round by round.
        maps: maps of the tasks of each arm that evolved.
        lengths: lengths of the episodes in each policy's last evaluation.
        labels: labels of episodes, by arm and kind of notes.
        versions: interface versions of all arms, ordered by first use within each arm.
        usage: model usage in the rounds, by arm and purpose.
        rejections: rejected drafts by arm and gate.
        similarity: similarity of task sets to the held-out tasks.
        lineage: evolved tasks, oldest first.
        rejected: a sample of rejected drafts.
        warmup_loss: loss of each imitation step before training, in order.
        notes: remarks about the scope of the numbers, in one or two sentences each.
    """

    title: str
    subtitle: str = ""
    manifest: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    table: tuple[TableRow, ...] = ()
    final: FinalScores = NO_SCORES
    curves: tuple[Curve, ...] = ()
    training: tuple[Curve, ...] = ()
    cross: tuple[CrossRow, ...] = ()
    rounds: tuple[RoundRow, ...] = ()
    practice: tuple[PracticeRow, ...] = ()
    evolution: tuple[EvolutionRow, ...] = ()
    spreads: tuple[ArmSpread, ...] = ()
    maps: tuple[ArmMap, ...] = ()
    lengths: tuple[ArmLengths, ...] = ()
    labels: tuple[ArmLabels, ...] = ()
    versions: tuple[VersionRow, ...] = ()
    usage: tuple[UsageRow, ...] = ()
    rejections: tuple[ArmCount, ...] = ()
    similarity: tuple[Similarity, ...] = ()
    lineage: tuple[LineageRow, ...] = ()
    rejected: tuple[RejectedRow, ...] = ()
    warmup_loss: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
