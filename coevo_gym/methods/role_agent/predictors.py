"""Predictors: what a step is expected to lead to, made before its consequences are compared."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from coevo_gym.core.notes import Notes
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.envs.diagnosis import texts_after
from coevo_gym.methods.role_agent.foresight import clean

MAX_TRANSITIONS = 5_000
"""Latest transitions that the empirical predictor remembers."""

Predictions = Sequence[Sequence[str]]
"""For each step of a trajectory, the predicted observations, the next one first."""


class Predictor(Protocol):
    """Predicts the observations that follow each step of a trajectory.

    Attributes:
        source: what the predictions rest on, as notes say it.
    """

    @property
    def source(self) -> Literal["rule", "model"]:
        """See above."""
        ...

    def predict(
        self, asked: Sequence[Trajectory], groups: Sequence[Group]
    ) -> Sequence[Predictions]:
        """Return the predictions of each trajectory that is asked for.

        Args:
            asked: trajectories of ``groups``.
            groups: all groups of the learner's step, those already studied excluded.
        """
        ...


class Transition(NamedTuple):
    """A step and what followed it.

    Attributes:
        state: the observation that the action was taken on.
        action: the action.
        later: the observations that followed, the next one first; at most the horizon.
    """

    state: str
    action: str
    later: tuple[str, ...]


class EmpiricalPredictor:
    """Predicts, without a model, the observation that most often followed an action in a state.

    It is a control: foresight that no policy had. The same object predicts and is a memory. A
    step's transitions are remembered when the step is over, so none is predicted from itself.

    Args:
        horizon: H, observations to predict per step.
        capacity: latest transitions that are remembered.

    Example:
        >>> predictor = EmpiricalPredictor(1)
        >>> predictor.remember(Transition("closed", "open", ("open",)))
        >>> predictor.expected("closed", "open"), predictor.expected("closed", "push")
        (['open'], [''])
    """

    source: Literal["rule"] = "rule"

    def __init__(self, horizon: int, *, capacity: int = MAX_TRANSITIONS) -> None:
        self.horizon, self._capacity = horizon, capacity
        self._known = deque[Transition]()
        self._later: dict[tuple[str, str], deque[tuple[str, ...]]] = {}
        self._pending: list[Transition] = []

    def expected(self, state: str, action: str) -> list[str]:
        """Return the commonest observation at each distance, of equals the latest; "" if unseen."""
        seen = self._later.get((state, action), ())
        return [
            commonest([later[ahead] for later in seen if ahead < len(later)])
            for ahead in range(self.horizon)
        ]

    def predict(
        self, asked: Sequence[Trajectory], groups: Sequence[Group]
    ) -> Sequence[Predictions]:
        """See :class:`Predictor`; the transitions of all groups wait for the end of the step."""
        found = [
            [self.expected(clean(step.observation), step.action) for step in trajectory.steps]
            for trajectory in asked
        ]
        for group in groups:
            for trajectory in group.trajectories:
                if not trajectory.end_reason.lost:
                    self._pending += transitions(trajectory, self.horizon)
        return found

    def note(self, notes: Notes) -> None:
        """Remember the transitions of the learner's step that is over."""
        for transition in self._pending:
            self.remember(transition)
        self._pending = []

    def remember(self, transition: Transition) -> None:
        """Remember a transition; beyond the capacity the oldest one is forgotten."""
        self._known.append(transition)
        self._later.setdefault(transition[:2], deque()).append(transition.later)
        if len(self._known) > self._capacity:
            oldest = self._known.popleft()
            same = self._later[oldest[:2]]
            same.popleft()
            if not same:
                del self._later[oldest[:2]]

    def metrics(self) -> dict[str, float]:
        """Return how many transitions are remembered, and of how many states and actions."""
        return {"transitions": float(len(self._known)), "distinct": float(len(self._later))}

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON; each text is stored once."""
        places: dict[str, int] = {}

        def stored(transition: Transition) -> list[Any]:
            state, *later = (
                places.setdefault(text, len(places))
                for text in (transition.state, *transition.later)
            )
            return [state, transition.action, later]

        known = [stored(one) for one in self._known]
        pending = [stored(one) for one in self._pending]
        return {"known": known, "pending": pending, "texts": list(places)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`."""
        texts = state["texts"]

        def read(stored: Sequence[Any]) -> Transition:
            place, action, later = stored
            return Transition(texts[place], action, tuple(texts[one] for one in later))

        self._known, self._later = deque(), {}
        for one in state["known"]:
            self.remember(read(one))
        self._pending = [read(one) for one in state["pending"]]


def commonest(texts: Sequence[str]) -> str:
    """Return the text that occurs most often, of equals the one seen last; "" if there is none."""
    counts = Counter(texts)
    most = max(counts.values(), default=0)
    return next((text for text in reversed(texts) if counts[text] == most), "")


def transitions(trajectory: Trajectory, horizon: int) -> list[Transition]:
    """Return each step of a trajectory with what followed it."""
    after = [clean(text) for text in texts_after(trajectory)]
    return [
        Transition(clean(step.observation), step.action, tuple(after[place : place + horizon]))
        for place, step in enumerate(trajectory.steps)
    ]
