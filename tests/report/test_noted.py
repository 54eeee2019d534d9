"""Failures by label over time, and what each interface said: counted, drawn and listed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.notes import INTERFACE, Note
from coevo_gym.core.task import FrozenDict
from coevo_gym.report.data import ArmLabels, LabelBin, ReportData, VersionRow
from coevo_gym.report.label_figures import MAX_DRAWN, MAX_LINES, MAX_VERSIONS
from coevo_gym.report.noted import (
    MAX_BINS,
    MAX_LABELS,
    arm_labels,
    parts_of,
    said_in,
    versions_of,
)
from coevo_gym.report.render import render_report
from coevo_gym.store.database import RunStore
from coevo_gym.store.noted import NoteCount
from tests.report.test_render import Page, chart
from tests.report.test_task_figures import bars


def note(kind: str = "turn", label: str = "empty", **more: Any) -> Note:
    return Note(kind=kind, task_id="t", group_id="g", index=0, label=label, **more)


def interface(name: str, *says: str) -> Note:
    evidence = FrozenDict(version=f"{name}-whole", says=says)
    return note(INTERFACE, name, evidence=evidence)


def text_of(data: ReportData) -> str:
    return " ".join("".join(Page(render_report(data)).text).split())


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
        assert sum(part.n for part in found.bins) == sum(one.n for one in mine)
        for at, label in enumerate(found.labels):
            total = sum(part.counts[at] for part in found.bins)
            assert total == sum(one.n for one in mine if one.label == label) > 0
        assert len(found.bins) <= MAX_BINS
        for part in found.bins:
            if math.isfinite(part.env_steps):
                assert part.env_steps == spent[min(part.last, steps)]
    assert {found.kind for found in arm_labels(counts, "a", spent)} == {
        n.kind for n in counts if n.arm == "a" and n.label and n.kind != INTERFACE
    }


def test_of_very_many_labels_the_rare_ones_are_only_counted() -> None:
    counts = [NoteCount("a", 1, "turn", f"label-{i}", 1 + (i == 50)) for i in range(60)]
    (found,) = arm_labels(counts, "a", {})
    assert found.labels[0] == "label-50"
    assert (len(found.labels), found.left) == (MAX_LABELS, 60 - MAX_LABELS)
    assert found.bins[0].n == 61


def test_an_interface_is_listed_from_where_it_was_first_shown(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "run.db")
    store.add_notes("a", 1, [note(), interface("v1")])
    store.add_notes("a", 4, [interface("v2", "Look first.", "Then act."), note(label="late")])
    store.add_notes("a", 9, [interface("v1")])
    store.add_notes("a", 10, [interface("v2"), interface("v1")])
    store.add_notes("a", 11, [interface("v2"), interface("v2")])
    store.add_notes("a", 15, [interface("v1")])
    store.add_notes("b", 2, [interface("v3")])
    rows = versions_of(store.notes_when("a", INTERFACE), "a", {4: 800.0})
    assert [(row.version, row.step, row.says) for row in rows] == [
        ("v1", 1, ()),
        ("v2", 4, ("Look first.", "Then act.")),
    ]
    assert rows[1].env_steps == 800
    assert [row.again for row in rows] == [(9, 15), (10,)]
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
    thirds = dict(zip(found.labels, found.thirds, strict=True))
    assert thirds == {"empty": (0, 1, 1), "pass": (1, 0, 0), "late": (0, 0, 0)}
    (nowhere,) = arm_labels(store.note_counts(), "a", {}, [])
    assert nowhere.thirds == ()
    store.close()


@pytest.mark.parametrize("evidence", [{}, {"says": "one text", "version": 3}, {"says": None}])
def test_a_note_about_an_interface_may_lack_anything(evidence: dict[str, Any]) -> None:
    said = said_in(note(INTERFACE, "v1", evidence=FrozenDict(evidence)))
    assert (said.name, said.lines) == ("v1", ())
    assert said_in(note(INTERFACE, "", evidence=FrozenDict(evidence))).lines == ()


LABELS = ArmLabels(
    "A",
    "turn_label",
    ("pass", "missing_tool_call", "empty_turn"),
    (LabelBin(1, 2, 100.0, 8, (4, 3, 1)), LabelBin(3, 4, 250.0, 0, (0, 0, 0)),
     LabelBin(5, 6, 300.0, 10, (9, 0, 1))),
)  # fmt: skip


def test_bars_are_the_shares_of_failures_by_env_steps() -> None:
    html = render_report(ReportData("t", labels=(LABELS,)))
    assert bars(chart(html, "labels-0")) == [
        "A 100: missing tool call 37.5\u202f%", "A 100: empty turn 12.5\u202f%",
        "A 300: empty turn 10\u202f%",
    ]  # fmt: skip
    assert "pass A turn label 13 72.2\u202f% 50.0\u202f% 90.0\u202f%" in re.sub(
        r"\s*<[^>]+>\s*", " ", html
    ).replace("  ", " ")


def test_where_turns_lie_is_told_if_it_is_known() -> None:
    placed = replace(LABELS, thirds=((6, 2, 0), (0, 0, 0), (1, 1, 2)))
    text = text_of(ReportData("t", labels=(placed,)))
    assert "in early turnsmiddlelate" in text
    assert "75.0 %25.0 %0.0 %" in text
    assert "–––" in text
    assert "in early turns" not in text_of(ReportData("t", labels=(LABELS,)))


def test_rare_labels_share_a_bar_and_no_label_of_a_success_is_drawn() -> None:
    n = MAX_DRAWN + 3
    names = ("pass", "not_reached", *(f"fault-{i}" for i in range(n)))
    arm = ArmLabels("A", "turn", names, (LabelBin(1, 1, math.nan, 2 + n, (1,) * (n + 2)),))
    drawn = bars(chart(render_report(ReportData("t", labels=(arm,))), "labels-0"))
    assert len(drawn) == MAX_DRAWN + 1
    assert drawn[-1] == f"A 1: other labels {300 / (2 + n):.1f}\u202f%"
    assert not any("pass" in one or "reached" in one for one in drawn)


def test_without_a_failure_there_are_numbers_and_no_bars() -> None:
    arm = ArmLabels("A", "turn", ("pass",), (LabelBin(1, 1, 10.0, 3, (3,)),))
    html = render_report(ReportData("t", labels=(arm,)))
    assert '<section id="labels">' in html
    assert "labels-0" not in html


def test_a_run_without_notes_has_no_such_section() -> None:
    html = render_report(ReportData("t"))
    assert 'id="labels"' not in html
    assert 'href="#labels"' not in html


def test_interfaces_are_listed_with_what_they_say_as_far_as_there_is_room() -> None:
    lines = tuple(f"line {i}" for i in range(MAX_LINES + 2))
    versions = (VersionRow("A", "v1", 3, 1234.0, ("<b>Look</b> first.",), (7, 9, 11, 13)),
                VersionRow("A", "v2", 5, says=lines), VersionRow("B", "v3", 6))  # fmt: skip
    html = render_report(ReportData("t", versions=versions))
    assert "&lt;b&gt;Look&lt;/b&gt; first." in html
    text = text_of(ReportData("t", versions=versions))
    assert "1,234" in text
    assert "3, 7, 9, 11, …" in text
    assert f"line {MAX_LINES - 1}and 2 lines more" in text
    assert f"line {MAX_LINES}" not in text
    assert "nothing more than the env" in text
    many = tuple(VersionRow("A", f"v{i}", i) for i in range(500))
    text = text_of(ReportData("t", versions=many))
    assert f"{MAX_VERSIONS} of the 500" in text
    assert "v0" in text
    assert "v499" in text
