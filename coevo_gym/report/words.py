"""Numbers and findings as text, formatted the same way in text, tables and figures."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from coevo_gym.report.data import ArmMap, CrossRow, ReportData, RoundRow
from coevo_gym.report.svg import clean
from coevo_gym.run.table import TableRow

NARROW = "\u202f"
"""Narrow no-break space between a number and its unit."""

NONE = "–"
"""Placeholder for a missing number."""

ONE_SEED = "one seed; repeats can differ by more"
"""Caveat for every statement about the arms of one run."""


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share in [0, 1] as a percentage, or a dash."""
    if share is None or not math.isfinite(share):
        return NONE
    return f"{100 * share:.{digits}f}{NARROW}%"


def interval(low: float, high: float) -> str:
    """Format two shares as ``46.1–57.9 %``, or a dash."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return NONE
    return f"{100 * low:.1f}–{percent(high)}"


def decimal(value: float, digits: int = 3) -> str:
    """Format a number with a fixed number of decimals, or a dash."""
    return f"{value:.{digits}f}" if math.isfinite(value) else NONE


def hundredths(value: float) -> str:
    """Format a number with two decimals, or a dash."""
    return decimal(value, 2)


def count(value: float) -> str:
    """Format a whole number with separators, or a dash."""
    return f"{round(value):,}" if math.isfinite(value) else NONE


def brief(name: str, most: int = 60) -> str:
    """Return a name on one line, cut with an ellipsis after ``most`` characters."""
    flat = " ".join(clean(name).split())
    return flat if len(flat) <= most else flat[: most - 1].rstrip() + "…"


def plural(n: int, noun: str) -> str:
    """Format a count with its noun: ``1 task``, ``12 tasks``."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def compact(value: float) -> str:
    """Format a number for an axis: ``500``, ``20k``, ``1.5M``."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def headline(table: Sequence[TableRow]) -> str:
    """Describe the result in one sentence: the last row against the best other trained one."""
    rows = [row for row in table if math.isfinite(row.success)]
    if not rows:
        return "This run holds no evaluation on held-out tasks."
    focus = rows[-1]
    tasks = plural(focus.n_tasks, "held-out task")
    first = f"{brief(focus.name)} solves {percent(focus.success)} of {tasks}"
    if math.isfinite(focus.low) and math.isfinite(focus.high):
        first += f" (95{NARROW}% interval {interval(focus.low, focus.high)})"
    others = [row for row in rows[:-1] if row.env_steps > 0] or rows[:-1]
    if not others:
        return f"{first}, with {ONE_SEED}."
    rival = max(others, key=lambda row: row.success)
    return f"{first}{_against(focus, rival)} ({ONE_SEED})."


def _against(focus: TableRow, rival: TableRow) -> str:
    points = 100 * (focus.success - rival.success)
    theirs = percent(rival.success)
    if math.isfinite(rival.low) and math.isfinite(rival.high):
        theirs += f", {interval(rival.low, rival.high)}"
    if abs(points) < 0.05:
        text = f", as many as {brief(rival.name)} ({theirs})"
    else:
        word = "more" if points > 0 else "fewer"
        text = f", {abs(points):.1f} points {word} than {brief(rival.name)} ({theirs})"
    ends = (focus.low, focus.high, rival.low, rival.high)
    if not all(math.isfinite(end) for end in ends):
        return text
    overlap = focus.low <= rival.high and rival.low <= focus.high
    return f"{text}; the intervals {'overlap' if overlap else 'do not overlap'}"


def cross_sentence(row: CrossRow) -> str:
    """Describe the cross table of two arms in one sentence."""
    ours, baseline = brief(row.ours), brief(row.baseline)
    return (
        f"Against {baseline}, task by task: {count(row.both)} solved by both, "
        f"{count(row.only_ours)} by {ours} alone, {count(row.only_baseline)} by {baseline} alone, "
        f"{count(row.neither)} by neither."
    )


def rounds_sentence(rounds: Sequence[RoundRow]) -> str:
    """Describe the results of each arm's rounds."""
    parts = []
    for arm in dict.fromkeys(row.arm for row in rounds):
        mine = [row for row in rounds if row.arm == arm]
        drafts, accepted = sum(row.drafts for row in mine), sum(row.accepted for row in mine)
        rate = percent(accepted / drafts if drafts else None)
        pool = count(mine[-1].pool_size)
        parts.append(
            f"{brief(arm)}: {plural(len(mine), 'round')}, {plural(drafts, 'draft')}, "
            f"{count(accepted)} accepted ({rate}), {pool} in the pool at the end."
        )
    return " ".join(parts)


def map_sentence(maps: Sequence[ArmMap]) -> str:
    """Describe the contents of a map and the share of variance that it shows."""
    shares = [share for share in maps[0].shares if math.isfinite(share)] if maps else []
    shown = f" They show {percent(sum(shares), 0)} of how the words differ." if shares else ""
    return (
        "Tasks with like words lie near each other: the axes are the two directions in which "
        f"words differ most (principal components of hashed words).{shown} Held-out tasks are "
        "drawn for people alone: nothing that trains or explores is told of them."
    )


def signals_sentence(data: ReportData) -> str:
    """Describe the number of signals of each kind, with both counts of forgetting."""
    total, forgetting = Counter[str](), Counter[str]()
    for row in data.rounds:
        total.update(row.signals)
        forgetting.update(row.forgetting)
    found = "In all: " + ", ".join(f"{count(n)} {brief(kind)}" for kind, n in total.items()) + "."
    others = total.total() - total["forgetting"]
    if not forgetting.total() or not total["forgetting"]:
        return found
    shares = {how: percent(n / (n + others)) for how, n in forgetting.items()}
    return (
        f"{found} Forgetting is {shares['max']} of them where it reads single outcomes of earlier "
        f"visits, as the paper's text does, and {shares['mean']} where it reads their means."
    )


def flatten(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested JSON values as pairs of a dotted name and a text, in their own order."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from flatten(inner, f"{prefix}.{name}" if prefix else str(name))
    elif isinstance(value, str):
        yield prefix, value
    else:
        yield prefix, json.dumps(_plain(value), ensure_ascii=False, default=str)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value


def spread(n: int, most: int) -> list[int]:
    """Return at most ``most`` of ``n`` indices, evenly spaced from the first to the last."""
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]
