"""Targets of the measurements, and whether they are met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

LARGE = 1e9
"""Minimum number of weights for a model to count towards the training target."""


class Target(NamedTuple):
    """A target for a measured value.

    Attributes:
        name: name of the target.
        wanted: the required value, such as ``">= 40 %"``.
        value: the best measured value, or the worst one for upper limits; None if not measured.
        met: True if the value meets the target; None if not measured.
    """

    name: str
    wanted: str
    value: float | None
    met: bool | None


def evaluate_targets(results: Mapping[str, Any]) -> list[Target]:
    """Return the targets of all parts in the results.

    A part without rows, such as a skipped one, leaves its targets open.
    """

    def rows(part: str) -> list[dict[str, Any]]:
        value = results.get(part)
        return value if isinstance(value, list) else []

    large = [row for row in rows("train") if row["parameters"] >= LARGE]
    ours = [row for row in rows("rollout") if row["engine"] != "generate"]
    vllm = [row for row in ours if row["engine"] == "vllm"]
    equal = [float(row["ok"]) for row in rows("equal")]
    read = [row["read"] / row["must_read"] for row in rows("sampling")]
    planned = [
        row["peak_memory"] / row["planned_memory"]
        for part in ("sampling", "update")
        for row in rows(part)
        if row["peak_memory"] is not None
    ]
    targets = {
        "equal": [
            _min_target("equal to the CPU, share of precisions", 1.0, equal, "all", worst=True)
        ],
        "train": [
            _min_target(
                "training MFU from 1B weights on", 0.4, _values_of(large, "mfu"), ">= 40 %"
            ),
            _max_target(
                "padding in training", 0.05, _values_of(rows("train"), "padding"), "<= 5 %"
            ),
        ],
        "rollout": [
            _min_target(
                "sampling against generate", 5.0, _values_of(ours, "against_generate"), ">= 5 x"
            ),
            _min_target(
                "decode roofline, vLLM", 0.5, _values_of(vllm, "roofline_share"), ">= 50 %"
            ),
        ],
        "mismatch": [
            _max_target(
                "k3 of sampler and learner", 1e-3, _values_of(rows("mismatch"), "kl"), "<= .001"
            )
        ],
        "sampling": [
            _max_target("prompt tokens read, largest cache", 1.1, sorted(read)[:1], "<= 1.1 x")
        ],
        "update": [_max_target("peak memory to the plan", 1.0, planned, "<= 1")],
    }
    return [target for part, mine in targets.items() if part in results for target in mine]


def _values_of(rows: Iterable[Mapping[str, Any]], key: str) -> list[float]:
    return [row[key] for row in rows if row.get(key) is not None]


def _min_target(
    name: str, least: float, values: list[float], wanted: str, *, worst: bool = False
) -> Target:
    if not values:
        return Target(name, wanted, None, None)
    value = min(values) if worst else max(values)
    return Target(name, wanted, value, value >= least)


def _max_target(name: str, most: float, values: list[float], wanted: str) -> Target:
    if not values:
        return Target(name, wanted, None, None)
    return Target(name, wanted, max(values), max(values) <= most)
