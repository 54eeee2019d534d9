"""Predictors of the consequences of steps, used before these are compared."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, cast

from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Guidance, Message, Policy, Prompt, Sampling, Ticket
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.trajectory import Cue, Group, TokenDecision, Trajectory
from coevo_gym.envs.diagnosis import texts_after
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.methods.role_agent.foresight import FORESIGHT, clean
from coevo_gym.prompts.answers import without_thoughts
from coevo_gym.prompts.cue import load_cue

MAX_TRANSITIONS = 5_000
"""Maximum number of latest transitions that the empirical predictor remembers."""

PROMPT = "role_agent/predict"
"""Name of the prompt that asks a policy for the next observations."""
MAX_TOKENS = 96
"""Maximum tokens of one predicted observation."""
_MOST_CHARS = 20_000
"""Maximum characters to read of an answer."""
_NEXT = re.compile(r'<next n="(\d{1,3})">(.*?)</next>', re.DOTALL)

Predictions = Sequence[Sequence[str]]
"""For each step of a trajectory, the predicted observations, the next one first."""


class Made(NamedTuple):
    """The predictions of a predictor, and their cost.

    Attributes:
        predictions: the predictions of each requested trajectory.
        usage: the cost of asking a model for them.
    """

    predictions: Sequence[Predictions]
    usage: Usage = NO_USAGE


class Predictor(ABC):
    """A predictor of the observations that follow each step of a trajectory.

    Args:
        horizon: H, observations to predict per step.

    Attributes:
        source: the basis of the predictions, as notes store it.
    """

    source: Literal["rule", "model"] = "model"

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    @abstractmethod
    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the predictions of each requested trajectory.

        Args:
            asked: trajectories of ``groups``.
            groups: all groups of the learner's step, except those already studied.
        """


class Transition(NamedTuple):
    """A step and what followed it.

    Attributes:
        state: the observation before the action.
        action: the action.
        later: the observations that followed, the next one first; at most the horizon.
    """

    state: str
    action: str
    later: tuple[str, ...]


class EmpiricalPredictor(Predictor):
    """A predictor without a model: the observation that most often followed an action in a state.

    It is a control: foresight that no policy had. The same object is a predictor and a memory. A
    step's transitions are remembered when the step is over, so none is predicted from itself.

    Args:
        capacity: maximum number of latest transitions to remember.

    Example:
        >>> predictor = EmpiricalPredictor(1)
        >>> predictor.remember(Transition("closed", "open", ("open",)))
        >>> predictor.expected("closed", "open"), predictor.expected("closed", "push")
        (['open'], [''])
    """

    source = "rule"

    def __init__(self, horizon: int, *, capacity: int = MAX_TRANSITIONS) -> None:
        super().__init__(horizon)
        self._capacity = capacity
        self._known = deque[Transition]()
        self._later: dict[tuple[str, str], deque[tuple[str, ...]]] = {}
        self._pending: list[Transition] = []

    def expected(self, state: str, action: str) -> list[str]:
        """Return the most common observations, the latest among equals; "" if unseen."""
        seen = self._later.get((state, action), ())
        return [
            commonest([later[ahead] for later in seen if ahead < len(later)])
            for ahead in range(self.horizon)
        ]

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return predictions from earlier steps; store the transitions of all groups for later."""
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
        """Remember the transitions of the finished learner's step."""
        for transition in self._pending:
            self.remember(transition)
        self._pending = []

    def remember(self, transition: Transition) -> None:
        """Remember a transition; beyond the capacity, forget the oldest one."""
        self._known.append(transition)
        self._later.setdefault(transition[:2], deque()).append(transition.later)
        if len(self._known) > self._capacity:
            oldest = self._known.popleft()
            same = self._later[oldest[:2]]
            same.popleft()
            if not same:
                del self._later[oldest[:2]]

    def metrics(self) -> dict[str, float]:
        """Return the numbers of remembered transitions, and of their states and actions."""
        return {"transitions": float(len(self._known)), "distinct": float(len(self._later))}

    def state_dict(self) -> dict[str, Any]:
        """Return the whole state as JSON; each text is stored once."""
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
        """Restore the state that :meth:`state_dict` returned."""
        texts = state["texts"]

        def read(stored: Sequence[Any]) -> Transition:
            place, action, later = stored
            return Transition(texts[place], action, tuple(texts[one] for one in later))

        self._known, self._later = deque(), {}
        for one in state["known"]:
            self.remember(read(one))
        self._pending = [read(one) for one in state["pending"]]


