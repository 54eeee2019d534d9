"""What is to be run, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, Protocol, TypeAlias, TypeVar, cast, get_args

import gymnasium as gym

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError, SplitLeakError
from coevo_gym.core.seams import IDENTITY, Act, Guidance, Interface, Ticket
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import (
    Cue,
    CuePlace,
    EndReason,
    EpisodeRecord,
    EvalTrajectory,
    Trajectory,
    View,
)
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.shown import shown_through

RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
Fault = EnvBackendError | ModelError
"""Why an episode was lost: its engine failed, or the model behind its agent."""

CUE_CAP = 100_000
"""Characters of a cue, from which on it is cut."""


class Episode(Protocol[RecordT_co]):
    """One run of one task: a training episode or an evaluation episode."""

    @property
    def task(self) -> Task:
        """What is done in it."""
        ...

    @property
    def seed(self) -> int:
        """Seed of its env."""
        ...

    def shown(self, view: View) -> View:
        """What its agent is shown of a view of the env."""
        ...

    def record(self, env: TaskEnv, acts: Sequence[Act], shown: Sequence[str]) -> RecordT_co:
        """The record of the episode that has ended in ``env``.

        Args:
            env: where it has ended.
            acts: what its agent said and decided in each step.
            shown: the text that it was shown in each step.
        """
        ...


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """An episode to learn or to explore from.

    Attributes:
        task: what is done in it; an open task is only explored from.
        seed: seed of its env.
        group_id: the group it belongs to, or "".
        policy_version: version of the policy that is about to act.
        cues: what its agent is told beyond the task, in each of its steps.
        interface: what the env's text is shown through.

    Raises:
        SplitLeakError: if the task is not a training task.
        ConfigError: if a cue has no such place.

    Example:
        >>> import coevo_gym
        >>> task = coevo_gym.tasks("webshop")[0]
        >>> cue = Cue("Compare prices before you buy.", place="first", id="prices")
        >>> TrainingEpisode(task, seed=0, cues=(cue,)).shown(View("Buy tea.", "A shop.")).cues[0].id
        'prices'
    """

    task: Task
    seed: int
    group_id: str = ""
    policy_version: int = 0
    cues: tuple[Cue, ...] = ()
    interface: Interface = IDENTITY

    def __post_init__(self) -> None:
        if self.task.split is not Split.TRAIN:
            raise SplitLeakError(
                f"{self.task.name} is a {self.task.split} task; train on training tasks only. "
                "Use evaluate() for the others."
            )
        object.__setattr__(self, "cues", tuple(map(clean_cue, self.cues)))

    def shown(self, view: View) -> View:
        """What its agent is shown of a view of the env.

        Raises:
            ConfigError: if the interface changes what it must not.
        """
        shown = shown_through(self.interface, view)
        return replace(shown, cues=self.cues) if self.cues else shown

    def record(self, env: TaskEnv, acts: Sequence[Act], shown: Sequence[str]) -> Trajectory:
        """See :class:`Episode`."""
        return trajectory_of(
            env,
            acts,
            shown,
            group_id=self.group_id,
            policy_version=self.policy_version,
            cue_ids=tuple(cue.id for cue in self.cues),
            interface=self.interface.version,
        )


def episode_of(
    ticket: Ticket, seed: int, policy_version: int, guidance: Guidance
) -> TrainingEpisode:
    """The training episode of a ticket, as it is guided.

    Raises:
        SplitLeakError, ConfigError: as :class:`TrainingEpisode`.
    """
    return TrainingEpisode(
        ticket.task,
        seed,
        ticket.group_id,
        policy_version,
        cues=guidance.cues,
        interface=guidance.interface,
    )


@dataclass(frozen=True, slots=True)
class EvalEpisode:
    """An episode that is only counted. It has no place for anything that guides an agent.

    Attributes:
        task: what is done in it, of any split.
        seed: seed of its env.

    Raises:
        TaskError: if nothing is asked for in the task.
    """

    task: Task
    seed: int

    def __post_init__(self) -> None:
        self.task.require_asked("evaluate")

    def shown(self, view: View) -> View:
        """See :class:`Episode`."""
        return view

    def record(self, env: TaskEnv, acts: Sequence[Act], shown: Sequence[str]) -> EvalTrajectory:
        """See :class:`Episode`."""
        return eval_trajectory_of(env, acts)


def trajectory_of(
    env: gym.Env[Any, Any],
    acts: Sequence[Act] = (),
    shown: Sequence[str] = (),
    *,
    group_id: str = "",
    policy_version: int = 0,
    cue_ids: tuple[str, ...] = (),
    interface: str = "",
) -> Trajectory:
    """Return the finished episode of an env as a training record.

    Args:
        env: a coevo_gym env, wrapped or bare, whose episode is over.
        acts: what the agent said and decided in each step; () if that is not known.
        shown: the text that it was shown in each step; () for the env's own.
        group_id: the group that the episode belongs to, or "".
        policy_version: version of the policy that acted when the episode began.
        cue_ids: id of each cue that the agent was told.
        interface: version of the interface that the env's text was shown through; "" for none.

    Raises:
        SplitLeakError: if its task is not a training task.
        ResetNeeded: if the episode is not over, or was lost to a fault of the engine.
        ValueError: if there are acts or texts, but not one for each step.

    Example:
        >>> import gymnasium as gym
        >>> env = gym.make("coevo_gym:CoEvolve-WebShop-v0", max_steps=1)
        >>> _ = env.reset(seed=0)
        >>> *_, truncated, info = env.step("search[mug]")
        >>> trajectory_of(env, policy_version=3).actions
        ('search[mug]',)
    """
    inner = cast(TaskEnv, env.unwrapped)
    if inner.task.split is not Split.TRAIN:
        raise SplitLeakError(
            f"{inner.task.name} is a {inner.task.split} task; its episodes are evaluation only. "
            "Use eval_trajectory_of()."
        )
    return Trajectory(
        **_told(inner.record(), acts, shown),
        group_id=group_id,
        policy_version=policy_version,
        cue_ids=cue_ids,
        interface=interface,
    )


def eval_trajectory_of(env: gym.Env[Any, Any], acts: Sequence[Act] = ()) -> EvalTrajectory:
    """Return the finished episode of an env as an evaluation record.

    For the arguments see :func:`trajectory_of`.

    Raises:
        TaskError: if its task is an open task.
        ConfigError: if the env does not follow the benchmark's official protocol.
        ResetNeeded: if the episode is not over, or was lost to a fault of the engine.
    """
    inner = cast(TaskEnv, env.unwrapped)
    inner.require_evaluable()
    return EvalTrajectory(**_told(inner.record(), acts))


@dataclass(frozen=True, slots=True)
class Finished(Generic[RecordT]):
    """An episode that came to an end.

    Attributes:
        index: its place among those that were to be run.
        record: what happened.
        env_steps: env steps taken.
        usage: what a model was asked in it.
    """

    index: int
    record: RecordT
    env_steps: int
    usage: Usage = NO_USAGE


@dataclass(frozen=True, slots=True)
class Lost:
    """An episode that says nothing about its agent.

    Attributes:
        index: its place among those that were to be run.
        reason: what it was lost to.
        error: the same in words.
        env_steps: env steps taken until then, the one that failed included.
    """

    index: int
    reason: EndReason
    error: Fault
    env_steps: int


Outcome: TypeAlias = Finished[RecordT] | Lost
"""What comes of an episode."""


def clean_cue(cue: Cue) -> Cue:
    """A cue whose text can be sent and stored, whoever wrote it."""
    if cue.place not in get_args(CuePlace):
        raise ConfigError(
            f"A cue's place must be one of {', '.join(get_args(CuePlace))}, actual: {cue.place!r}"
        )
    return cue._replace(text=clean_text(cue.text, CUE_CAP))


def _told(record: EpisodeRecord, acts: Sequence[Act], shown: Sequence[str] = ()) -> dict[str, Any]:
    """The fields of a record, whose steps tell what its agent was shown, said and decided."""
    steps = record.steps
    for name, given in (("an act", acts), ("a shown text", shown)):
        if given and len(given) != len(steps):
            raise ValueError(
                f"An episode of {len(steps)} steps needs {name} for each, actual: {len(given)}."
            )
    if acts:
        both = zip(steps, acts, strict=True)
        steps = tuple(replace(step, decision=act.decision, said=act.said) for step, act in both)
    if shown:
        texts = zip(steps, shown, strict=True)
        steps = tuple(replace(step, shown=text) for step, text in texts)
    found = {one.name: getattr(record, one.name) for one in fields(record)}
    return found | {"steps": steps}
