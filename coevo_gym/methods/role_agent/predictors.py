"""Predictors of the observations that follow an agent's actions."""

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
from coevo_gym.core.thoughts import without_thoughts
from coevo_gym.core.trajectory import Cue, Group, TokenDecision, Trajectory
from coevo_gym.envs.diagnosis import observations_after
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.methods.role_agent.foresight import FORESIGHT, strip_and_truncate
from coevo_gym.prompts.template import load_cue
from coevo_gym.trainers.similarity import MAX_CHARACTERS

MAX_TRANSITIONS = 5_000
"""Maximum number of transitions that the empirical predictor remembers."""

PROMPT = "role_agent/predict"
"""Name of the prompt that asks a policy for the next observations."""
_MAX_CHARS = 20_000
"""Maximum number of characters to read from an answer."""
_NEXT = re.compile(r'<next n="(\d{1,3})">(.*?)(?:</next>|(?=<next )|\Z)', re.DOTALL)
_PARTIAL_TAG = re.compile(r"<(?:/\w*|(?:predict_)?next[^<>]*)?\Z")
"""The start of a tag at the end of an answer that was cut."""

Predictions = Sequence[Sequence[str]]
"""The predicted observations for each step of a trajectory, in order."""


class Made(NamedTuple):
    """A predictor's predictions and their cost.

    Attributes:
        predictions: the predictions for each requested trajectory.
        usage: the cost of querying a model for the predictions.
    """

    predictions: Sequence[Predictions]
    usage: Usage = NO_USAGE


