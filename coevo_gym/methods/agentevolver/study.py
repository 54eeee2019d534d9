"""A study that labels steps by replaying episodes without them, and a record of its labels."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.notes import LABELS, Findings, Note, Notes
from coevo_gym.core.stats import cohen_kappa
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group
from coevo_gym.methods.agentevolver.credit import (
    ATTRIBUTION,
    ATTRIBUTION_BY_MODEL,
    BAD,
    GOOD,
    NO_LABEL,
    AttributionCredit,
)
from coevo_gym.methods.agentevolver.replays import (
    FAULT,
    LEFT_OUT,
    MAX_REPLAYS,
    NO_ANSWER,
    UNLIKE,
    Judged,
    affordable,
    judged,
    most_replays,
    unlabelled,
)
from coevo_gym.methods.records import StepRecord
from coevo_gym.trainers.credit import Outcome

logger = logging.getLogger(__name__)

_SAME_OUTCOME = 1e-9
_NAMES = {GOOD: "good", BAD: "bad"}


class Attribution:
    """A study that writes a note for each labelled step and for each trajectory that was not lost.

    A step is good if the episode scores less without it, bad if it scores as much. Steps that end
    a turn, and steps that read a value for a later needed step, are never left out and therefore
    good. By default a step that was not needed gets no label if it worked and showed something new:
    it was a search, and only hindsight shows that the search was useless. In an episode that
    scores 0, only the steps that failed are labelled, as bad.

    The value of a step's note is 1 or -1, its label ``good`` or ``bad``. The note of a trajectory
    has step -1; its label gives the result (``examined``, ``left_out``, ``unlike`` or
    ``fault``), its value the outcome, and its evidence has ``labels``, one for each step.

    Args:
        benchmark: replays actions.
        outcome: the reward of a trajectory.
        hindsight: label all steps that were not needed as bad.
        max_replays: maximum replays per learner's step; the groups that may take most are skipped.
    """

    kind = ATTRIBUTION

    def __init__(
        self,
        benchmark: Benchmark,
        *,
        outcome: Outcome | None = None,
        hindsight: bool = False,
        max_replays: int = MAX_REPLAYS,
    ) -> None:
        self._benchmark, self._outcome = benchmark, outcome or Outcome()
        self._hindsight, self._max_replays = hindsight, max_replays

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Label the steps of the groups by replays; see :class:`~coevo_gym.core.seams.Study`."""
        costs = [sum(map(most_replays, group.trajectories)) for group in groups]
        notes: list[Note] = []
        env_steps = 0
        for group, replayed in zip(groups, affordable(costs, self._max_replays), strict=True):
            for index, trajectory in enumerate(group.trajectories):
                if trajectory.end_reason.lost:
                    continue
                found = unlabelled(trajectory)
                if replayed:
                    found = judged(
                        self._benchmark, group.task, trajectory, hindsight=self._hindsight
                    )
                env_steps += found.env_steps
                outcome = self._outcome(trajectory)
                notes += label_notes(self.kind, group, index, outcome, found, "replay")
        return Findings(tuple(notes), env_steps=env_steps)


def label_notes(
    kind: str,
    group: Group,
    index: int,
    outcome: float,
    found: Judged,
    source: Literal["replay", "model"],
) -> list[Note]:
    """Return the note about a trajectory and those about its labelled steps.

    Args:
        kind: kind of the notes.
        group: the group of the trajectory.
        index: its position in the group.
        outcome: its reward.
        found: its labels.
        source: origin of the labels.
    """
    about = {"kind": kind, "task_id": group.task.id, "group_id": group.id, "index": index}
    labels = FrozenDict({LABELS: tuple(found.labels)})
    whole = Note(**about, label=found.how, value=outcome, evidence=labels, source=source)
    return [whole] + [
        Note(**about, step=step, label=_NAMES[label], value=float(label), source=source)
        for step, label in enumerate(found.labels)
        if label
    ]


