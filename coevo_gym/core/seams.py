"""Protocols for agents, policies, curricula and trainer components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.evolution import Round, RoundResult, Signal
from coevo_gym.core.notes import Findings, Notes
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import (
    Cue,
    Decision,
    EndReason,
    Group,
    Sample,
    TokenDecision,
    View,
)
from coevo_gym.core.transcript import ModelCall

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ticket:
    """Permission to run one episode of a group's task.

    Attributes:
        id: id that is unique within a run.
        task: the task to run.
        group_id: id of the group that the episode belongs to.
        index: 0 … K - 1, the episode's index in the group.
        policy_version: version of the policy when the ticket was issued.
    """

    id: str
    task: Task
    group_id: str
    index: int
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """A response saying that no ticket is available yet, so the caller should ask again.

    Attributes:
        reason: event that must happen before a ticket becomes available.
    """

    reason: str


class ClosedStep(NamedTuple):
    """The groups and signals of one finished learner step.

    Attributes:
        groups: the groups recorded with the step, in the order of their numbers.
        signals: the signals that the curriculum emitted for these groups.
    """

    groups: tuple[Group, ...]
    signals: tuple[Signal, ...]


class Memory(Protocol):
    """A component that stores facts from analysis notes. It uses no I/O, clock or framework."""

    def note(self, notes: Notes) -> None:
        """Record the analysis notes from a learner step."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return metrics that describe the current state."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state from :meth:`state_dict`. Later results match the saved object's."""
        ...


@runtime_checkable
class AdviceMemory(Memory, Protocol):
    """A memory that stores advice. It also reports its changes, so that a run can store them."""

    def changes(self) -> Sequence[AdviceState]:
        """Return the current state of all advice that the latest notes affected."""
        ...


class Study(Protocol):
    """A component that writes notes about finished training groups.

    It does I/O only through the advisor or the replays passed to it. It treats any model output as
    data.
    """

    @property
    def kind(self) -> str:
        """The kind of note that this study writes about training groups."""
        ...

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Return the study's findings about a learner step. All notes must be about its groups."""
        ...


class Interface(Protocol):
    """A pure, thread-safe transformation of the env's text, applied during training.

    It sees only a view, so no task, verifier or solution can leak into the shown text.
    """

    @property
    def version(self) -> str:
        """A unique identifier for the transformation, or "" if the text is not transformed."""
        ...

    def show(self, view: View) -> View:
        """Return the view to show to the agent, with a new observation or new text in ``info``.

        The history of ``view`` contains the texts shown so far. The history and all other parts of
        the view must be returned unchanged.
        """
        ...


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """An interface that shows the agent the env's text unchanged."""

    version: str = ""

    def show(self, view: View) -> View:
        """Return the view unchanged."""
        return view


IDENTITY: Interface = _AsItIs()


class Guidance(NamedTuple):
    """Guidance for one episode: a text transformation and cues. Neither changes during the episode.

    Attributes:
        interface: transformation of the env's text.
        cues: additional text for the agent.
    """

    interface: Interface = IDENTITY
    cues: tuple[Cue, ...] = ()


class Coach(Protocol):
    """A stateless component that reads memories and returns guidance for training episodes."""

    def guide(self, tickets: Sequence[Ticket]) -> Sequence[Guidance]:
        """Return the guidance for each episode to run, in the order of ``tickets``.

        Equal tickets and equal memories must give equal guidance, because lost or interrupted
        episodes are run again. The guidance must not reveal a task's solution or verifier.
        """
        ...


class Selector(Memory, Protocol):
    """An I/O-free strategy that chooses the next task from a pool.

    It is notified of every task that joins the pool, so its weights stay aligned with the pool;
    tasks never leave. Its state includes the tasks.
    """

    def added(self, tasks: Sequence[Task]) -> None:
        """Record that the given tasks have joined the pool, in the given order."""
        ...

    def weights(self) -> NDArray[np.float64] | None:
        """Return each task's weight in pool order, or None to draw uniformly.

        Not called while the pool is empty.
        """
        ...

    def record(self, groups: Sequence[Group]) -> None:
        """Record finished groups of training episodes."""
        ...


