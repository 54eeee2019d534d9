"""The Protocols that agents, curricula and trainers are written against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from numpy.random import Generator

from coevo_gym.evolution import Round, RoundResult, Signal
from coevo_gym.task import Task
from coevo_gym.trajectory import Decision, Group, View

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


class Curriculum(Protocol):
    """Decides what to practise next. Pure: no I/O, no clock, no framework."""

    def next(self, n: int, rng: Generator) -> list[Task]:
        """The next ``n`` tasks to run a group of.

        Raises:
            ConfigError: if there is no task to give.
        """
        ...

    def record(self, groups: Sequence[Group]) -> list[Signal]:
        """Take in finished groups of training episodes; returns the signals they fired."""
        ...

    def plan(self, rng: Generator) -> Round | None:
        """The next round of evolution, or None if none is due."""
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
    """

    text: str
    decision: Decision | None = None


class Agent(Protocol):
    """Who acts: what the loops and ``evaluate`` talk to."""

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        """One act per view; the views are those of all live episodes."""
        ...


class Sampling(NamedTuple):
    """How a policy draws.

    Attributes:
        temperature: 0 is greedy.
    """

    temperature: float = 1.0


_SAMPLE = Sampling()


@dataclass(frozen=True, slots=True)
class Choice:
    """A request to choose one of ``choices`` in a context."""

    context: View
    choices: tuple[str, ...]
    sampling: Sampling = _SAMPLE


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request to continue a prompt: token ids, or messages that the policy tokenises."""

    ids: tuple[int, ...] = ()
    messages: tuple[Mapping[str, str], ...] = ()
    sampling: Sampling = _SAMPLE


Request = Choice | Prompt


class Completion(NamedTuple):
    """A policy's answer to a request."""

    text: str
    decision: Decision | None


class Policy(Protocol):
    """Anything that answers requests: a scorer, a language model, an endpoint."""

    def generate(self, requests: Sequence[Request]) -> Sequence[Completion]:
        """One completion per request, in order."""
        ...


class TrainablePolicy(Policy, Protocol):
    """A policy whose decisions have gradients."""

    version: int

    def logprobs(self, decisions: Sequence[Decision]) -> tuple[Tensor, Tensor]:
        """Log-probabilities of decisions under the current weights.

        Returns:
            (B, T) log-probabilities of the sampled part, and a (B, T) bool mask of what counts;
            a choice has T = 1.
        """
        ...
