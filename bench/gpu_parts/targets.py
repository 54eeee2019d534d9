"""The targets of the measurements, with their results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LARGE = 1e9
"""Number of weights from which a model counts for the target of training."""


class Target(NamedTuple):
    """A target number.

    Attributes:
        name: its name.
        wanted: the target in words.
        value: the best measured number, for limits the worst; None if it was not run.
        met: True if the value meets the target; None if it was not run.
    """

    name: str
    wanted: str
    value: float | None
    met: bool | None


def targets(results: Mapping[str, Any]) -> list[Target]:
    """Return all targets, from the parts' rows; a skipped part is not a list."""

    def rows(part: str) -> list[dict[str, Any]]:
        found = results.get(part)
        return found if isinstance(found, list) else []

    large = [row for row in rows("train") if row["parameters"] >= LARGE]
    ours = [row for row in rows("rollout") if row["engine"] != "generate"]
    vllm = [row for row in ours if row["engine"] == "vllm"]
    equal = [float(row["ok"]) for row in rows("equal")]
    return [
        _least("equal to the CPU, share of precisions", 1.0, equal, "all", worst=True),
        _least("training MFU from 1B weights on", 0.4, _of(large, "mfu"), ">= 40 %"),
        _most("padding in training", 0.05, _of(rows("train"), "padding"), "<= 5 %"),
        _least("sampling against generate", 5.0, _of(ours, "against_generate"), ">= 5 x"),
        _least("decode roofline, vLLM", 0.5, _of(vllm, "roofline_share"), ">= 50 %"),
    ]


def _of(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _least(
    name: str, least: float, values: list[float], wanted: str, *, worst: bool = False
) -> Target:
    if not values:
        return Target(name, wanted, None, None)
    value = min(values) if worst else max(values)
    return Target(name, wanted, value, value >= least)


def _most(name: str, most: float, values: list[float], wanted: str) -> Target:
    if not values:
        return Target(name, wanted, None, None)
    return Target(name, wanted, max(values), max(values) <= most)