class Growth(Memory, Protocol):
    """An I/O-free strategy that decides when to evolve new tasks, and from which contexts."""

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Record finished groups of training episodes, and return the signals they triggered."""
        ...

    def plan(self, pool: Sequence[Task], rng: Generator) -> Round | None:
        """Return the round that is due, or None. Not called while a round is in progress.

        The curriculum fills in the round's ``id`` and the tasks that are ``known``.
        """
        ...

    def apply(self, result: RoundResult) -> None:
        """Record a finished round whose tasks have joined the pool. Called once per round."""
        ...


class Curriculum(Memory, Protocol):
    """An I/O-free strategy that chooses the next training tasks."""

    def next(self, n: int, rng: Generator) -> list[Task]:
        """Return the tasks of the next ``n`` groups, without repeats if the pool is large enough.

        Raises:
            ConfigError: if there is no task to return.
        """
        ...

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Record finished groups of training episodes, and return the signals they triggered."""
        ...

    def note(self, notes: Notes) -> None:
        """Record the analysis notes from a learner step. By default, do nothing."""

    def plan(self, rng: Generator) -> Round | None:
        """Return the round of evolution that is due, or None.

        The same round is returned until its result is applied, even after the state is saved and
        loaded.
        """
        ...

    def apply(self, result: RoundResult) -> None:
        """Record a round's accepted tasks, verdicts and costs. Repeated calls have no effect."""
        ...


class Evolver(Protocol):
    """The component that runs rounds of evolution. A round may run during training."""

    def run(self, round: Round) -> RoundResult:
        """Explore contexts, draft tasks and verify them. Bad drafts never raise an error."""
        ...


class Act(NamedTuple):
    """An agent's response at one step of an episode.

    Attributes:
        text: the action for the env.
        decision: the trainable policy's decision; None for scripts.
        said: the complete answer, including thoughts, if it is more than the action; or "".
        end: reason the agent cannot continue, such as a full context. The episode is then
            truncated and graded as it stands, and ``text`` is not sent. With ``MODEL_LOST`` or
            ``CAPPED``, the episode is lost without a grade, and ``said`` contains the reason. None
            to continue.
        usage: cost of the model requests.
        memory: text about earlier steps that the agent wrote before it acted; or "".
        cut: True if the model's answer was cut off at the token limit.
        call: the exact chat behind the response; None without a language model.
        answer_s: wall time of the response in seconds. None lets the code that runs episodes
            measure the time of the whole batch.
        env_s: wall time of the env step, added by the code that runs episodes.
    """

    text: str
    decision: Decision | None = None
    said: str = ""
    end: EndReason | None = None
    usage: Usage = NO_USAGE
    memory: str = ""
    cut: bool = False
    call: ModelCall | None = None
    answer_s: float | None = None
    env_s: float | None = None


class Agent(Protocol):
    """An agent that acts in envs, both in training loops and in ``evaluate``."""

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        """Return the agent's response in each live episode. There is one view per live episode."""
        ...


class ActStream(Protocol):
    """An agent's responses in several episodes, each returned as soon as it is ready."""

    def __len__(self) -> int:
        """Return the number of views without a response."""
        ...

    def add(self, key: int, view: View, seed: tuple[int, ...]) -> None:
        """Request the response to a view, which :meth:`step` will return with the given key.

        Args:
            key: identifier that is not in use.
            view: the agent's view.
            seed: seed of the agent's draws.
        """
        ...

    def step(self) -> list[tuple[int, Act]]:
        """Advance all responses by one token, and return those that are ready."""
        ...


@runtime_checkable
class StreamingAgent(Agent, Protocol):
    """An agent that responds in each episode as soon as it can."""

    def stream(self) -> AbstractContextManager[ActStream] | None:
        """Return a context manager for a stream of responses; None if the agent has none."""
        ...


class Sampling(NamedTuple):
    """Sampling parameters of a policy.

    Attributes:
        temperature: sampling temperature; 0 is greedy.
        max_tokens: maximum number of tokens per answer.
    """

    temperature: float = 1.0
    max_tokens: int = 512


_SAMPLE = Sampling()


@dataclass(frozen=True, slots=True)
class Choice:
    """A request to choose one of ``choices`` in a context."""

    context: View
    choices: tuple[str, ...]
    sampling: Sampling = _SAMPLE


class Message(NamedTuple):
    """One message in a chat.

    Attributes:
        role: ``system``, ``user``, ``assistant``, or ``tool`` for the result of a call.
        content: its text.
        ids: sampled token ids of an assistant message; a policy that samples tokens inserts them
            into the prompt and never tokenises ``content`` again. () if unknown.
    """

    role: str
    content: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to continue a chat.

    Attributes:
        messages: the chat so far; with ``after``, the messages since then, beginning with a user
            message.
        sampling: sampling parameters of the answer.
        trained: the chat to train the answer on if it differs from ``messages``, because cues are
            stripped. A policy with trainable tokens copies it to the decision's
            ``trained_prompt_ids``; others ignore it. None for ``messages``.
        template: name and version of the prompt file, such as ``"webshop@1"``; or "".
        purpose: purpose of the answer, used to group usage; or "".
        tools: the tools that the model can call, for its chat template or endpoint, as the JSON
            text of a chat request's ``tools``; "" for none.
        after: the answer that the chat continues, with exactly its prompt ids and sampled ids;
            supported only by policies that sample tokens in this process. None for a new chat.
        seed: seed of the draws, for policies that sample tokens in this process; () for the
            policy's own generator.
        episode: id of the episode that asks (:attr:`View.episode`), by which a tape tells equal
            requests of different episodes apart; never sent to a model. "" if unknown.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = _SAMPLE
    trained: tuple[Message, ...] | None = None
    template: str = ""
    purpose: str = ""
    tools: str = ""
    after: TokenDecision | None = None
    seed: tuple[int, ...] = ()
    episode: str = ""


