"""A coach, studies and memories at work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notes import Findings, Note, Notes
from coevo_gym.core.seams import Coach, Guidance, Memory, Study, Ticket
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Group

UNGUIDED = Guidance()


class Guiding:
    """A coach, studies and memories at work; without any of them it does nothing.

    Args:
        coach: gives episodes their guidance; None for none.
        studies: read finished groups, each its own kind of notes.
        memories: grow from the notes, by name.

    Raises:
        ConfigError: if two studies write notes of one kind.

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
            raise ConfigError(f"Each study needs a kind of notes of its own, actual: {kinds}")
        self.coach, self.studies, self.memories = coach, tuple(studies), dict(memories)
        self._spent: dict[str, float] = {}
        self._written = Counter[str]()

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """The guidance of each ticket's episode.

        Raises:
            ConfigError: if the coach does not give one for each.
        """
        if self.coach is None:
            return [UNGUIDED] * len(tickets)
        began = perf_counter()
        found = list(self.coach.guide(tickets))
        self._count("guide_s", perf_counter() - began)
        if len(found) != len(tickets):
            raise ConfigError(
                f"{type(self.coach).__name__} gave {len(found)} guidances for {len(tickets)} "
                "tickets. Its guide() must give one for each."
            )
        return found

    def examine(self, groups: Sequence[Group]) -> Findings:
        """What all studies find in finished groups, in the order of the studies.

        Raises:
            ConfigError: if a note is of another kind, or is not about one of the groups.
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
        """Hand the notes of a learner's step to the memories."""
        for memory in self.memories.values():
            memory.note(notes)

    def metrics(self) -> dict[str, float]:
        """What was spent and noted since the last call; and the numbers of the memories.

        ``study_s`` are the seconds of all studies, ``study_s.KIND`` those of one.
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
        """The memories as JSON, by name; {} without any."""
        found = {name: memory.state_dict() for name, memory in self.memories.items()}
        return {"memories": found} if found else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`.

        Raises:
            ConfigError: if it is of other memories.
        """
        saved: Mapping[str, Any] = state.get("memories", {})
        if saved.keys() != self.memories.keys():
            raise ConfigError(
                f"The state is of the memories {sorted(saved)}, and there are "
                f"{sorted(self.memories)}. Go on with the method that it was saved with."
            )
        for name, memory in self.memories.items():
            memory.load_state_dict(saved[name])

    def _count(self, name: str, seconds: float) -> None:
        self._spent[name] = self._spent.get(name, 0.0) + seconds


def _check(study: Study, notes: Sequence[Note], groups: Sequence[Group]) -> None:
    """Refuse notes that nobody could look up."""
    known = {group.id: group for group in groups}
    for note in notes:
        group = known.get(note.group_id)
        fits = group is not None and (
            note.task_id == group.task.id and note.index < len(group.trajectories)
        )
        if note.kind != study.kind or not fits:
            raise ConfigError(
                f"{type(study).__name__}, a study of kind {study.kind!r}, wrote a note of kind "
                f"{note.kind!r} about place {note.index} of {note.group_id!r}. Its notes must be "
                "of its kind, and about trajectories of the groups that it is given."
            )
