"""The study that labels steps by replaying episodes without them, and the record of its labels."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import compress
from statistics import fmean
from typing import Any, NamedTuple

from coevo_gym.core.benchmark import Benchmark, Effect, Replay
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.notes import Findings, Note, Notes
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.gates.sources import Sources
from coevo_gym.methods.agentevolver.credit import (
    ATTRIBUTION,
    BAD,
    GOOD,
    NO_LABEL,
    AttributionCredit,
)
from coevo_gym.methods.agentevolver.elimination import eliminated
from coevo_gym.trainers.credit import Outcome

logger = logging.getLogger(__name__)

MAX_REPLAYS = 2000
"""Most replays of a learner's step."""
EXAMINED, LEFT_OUT, UNLIKE, FAULT = "examined", "left_out", "unlike", "fault"
"""Labels of the note about a whole trajectory: its steps are labelled; it would have taken too many
replays; a replay of all its actions has another score; the engine failed."""
_NAMES = {GOOD: "good", BAD: "bad"}
_SAME_SCORE = 1e-9


class Attribution:
    """A note for each labelled step, and one for each trajectory, lost ones left out.

    A step is good if the episode scores less without it, bad if it scores as much. Never left out,
    and therefore good, are steps that end a turn and steps that read what a later needed step uses.
    By default a step that was not needed gets no label if it worked and showed something new: it
    was a search, and only hindsight knows that it was in vain. An episode that scores 0 has bad
    steps only: those that failed.

    The value of a step's note is 1 or -1, its label ``good`` or ``bad``. The note of a trajectory
    has step -1; its label is one of :data:`EXAMINED`, :data:`LEFT_OUT`, :data:`UNLIKE` and
    :data:`FAULT`, its value the outcome, and its evidence has ``labels``, one for each step.

    Args:
        benchmark: replays actions.
        outcome: the reward of a trajectory.
        hindsight: call all steps bad that were not needed.
        max_replays: most replays of a learner's step; the groups that may take most are left out.
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
        """See :class:`~coevo_gym.core.seams.Study`."""
        affordable = self._affordable(groups)
        notes: list[Note] = []
        env_steps = 0
        for group, replayed in zip(groups, affordable, strict=True):
            for index, trajectory in enumerate(group.trajectories):
                if trajectory.end_reason.lost:
                    continue
                found = self._judged(group.task, trajectory) if replayed else _unseen(trajectory)
                env_steps += found.env_steps
                notes += self._notes(group, index, trajectory, found)
        return Findings(tuple(notes), env_steps=env_steps)

    def _affordable(self, groups: Sequence[Group]) -> list[bool]:
        """Tell which groups are replayed, those first that may take the fewest replays."""
        most = [sum(map(most_replays, group.trajectories)) for group in groups]
        left, found = self._max_replays, [False] * len(groups)
        for place in sorted(range(len(groups)), key=most.__getitem__):
            if most[place] > left:
                break
            left -= most[place]
            found[place] = True
        return found

    def _judged(self, task: Task, trajectory: Trajectory) -> _Judged:
        replays = _Replays(self._benchmark, task, trajectory.actions)
        try:
            return replays.judged(trajectory.score, hindsight=self._hindsight)
        except EnvBackendError as error:
            logger.warning("task=%s: no labels, a replay failed: %s", task.name, error)
            return _unseen(trajectory, FAULT, replays.env_steps)

    def _notes(
        self, group: Group, index: int, trajectory: Trajectory, found: _Judged
    ) -> list[Note]:
        about = {"kind": self.kind, "task_id": group.task.id, "group_id": group.id, "index": index}
        whole = Note(
            **about,
            label=found.how,
            value=self._outcome(trajectory),
            evidence=FrozenDict(labels=tuple(found.labels)),
            source="replay",
        )
        return [whole] + [
            Note(**about, step=step, label=_NAMES[label], value=float(label), source="replay")
            for step, label in enumerate(found.labels)
            if label
        ]


class _Judged(NamedTuple):
    how: str
    labels: list[int]
    env_steps: int = 0


def _unseen(trajectory: Trajectory, how: str = LEFT_OUT, env_steps: int = 0) -> _Judged:
    return _Judged(how, [NO_LABEL] * len(trajectory.steps), env_steps)


def most_replays(trajectory: Trajectory) -> int:
    """Return how many replays it takes at most to label the steps of a trajectory."""
    if trajectory.end_reason.lost:
        return 0
    return 1 + 2 * len(trajectory.steps) if trajectory.score > 0.0 else 1


class _Replays:
    """Replays of one trajectory, whole and in parts."""

    def __init__(self, benchmark: Benchmark, task: Task, actions: Sequence[str]) -> None:
        self._benchmark, self._task, self._actions = benchmark, task, actions
        self.env_steps = 0

    def judged(self, score: float, *, hindsight: bool) -> _Judged:
        """Label the steps; none if all actions do not score what the trajectory has scored."""
        actions = self._actions
        whole = self._play(range(len(actions)))
        if abs(whole.scores[-1] - score) > _SAME_SCORE:
            return _Judged(UNLIKE, [NO_LABEL] * len(actions), self.env_steps)
        sources = Sources(whole, self._benchmark.evidence(self._task))

        def keep(step: int, later: Sequence[int]) -> bool:
            closes = whole.effects[step] is Effect.CLOSED
            return closes or sources.feeds(step, [actions[one] for one in later])

        def scored(steps: Sequence[int]) -> float:
            played = whole if len(steps) == len(actions) else self._play(steps)
            return played.scores[-1]

        errors = [step for step, error in enumerate(whole.errors) if error]
        labels = eliminated(scored, len(actions), keep=keep, errors=errors, detours=_detours(whole))
        if not hindsight:
            for step in _showing_news(whole, self._task.instruction):
                if labels[step] == BAD and step not in errors:
                    labels[step] = NO_LABEL
        return _Judged(EXAMINED, labels, self.env_steps)

    def _play(self, steps: Sequence[int]) -> Replay:
        played = self._benchmark.replay(self._task, [self._actions[step] for step in steps])
        self.env_steps += len(played.errors)
        return played


def _detours(whole: Replay) -> list[range]:
    """Return stretches of steps after which the engine is as before them, though one changed it.

    The shortest come first, of equally long ones the latest; as many as there are steps at most.
    """
    states, n = whole.states, len(whole.effects)
    found = [
        range(first, last)
        for first in range(n - 1)
        for last in range(first + 2, n + 1)
        if states[first] == states[last] and Effect.CHANGED in whole.effects[first:last]
    ]
    return sorted(found, key=lambda one: (len(one), -one.start))[:n]


def _showing_news(whole: Replay, instruction: str) -> list[int]:
    """Return the steps that showed a text that nothing before them has shown."""
    shown = {_plain(text) for text in ("", whole.opening, instruction)}
    found = []
    for step, text in enumerate(map(_plain, whole.shown)):
        if text not in shown:
            found.append(step)
        shown.add(text)
    return found


def _plain(text: str) -> str:
    return " ".join(text.split())


class AttributionRecord:
    """A memory of the latest step's labels; each step replaces the one before.

    Its metrics: ``good``, ``bad`` and ``unlabelled``, shares of steps; ``left_out``, ``unlike`` and
    ``faults``, shares of trajectories without labels (see :class:`Attribution`); and ``flipped``,
    the share of the trajectories with a better or worse outcome than their group whose advantage,
    as the credit sees it, has the other sign in the first step. A warning tells of it.

    Args:
        credit: judges groups.
    """

    def __init__(self, credit: AttributionCredit) -> None:
        self._credit = credit
        self._metrics: dict[str, float] = {}
        self._warned = False

    def note(self, notes: Notes) -> None:
        """See :class:`~coevo_gym.core.seams.Memory`."""
        wholes = [note for note in notes if note.kind == ATTRIBUTION and note.step < 0]
        self._metrics = _shares(wholes)
        if flips := self._flips(wholes):
            self._metrics["flipped"] = fmean(flips)
            if any(flips) and not self._warned:
                self._warned = True
                logger.warning(
                    "flipped=%.3f: attribution outweighs the outcome in this share of "
                    "trajectories. Lower method.alpha, or set method.length_norm = true.",
                    self._metrics["flipped"],
                )

    def _flips(self, wholes: Sequence[Note]) -> list[bool]:
        """Tell of each trajectory with steps and an outcome unlike the mean whether it flipped."""
        by_group: dict[str, list[Note]] = {}
        for note in wholes:
            by_group.setdefault(note.group_id, []).append(note)
        found = []
        for group in by_group.values():
            labels = [note.evidence["labels"] for note in group]
            outcomes = [note.value for note in group]
            judged = self._credit.judge(labels, outcomes)
            mean = fmean(outcomes)
            gaps = [outcome - mean for outcome in outcomes]
            told = [
                bool(row) and abs(gap) > _SAME_SCORE for row, gap in zip(judged, gaps, strict=True)
            ]
            found += [
                row[0] * gap < 0.0 for row, gap in compress(zip(judged, gaps, strict=True), told)
            ]
        return found

    def metrics(self) -> dict[str, float]:
        """See the class; {} for a step without a study."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: it tells of one step, and checkpoints lie between steps."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        self._metrics = {}


def _shares(wholes: Sequence[Note]) -> dict[str, float]:
    if not wholes:
        return {}
    labels = [label for note in wholes for label in note.evidence["labels"]]
    names = {"good": GOOD, "bad": BAD, "unlabelled": NO_LABEL}
    of_steps = {name: labels.count(label) / len(labels) for name, label in names.items() if labels}
    hows = {"left_out": LEFT_OUT, "unlike": UNLIKE, "faults": FAULT}
    ends = [note.label for note in wholes]
    return of_steps | {name: ends.count(label) / len(ends) for name, label in hows.items()}
