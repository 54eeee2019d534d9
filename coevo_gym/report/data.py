"""What a run report is drawn from: plain frozen values, with no trace of where they were read.

A loader fills :class:`ReportData` from a run folder, a test fills it by hand; the drawing code
knows nothing else. Every sequence may be empty and every number may be NaN: a part without data
is left out or says so.
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
        env_steps: env steps spent until then, exploration included.
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
    """How many drafts of one arm one gate rejected."""

    arm: str
    gate: str
    count: int


class Similarity(NamedTuple):
    """How close a set of tasks lies to the held-out tasks.

    Attributes:
        label: name of the set, such as ``D_0`` or ``evolved``.
        counts: tasks by highest cosine to a validation intent, in equal bins over [0, 1].
    """

    label: str
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """Success of one arm over env steps, in order."""

    arm: str
    points: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True)
class RoundRow:
    """One pass of evolution.

    Attributes:
        arm: name of the arm it belongs to.
        id: id of the round, unique within its arm.
        env_steps: env steps that the arm had spent when the round was applied.
        signals: signals that led to it, by kind (``forgetting``, ``boundary``, ``rare``).
        contexts: contexts given to the explorer.
        drafts: drafts that were tried.
        accepted: drafts that passed every gate.
        pool_size: tasks in the pool after the round.
        forgetting: how many of the signals forgetting would be, by what it reads of a visit: its
            single outcomes (``max``) or their ``mean``; {} in runs of before that was counted.
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
        """Share of the drafts that passed every gate; NaN without drafts."""
        return self.accepted / self.drafts if self.drafts else NAN


@dataclass(frozen=True)
class PracticeRow:
    """What an arm's practice was like, and what its pool holds at the end.

    Attributes:
        arm: name of the arm.
        groups: groups that were practised.
        mixed: share of them that had successes and failures.
        mixed_recent: the same of the last 64.
        fail_share: share of the env steps of practice in groups of which none succeeded.
        mixed_share: share of them in groups with successes and failures.
        pass_share: share of them in groups of which all succeeded.
        reserve: groups to learn from that are to be expected if each task that is not used up is
            tried once more.
        tags: different tags of the pool's tasks, or NaN.
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
    """What evolution cost an arm, what it yielded, and what it did to the task set.

    Attributes:
        arm: name of the arm.
        signals: signals that fired.
        contexts: contexts given to the explorer.
        drafts: drafts that were tried.
        accepted: drafts that passed every gate.
        per_context: drafts for each context (yield).
        pass_rate: share of the drafts that were accepted.
        per_signal: accepted tasks for each signal (conversion).
        likeness_before: SR@5 of the first task set: mean cosine to the 5 nearest tasks, or NaN.
        likeness_after: SR@5 of the pool at the end, or NaN.
        distance: ED_rel of the evolved tasks from the first task set, or NaN.
        time_share: share of the arm's wall time that its rounds took, or NaN.
        explore_share: share of the arm's env steps that were exploration, or NaN.
        gate_share: share of them that were spent on building and replaying drafts, or NaN.
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
    """How alike the tasks of an arm's pool are after a round.

    Attributes:
        round: number of the round, counted in its arm; 0 is the first task set.
        likeness: SR@5 of the pool: mean cosine to the 5 nearest tasks, or NaN.
        distance: ED_rel of all evolved tasks from the first task set, or NaN.
    """

    round: int
    likeness: float
    distance: float


@dataclass(frozen=True)
class ArmSpread:
    """How the pool of one arm spread out, round by round."""

    arm: str
    rounds: tuple[Spread, ...]


class Place(NamedTuple):
    """Where a task lies on the map.

    Attributes:
        x: to the right, in no unit.
        y: upwards, in no unit.
        round: number of the round that found it; 0 for the first task set.
        about: the task in words, or "".
    """

    x: float
    y: float
    round: int = 0
    about: str = ""


@dataclass(frozen=True)
class ArmMap:
    """Where the tasks of one arm lie, and the held-out ones, by their words.

    Attributes:
        arm: name of the arm.
        tasks: the first task set and what evolved, in the order they came.
        held_out: the held-out tasks.
        shares: of the spread of all these tasks, what each axis shows.
    """

    arm: str
    tasks: tuple[Place, ...]
    held_out: tuple[Place, ...] = ()
    shares: tuple[float, float] = (NAN, NAN)


@dataclass(frozen=True)
class ArmLengths:
    """How many steps the evaluation episodes of a policy took.

    Attributes:
        arm: its name.
        solved: env steps of each episode that succeeded.
        failed: of each that failed.
    """

    arm: str
    solved: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True)
