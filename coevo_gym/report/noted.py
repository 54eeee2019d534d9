"""What studies noted about an arm's episodes, over time: labels, and versions of its interface."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from coevo_gym.core.notes import INTERFACE, Note
from coevo_gym.envs.diagnosis import NO_FAILURES, Position, position
from coevo_gym.report.data import NAN, ArmLabels, LabelBin, VersionRow
from coevo_gym.store.noted import NoteCount, StoredNote, TurnCount

MAX_BINS = 20
"""Parts of an arm's steps in which labels are counted."""

MAX_LABELS = 40
"""Labels of a kind that are told apart; the others are only counted."""

_THIRDS: tuple[Position, ...] = ("early", "middle", "late")

EnvSteps = Mapping[int, float]
"""Env steps that an arm had spent by the end of each of the learner's steps."""


class Said(NamedTuple):
    """What a version of an interface says.

    Attributes:
        version: the version.
        name: the version, short.
        lines: what it says beyond the env's own text.
    """

    version: str
    name: str
    lines: tuple[str, ...]


class ShownVersion(NamedTuple):
    """A version of an interface, and when it was shown.

    Attributes:
        said: the version and what it says.
        first: the first note of it.
        again: steps of the learner from which it was shown again after others.
    """

    said: Said
    first: StoredNote
    again: tuple[int, ...] = ()


def env_steps_of(lines: Iterable[Mapping[str, Any]], arm: str) -> dict[int, float]:
    """Env steps that an arm had spent by the end of each of its steps, where that was written.

    Args:
        lines: of the run's metrics.
        arm: name of the arm.
    """
    return {
        int(line["step"]): float(line["env_steps"])
        for line in lines
        if line["event"] == "step" and line.get("arm") == arm and line.get("env_steps") is not None
    }


def arm_labels(
    counts: Iterable[NoteCount],
    arm: str,
    env_steps: EnvSteps,
    turns: Iterable[TurnCount] = (),
) -> list[ArmLabels]:
    """How often an arm's notes carry each label over its steps, by kind of notes.

    Notes without a label, and those about interfaces, do not count.

    Args:
        counts: of any arms.
        arm: name of the arm.
        env_steps: of its steps.
        turns: those of the notes that are about turns, of any arms.

    Example:
        >>> counts = [NoteCount("a", 1, "turn", "pass", 3), NoteCount("a", 2, "turn", "late", 1)]
        >>> arm_labels(counts, "a", {1: 100.0, 2: 200.0})[0].bins[1]
        LabelBin(first=2, last=2, env_steps=200.0, n=1, counts=(0, 1))
    """
    mine = [one for one in counts if one.arm == arm and one.label and one.kind != INTERFACE]
    last = max((*env_steps, *(one.step for one in mine)), default=0)
    placed = [one for one in turns if one.arm == arm]
    return [
        _with_thirds(
            _of_kind(arm, kind, [one for one in mine if one.kind == kind], last, env_steps),
            (one for one in placed if one.kind == kind),
        )
        for kind in sorted({one.kind for one in mine})
    ]


def _with_thirds(found: ArmLabels, turns: Iterable[TurnCount]) -> ArmLabels:
    thirds = {label: Counter[Position]() for label in found.labels}
    for one in turns:
        if one.label in thirds and one.turns > 1:
            thirds[one.label][position(one.turn, one.turns)] += one.n
    if not any(thirds.values()):
        return found
    first, middle, last = _THIRDS
    of = tuple((n[first], n[middle], n[last]) for n in thirds.values())
    return replace(found, thirds=of)


def _of_kind(
    arm: str, kind: str, counts: list[NoteCount], last: int, env_steps: EnvSteps
) -> ArmLabels:
    parts = parts_of(last)
    ends = [end for _, end in parts]
    total, found = Counter[str](), [Counter[str]() for _ in parts]
    for one in counts:
        total[one.label] += one.n
        found[bisect_left(ends, one.step)][one.label] += one.n
    spent = dict(zip(ends, [NAN] * len(ends), strict=True))
    for step in sorted(env_steps):
        spent[ends[bisect_left(ends, step)]] = float(env_steps[step])
    ranked = sorted(total, key=lambda label: (-total[label], label))
    labels = tuple(ranked[:MAX_LABELS])
    bins = tuple(
        LabelBin(first, end, spent[end], mine.total(), tuple(mine[label] for label in labels))
        for (first, end), mine in zip(parts, found, strict=True)
    )
    return ArmLabels(arm, kind, labels, bins, len(ranked) - len(labels))


def parts_of(last: int, most: int = MAX_BINS) -> list[tuple[int, int]]:
    """Steps from 1 to ``last`` in at most ``most`` parts of almost one size, by their ends.

    Example:
        >>> parts_of(7, most=3)
        [(1, 2), (3, 5), (6, 7)]
    """
    n = min(last, most)
    ends = [round(last * i / n) for i in range(n + 1)] if n else []
    return [(before + 1, end) for before, end in pairwise(ends)]


def is_failure(label: str) -> bool:
    """Whether a label tells of a failure, as all do but those that are known not to."""
    return label not in NO_FAILURES


def said_in(note: Note) -> Said:
    """What the version of an interface says that a note of kind :data:`INTERFACE` is about.

    Whatever the evidence lacks is left unsaid.
    """
    version, says = note.evidence.get("version"), note.evidence.get("says")
    lines = tuple(str(line) for line in says) if isinstance(says, (list, tuple)) else ()
    name = note.label or str(version or "")
    return Said(str(version or name), name, lines)


def shown_in(notes: Iterable[StoredNote]) -> list[ShownVersion]:
    """The versions that notes of kind :data:`INTERFACE` tell of, as they were first shown.

    A version is shown again where a step has a note of it, and the step with such notes before it
    had none. Where each version was noted only once, nothing is known of that.

    Args:
        notes: of one arm, in order.
    """
    found: dict[str, ShownVersion] = {}
    before: set[str] = set()
    now: set[str] = set()
    last = 0
    for note in notes:
        if note.at != last:
            before, now, last = now, set(), note.at
        said = said_in(note.note)
        known = found.get(said.version)
        if known is None:
            found[said.version] = ShownVersion(said, note)
        elif said.version not in before | now:
            found[said.version] = known._replace(again=(*known.again, note.at))
        now.add(said.version)
    return list(found.values())


def versions_of(notes: Iterable[StoredNote], arm: str, env_steps: EnvSteps) -> list[VersionRow]:
    """The interfaces of an arm, each once, in the order in which they were first shown.

    Args:
        notes: the arm's notes of kind :data:`INTERFACE`, in order.
        arm: name of the arm.
        env_steps: of its steps.
    """
    return [
        VersionRow(
            arm=arm,
            version=said.name,
            step=first.at,
            env_steps=float(env_steps.get(first.at, NAN)),
            says=said.lines,
            again=again,
        )
        for said, first, again in shown_in(notes)
    ]
