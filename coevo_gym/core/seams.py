"""The Protocols that agents, curricula and trainers are written against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

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

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to run one episode of a task in a group.

    Attributes:
        id: unique within a run.
        task: what to run.
        group_id: the group that the episode belongs to.
        index: 0 … K - 1, the episode's place in the group.
        policy_version: version of the policy that was to act when the ticket was issued.
    """

    id: str
    task: Task
    group_id: str
    index: int
    policy_version: int = 0


@dataclass(frozen=True, slots=True)
class Later:
    """No ticket now; ask again.

    Attributes:
        reason: what has to happen before there is one.
    """

    reason: str


class ClosedStep(NamedTuple):
    """What a learner's step has practised.

    Attributes:
        groups: the groups recorded with it, in the order of their numbers.
        signals: what the curriculum read from them.
    """

    groups: tuple[Group, ...]
    signals: tuple[Signal, ...]


class Memory(Protocol):
    """State that grows from notes. Pure: no I/O, no clock, no framework."""

    def note(self, notes: Notes) -> None:
        """Take in the notes of a learner's step."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers about its state, for any sink."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; what follows is as if it had never stopped."""
        ...


class Study(Protocol):
    """Reads finished training groups, and writes notes about them.

    Its I/O goes through an advisor or through replays that it was given. What a model has said is
    data to it, whatever it is.
    """

    @property
    def kind(self) -> str:
        """The kind of its notes."""
        ...

    def examine(self, groups: Sequence[Group]) -> Findings:
        """What it finds in the groups of a learner's step; its notes are about these alone."""
        ...


class Interface(Protocol):
    """How the text of an env is shown in training. Frozen and pure; threads may share it.

    It sees a view, so no task, verifier or solution can reach what is shown.
    """

    @property
    def version(self) -> str:
        """Another one for all that shows anything differently; "" for the env's own text."""
        ...

    def show(self, view: View) -> View:
        """The view as its agent is shown it: with another observation, or other texts in info.

        The history of ``view`` is what the agent was shown so far. It stays as it is, and so does
        all else.
        """
        ...


@dataclass(frozen=True, slots=True)
class _AsItIs:
    """Shows what the env shows."""

    version: str = ""

    def show(self, view: View) -> View:
        """See :class:`Interface`."""
        return view


IDENTITY: Interface = _AsItIs()


class Guidance(NamedTuple):
    """What goes with an episode beyond its task, from its beginning to its end.

    Attributes:
        interface: what the env's text is shown through.
        cues: what the agent is told.
    """

    interface: Interface = IDENTITY
    cues: tuple[Cue, ...] = ()


class Coach(Protocol):
    """Gives training episodes their guidance. It keeps nothing: what it goes by is in memories."""

    def guide(self, tickets: Sequence[Ticket]) -> Sequence[Guidance]:
        """One guidance for each ticket, in order.

        A ticket that is asked for again, in the same state of the memories, gets the same: episodes
        that were lost or under way when a run was stopped are run again. What a task is solved or
        judged by must not get into it.
        """
        ...


class Selector(Memory, Protocol):
    """Says which task of a pool is practised next. Pure.

    It is told of every task that joins the pool, so that its numbers keep step with it; tasks never
    leave. Its state holds all that it was told, the tasks included.
    """

    def added(self, tasks: Sequence[Task]) -> None:
        """The pool has grown by these tasks, in this order."""
        ...

    def weights(self) -> NDArray[np.float64] | None:
        """Weight of each task in the order of the pool; None to draw uniformly.

        Returns:
            (n,) finite numbers, at least 0 and not all 0, on any scale. A task of weight 0 is not
            drawn.
        """
        ...

    def record(self, groups: Sequence[Group]) -> None:
        """Take in finished groups of training episodes."""
        ...


class Growth(Memory, Protocol):
    """Says when a round explores, and from where. Pure."""

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Take in finished groups of training episodes; returns the signals they fired."""
        ...

    def plan(self, pool: Sequence[Task], rng: Generator) -> Round | None:
        """The round that is due, or None. Not asked while a round is in flight.

        The curriculum gives the round its ``id`` and the tasks that are ``known``.
        """
        ...

    def apply(self, result: RoundResult) -> None:
        """A round is done, and its tasks are in the pool; called once for each round."""
        ...


class Curriculum(Protocol):
    """Decides what to practise next. Pure: no I/O, no clock, no framework."""

    def next(self, n: int, rng: Generator) -> list[Task]:
        """The next ``n`` tasks to run a group of, distinct as far as there are enough.

        Raises:
            ConfigError: if there is no task to give.
        """
        ...

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Take in finished groups of training episodes; returns the signals they fired."""
        ...

    def note(self, notes: Notes) -> None:
        """Take in the notes of a learner's step; by default nothing comes of them."""

    def plan(self, rng: Generator) -> Round | None:
        """The round of evolution that is due, or None.

        A round that was given is given again until its result is applied, also by a state that was
        saved and loaded in between.
        """
        ...

    def apply(self, result: RoundResult) -> None:
        """Take in a round's accepted tasks, verdicts and costs; idempotent by round id."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers about its state, for any sink."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All of its state as JSON."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; what follows is as if it had never stopped."""
        ...


