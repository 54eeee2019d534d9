"""Guidance that a method's coach, studies and memories provide for training episodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.evolution import Round
from coevo_gym.core.notes import NO_NOTES, Findings, Note, Notes
from coevo_gym.core.seams import (
    IDENTITY,
    AdviceMemory,
    Coach,
    Curriculum,
    Evolver,
    Guidance,
    Memory,
    Study,
    Ticket,
)
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.saved import Count, validate
from coevo_gym.envs.base import TaskEnv
from coevo_gym.episodes.episode import TrainingEpisode
from coevo_gym.episodes.views import Seen

NO_GUIDANCE = Guidance()


class Guiding:
    """The optional components of a method that guide training: a coach, studies and memories.

    Args:
        coach: supplies guidance for episodes; None for no guidance.
        studies: studies of finished groups, each with its own kind of note.
        memories: memories that grow from the notes, by name.

    Raises:
        ConfigError: if two studies write notes of the same kind.

    Example:
        >>> Guiding().examine([]).notes
        ()
    """

    def __init__(
        self,
        coach: Coach | None = None,
        studies: Sequence[Study] = (),
        memories: Mapping[str, Memory] = FrozenDict(),
    ) -> None:
        kinds = [study.kind for study in studies]
        if len(set(kinds)) < len(kinds):
            raise ConfigError(f"Each study must have a unique kind, got {kinds}.")
        self.coach, self.studies, self.memories = coach, tuple(studies), dict(memories)
        self._spent = defaultdict[str, float](float)
        self._written = Counter[str]()

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the guidance for each requested episode.

        Raises:
            ConfigError: if the coach does not return one guidance per ticket.
        """
        if self.coach is None:
            return [NO_GUIDANCE] * len(tickets)
        began = perf_counter()
        results = list(self.coach.guide(tickets))
        self._spent["guide_s"] += perf_counter() - began
        if len(results) != len(tickets):
            raise ConfigError(
                f"{type(self.coach).__name__} returned {len(results)} results for "
                f"{len(tickets)} tickets. Its guide() must return one per ticket."
            )
        return results

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Run all studies on finished groups and return the notes in order.

        Raises:
            ConfigError: if a note has another kind than its study, or refers to a group that is not
                in ``groups``.
        """
        notes: list[Note] = []
        usage: dict[str, Usage] = {}
        env_steps = 0
        for study in self.studies:
            began = perf_counter()
            findings = study.examine(groups)
            took = perf_counter() - began
            self._spent["study_s"] += took
            self._spent[f"study_s.{study.kind}"] += took
            _check_notes(study, findings.notes, groups)
            notes += findings.notes
            for purpose, used in findings.usage.items():
                usage[purpose] = usage.get(purpose, NO_USAGE) + used
            env_steps += findings.env_steps
        for note in notes:
            self._written[f"notes.{note.kind}"] += 1
            if note.label:
                self._written[f"notes.{note.kind}.{note.label}"] += 1
        return Findings(tuple(notes), usage, env_steps)

    def update_memories(self, notes: Notes) -> None:
        """Pass the notes from a learner step to the memories."""
        for memory in self.memories.values():
            memory.note(notes)

    def advice_changes(self) -> dict[str, Sequence[AdviceState]]:
        """Return the latest changes to the advice in each memory, keyed by the memory's name."""
        by_memory = {
            name: memory.changes()
            for name, memory in self.memories.items()
            if isinstance(memory, AdviceMemory)
        }
        return {name: changes for name, changes in by_memory.items() if changes}

    def take_metrics(self) -> dict[str, float]:
        """Return the time spent and note counts since the last call, and the memories' metrics.

        ``study_s`` is the time of all studies in seconds, and ``study_s.KIND`` of a single study.
        """
        parts = ["guide_s"] if self.coach else []
        if self.studies:
            parts += ["study_s", *(f"study_s.{study.kind}" for study in self.studies)]
        spent = {name: self._spent[name] for name in parts}
        counts = {name: float(n) for name, n in sorted(self._written.items())}
        self._spent.clear()
        self._written.clear()
        numbers = {
            f"memory.{name}.{key}": value
            for name, memory in self.memories.items()
            for key, value in memory.metrics().items()
        }
        return spent | counts | numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the memories as JSON, keyed by name, or {} if there are no memories."""
        memories = {name: memory.state_dict() for name, memory in self.memories.items()}
        return {"memories": memories} if memories else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        Raises:
            ConfigError: if the state contains different memories.
        """
        saved: Mapping[str, Any] = state.get("memories", {})
        if saved.keys() != self.memories.keys():
            raise ConfigError(
                f"The state contains the memories {sorted(saved)}, but this run has "
                f"{sorted(self.memories)}. Resume with the method that saved the state."
            )
        for name, memory in self.memories.items():
            memory.load_state_dict(saved[name])


