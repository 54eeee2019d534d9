"""What happened in an episode, and what an agent may see of it.

A :class:`View` is all that an agent, a scorer's choices or a context manager ever get. It holds
no task, so ground truth cannot leak through it. Training episodes are :class:`Trajectory`,
evaluation episodes :class:`EvalTrajectory`: two types, and nothing that records, updates or adds
accepts the second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from coevo_gym.core.task import FrozenDict, Task


class EndReason(StrEnum):
    """Why an episode ended; ``info["end_reason"]`` is "" until then."""

    SOLVED = "solved"
    FAILED = "failed"
    AGENT_DONE = "agent_done"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    TIME_LIMIT = "time_limit"
    """Somebody outside the env ended it: a wrapper, a clock, or a reset in mid-episode."""
    WORKER_LOST = "worker_lost"
    MODEL_LOST = "model_lost"
    """The model behind the agent gave no answer. Only what runs episodes sees this one."""
    ABANDONED = "abandoned"
    """Nobody ran it to its end: whoever acted gave it up. No trajectory ends so."""

    @property
    def lost(self) -> bool:
        """Whether an end says nothing about the agent: no grade, no trajectory, never a failure."""
        return self in (EndReason.WORKER_LOST, EndReason.MODEL_LOST, EndReason.ABANDONED)


UNKNOWN_VERSION = -1
"""The policy version of a decision of which nobody said who took it, as in old files."""


CuePlace = Literal["system", "first", "turn"]
"""Where a cue is told: after the system text, before the first user message, after every one."""


class Cue(NamedTuple):
    """Text that an agent is told beyond its task, in training and in exploration only.

    Attributes:
        text: what it is told.
        place: where: after the system text, before the first user message, or after every user
            message.
        id: of what stands behind it, such as an experience or a guideline; or "".
        strip: whether the policy acts on it, but is trained on the prompt without it.
        heading: line above it in the system message; cues in a row with the same heading are a list
            under it. "" for a paragraph of its own.
    """

    text: str
    place: CuePlace = "first"
    id: str = ""
    strip: bool = False
    heading: str = ""


@dataclass(frozen=True, slots=True)
class TokenDecision:
    """Sampled tokens, as sampled: these ids are trained on, nothing is re-tokenised.

    Attributes:
        prompt_ids: token ids of the prompt.
        ids: sampled token ids, the one that ended the answer included.
        logprobs: log-probability of each sampled id under the sampling policy at ``temperature``.
        temperature: what the logits were divided by; the trainer divides them likewise.
        policy_version: version of the weights that sampled; :data:`UNKNOWN_VERSION` if nobody said.
        trained_prompt_ids: the prompt that is trained on, where that is another one: without the
            cues that are stripped. None for ``prompt_ids``.
    """

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    temperature: float = 1.0
    policy_version: int = UNKNOWN_VERSION
    trained_prompt_ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(
                f"{len(self.ids)} sampled ids have {len(self.logprobs)} log-probabilities: the ids "
                "that are trained on must be those that were sampled."
            )


class PastStep(NamedTuple):
    """One past step as its agent remembers it.

    Attributes:
        observation: what it acted on.
        action: what it sent to the env.
        said: its whole answer, thoughts included, where that is more than the action; or "".
        decision: the tokens of that answer, if a language model sampled them.
        info: the public keys of the env's info that came with the observation.
    """

    observation: str
    action: str
    said: str = ""
    decision: TokenDecision | None = None
    info: Mapping[str, Any] = FrozenDict()


@dataclass(frozen=True, slots=True)
class View:
    """All that an agent sees before it acts.

    Attributes:
        instruction: the task in words; in a dialogue, what the user said last.
        observation: the latest text from the env.
        info: the public keys of the env's info (no ids, no outcome).
        history: the agent's own earlier steps in this episode, oldest first.
        cues: what the agent is told beyond its task, the same ones in all of the episode.
    """

    instruction: str
    observation: str
    info: Mapping[str, Any] = FrozenDict()
    history: tuple[PastStep, ...] = ()
    cues: tuple[Cue, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceDecision:
    """One of a list of candidate actions.

    Attributes:
        context: what the policy saw.
        choices: the candidates, in the order it saw them.
        index: which one it took.
        logprob: log-probability of that choice under the sampling policy.
        policy_version: version of the weights that chose; :data:`UNKNOWN_VERSION` if nobody said.
        logprobs: log-probability of each candidate, for people to look at; () if nobody said.
    """

    context: View
    choices: tuple[str, ...]
    index: int
    logprob: float
    policy_version: int = UNKNOWN_VERSION
    logprobs: tuple[float, ...] = ()


Decision = TokenDecision | ChoiceDecision


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of tokens that is trained on in one forward pass, with its loss mask.

    Several turns of an episode share a segment where each prompt goes on from the one before.

    Attributes:
        ids: (L,) token ids, prompts and answers in order.
        sampled: (L,) True where the policy sampled the token.
        logprobs: log-probability of each sampled token under the sampling policy, in order.
        temperature: what the logits were divided by in sampling.
        stripped: whether cues were left out of its prompts: then ``logprobs`` are those of answers
            to other prompts.
        policy_version: oldest version of the weights that sampled in it;
            :data:`UNKNOWN_VERSION` if nobody said.
    """

    ids: tuple[int, ...]
    sampled: tuple[bool, ...]
    logprobs: tuple[float, ...]
    temperature: float = 1.0
    stripped: bool = False
    policy_version: int = UNKNOWN_VERSION

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.sampled) or sum(self.sampled) != len(self.logprobs):
            raise ValueError(
                f"A segment of {len(self.ids)} ids has {len(self.sampled)} mask values and "
                f"{len(self.logprobs)} log-probabilities for {sum(self.sampled)} sampled ids."
            )


