"""Records of episodes, and the view that an agent receives.

A :class:`View` is the only input of agents, of a scorer's choices and of chat histories. It does
not contain the task, so ground truth cannot leak through it. Training episodes are
:class:`Trajectory`, and evaluation episodes are :class:`EvalTrajectory`, a type that code for
training and curricula does not accept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.transcript import Transcript


class EndReason(StrEnum):
    """The reason an episode ended. Until it ends, ``info["end_reason"]`` is ""."""

    SOLVED = "solved"
    FAILED = "failed"
    AGENT_DONE = "agent_done"
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    CONTEXT_OVERFLOW = "context_overflow"
    REFUSED = "refused"
    """A content filter rejected the agent's prompt, so its model did not answer."""
    TIME_LIMIT = "time_limit"
    """The episode was ended from outside the env: by a wrapper, a clock, or an early reset."""
    WORKER_LOST = "worker_lost"
    MODEL_LOST = "model_lost"
    """The agent's model did not answer. Only the code that runs episodes sets this reason."""
    CAPPED = "capped"
    """A cap left no room for the next request. Only the code that runs episodes sets it."""
    ABANDONED = "abandoned"
    """The agent's process abandoned the episode. No trajectory has this reason."""

    @property
    def is_lost(self) -> bool:
        """Return True if the episode was lost or abandoned and is therefore not graded."""
        return self in _LOST


_LOST = (EndReason.WORKER_LOST, EndReason.MODEL_LOST, EndReason.CAPPED, EndReason.ABANDONED)

UNKNOWN_VERSION = -1
"""The policy version to use if a decision does not record a version."""


CuePlace = Literal["system", "first", "turn"]
"""A cue's position: after the system text, or before the first or after every user message."""


class Cue(NamedTuple):
    """Additional text for an agent, used only in training and exploration.

    Attributes:
        text: the text.
        place: position: after the system text, before the first user message, or after every user
            message.
        id: id of its source, such as an experience or a guideline; or "".
        strip: True if the policy acts with the cue but is trained on the prompt without it.
        heading: line above it in the system message; consecutive cues with the same heading form a
            list under it. "" for a separate paragraph.
    """

    text: str
    place: CuePlace = "first"
    id: str = ""
    strip: bool = False
    heading: str = ""