class Draws(Policy, Protocol):
    """A policy that samples tokens in this process, and can draw by a separate seed."""

    def drawing(self, seed: int) -> AbstractContextManager[None]:
        """Return a scope in which the policy draws by a seed; its own draws continue after it."""
        ...


class PolicyPredictor(Predictor):
    """A predictor that asks the policy itself, in chats that continue after its actions.

    A chat continues after the exact token ids of the answer that held the action. Predictions are
    neither trained on nor taped. They draw by a seed of their own, so that the random draws of
    training do not change. Steps without tokens, and steps after which the context has no room,
    have no prediction.

    Args:
        policy: returns the policy under training.
        seed: the seed of its draws, combined with the first group's id.

    Source: World-In-Agent of Role-Agent (arXiv 2606.10917), 3.2.
    """

    def __init__(self, policy: Callable[[], Policy], horizon: int, *, seed: int) -> None:
        super().__init__(horizon)
        self._policy, self._seed = policy, seed
        self._asking = (Message("user", load_cue(PROMPT).write({"horizon": horizon})),)

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Ask the policy for predictions; return them with the cost."""
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
        >>> predicted('<next n="2">a box</next><next n="9">no</next>', 2)
        ['', 'a box']
    """
    return numbered_texts(_NEXT, said, horizon)


def numbered_texts(tag: re.Pattern[str], said: str, horizon: int) -> list[str]:
    """Return the texts in the numbered tags of an answer, from 1; "" where one is missing.

    Args:
        tag: a pattern for a tag's number, "" for 1, and its text.
        said: the answer; thoughts are ignored.
        horizon: the last number.
    """
    read = without_thoughts(said)[:_MOST_CHARS]
    found = {int(number or 1): text.strip() for number, text in tag.findall(read)}
    return [found.get(ahead, "") for ahead in range(1, horizon + 1)]


def commonest(texts: Sequence[str]) -> str:
    """Return the most frequent text, the last seen among equals; "" if there is none."""
    counts = Counter(texts)
    most = max(counts.values(), default=0)
    return next((text for text in reversed(texts) if counts[text] == most), "")


def transitions(trajectory: Trajectory, horizon: int) -> list[Transition]:
    """Return each step of a trajectory with the observations that followed it."""
    after = [clean(text) for text in texts_after(trajectory)]
    return [
        Transition(clean(step.observation), step.action, tuple(after[place : place + horizon]))
        for place, step in enumerate(trajectory.steps)
    ]


INLINE_PROMPT = "role_agent/inline"
"""Name of the prompt that asks for predictions in every answer."""
_TAG = re.compile(r'<predict_next(?: n="(\d{1,3})")?>(.*?)</predict_next>', re.DOTALL)


class InlineCoach:
    """A coach that asks for predictions in every answer of a training episode; they are trained on.

    Args:
        horizon: H, observations to predict per step.
    """

    def __init__(self, horizon: int) -> None:
        prompt = load_cue(INLINE_PROMPT)
        text = prompt.write({"horizon": horizon})
        self._guidance = Guidance(cues=(Cue(text, place="turn", id=prompt.label),))

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the request for predictions; see :class:`~coevo_gym.core.seams.Coach`."""
        return [self._guidance] * len(tickets)


class InlinePredictor(Predictor):
    """A predictor that reads the predictions beside the agent's actions; it asks no questions.

    Source: the code of Role-Agent, with one tag for each observation ahead.
    """

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the predictions written in the answers of each trajectory."""
        return Made([[written(step.said, self.horizon) for step in one.steps] for one in asked])


def written(said: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, the next observation's first; "" where one is missing.

    A tag without a number predicts the next observation; of equal numbers the last one counts.

    Example:
        >>> written('<predict_next n="1">a box</predict_next><action>open it</action>', 2)
        ['a box', '']
    """
    return numbered_texts(_TAG, said, horizon)