Sample = ChoiceDecision | Segment
"""What a trainable policy gives log-probabilities of."""


@dataclass(frozen=True, slots=True)
class Step:
    """One ``env.step``.

    Attributes:
        observation: the env's text that the agent acted on.
        shown: the same text as the policy was shown it (an interface may annotate it).
        action: what the agent sent.
        decision: what a trainable policy did to produce ``action``; None for scripts.
        reward: reward of this step.
        terminated: the task's own end.
        truncated: our budget, or a lost worker.
        calls: names of the engine operations that the action ran, in order.
        error_kind: why the action had no effect, or "".
        extras: the benchmark's own JSON about this step.
        said: the agent's whole answer, where that is more than ``action``; or "".
    """

    observation: str
    shown: str
    action: str
    decision: Decision | None = None
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    calls: tuple[str, ...] = ()
    error_kind: str = ""
    extras: Mapping[str, Any] = FrozenDict()
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """A finished episode as its env knows it: no agent, no group, no version of a policy.

    Attributes:
        task_id: id of the task.
        steps: what happened.
        score: the benchmark's own score, in [0, 1].
        success: the binary outcome that signals and group filters read.
        end_reason: why it ended.
        report: the grader's JSON, for diagnosers; never shown to a policy.
        last_observation: what the last action led to; without one, the first observation.
    """

    task_id: str
    steps: tuple[Step, ...]
    score: float
    success: bool
    end_reason: EndReason
    report: Mapping[str, Any] = field(default_factory=FrozenDict)
    last_observation: str = ""

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score must lie in [0, 1], actual: {self.score}")

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions alone, in order."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(EpisodeRecord):
    """The record of one training episode, with what its agent said and decided in each step.

    Attributes:
        group_id: the group it belongs to, or "".
        policy_version: version of the policy that acted when the episode began.
        cue_ids: of each cue that the agent was told, its id.
        interface: version of the interface that the env's text was shown through; "" for none.
    """

    group_id: str = ""
    policy_version: int = 0
    cue_ids: tuple[str, ...] = ()
    interface: str = ""

    @property
    def policy_versions(self) -> frozenset[int]:
        """The versions of the policy that acted in it.

        There are several where the weights changed while it ran. What no decision tells,
        ``policy_version`` does.
        """
        sampled = (step.decision for step in self.steps)
        told = {decision.policy_version for decision in sampled if decision is not None}
        return frozenset(told - {UNKNOWN_VERSION} or {self.policy_version})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTrajectory(EpisodeRecord):
    """The record of one evaluation episode; never recorded, trained on or explored from."""


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task that are judged against each other.

    Attributes:
        id: unique within a run.
        task: the one task of all its trajectories.
        size: K, how many trajectories a whole group has.
        trajectories: those that arrived, in ticket order.
        policy_version: newest version of the policy that was known when the group closed; None if
            nobody kept count.
        max_staleness: most versions of the policy that its trajectories may be apart, or behind,
            and still be comparable; 0 asks for the one policy that is current.
    """

    id: str
    task: Task
    size: int
    trajectories: tuple[Trajectory, ...]
    policy_version: int | None = None
    max_staleness: int = 0

    @property
    def whole(self) -> bool:
        """Whether all K arrived."""
        return len(self.trajectories) == self.size

    @property
    def staleness(self) -> int:
        """Versions of the policy from the oldest that acted to the newest, or to that of now."""
        versions = {version for t in self.trajectories for version in t.policy_versions}
        if versions and self.policy_version is not None:
            versions.add(self.policy_version)
        return max(versions) - min(versions) if versions else 0

    @property
    def comparable(self) -> bool:
        """Tell whether its trajectories can be judged against each other, and learned from."""
        return self.whole and self.staleness <= self.max_staleness
