"""Episodes to run, and their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast, get_args

import gymnasium as gym

from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError, SplitLeakError
from coevo_gym.core.evaluation_mark import refuse_marked
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
from coevo_gym.core.transcript import Transcript
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.views import show_through

RecordT = TypeVar("RecordT")
RecordT_co = TypeVar("RecordT_co", covariant=True)
Fault = EnvBackendError | ModelError
"""Errors that make an episode lost: a failure of its engine or of its agent's model."""

CUE_CAP = 100_000
"""Maximum length of a cue in characters; longer cues are truncated."""


class Episode(Protocol[RecordT_co]):
    """A run of one task: a training episode or an evaluation episode."""

    @property
    def task(self) -> Task:
        """The task to run."""
        ...

    @property
    def seed(self) -> int:
        """The seed of the episode's env."""
        ...

    def show(self, view: View) -> View:
        """Convert an env's view into the view that the agent gets."""
        ...

    def make_record(
        self, env: TaskEnv, acts: Sequence[Act], view_texts: Sequence[str]
    ) -> RecordT_co:
        """Return the record of the episode that ended in ``env``.

        Args:
            env: the env in which the episode ended.
            acts: the agent's answer and decision in each step.
            view_texts: the text that the agent was shown in each step.
        """
        ...


@dataclass(frozen=True, slots=True)
class TrainingEpisode:
    """An episode for training or exploration.

    Attributes:
        task: the task to run; an open task is only explored.
        seed: seed of its env.
        group_id: id of its group, or "".
        policy_version: version of the policy when the episode begins.
        cues: cues shown to the agent in each of its steps.
        interface: interface through which the env's text is shown.

    Raises:
        SplitLeakError: if the task is not a training task.
        ConfigError: if a cue has an unknown place.

    Example:
        >>> import coevo_gym
        >>> task = coevo_gym.tasks("webshop")[0]
        >>> cue = Cue("Compare prices before you buy.", place="first", id="prices")
        >>> TrainingEpisode(task, seed=0, cues=(cue,)).show(View("Buy tea.", "A shop.")).cues[0].id
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
                f"{self.task.name} is a {self.task.split} task, but only training tasks may be "
                "trained on. Use evaluate() for other tasks."
            )
        object.__setattr__(self, "cues", tuple(map(clean_cue, self.cues)))

    def show(self, view: View) -> View:
        """Return the env's view as the interface shows it, with the cues added.

        Raises:
            ConfigError: if the interface changes a forbidden part of the view.
        """
        new_view = show_through(self.interface, view)
        return replace(new_view, cues=self.cues) if self.cues else new_view

    def make_record(
        self, env: TaskEnv, acts: Sequence[Act], view_texts: Sequence[str]
    ) -> Trajectory:
        """Return the episode's trajectory; see :class:`Episode`."""
        return trajectory_of(
            env,
            acts,
            view_texts,
            group_id=self.group_id,
            policy_version=self.policy_version,
            cue_ids=tuple(cue.id for cue in self.cues),
            interface=self.interface.version,
        )


def episode_of(
    ticket: Ticket, seed: int, policy_version: int, guidance: Guidance
) -> TrainingEpisode:
    """Create a scheduled training episode, with the given guidance.

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
    """An evaluation episode, in which the agent sees the env's views unchanged.

    Attributes:
        task: the task to run, of any split.
        seed: seed of its env.

    Raises:
        TaskError: if the task is an open task.
    """

    task: Task
    seed: int

    def __post_init__(self) -> None:
        self.task.require_goal("evaluate")

    def show(self, view: View) -> View:
        """Return the env's view unchanged; see :class:`Episode`."""
        return view

    def make_record(
        self, env: TaskEnv, acts: Sequence[Act], view_texts: Sequence[str]
    ) -> EvalTrajectory:
        """Return the evaluation record; see :class:`Episode`."""
        return eval_trajectory_of(env, acts)


