"""Formulas of trials (Reflexion)."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from coevo_gym.episodes.trials import repeated, repeats, solved_by
from coevo_gym.testing.formulas.check import Formula, Inputs


def _trials(v: Inputs) -> Any:
    outcomes = list[tuple[str, int, bool]]()

    def play(trial: int, waiting: Any, told: Any) -> list[bool]:
        solved = [bool(v["tasks"][task.id][trial]) for task in waiting]
        both = zip(waiting, solved, strict=True)
        outcomes.extend((task.id, trial, success) for task, success in both)
        return [not success for success in solved]

    tasks: Any = [SimpleNamespace(id=place) for place in range(len(v["tasks"]))]
    told = repeated(tasks, play, lambda trial, task: f"{trial}", n=v["n"], keep=v["keep"])
    counts = [len(told[task.id]) for task in tasks]
    return {"rates": list(solved_by(outcomes, v["n"])), "reflections": counts}


def _cut(v: Inputs) -> Any:
    n = len(v["actions"])
    return next((i for i in range(n) if repeats(v["actions"][:i])), n)


TRIALS: Mapping[str, Formula] = {"reflexion.trials": _trials, "reflexion.cut": _cut}