@dataclass(frozen=True, slots=True)
class TokenDecision:
    """A decision that consists of sampled tokens. Training uses their exact ids.

    Attributes:
        prompt_ids: token ids of the prompt.
        ids: sampled token ids, including the token that ended the answer.
        logprobs: log-probability of each sampled id under the sampling policy at ``temperature``.
        temperature: divisor of the logits; the trainer divides by the same value.
        policy_version: version of the weights that sampled; :data:`UNKNOWN_VERSION` if unknown.
        trained_prompt_ids: the prompt to train on if it differs, because cues are stripped. None
            for ``prompt_ids``.
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
                "TokenDecision needs one log-probability per sampled id, got "
                f"{len(self.ids)} ids and {len(self.logprobs)} log-probabilities."
            )


class PastStep(NamedTuple):
    """One past step in an agent's history.

    Attributes:
        observation: the observation that the agent acted on.
        action: the action sent to the env.
        said: the complete answer, including thoughts, if it is more than the action; or "".
        decision: the tokens of that answer, if a language model sampled them.
        info: the public keys of the env's info that came with the observation.
        memory: text about earlier steps that the agent wrote before it acted; or "".
    """

    observation: str
    action: str
    said: str = ""
    decision: TokenDecision | None = None
    info: Mapping[str, Any] = FrozenDict()
    memory: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """The complete input that an agent receives before it acts.

    Attributes:
        instruction: the task's text; in a dialogue, the user's last message.
        observation: the latest text from the env.
        info: the public keys of the env's info (no ids, no outcome).
        history: the agent's own earlier steps in this episode, oldest first.
        cues: text for the agent beyond its task, the same throughout the episode.
        episode: opaque id of the episode, which says nothing about its task and is never shown to a
            model; "" if the episode has none.
    """

    instruction: str
    observation: str
    info: Mapping[str, Any] = FrozenDict()
    history: tuple[PastStep, ...] = ()
    cues: tuple[Cue, ...] = ()
    episode: str = ""


@dataclass(frozen=True, slots=True)
class ChoiceDecision:
    """A decision that chooses one candidate action from a list.

    Attributes:
        context: the policy's view.
        choices: the candidates, in the order in which the policy saw them.
        index: index of the chosen candidate.
        logprob: log-probability of that choice under the sampling policy.
        policy_version: version of the weights that chose; :data:`UNKNOWN_VERSION` if unknown.
        logprobs: log-probability of each candidate, for reports; () if unknown.
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
    """A token sequence and its loss mask, for training in one forward pass.

    Several turns of an episode share a segment if each prompt extends the previous one.

    Attributes:
        ids: (L,) token ids, prompts and answers in order.
        sampled: (L,) True for tokens that the policy sampled.
        logprobs: log-probability of each sampled token under the sampling policy, in order.
        temperature: divisor of the logits in sampling.
        stripped: True if cues were removed from its prompts; ``logprobs`` then belong to other
            prompts.
        policy_version: oldest version of the weights that sampled in it;
            :data:`UNKNOWN_VERSION` if unknown.
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
                "Segment needs one mask value per id and one log-probability per sampled id, got "
                f"{len(self.ids)} ids, {len(self.sampled)} mask values, {sum(self.sampled)} "
                f"sampled ids and {len(self.logprobs)} log-probabilities."
            )


Sample = ChoiceDecision | Segment
"""Input for which a trainable policy computes log-probabilities."""


@dataclass(frozen=True, slots=True)
class Step:
    """The record of one ``env.step``.

    Attributes:
        observation: the env's text that the agent acted on.
        shown: the same text as shown to the policy (an interface may annotate it).
        action: the action sent by the agent.
        decision: the trainable policy's decision behind ``action``; None for scripts.
        reward: reward of this step.
        terminated: True if the task ended on its own.
        truncated: True if a budget or a lost worker ended the episode.
        calls: names of the engine operations that the action called, in order.
        error_kind: reason the action had no effect, or "".
        extras: the benchmark's own JSON about this step.
        said: the agent's complete answer, if it is more than ``action``; or "".
        answer_s: wall time of the agent's answer in seconds; None if unknown. Answers that a
            policy gives in one batch share the time of the batch.
        env_s: wall time of ``env.step`` in seconds, including grading; None if unknown.

    Wall times differ between runs, so they do not count when steps are compared.
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
    answer_s: float | None = field(default=None, compare=False)
    env_s: float | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRecord:
    """A finished episode as recorded by its env. It has no agent, group or policy version.

    Attributes:
        task_id: id of the task.
        steps: the steps, in order.
        score: the benchmark's own score, in [0, 1].
        success: the binary outcome that signals and group filters use.
        end_reason: reason for its end.
        report: the grader's JSON, for diagnosers; never shown to a policy.
        last_observation: observation after the last action, or the first without actions.
        transcript: the exact messages that the agent's model was sent; None for an agent that
            does not chat with a model.
    """

    task_id: str
    steps: tuple[Step, ...]
    score: float
    success: bool
    end_reason: EndReason
    report: Mapping[str, Any] = field(default_factory=FrozenDict)
    last_observation: str = ""
    transcript: Transcript | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.score <= 1.0:
            raise ValueError(f"score must be in [0, 1], got {self.score}")

    @property
    def actions(self) -> tuple[str, ...]:
        """The actions of all steps, in order."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory(EpisodeRecord):
    """The record of one training episode, with the agent's answers and decisions.

    Attributes:
        group_id: id of the group that it belongs to, or "".
        policy_version: version of the policy when the episode began.
        cue_ids: ids of the agent's cues.
        interface: version of the interface that transformed the env's text; "" for none.
    """

    group_id: str = ""
    policy_version: int = 0
    cue_ids: tuple[str, ...] = ()
    interface: str = ""

    @property
    def policy_versions(self) -> frozenset[int]:
        """The versions of the policy that acted in the episode.

        There are several if the weights changed during the episode. If the decisions do not record
        a version, ``policy_version`` is used.
        """
        sampled = (step.decision for step in self.steps)
        versions = {decision.policy_version for decision in sampled if decision is not None}
        return frozenset(versions - {UNKNOWN_VERSION} or {self.policy_version})


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalTrajectory(EpisodeRecord):
    """The record of one evaluation episode. It is never used for training or exploration."""


@dataclass(frozen=True, slots=True)
class Group:
    """A group of trajectories for one task that are compared with each other.

    Attributes:
        id: id that is unique within a run.
        task: the common task of its trajectories.
        size: K, the number of trajectories in a complete group.
        trajectories: the trajectories that arrived, in ticket order.
        policy_version: newest known version of the policy when the group closed; None if versions
            are not counted.
        max_staleness: maximum number of versions between its trajectories' policies and the newest
            version for the group to be comparable; 0 requires the current policy.
    """

    id: str
    task: Task
    size: int
    trajectories: tuple[Trajectory, ...]
    policy_version: int | None = None
    max_staleness: int = 0

    @property
    def is_whole(self) -> bool:
        """Return True if the group has all of its trajectories."""
        return len(self.trajectories) == self.size

    @property
    def staleness(self) -> int:
        """The age of the oldest policy that acted in the group, measured in policy versions."""
        versions = {version for t in self.trajectories for version in t.policy_versions}
        if versions and self.policy_version is not None:
            versions.add(self.policy_version)
        return max(versions) - min(versions) if versions else 0

    @property
    def is_comparable(self) -> bool:
        """True if the trajectories can be compared with each other and used for learning."""
        return self.is_whole and self.staleness <= self.max_staleness
