"""Counts of notes: labels over time and over the turns of episodes, and interface versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.notes import INTERFACE, Note
from coevo_gym.core.task import FrozenDict
from coevo_gym.store.database import RunStore
from coevo_gym.store.rows import NoteCount, StoredNote
from coevo_gym.view.model.notes import (
    MAX_BINS,
    MAX_LABELS,
    arm_labels,
    parts_of,
    shown_in,
)


def note(kind: str = "turn", label: str = "empty", **more: Any) -> Note:
    return Note(kind=kind, task_id="t", group_id="g", index=0, label=label, **more)


def interface(name: str, *says: str) -> Note:
    evidence = FrozenDict(version=f"{name}-whole", says=says)
    return note(INTERFACE, name, evidence=evidence)


@given(st.integers(0, 500), st.integers(1, 30))
def test_parts_hold_every_step_once_and_are_of_almost_one_size(last: int, most: int) -> None:
    parts = parts_of(last, most)
    assert [step for first, end in parts for step in range(first, end + 1)] == list(
        range(1, last + 1)
    )
    assert len(parts) == min(last, most)
    sizes = [end - first for first, end in parts]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


COUNTS = st.lists(
    st.builds(
        NoteCount,
        st.sampled_from(["a", "b"]),
        st.integers(1, 90),
        st.sampled_from(["turn", "credit", INTERFACE]),
        st.sampled_from(["", "pass", "empty", "late"]),
        st.integers(1, 9),
    ),
    max_size=30,
)


@given(COUNTS, st.integers(0, 60))
def test_each_note_with_a_label_is_counted_once(counts: list[NoteCount], steps: int) -> None:
    spent = {step: 10.0 * step for step in range(1, steps + 1)}
    for found in arm_labels(counts, "a", spent):
        mine = [n for n in counts if (n.arm, n.kind) == ("a", found.kind) and n.label]
        assert found.kind != INTERFACE
        assert sum(found.total) == sum(one.n for one in mine)
        for row in found.labels:
            total = sum(one.n for one in mine if one.label == row.label)
            assert row.total == sum(row.counts) == total > 0
        assert len(found.last) <= MAX_BINS
        for last, env_steps in zip(found.last, found.env_steps, strict=True):
            if env_steps is not None:
                assert env_steps == spent[min(last, steps)]
    assert {found.kind for found in arm_labels(counts, "a", spent)} == {
        n.kind for n in counts if n.arm == "a" and n.label and n.kind != INTERFACE
    }


def test_of_very_many_labels_the_rare_ones_are_only_counted() -> None:
    counts = [NoteCount("a", 1, "turn", f"label-{i}", 1 + (i == 50)) for i in range(60)]
    (found,) = arm_labels(counts, "a", {})
    assert found.labels[0].label == "label-50"
    assert (len(found.labels), found.left) == (MAX_LABELS, 60 - MAX_LABELS)
    assert found.total == (61,)


def test_an_interface_is_listed_from_where_it_was_first_shown(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.db")
    store.add_notes("a", 1, [note(), interface("v1")])
    store.add_notes("a", 4, [interface("v2", "Look first.", "Then act."), note(label="late")])
    store.add_notes("a", 9, [interface("v1")])
    store.add_notes("a", 10, [interface("v2"), interface("v1")])
    store.add_notes("a", 11, [interface("v2"), interface("v2")])
    store.add_notes("a", 15, [interface("v1")])
    store.add_notes("b", 2, [interface("v3")])
    rows = shown_in(store.notes_when("a", INTERFACE))
    assert [(row.name, row.step, row.says) for row, _ in rows] == [
        ("v1", 1, ()),
        ("v2", 4, ("Look first.", "Then act.")),
    ]
    assert [row.again for row, _ in rows] == [(9, 15), (10,)]
    assert {row.label for row in store.note_counts("a")} == {"empty", "late", "v1", "v2"}
    assert {row.arm for row in store.note_counts()} == {"a", "b"}
    assert store.turn_counts() == []
    store.close()


def test_turns_are_counted_by_the_third_of_their_episode(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.db")
    of_three, alone = FrozenDict(turns=3), FrozenDict(turns=1)
    for step, label in enumerate(("pass", "empty", "empty")):
        store.add_notes("a", 1 + step, [note(label=label, step=step, evidence=of_three)])
    odd = [(-1, of_three), (3, of_three), (0, FrozenDict()), (0, FrozenDict(turns="two"))]
    store.add_notes("a", 4, [note(step=step, evidence=evidence) for step, evidence in odd])
    store.add_notes("a", 5, [note(step=0, label="late", evidence=alone)])
    store.add_notes("b", 1, [note(step=1, evidence=of_three)])
    counted = store.turn_counts()
    assert [tuple(one) for one in counted] == [
        ("a", "turn", "empty", 1, 3, 1), ("a", "turn", "empty", 2, 3, 1),
        ("a", "turn", "late", 0, 1, 1), ("a", "turn", "pass", 0, 3, 1),
        ("b", "turn", "empty", 1, 3, 1),
    ]  # fmt: skip
    (found,) = arm_labels(store.note_counts(), "a", {}, counted)
    thirds = {row.label: row.thirds for row in found.labels}
    assert thirds == {"empty": (0, 1, 1), "pass": (1, 0, 0), "late": None}
    (nowhere,) = arm_labels(store.note_counts(), "a", {}, [])
    assert {row.thirds for row in nowhere.labels} == {None}
    store.close()


@pytest.mark.parametrize("evidence", [{}, {"says": "one text", "version": 3}, {"says": None}])
def test_a_note_about_an_interface_may_lack_anything(evidence: dict[str, Any]) -> None:
    for label in ("v1", ""):
        noted = note(INTERFACE, label, evidence=FrozenDict(evidence))
        ((row, _),) = shown_in([StoredNote(1, noted)])
        assert (row.name, row.says) == (label or row.version, ())
