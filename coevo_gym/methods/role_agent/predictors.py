"""Predictors: what a step is expected to lead to, made before its consequences are compared."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, cast

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Message, Policy, Prompt, Sampling
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.trajectory import Group, TokenDecision, Trajectory
from coevo_gym.envs.diagnosis import texts_after
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.methods.role_agent.foresight import FORESIGHT, clean
from coevo_gym.prompts.answers import without_thoughts
from coevo_gym.prompts.cue import load_cue

MAX_TRANSITIONS = 5_000
"""Latest transitions that the empirical predictor remembers."""

PROMPT = "role_agent/predict"
"""Name of the words in which a policy is asked what comes next."""
MAX_TOKENS = 96
"""Most tokens of one predicted observation."""
_MOST_CHARS = 20_000
"""Characters of an answer that are read."""
_NEXT = re.compile(r'<next n="(\d{1,3})">(.*?)</next>', re.DOTALL)

Predictions = Sequence[Sequence[str]]
"""For each step of a trajectory, the predicted observations, the next one first."""


class Made(NamedTuple):
    """What a predictor has made.

    Attributes:
        predictions: of each trajectory that was asked for.
        usage: what asking a model for them has cost.
    """

    predictions: Sequence[Predictions]
    usage: Usage = NO_USAGE


class Predictor(Protocol):
    """Predicts the observations that follow each step of a trajectory.

    Attributes:
        source: what the predictions rest on, as notes say it.
    """

    @property
    def source(self) -> Literal["rule", "model"]:
        """See above."""
        ...

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
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

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """See :class:`Predictor`; the transitions of all groups wait for the end of the step."""
        found = [
            [self.expected(clean(step.observation), step.action) for step in trajectory.steps]
            for trajectory in asked
        ]
        for group in groups:
            for trajectory in group.trajectories:
                if not trajectory.end_reason.lost:
                    self._pending += transitions(trajectory, self.horizon)
        return Made(found)

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


class Draws(Policy, Protocol):
    """A policy that samples tokens here, and can draw by a seed aside."""

    def drawing(self, seed: int) -> AbstractContextManager[None]:
        """Return a scope in which it draws by a seed; its own draws go on after it."""
        ...


class PolicyPredictor:
    """Has the policy itself predict what its actions lead to, in chats that go on after them.

    A chat goes on after the very ids of the answer that held the action. What is predicted is not
    trained on and not taped, and draws by a seed of its own, so that training draws what it would
    have drawn without it. Steps without tokens, and those after which the context has no room, have
    no prediction.

    Args:
        policy: returns the policy under training.
        horizon: H, observations to predict per step.
        seed: with the first group's id, the seed of its draws.

    Source: World-In-Agent of Role-Agent (arXiv 2606.10917), 3.2.
    """

    source: Literal["model"] = "model"

    def __init__(self, policy: Callable[[], Policy], horizon: int, *, seed: int) -> None:
        self._policy, self.horizon, self._seed = policy, horizon, seed
        self._asking = (Message("user", load_cue(PROMPT).write({"horizon": horizon})),)

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """See :class:`Predictor`."""
        found: list[list[list[str]]] = [[[] for _ in one.steps] for one in asked]
        places, requests = list[tuple[int, int]](), list[Prompt]()
        for number, trajectory in enumerate(asked):
            for step, taken in enumerate(trajectory.steps):
                if isinstance(taken.decision, TokenDecision):
                    places.append((number, step))
                    requests.append(self._request(taken.decision))
        if not requests:
            return Made(found)
        policy = cast(Draws, self._policy())
        with policy.drawing(episode_seed(self._seed, groups[0].id)):
            answers = policy.generate(requests)
        for (number, step), answer in zip(places, answers, strict=True):
            found[number][step] = predicted(answer.text, self.horizon)
        return Made(found, sum((answer.usage for answer in answers), NO_USAGE))

    def _request(self, decision: TokenDecision) -> Prompt:
        sampling = Sampling(decision.temperature, MAX_TOKENS * self.horizon)
        return Prompt(self._asking, sampling, purpose=FORESIGHT, after=decision)


def predicted(said: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, the next observation's first; "" where one is missing.

    Example:
        >>> predicted('<next n="2">a door</next><next n="9">no</next>', 2)
        ['', 'a door']
    """
    return numbered_texts(_NEXT, said, horizon)


def numbered_texts(tag: re.Pattern[str], said: str, horizon: int) -> list[str]:
    """Return the texts in the numbered tags of an answer, from 1; "" where one is missing.

    Args:
        tag: finds a tag's number, "" for 1, and its text.
        said: the answer; thoughts do not count.
        horizon: the last number.
    """
    read = without_thoughts(said)[:_MOST_CHARS]
    found = {int(number or 1): text.strip() for number, text in tag.findall(read)}
    return [found.get(ahead, "") for ahead in range(1, horizon + 1)]


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