class Evolver(Protocol):
    """Carries out a round: explorer, envs, builder, gates. May run beside training."""

    def run(self, round: Round) -> RoundResult:
        """Explore, abstract, prove. A bad draft is a verdict, never an exception."""
        ...


class Act(NamedTuple):
    """What an agent does with a view.

    Attributes:
        text: the action for the env.
        decision: how a trainable policy came to it; None for scripts.
        said: the whole answer, thoughts included, where that is more than the action; or "".
        end: why the agent cannot go on, such as a context that is full; the episode is then cut
            and graded as it stands, and ``text`` is not sent. With ``MODEL_LOST`` it is lost
            instead, without a grade, and ``said`` tells why. None to act.
        usage: what a model was asked for it.
    """

    text: str
    decision: Decision | None = None
    said: str = ""
    end: EndReason | None = None
    usage: Usage = NO_USAGE


class Agent(Protocol):
    """Who acts: what the loops and ``evaluate`` talk to."""

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        """One act per view; the views are those of all live episodes."""
        ...


class Sampling(NamedTuple):
    """How a policy draws.

    Attributes:
        temperature: 0 is greedy.
        max_tokens: most tokens of an answer.
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
    """One message of a chat.

    Attributes:
        role: ``system``, ``user`` or ``assistant``.
        content: its text.
        ids: of an assistant's message, the token ids that were sampled; a policy with tokens puts
            them into the prompt as they are, and never tokenises ``content`` anew. () if unknown.
    """

    role: str
    content: str
    ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to go on with a chat.

    Attributes:
        messages: the chat so far; with ``after``, what has been said since, a user's first.
        sampling: how the answer is drawn.
        trained: the chat that the answer is trained on, where that is another one: without the
            cues that are stripped. Who answers in tokens that are trained on puts it into the
            decision's ``trained_prompt_ids``; nobody else has a use for it. None for ``messages``.
        template: name and version of the prompt file behind it, such as ``"webshop@1"``; or "".
        purpose: what the answer is for, where that is counted; or "".
        after: an answer that the chat goes on after, with exactly the ids of its prompt and its
            own; only policies that sample tokens here can do so. None for a chat from its start.
    """

    messages: tuple[Message, ...]
    sampling: Sampling = _SAMPLE
    trained: tuple[Message, ...] | None = None
    template: str = ""
    purpose: str = ""
    after: TokenDecision | None = None


Request = Choice | Prompt


class Finish(StrEnum):
    """How an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    """``max_tokens`` were sampled, and the answer was not over."""
    OVERFLOW = "overflow"
    """The prompt leaves no room in the model's context; nothing was sampled."""
    LOST = "lost"
    """The model could not be asked, or what came back is no answer; ``text`` says why."""
    UNSENT = "unsent"
    """It might have passed a budget, so it was not sent."""


class Completion(NamedTuple):
    """A policy's answer to a request.

    Attributes:
        text: the choice taken, or the text that was sampled.
        decision: how it came about; None where the policy cannot say.
        finish: how it ended.
        usage: what it cost, as far as the policy knows; a ``decision`` tells its tokens, too.
    """

    text: str
    decision: Decision | None
    finish: Finish = Finish.STOP
    usage: Usage = NO_USAGE


class Policy(Protocol):
    """Anything that answers requests: a scorer, a language model, an endpoint."""

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """One completion per request, in order."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy whose decisions have gradients."""

    version: int

    def logprobs(self, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of what was sampled, under the current weights.

        Returns:
            (B, T) log-probabilities of the sampled positions of each sample, one after the other
            and padded to the longest, and a (B, T) bool mask of what counts; a choice has T = 1.
        """
        ...


StepAdvantage = float | Sequence[float]
"""Of a step: one number for all that was sampled in it, or one for each sampled token."""
Advantage = float | Sequence[StepAdvantage]
"""Of a trajectory: one number for all that was done in it, or one for each step."""


class Estimator(Protocol):
    """Says how good each trajectory of a group was, or each of its steps. Pure, and no PyTorch."""

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """One advantage for each trajectory of each group; those of lost rollouts are 0."""
        ...


class Transform(Protocol):
    """Changes advantages, by what was noted about the trajectories for example. Pure."""

    def __call__(
        self, groups: Sequence[Group], notes: Notes, advantages: list[list[Advantage]]
    ) -> list[list[Advantage]]:
        """The advantages as they are to be learned from; those given stay as they are."""
        ...