def _check_notes(study: Study, notes: Sequence[Note], groups: Sequence[Group]) -> None:
    """Raise an error if a note is of the wrong kind or refers to an unknown trajectory."""
    known = {group.id: group for group in groups}
    for note in notes:
        group = known.get(note.group_id)
        fits = group is not None and (
            note.task_id == group.task.id and note.index < len(group.trajectories)
        )
        if note.kind != study.kind or not fits:
            raise ConfigError(
                f"Study {type(study).__name__} (kind {study.kind!r}) wrote a note of kind "
                f"{note.kind!r} about trajectory {note.index} of group {note.group_id!r}. "
                "A study may only write notes of its own kind, and only about trajectories in the "
                "groups passed to it."
            )


@dataclass(frozen=True, kw_only=True)
class MethodParts:
    """The parts of a method for use with a trainer that does its own learning.

    Attributes:
        curriculum: chooses the tasks.
        evolver: runs rounds; None if the curriculum never plans rounds.
        first_round: finds the initial tasks; None if the curriculum already has tasks.
        coach: supplies guidance for episodes; None for no guidance.
        studies: write notes about groups.
        memories: grow from the notes, by name.
    """

    curriculum: Curriculum
    evolver: Evolver | None = None
    first_round: Round | None = None
    coach: Coach | None = None
    studies: tuple[Study, ...] = ()
    memories: Mapping[str, Memory] = FrozenDict()


class GuidedEpisode:
    """A training episode with guidance that may change the text that the agent sees.

    Attributes:
    has_interface: True if the guidance has an interface.
    """

    def __init__(self, episode: TrainingEpisode) -> None:
        self._episode = episode
        self.has_interface = episode.interface is not IDENTITY
        self._seen = Seen(episode.show)

    @property
    def observation(self) -> str:
        """The observation that the agent currently sees."""
        return self._seen.view.observation

    def show(
        self, env: TaskEnv, observation: Any, info: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """Return the observation and info that a reset or step passes to the agent.

        Returns:
            The observation and info as changed by the interface, with the episode's cues under
            ``"cues"``.

        Raises:
            ConfigError: if there is an interface and the observation is not text, or if a wrapper
                changes the number of steps.
        """
        new_info = {**info, "cues": self._episode.cues}
        if not self.has_interface:
            return observation, new_info
        if not isinstance(observation, str):
            raise ConfigError(
                "The interface requires text observations, but the env returned "
                f"{type(observation).__name__}. Wrappers that convert text must go outside "
                "the sampler, not inside it."
            )
        if (end := env.info["end_reason"]) and EndReason(end).is_lost:
            return self.observation, new_info  # the step had no result
        own = env.view
        view = self._seen.record(replace(own, observation=observation))
        texts = {key: text for key, text in view.info.items() if text != own.info[key]}
        return view.observation, {**new_info, **texts}

    def make_trajectory(self, env: TaskEnv) -> Trajectory:
        """Return the trajectory of the episode that just ended in ``env``."""
        view_texts = self._seen.texts[: len(env.view.history)]
        return self._episode.make_record(env, (), view_texts)


class GroupStudies:
    """A collector of notes on finished groups. The curriculum gets the notes once per step.

    Args:
        guiding: the studies and the memories.
        groups_per_step: number of groups per learner step.
        tell: passes notes to the curriculum.

    Attributes:
        notes: the notes of the latest completed step.
    """

    def __init__(
        self, guiding: Guiding, groups_per_step: int, tell: Callable[[Notes], None]
    ) -> None:
        self.guiding, self._groups_per_step, self._tell = guiding, groups_per_step, tell
        self._written: list[Note] = []
        self._n_closed = 0
        self.notes = NO_NOTES

    def examine(self, group: Group) -> None:
        """Run the studies on a closed group; if a step is complete, pass on the step's notes."""
        self._written += self.guiding.examine([group]).notes
        self._n_closed += 1
        if self._n_closed < self._groups_per_step:
            return
        self.notes = Notes(self._written)
        self._written, self._n_closed = [], 0
        if self.guiding.studies:
            self._tell(self.notes)
        self.guiding.update_memories(self.notes)

    def state_dict(self) -> dict[str, Any]:
        """Return the memories and the current step's notes as JSON."""
        notes = [note.model_dump(mode="json") for note in self._written]
        return {"written": notes, "n_closed": self._n_closed, **self.guiding.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`. It does not include :attr:`notes`.

        Raises:
            ConfigError: if the state contains different memories.
        """
        self.guiding.load_state_dict(state)
        self._written = [Note.model_validate(note) for note in state.get("written", ())]
        self._n_closed = validate(Count, state.get("n_closed", 0))
