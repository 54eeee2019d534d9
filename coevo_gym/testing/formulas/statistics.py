"""Formulas of statistics, and of what they are about: evaluations and trials."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from coevo_gym.core.stats import at_k, efficiency, paired, point_biserial, sign_test
from coevo_gym.episodes.trials import repeated, repeats, solved_by
from coevo_gym.testing.formulas.check import Formula, Inputs


def _paired(v: Inputs) -> Any:
    found = paired(v["ours"], v["baseline"])._asdict()
    return {name: found[name] for name in ("mean", "sd", "wins", "ties")}


def _trials(v: Inputs) -> Any:
    outcomes = list[tuple[str, int, bool]]()

    def play(trial: int, waiting: Any, told: Any) -> list[bool]:
        found = [bool(v["tasks"][task.id][trial]) for task in waiting]
        both = zip(waiting, found, strict=True)
        outcomes.extend((task.id, trial, success) for task, success in both)
        return found

    tasks: Any = [SimpleNamespace(id=place) for place in range(len(v["tasks"]))]
    told = repeated(tasks, play, lambda trial, task: f"{trial}", n=v["n"], keep=v["keep"])
    counts = [len(told[task.id]) for task in tasks]
    return {"rates": list(solved_by(outcomes, v["n"])), "reflections": counts}


def _cut(v: Inputs) -> Any:
    n = len(v["actions"])
    return next((i for i in range(n) if repeats(v["actions"][:i])), n)


STATISTICS: Mapping[str, Formula] = {
    "stats.paired": _paired,
    "stats.sign_test": lambda v: sign_test(v["differences"]),
    "stats.at_k": lambda v: at_k(v["outcomes"], v["k"])._asdict(),
    "stats.efficiency": lambda v: efficiency(v["curve"], v["baseline"], share=v["share"])._asdict(),
    "reflexion.trials": _trials,
    "reflexion.cut": _cut,
    "stats.point_biserial": lambda v: point_biserial(v["values"], v["outcomes"]),
}
