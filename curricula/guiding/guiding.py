"""Guidance of episodes: the execution of a coach, studies and memories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from coevo_gym.core.advice import AdviceState
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notes import Findings, Note, Notes
from coevo_gym.core.seams import AdviceMemory, Coach, Guidance, Memory, Study, Ticket
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group

UNGUIDED = Guidance()


class Guiding:
    """A coach, studies and memories, called in turn; without any of them it does nothing.

    Args:
        coach: supplies the guidance of episodes; None for no guidance.
        studies: studies of finished groups, each with its own kind of notes.
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
            raise ConfigError(f"Each study needs its own kind of notes, actual: {kinds}")
        self.coach, self.studies, self.memories = coach, tuple(studies), dict(memories)
        self._spent: dict[str, float] = {}
        self._written = Counter[str]()

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the guidance of each ticket's episode.

        Raises:
            ConfigError: if the coach does not return one guidance per ticket.
        """
        if self.coach is None:
            return [UNGUIDED] * len(tickets)
        began = perf_counter()
        found = list(self.coach.guide(tickets))
        self._count("guide_s", perf_counter() - began)
        if len(found) != len(tickets):
            raise ConfigError(
                f"{type(self.coach).__name__} returned {len(found)} guidances for "
                f"{len(tickets)} tickets. Its guide() must return one per ticket."
            )
        return found

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Return the findings of all studies for finished groups, in the order of the studies.

        Raises:
            ConfigError: if a note has another kind than its study, or does not refer to one of the
                groups.
        """
        notes: list[Note] = []
        usage: dict[str, Usage] = {}
        env_steps = 0
        for study in self.studies:
            began = perf_counter()
            found = study.examine(groups)
            took = perf_counter() - began
            self._count("study_s", took)
            self._count(f"study_s.{study.kind}", took)
            _check(study, found.notes, groups)
            notes += found.notes
            for purpose, used in found.usage.items():
                usage[purpose] = usage.get(purpose, NO_USAGE) + used
            env_steps += found.env_steps
        for note in notes:
            self._written[f"notes.{note.kind}"] += 1
            if note.label:
                self._written[f"notes.{note.kind}.{note.label}"] += 1
        return Findings(tuple(notes), usage, env_steps)

    def note(self, notes: Notes) -> None:
        """Pass the notes of a learner's step to the memories."""
        for memory in self.memories.values():
            memory.note(notes)

    def changes(self) -> dict[str, Sequence[AdviceState]]:
        """Return the changes of advice by the latest notes, by name of the memory."""
        found = {
            name: memory.changes()
            for name, memory in self.memories.items()
            if isinstance(memory, AdviceMemory)
        }
        return {name: changes for name, changes in found.items() if changes}

    def metrics(self) -> dict[str, float]:
        """Return times and note counts since the last call, and the metrics of the memories.

        ``study_s`` is the time of all studies in seconds, and ``study_s.KIND`` the time of one
        study.
        """
        parts = ["guide_s"] if self.coach else []
        if self.studies:
            parts += ["study_s", *(f"study_s.{study.kind}" for study in self.studies)]
        spent = {name: self._spent.get(name, 0.0) for name in parts}
        written = {name: float(n) for name, n in sorted(self._written.items())}
        self._spent.clear()
        self._written.clear()
        numbers = {
            f"memory.{name}.{key}": value
            for name, memory in self.memories.items()
            for key, value in memory.metrics().items()
        }
        return spent | written | numbers

    def state_dict(self) -> dict[str, Any]:
        """Return the memories as JSON, by name; {} without memories."""
        found = {name: memory.state_dict() for name, memory in self.memories.items()}
        return {"memories": found} if found else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`.

        Raises:
            ConfigError: if the state has other memories.
        """
        saved: Mapping[str, Any] = state.get("memories", {})
        if saved.keys() != self.memories.keys():
            raise ConfigError(
                f"The state has the memories {sorted(saved)}, but this run has "
                f"{sorted(self.memories)}. Resume it with the method that saved it."
            )
        for name, memory in self.memories.items():
            memory.load_state_dict(saved[name])

    def _count(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds


def _check(study: Study, notes: Sequence[Note], groups: Sequence[Group]) -> None:
    """Raise an error if notes have the wrong kind or refer to unknown trajectories."""
    known = {group.id: group for group in groups}
    for note in notes:
        group = known.get(note.group_id)
        fits = group is not None and (
            note.task_id == group.task.id and note.index < len(group.trajectories)
        )
        if note.kind != study.kind or not fits:
            raise ConfigError(
                f"{type(study).__name__}, a study of kind {study.kind!r}, wrote a note of "
                f"kind {note.kind!r} about trajectory {note.index} of {note.group_id!r}. "
                "Its notes must have its kind and refer to trajectories of the groups "
                "passed to it."
            )