class Predictor(ABC):
    """A predictor of the observations that follow each step of a trajectory.

    Args:
        horizon: H, number of observations to predict per step.

    Attributes:
        source: origin of the predictions, which is stored in notes.
    """

    source: Literal["rule", "model"] = "model"

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    @abstractmethod
    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the predictions for each requested trajectory.

        Args:
            asked: the trajectories to make predictions for, which belong to ``groups``.
            groups: all groups of the learner step, except groups that were already studied.
        """


class Transition(NamedTuple):
    """A step with the observations that followed it.

    Attributes:
        state: the observation before the action.
        action: the action.
        later: the observations that followed, in order, at most as many as the horizon.
    """

    state: str
    action: str
    later: tuple[str, ...]


class EmpiricalPredictor(Predictor):
    """A predictor that returns the observations that most often followed an action in a state.

    It does not use a model and is a control, because the policy has no part in the foresight. The
    same object is a predictor and a memory. A learner step's transitions are remembered when the
    step is over, so no transition is predicted from itself.

    Args:
        capacity: maximum number of transitions to remember; the latest are kept.

    Example:
        >>> predictor = EmpiricalPredictor(1)
        >>> predictor.remember(Transition("closed", "open", ("open",)))
        >>> [predictor.expected_observations("closed", action) for action in ("open", "push")]
        [['open'], ['']]
    """

    source = "rule"

    def __init__(self, horizon: int, *, capacity: int = MAX_TRANSITIONS) -> None:
        super().__init__(horizon)
        self._capacity = capacity
        self._known = deque[Transition]()
        self._later: dict[tuple[str, str], deque[tuple[str, ...]]] = {}
        self._pending: list[Transition] = []

    def expected_observations(self, state: str, action: str) -> list[str]:
        """Return the observations that most often followed an action, or "" where none is known."""
        seen = self._later.get((state, action), ())
        return [
            commonest([later[ahead] for later in seen if ahead < len(later)])
            for ahead in range(self.horizon)
        ]

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Predict the observations after each action from past transitions. Collect new ones."""
        predictions = [
            [
                self.expected_observations(strip_and_truncate(step.observation), step.action)
                for step in trajectory.steps
            ]
            for trajectory in asked
        ]
        for group in groups:
            for trajectory in group.trajectories:
                if not trajectory.end_reason.is_lost:
                    self._pending += transitions(trajectory, self.horizon)
        return Made(predictions)

    def note(self, notes: Notes) -> None:
        """Store the transitions of the finished learner step."""
        for transition in self._pending:
            self.remember(transition)
        self._pending = []

    def remember(self, transition: Transition) -> None:
        """Store a transition, discarding the oldest transition if the memory is full."""
        self._known.append(transition)
        self._later.setdefault(transition[:2], deque()).append(transition.later)
        if len(self._known) > self._capacity:
            oldest = self._known.popleft()
            same = self._later[oldest[:2]]
            same.popleft()
            if not same:
                del self._later[oldest[:2]]

    def metrics(self) -> dict[str, float]:
        """Return the number of transitions and the number of distinct (state, action) pairs."""
        return {"transitions": float(len(self._known)), "distinct": float(len(self._later))}

    def state_dict(self) -> dict[str, Any]:
        """Return the full state as JSON, with each string stored only once."""
        places: dict[str, int] = {}

        def encode(transition: Transition) -> list[Any]:
            state, *later = (
                places.setdefault(text, len(places))
                for text in (transition.state, *transition.later)
            )
            return [state, transition.action, later]

        known = [encode(one) for one in self._known]
        pending = [encode(one) for one in self._pending]
        return {"known": known, "pending": pending, "texts": list(places)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        texts = state["texts"]

        def decode(stored: Sequence[Any]) -> Transition:
            place, action, later = stored
            return Transition(texts[place], action, tuple(texts[one] for one in later))

        self._known, self._later = deque(), {}
        for one in state["known"]:
            self.remember(decode(one))
        self._pending = [decode(one) for one in state["pending"]]


class Draws(Policy, Protocol):
    """A policy that samples tokens in this process, optionally with a separate seed."""

    def use_seed(self, seed: int) -> AbstractContextManager[None]:
        """Return a context manager that makes the policy sample with a separate seed."""
        ...


class PolicyPredictor(Predictor):
    """A predictor that asks the policy itself, by continuing the chat after each action.

    A chat continues after the exact token ids of the answer that contained the action. Predictions
    are not trained on and not stored on a tape. They are sampled with a separate seed, so that
    training is not affected. Steps without tokens and steps after which the context is full have no
    prediction.

    Args:
        policy: returns the policy being trained.
        max_tokens: maximum number of tokens per predicted observation.
        seed: seed for sampling predictions, which is combined with the first group's id.

    Source: World-In-Agent in Role-Agent (arXiv 2606.10917), 3.2.
    """

    def __init__(
        self, policy: Callable[[], Policy], horizon: int, *, max_tokens: int, seed: int
    ) -> None:
        super().__init__(horizon)
        self._policy, self._max_tokens, self._seed = policy, max_tokens * horizon, seed
        self._asking = (prediction_request(horizon, self._max_tokens),)

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Query the policy for predictions and return them with their cost."""
        predictions: list[list[list[str]]] = [[[] for _ in one.steps] for one in asked]
        places, requests = list[tuple[int, int]](), list[Prompt]()
        for number, trajectory in enumerate(asked):
            for step, turn in enumerate(trajectory.steps):
                if isinstance(turn.decision, TokenDecision):
                    places.append((number, step))
                    requests.append(self._make_prompt(turn.decision))
        if not requests:
            return Made(predictions)
        policy = cast(Draws, self._policy())
        with policy.use_seed(episode_seed(self._seed, groups[0].id)):
            answers = policy.generate(requests)
        for (number, step), answer in zip(places, answers, strict=True):
            predictions[number][step] = parse_separate_predictions(answer.text, self.horizon)
        return Made(predictions, sum((answer.usage for answer in answers), NO_USAGE))

    def _make_prompt(self, decision: TokenDecision) -> Prompt:
        sampling = Sampling(decision.temperature, self._max_tokens)
        return Prompt(self._asking, sampling, purpose=FORESIGHT, after=decision)


def prediction_request(horizon: int, max_tokens: int) -> Message:
    """Return the message that asks for the next observations, in at most ``max_tokens`` tokens."""
    inputs = {"horizon": horizon, "tokens": max_tokens, "characters": MAX_CHARACTERS}
    return Message("user", load_cue(PROMPT).render_cue(inputs))


def parse_separate_predictions(answer: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, in order, with "" for missing predictions.

    A tag that is not closed, such as the last tag of an answer that was cut, ends at the next tag.

    Example:
        >>> parse_separate_predictions('<next n="2">a box</next><next n="9">no</next>', 2)
        ['', 'a box']
        >>> parse_separate_predictions('<next n="1">a box, and in it a mu', 1)
        ['a box, and in it a mu']
    """
    return parse_numbered_tags(_NEXT, answer, horizon)


def parse_numbered_tags(tag: re.Pattern[str], answer: str, horizon: int) -> list[str]:
    """Return the contents of an answer's numbered tags, in order, with "" for missing tags.

    Args:
        tag: a pattern with groups for a tag's number (or "" for 1) and its text.
        answer: the answer; thoughts are ignored.
        horizon: the last number to return.
    """
    read = without_thoughts(answer)[:_MAX_CHARS]
    texts = {
        int(number or 1): _PARTIAL_TAG.sub("", text).strip() for number, text in tag.findall(read)
    }
    return [texts.get(ahead, "") for ahead in range(1, horizon + 1)]


def commonest(texts: Sequence[str]) -> str:
    """Return the most frequent string (on ties, the latest), or "" if there is none."""
    counts = Counter(texts)
    most = max(counts.values(), default=0)
    return next((text for text in reversed(texts) if counts[text] == most), "")


def transitions(trajectory: Trajectory, horizon: int) -> list[Transition]:
    """Return each step of a trajectory with the observations that followed."""
    after = [strip_and_truncate(text) for text in observations_after(trajectory)]
    return [
        Transition(
            strip_and_truncate(step.observation), step.action, tuple(after[place : place + horizon])
        )
        for place, step in enumerate(trajectory.steps)
    ]


INLINE_PROMPT = "role_agent/inline"
"""Name of the prompt that asks for predictions in every answer."""
_TAG = re.compile(
    r'<predict_next(?: n="(\d{1,3})")?>(.*?)(?:</predict_next>|(?=<predict_next|<action>)|\Z)',
    re.DOTALL,
)


class InlineCoach:
    """A coach that requests predictions in every answer, so that training includes them.

    Args:
        horizon: H, number of observations to predict per step.
    """

    def __init__(self, horizon: int) -> None:
        prompt = load_cue(INLINE_PROMPT)
        text = prompt.render_cue({"horizon": horizon})
        self._guidance = Guidance(cues=(Cue(text, place="turn", id=prompt.label),))

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the request for predictions; see :class:`~coevo_gym.core.seams.Coach`."""
        return [self._guidance] * len(tickets)


class InlinePredictor(Predictor):
    """A predictor that reads predictions from the agent's answers, without extra queries.

    Source: Role-Agent's code, with one tag per predicted observation.
    """

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the predictions in the answers of each trajectory."""
        return Made(
            [
                [parse_inline_predictions(step.said, self.horizon) for step in one.steps]
                for one in asked
            ]
        )


def parse_inline_predictions(answer: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, in order, with "" for missing predictions.

    A tag without a number predicts the next observation. For repeated numbers, the last tag counts.

    Example:
        >>> parse_inline_predictions('<predict_next n="1">a box</predict_next><action>', 2)
        ['a box', '']
    """
    return parse_numbered_tags(_TAG, answer, horizon)
