"""Notes: findings about trajectories or single steps, recorded by a study.

A study reads finished training groups and writes notes. Memories learn from notes, and credit
assignment may weight steps by their notes. Notes are frozen and can be looked up by trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, overload

from pydantic import Field

from coevo_gym.core.spend import Usage
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, Text

INTERFACE = "interface"
"""Kind of the notes that record a step's versions of the agent interface and their content."""

EXPECTED = "expected"
"""Key for the expected texts after a step in a note's evidence.

The first text is the expected next observation. An item is None if it matched the observed text
exactly, and "" if nothing was expected. The key ``likeness`` has each text's similarity to the
observed text, in [0, 1], and ``floor`` the similarity of the observations before and after the
step. Texts are stored only with stored episodes; numbers are always stored.
"""

LABELS = "labels"
"""Key for one number per trajectory step in a note's evidence.

Such a note is about a whole trajectory. Each number is 1 for a good step, -1 for a bad step and 0
for a step without a label; the note's own label names the method that found them.
"""

VERDICTS: Mapping[str, int] = FrozenDict(
    good=1, bad=-1, examined=0, left_out=0, unlike=0, fault=0,
    offered=0, refused=0, helped=1, harmed=-1, even=0,
)  # fmt: skip
"""Labels that judge a step, a trajectory or a piece of advice: 1 is favourable, -1 unfavourable.

Unlike most other labels, they do not describe failures.
"""


class Note(FrozenModel):
    """One finding about a trajectory.

    Attributes:
        kind: kind of finding; each study defines its own, such as ``"attribution"``.
        task_id: id of the task.
        group_id: id of the group that the trajectory belongs to.
        index: 0 … K - 1, the trajectory's index in the group.
        step: index of the step that the note is about; -1 for the whole trajectory.
        label: a label from the study's own vocabulary, or "".
        value: a number, or 0 if the finding has no number.
        evidence: JSON in the study's own format.
        source: origin of the finding: a rule, a replay on the engine, or a model.
    """

    kind: str = Field(min_length=1)
    task_id: str
    group_id: str
    index: int = Field(ge=0)
    step: int = Field(default=-1, ge=-1)
    label: Text = ""
    value: float = 0.0
    evidence: JsonObject = FrozenDict()
    source: Literal["rule", "replay", "model"] = "rule"


class Notes(Sequence[Note]):
    """An immutable sequence of notes that can be looked up by trajectory.

    Example:
        >>> note = Note(kind="attribution", task_id="t", group_id="g", index=1, step=0, value=1.0)
        >>> notes = Notes([note])
        >>> [found.step for found in notes.of("attribution", "g", 1)]
        [0]
        >>> notes.of("attribution", "g", 0)
        ()
    """

    __slots__ = ("_about", "_notes")

    def __init__(self, notes: Iterable[Note] = ()) -> None:
        self._notes = tuple(notes)
        about: dict[tuple[str, str, int], list[Note]] = {}
        for note in self._notes:
            about.setdefault((note.kind, note.group_id, note.index), []).append(note)
        self._about = {key: tuple(group) for key, group in about.items()}

    def of(self, kind: str, group_id: str, index: int) -> tuple[Note, ...]:
        """Return the notes of one kind about one trajectory, in the order they were written."""
        return self._about.get((kind, group_id, index), ())

    @overload
    def __getitem__(self, place: int) -> Note: ...
    @overload
    def __getitem__(self, place: slice) -> Notes: ...
    def __getitem__(self, place: int | slice) -> Note | Notes:
        return Notes(self._notes[place]) if isinstance(place, slice) else self._notes[place]

    def __len__(self) -> int:
        return len(self._notes)

    def __iter__(self) -> Iterator[Note]:
        return iter(self._notes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notes) and self._notes == other._notes

    def __hash__(self) -> int:
        return hash(self._notes)

    def __repr__(self) -> str:
        return f"Notes({list(self._notes)!r})"


NO_NOTES = Notes()
"""An empty sequence of notes, for credit assignment without a study."""


class Findings(NamedTuple):
    """The result of a study and its cost.

    Attributes:
        notes: notes about the studied groups.
        usage: cost of model requests, by purpose.
        env_steps: env steps of the study's replays.
    """

    notes: tuple[Note, ...] = ()
    usage: Mapping[str, Usage] = FrozenDict()
    env_steps: int = 0
