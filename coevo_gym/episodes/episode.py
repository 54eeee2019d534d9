"""What is to be run, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeAlias, TypeVar, get_args

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError, SplitLeakError
from coevo_gym.core.seams import IDENTITY, Act, Guidance, Interface, Ticket
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import (
    Cue,
    CuePlace,
    EndReason,
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
        object.__setattr__(self, "cues", tuple(map(_clean, self.cues)))

    def shown(self, view: View) -> View:
        """What its agent is shown of a view of the env.

        Raises:
            ConfigError: if the interface changes what it must not.
        """
        shown = shown_through(self.interface, view)
        return replace(shown, cues=self.cues) if self.cues else shown

    def record(self, env: TaskEnv, acts: Sequence[Act], shown: Sequence[str]) -> Trajectory:
        """See :class:`Episode`."""
        found = env.trajectory(
            group_id=self.group_id, policy_version=self.policy_version, acts=acts, shown=shown
        )
        ids, version = tuple(cue.id for cue in self.cues), self.interface.version
        return replace(found, cue_ids=ids, interface=version) if ids or version else found


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
        return env.eval_trajectory(acts=acts)


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


def _clean(cue: Cue) -> Cue:
    """A cue whose text can be sent and stored, whoever wrote it."""
    if cue.place not in get_args(CuePlace):
        raise ConfigError(
            f"A cue's place must be one of {', '.join(get_args(CuePlace))}, actual: {cue.place!r}"
        )
    return cue._replace(text=clean_text(cue.text, CUE_CAP))
