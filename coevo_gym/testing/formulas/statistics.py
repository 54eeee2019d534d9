"""Formulas of statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.stats import at_k, efficiency, paired, point_biserial, sign_test
from coevo_gym.testing.formulas.check import Formula, Inputs


def _paired(v: Inputs) -> Any:
    found = paired(v["ours"], v["baseline"])._asdict()
    return {name: found[name] for name in ("mean", "sd", "wins", "ties")}


STATISTICS: Mapping[str, Formula] = {
    "stats.paired": _paired,
    "stats.sign_test": lambda v: sign_test(v["differences"]),
    "stats.at_k": lambda v: at_k(v["outcomes"], v["k"])._asdict(),
    "stats.efficiency": lambda v: efficiency(v["curve"], v["baseline"], share=v["share"])._asdict(),
    "stats.point_biserial": lambda v: point_biserial(v["values"], v["outcomes"]),
}