class AttributionRecord(StepRecord):
    """A memory of the latest step's labels; each step replaces the previous one.

    Its metrics: ``good``, ``bad`` and ``unlabelled``, shares of steps; ``left_out``, ``unlike``,
    ``faults`` and ``unanswered``, shares of trajectories without labels (see :class:`Attribution`
    and :class:`~coevo_gym.methods.agentevolver.model_attribution.ModelAttribution`); and
    ``flipped``, the share of the trajectories with a better or worse outcome than their group whose
    advantage, as the credit sees it, has the other sign in the first step. A warning reports such
    trajectories.

    If a model labels the same steps for comparison, its shares follow as ``model_good`` and so on.
    ``both_labelled`` is the share of all steps that have both labels, ``agreement`` the share of
    these whose labels are equal, and ``kappa`` Cohen's kappa of these labels; the latter two are
    missing where they are not defined.

    Args:
        credit: judges groups.
    """

    def __init__(self, credit: AttributionCredit) -> None:
        super().__init__()
        self._credit = credit
        self._warned = False

    def measure(self, notes: Notes) -> dict[str, float]:
        """Return the metrics that the class describes; {} for a step without a study."""
        wholes = [note for note in notes if note.kind == ATTRIBUTION and note.step < 0]
        others = [note for note in notes if note.kind == ATTRIBUTION_BY_MODEL and note.step < 0]
        found = _shares(wholes)
        found |= {f"model_{name}": share for name, share in _shares(others).items()}
        found |= _compared(wholes, others)
        if flips := self._flips(wholes):
            found["flipped"] = fmean(flips)
            if any(flips) and not self._warned:
                self._warned = True
                logger.warning(
                    "flipped=%.3f: attribution outweighs the outcome in this share of "
                    "trajectories. Lower method.alpha, or set method.length_norm = true.",
                    found["flipped"],
                )
        return found

    def _flips(self, wholes: Sequence[Note]) -> list[bool]:
        """Return True for each flipped trajectory; those with the mean outcome are skipped."""
        by_group: dict[str, list[Note]] = {}
        for note in wholes:
            by_group.setdefault(note.group_id, []).append(note)
        found = []
        for group in by_group.values():
            labels = [note.evidence[LABELS] for note in group]
            outcomes = [note.value for note in group]
            mean = fmean(outcomes)
            for row, outcome in zip(self._credit.judge(labels, outcomes), outcomes, strict=True):
                if row and abs(outcome - mean) > _SAME_OUTCOME:
                    found.append(row[0] * (outcome - mean) < 0.0)
        return found


def _shares(wholes: Sequence[Note]) -> dict[str, float]:
    if not wholes:
        return {}
    labels = [label for note in wholes for label in note.evidence[LABELS]]
    names = {"good": GOOD, "bad": BAD, "unlabelled": NO_LABEL}
    of_steps = {name: labels.count(label) / len(labels) for name, label in names.items() if labels}
    hows = {"left_out": LEFT_OUT, "unlike": UNLIKE, "faults": FAULT, "unanswered": NO_ANSWER}
    ends = [note.label for note in wholes]
    return of_steps | {name: ends.count(label) / len(ends) for name, label in hows.items()}


def _compared(wholes: Sequence[Note], others: Sequence[Note]) -> dict[str, float]:
    """Return the agreement of two labels for the same steps; {} without any."""
    rows = {(note.group_id, note.index): note.evidence[LABELS] for note in wholes}
    pairs = [
        pair
        for note in others
        for pair in zip(rows[note.group_id, note.index], note.evidence[LABELS], strict=True)
    ]
    if not pairs:
        return {}
    both = [pair for pair in pairs if all(pair)]
    found = {"both_labelled": len(both) / len(pairs)}
    if both:
        found["agreement"] = fmean(first == second for first, second in both)
        found["kappa"] = cohen_kappa(*zip(*both, strict=True))
    return {name: value for name, value in found.items() if not math.isnan(value)}
