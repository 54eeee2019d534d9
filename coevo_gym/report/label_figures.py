"""Figures and tables of the labels of an arm's episodes, and of its interface versions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coevo_gym.report.bars import Column, ColumnChart, ColumnPanel, Fill, draw_columns
from coevo_gym.report.data import ArmLabels, LabelBin, ReportData, VersionRow
from coevo_gym.report.figures import SMALL, WIDE, Figure
from coevo_gym.report.noted import is_failure
from coevo_gym.report.svg import nice_top
from coevo_gym.report.words import brief, compact, count, percent, spread

MAX_DRAWN = 8
"""Maximum number of labels with their own bar; all other failure labels share one bar."""

MAX_KINDS = 4
"""Maximum number of kinds of notes that are drawn; the table contains all kinds."""

MAX_VERSIONS = 60
"""Maximum number of listed interface versions. If there are more, an even sample is listed."""

MAX_LINES = 40
"""Maximum number of listed lines per interface."""

OTHERS = "other labels"


class LabelRow(NamedTuple):
    """A label of an arm, formatted as text.

    Attributes:
        arm: name of the arm.
        kind: kind of the notes.
        label: the label.
        n: number of notes with the label.
        share: share of the kind's labelled notes that have this label.
        early: the same share in the first range of steps with labelled notes.
        late: the same share in the last such range.
        thirds: shares of its notes about turns in the first, the middle and the last third of their
            episodes; () if unknown.
    """

    arm: str
    kind: str
    label: str
    n: str
    share: str
    early: str
    late: str
    thirds: tuple[str, ...] = ()


def in_words(name: str) -> str:
    """Return a label or a kind as readable text on one line, without underscores."""
    return brief(name.replace("_", " "), 40)


def label_figures(data: ReportData) -> dict[str, Figure]:
    """Draw the shares of failure labels by kind of notes, with one panel per arm."""
    kinds = sorted({row.kind for row in data.labels})
    found = {
        kind: _figure(f"labels-{i}", kind, [row for row in data.labels if row.kind == kind])
        for i, kind in enumerate(kinds[:MAX_KINDS])
    }
    return {kind: drawn for kind, drawn in found.items() if drawn is not None}


def _figure(id: str, kind: str, arms: Sequence[ArmLabels]) -> Figure | None:
    total = Counter[str]()
    for arm in arms:
        for at, label in enumerate(arm.labels):
            if is_failure(label):
                total[label] += sum(part.counts[at] for part in arm.bins)
    ranked = sorted(total, key=lambda label: (-total[label], label))
    drawn, others = ranked[:MAX_DRAWN], set(ranked[MAX_DRAWN:])
    fills = [Fill(in_words(label), f"s{i % 6}", i % 4) for i, label in enumerate(drawn)]
    if others or any(arm.left for arm in arms):
        fills.append(Fill(OTHERS, "k-other"))
    timed = all(math.isfinite(part.env_steps) for arm in arms for part in arm.bins)
    panels = []
    for arm in arms:
        columns = []
        for part in arm.bins:
            name = compact(float(f"{part.env_steps:.3g}")) if timed else str(part.last)
            shares = _shares(arm, part, drawn, others)
            columns.append(Column(name, tuple(shares[: len(fills)])))
        panels.append(ColumnPanel(arm.arm, tuple(columns)))
    top = nice_top(max((sum(c.values) for p in panels for c in p.columns), default=0.0), 4)
    chart = ColumnChart(
        id, f"Failures by label over {'env steps' if timed else 'steps'}: {in_words(kind)}",
        "Stacked bars: of the notes that carry a label, the share of each label of a failure.",
        tuple(fills), tuple(panels), True,
        "env steps by the end of a bar" if timed else "step of the learner",
        "share of notes", top, _share, whole=False, height=120,
    )  # fmt: skip
    if chart.empty:
        return None
    small = replace(chart, id=f"{id}-small")
    return Figure(draw_columns(chart, WIDE), draw_columns(small, SMALL))


def _shares(arm: ArmLabels, part: LabelBin, drawn: Sequence[str], others: set[str]) -> list[float]:
    """Return the shares of the drawn labels and of all other failures in a range of steps."""
    of = dict(zip(arm.labels, part.counts, strict=True))
    rest = sum(of.get(label, 0) for label in others) + part.n - sum(part.counts)
    return [n / part.n if part.n else 0.0 for n in (*(of.get(x, 0) for x in drawn), rest)]


def _share(value: float) -> str:
    return percent(value, 0 if abs(100 * value - round(100 * value)) < 1e-9 else 1)


def label_rows(data: ReportData) -> list[LabelRow]:
    """Return all labels of all arms, including labels that are not failures."""
    rows = []
    for arm in data.labels:
        parts = [part for part in arm.bins if part.n]
        all_notes = sum(part.n for part in parts)
        for at, label in enumerate(arm.labels):
            n = sum(part.counts[at] for part in parts)
            first, last = (percent(part.counts[at] / part.n) for part in (parts[0], parts[-1]))
            names = (arm.arm, in_words(arm.kind), in_words(label))
            share = percent(n / all_notes)
            rows.append(LabelRow(*names, count(n), share, first, last, _thirds(arm, at)))
    return rows


def _thirds(arm: ArmLabels, at: int) -> tuple[str, ...]:
    """Return the shares of a label's turns by third of the episode."""
    found = arm.thirds[at] if arm.thirds else ()
    return tuple(percent(n / sum(found)) for n in found) if sum(found) else ()


def shown_versions(data: ReportData) -> list[VersionRow]:
    """Return the interface versions to list."""
    return [data.versions[i] for i in spread(len(data.versions), MAX_VERSIONS)]