def trajectory_of(
    env: gym.Env[Any, Any],
    acts: Sequence[Act] = (),
    view_texts: Sequence[str] = (),
    *,
    group_id: str = "",
    policy_version: int = 0,
    cue_ids: tuple[str, ...] = (),
    interface: str = "",
) -> Trajectory:
    """Return an env's finished episode as a training record.

    Args:
        env: a coevo_gym env, wrapped or unwrapped, whose episode is over.
        acts: the agent's answer and decision in each step; () if unknown.
        view_texts: the text that the agent was shown in each step; () for the env's own text.
        group_id: id of the episode's group, or "".
        policy_version: version of the policy when the episode began.
        cue_ids: id of each cue that the agent was shown.
        interface: version of the interface that transformed the env's text; "" for none.

    Raises:
        SplitLeakError: if the task is not a training task.
        ResetNeeded: if the episode is not over, or was lost to an engine failure.
        ValueError: if the number of acts or texts is neither 0 nor the number of steps.

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
            f"{inner.task.name} is a {inner.task.split} task, so its episodes are for evaluation "
            "only. Use eval_trajectory_of()."
        )
    return Trajectory(
        **_fields_with_answers(inner.episode_record(), acts, view_texts),
        group_id=group_id,
        policy_version=policy_version,
        cue_ids=cue_ids,
        interface=interface,
    )


def eval_trajectory_of(env: gym.Env[Any, Any], acts: Sequence[Act] = ()) -> EvalTrajectory:
    """Return an env's finished episode as an evaluation record.

    For the arguments see :func:`trajectory_of`.

    Raises:
        TaskError: if the task is an open task.
        ConfigError: if the env does not follow the benchmark's official protocol.
        ResetNeeded: if the episode is not over, or was lost to an engine failure.
    """
    inner = cast(TaskEnv, env.unwrapped)
    inner.require_evaluable()
    return EvalTrajectory(**_fields_with_answers(inner.episode_record(), acts))


class AnswerCounts(NamedTuple):
    """Counts of an agent's answers, in total and by problem.

    Attributes:
        total: all answers.
        empty: answers without an action.
        cut: answers that were cut off at the token limit.
        invalid: answers whose action had no effect.
    """

    total: int
    empty: int
    cut: int
    invalid: int

    @property
    def shares(self) -> dict[str, float]:
        """The share of each kind among all answers; NaN if there are none."""
        kinds = {"empty": self.empty, "cut": self.cut, "invalid": self.invalid}
        return {kind: n / self.total if self.total else math.nan for kind, n in kinds.items()}


@dataclass(frozen=True, slots=True)
class Finished(Generic[RecordT]):
    """An episode that ran to completion.

    Attributes:
        index: the episode's index among the episodes to run.
        record: the episode's record.
        env_steps: number of env steps taken.
        usage: model usage during the episode.
        cut: number of answers that were cut off at the token limit.
    """

    index: int
    record: RecordT
    env_steps: int
    usage: Usage = NO_USAGE
    cut: int = 0

    @property
    def answer_counts(self) -> AnswerCounts:
        """Counts of the episode's answers; there is one answer per step."""
        steps = cast(Trajectory | EvalTrajectory, self.record).steps
        return AnswerCounts(
            len(steps),
            empty=sum(not step.action.strip() for step in steps),
            cut=self.cut,
            invalid=sum(bool(step.error_kind) for step in steps),
        )


@dataclass(frozen=True, slots=True)
class Lost:
    """An episode that was lost to an infrastructure error and says nothing about its agent.

    Attributes:
        index: the episode's index among the episodes to run.
        reason: the end reason.
        error: the error that caused the loss.
        env_steps: number of env steps taken, including the one that failed.
    """

    index: int
    reason: EndReason
    error: Fault
    env_steps: int


Outcome: TypeAlias = Finished[RecordT] | Lost
"""The outcome of an episode: finished or lost."""


def all_lost_error(n: int, first: Fault, what: str = "") -> Fault:
    """Return the error to raise if all ``n`` episodes were lost. ``first`` is the first error."""
    kind = ModelError if isinstance(first, ModelError) else EnvBackendError
    return kind(f"All {n} {what}episodes were lost, the first because: {first}")


def clean_cue(cue: Cue) -> Cue:
    """Check that a guidance cue has a valid position, and make its text safe to send and store.

    Raises:
        ConfigError: if the cue has an unknown place.
        SplitLeakError: if its text is an exported episode on a held-out task.
    """
    refuse_marked(cue.text, "guide an agent", "A cue")
    if cue.place not in get_args(CuePlace):
        raise ConfigError(
            f"Cue.place must be one of {', '.join(get_args(CuePlace))}, got {cue.place!r}."
        )
    return cue._replace(text=clean_text(cue.text, CUE_CAP))


def _fields_with_answers(
    record: EpisodeRecord, acts: Sequence[Act], view_texts: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a record's fields, with the agent's response and view text added to each step."""
    steps = record.steps
    for name, items in (("an act", acts), ("a shown text", view_texts)):
        if items and len(items) != len(steps):
            raise ValueError(
                f"An episode of {len(steps)} steps needs {name} for each step, got {len(items)}."
            )
    if acts:
        both = zip(steps, acts, strict=True)
        steps = tuple(
            replace(
                step,
                decision=act.decision,
                said=act.said,
                answer_s=act.answer_s,
                env_s=act.env_s,
            )
            for step, act in both
        )
    if view_texts:
        texts = zip(steps, view_texts, strict=True)
        steps = tuple(replace(step, shown=text) for step, text in texts)
    values = {one.name: getattr(record, one.name) for one in fields(record)}
    transcript = Transcript.of([act.call for act in acts])
    return values | {"steps": steps, "transcript": transcript}