Request = Choice | Prompt


class Finish(StrEnum):
    """The reason that a model stopped generating an answer, or never started."""

    STOP = "stop"
    LENGTH = "length"
    """``max_tokens`` were sampled before the answer was complete."""
    OVERFLOW = "overflow"
    """The prompt leaves no room in the model's context; nothing was sampled."""
    REFUSED = "refused"
    """A content filter rejected the prompt; ``text`` contains the reason."""
    LOST = "lost"
    """The model could not be reached or returned no valid answer; ``text`` contains the reason."""
    UNSENT = "unsent"
    """The request might have exceeded a budget, so it was not sent."""
    CAPPED = "capped"
    """The request might have exceeded a cap on the endpoint, so it was not sent; ``text`` contains
    the reason."""


class Completion(NamedTuple):
    """A policy's answer to a request.

    Attributes:
        text: the choice taken, or the sampled text. If the prompt ends by opening a thought, the
            text of a policy that knows its prompt begins with the opening tag.
        decision: the sampled tokens or the choice; None if the policy does not record it.
        finish: reason the answer ended.
        usage: cost, as far as the policy knows it; includes the tokens of ``decision``.
        seconds: wall time of the answer, if each request has its own; None for a batch.
    """

    text: str
    decision: Decision | None
    finish: Finish = Finish.STOP
    usage: Usage = NO_USAGE
    seconds: float | None = None


class Policy(Protocol):
    """A scorer, language model or endpoint that answers requests."""

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """Return one completion per request, in order."""
        ...


class AnswerStream(Protocol):
    """Answers that a policy samples together, while further requests may be added."""

    def __len__(self) -> int:
        """Return the number of answers that have not ended."""
        ...

    def add(self, key: int, request: Request) -> None:
        """Add a request, whose answer :meth:`step` will return with the given key."""
        ...

    def step(self) -> list[tuple[int, Completion]]:
        """Sample the next token of each answer, and return the answers that ended."""
        ...


@runtime_checkable
class StreamingPolicy(Policy, Protocol):
    """A policy whose answers end one by one, so that no request waits for the longest answer."""

    def stream(self) -> AbstractContextManager[AnswerStream]:
        """Return a context manager for a stream of answers; unfinished ones are dropped."""
        ...


@runtime_checkable
class ClosablePolicy(Policy, Protocol):
    """A policy that uses connections or other processes until it is closed."""

    def close(self) -> None:
        """Close connections and stop processes. Further calls have no effect."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy that computes differentiable log-probabilities for training."""

    version: int

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities of the sampled tokens or choices under the current weights.

        Returns:
            (B, T) log-probabilities of the sampled positions of each sample, in order and padded to
            the longest, and a (B, T) bool mask of valid positions; a choice has T = 1.
        """
        ...


class PolicyOutputs(NamedTuple):
    """A policy's outputs at the sampled positions of B samples, from one forward pass.

    Attributes:
        logp: (B, T) log-probabilities, as in :meth:`TrainablePolicy.logprobs`.
        mask: (B, T) bool, True for valid positions.
        entropy: (B, T) entropies in nats of the distributions that the tokens or choices are
            sampled from, 0 at masked positions; None if they were not computed.
        values: (B, T) values from a value head; None without one.
    """

    logp: Tensor
    mask: Tensor
    entropy: Tensor | None = None
    values: Tensor | None = None


StepAdvantage = float | Sequence[float]
"""A step's advantage: one number for all of its tokens, or one number per sampled token."""
Advantage = float | Sequence[StepAdvantage]
"""A trajectory's advantage: one number for all of its steps, or one advantage per step."""


class Estimator(Protocol):
    """A pure function that estimates the advantages of a group's trajectories or steps."""

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """Return an advantage for each trajectory in each group. Lost rollouts have advantage 0."""
        ...


class Transform(Protocol):
    """A pure function that transforms advantages, for example based on analysis notes."""

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """Return transformed advantages, without modifying the given lists."""
        ...