class UsageRow:
    """What models were asked for one purpose in the rounds of an arm.

    Attributes:
        arm: name of the arm, or of the task set that all begin with.
        purpose: what the answers were for.
        usage: what that took, and how the answers ended; no answer is counted where nothing was
            asked but what to do next, or by a version that did not count.
    """

    arm: str
    purpose: str
    usage: Usage


class LabelBin(NamedTuple):
    """Some steps of the learner, one after the other.

    Attributes:
        first: the first of them, counted from 1.
        last: the last of them.
        env_steps: env steps that the arm had spent by its end, or NaN.
        n: notes of the kind that carry a label.
        counts: how many carry each label, in the order of the labels.
    """

    first: int
    last: int
    env_steps: float
    n: int
    counts: tuple[int, ...]


@dataclass(frozen=True)
class ArmLabels:
    """What studies called an arm's episodes or parts of them, over time.

    Attributes:
        arm: name of the arm.
        kind: kind of the notes.
        labels: the most frequent labels, the most frequent first.
        bins: from the first step of the learner to the last.
        left: how many other labels there are.
        thirds: of each label, how many notes are about a turn in the first, the middle and the last
            third of an episode with several turns; () where no note is.
    """

    arm: str
    kind: str
    labels: tuple[str, ...]
    bins: tuple[LabelBin, ...]
    left: int = 0
    thirds: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class VersionRow:
    """An interface through which episodes of an arm were shown.

    Attributes:
        arm: name of the arm.
        version: its version, short.
        step: step of the learner at which it was first shown.
        env_steps: env steps that the arm had spent by the end of that step, or NaN.
        says: what it says beyond the env's own text, in lines.
        again: steps from which it was shown again after others.
    """

    arm: str
    version: str
    step: int
    env_steps: float = NAN
    says: tuple[str, ...] = ()
    again: tuple[int, ...] = ()


@dataclass(frozen=True)
class CrossRow:
    """Two arms on the same held-out tasks, by who solves them.

    Attributes:
        baseline: name of the one.
        ours: name of the other.
        both: tasks that both solve.
        only_baseline: tasks that only ``baseline`` solves.
        only_ours: tasks that only ``ours`` solves.
        neither: tasks that neither solves.
    """

    baseline: str
    ours: str
    both: int
    only_baseline: int
    only_ours: int
    neither: int


@dataclass(frozen=True)
class LineageRow:
    """How one evolved task came to be, and how the agent did on it.

    Attributes:
        task: short name or id of the task.
        instruction: what the agent is asked to do.
        arm: name of the arm whose pool holds it.
        round_id: the round that made it.
        signal: kind of the signal, or ``unguided`` / ``blind``.
        context: the weakness in a sentence.
        parent: short name of the task it grew from, or "".
        parent_instruction: what that task asked for, or "".
        actions: actions of the draft's reference solution.
        verdict: how it was accepted, in words: the gates it passed.
        served: episodes that trained on it.
        success: training success rate on it, or None if it was never served.
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
    """A draft that a gate turned down.

    Attributes:
        instruction: what it would have asked the agent to do.
        gate: name of the gate.
        reason: why, in words.
        signal: kind of the signal it was drafted from.
        round_id: the round it was drafted in.
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
    """Everything that a report shows. All parts but the title may be empty.

    Attributes:
        title: headline of the report.
        subtitle: one line below it: benchmark, policy, date or name of the run.
        manifest: what was run, and with what: JSON values, nested as they come.
        table: final success on held-out tasks, in the order to show; the arm that the
            report is about comes last.
        final: scores on the tasks that each policy is scored on once.
        curves: held-out success over env steps, one curve an arm.
        training: success on training tasks over env steps, one curve an arm.
        cross: arms on the same tasks, each against the arm that the report is about.
        rounds: rounds of evolution of all arms, in order of env steps.
        practice: what practice was like, one row an arm.
        evolution: what evolution cost and yielded, one row an arm that evolved.
        spreads: how alike the tasks of each arm that evolved are, round by round.
        maps: where the tasks of each arm that evolved lie.
        lengths: steps of the episodes of each policy's last evaluation.
        labels: what episodes were called, by arm and kind of notes.
        versions: interfaces of all arms, each arm's in the order in which they were first shown.
        usage: what models were asked in the rounds, by arm and purpose.
        rejections: rejected drafts by arm and gate.
        similarity: likeness of sets of tasks to the held-out tasks.
        lineage: evolved tasks, oldest first.
        rejected: a sample of rejected drafts.
        warmup_loss: loss of each imitation step before training, in order.
        notes: what the numbers do and do not show, one sentence or two each.
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
