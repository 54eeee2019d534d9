"""Spread of success between repeats of the same ALFWorld run, for several learner settings.

Repeats of a seed share the warm-up and the initial tasks, and differ only in the order in which
tasks are drawn. A fifth of the training scenes (25 of 108) is held out, and success is measured
there: as the mean over the last five evaluations, and in the last evaluation alone. Validation and
test games are not used, so settings can be chosen by these results.

Run: python bench/alfworld_spread.py --seeds 1,2, --repeats 3 --budget tiny
Each repeat is a cell of `coevo experiment`. Run the command again to add missing cells.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import forgetting  # beside this file

from coevo_gym import cli
from coevo_gym.core.task import canonical_json
from coevo_gym.envs.alfworld.engine import game
from coevo_gym.store.folder import RUNS, read_json

ANNEAL = {"learner.lr_decay": "linear", "learner.average": 0.9}
STEADY = {**ANNEAL, "learner.kl_coef": 0.01}
STEADIER = {**ANNEAL, "learner.kl_coef": 0.03}
WARM = {"warmup.n_tasks": 2_000}
SETTINGS: dict[str, dict[str, Any]] = {
    "today": {},
    "steady": STEADY,
    "steadier": STEADIER,
    "steady_warm": {**STEADY, **WARM},
    "steadier_warm": {**STEADIER, **WARM},
    "steady_long": {**STEADY, "loop.max_env_steps": 160_000},
    "anneal": ANNEAL,
    "anneal_kl": {**ANNEAL, "learner.kl_coef": 0.003},
    "anneal_higher": {**ANNEAL, "learner.lr": 2e-3},
    "anneal_lower": {**ANNEAL, "learner.lr": 5e-4},
    "anneal_groups": {**ANNEAL, "loop.groups_per_step": 16},
}
OF_RUN = ("loop.groups_per_step", "loop.max_env_steps", "warmup.n_tasks")
"""Settings of a whole run, which all arms of the run must share."""
SHARED = {
    "benchmark.hold_out": 0.2,
    "evaluation.split": "held_out",
    "evaluation.n_tasks": 400,
    "evaluation.last": 5,
    "evaluation.n_trained": 60,
    "loop.evaluate_from": 0.7,
    "store.record": "none",
    "store.keep_checkpoints": 1,
}
BUDGETS = {
    "smoke": {
        "loop.max_env_steps": 1_000,
        "loop.evaluate_every_steps": 1,
        "curriculum.initial_size": 4,
        "warmup.n_tasks": 4,
        "evaluation.n_tasks": 4,
        "evaluation.n_trained": 4,
    },
    "tiny": {"loop.max_env_steps": 30_000, "loop.evaluate_every_steps": 2, "warmup.n_tasks": 700},
    "small": {"loop.max_env_steps": 80_000, "loop.evaluate_every_steps": 5, "warmup.n_tasks": 700},
}
SCENES = 600
"""Scenes to keep in memory, about 4 MB each; enough for all evaluations and the pool."""


TOLD = ("after_env_steps", "success_rate", "warmup_tasks_success", "pool_tasks_success")


def experiment_toml(settings: list[str], repeats: int, budget: str) -> str:
    """Return the experiment as TOML; the first repeats of all settings precede the second ones."""
    size = "tiny" if budget == "smoke" else budget  # an experiment has no budget named smoke
    lines = [
        'title = "ALFWorld: repeats of one run, by setting of the learner"',
        'benchmarks = ["alfworld"]',
        f"budget = {json.dumps(size)}",
        f'baselines = ["{settings[0]}_0"]',
        f"[budgets.{size}.alfworld]",
        'preset = "alfworld"',
        f"[budgets.{size}.alfworld.set]",
        *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in {**SHARED, **BUDGETS[budget]}.items()),
    ]
    for repeat in range(repeats):
        for name in settings:
            own = {k: v for k, v in SETTINGS[name].items() if k not in OF_RUN}
            run = {k: v for k, v in SETTINGS[name].items() if k in OF_RUN}
            lines += ["[[rows]]", f'name = "{name}_{repeat}"', 'method = "static"', "[rows.set]"]
            own |= {"loop.seed_of_order": repeat}
            lines += [f"{json.dumps(k)} = {json.dumps(v)}" for k, v in own.items()]
            lines += ["[rows.run]", *(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in run.items())]
    return "\n".join(lines) + "\n"


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return one JSON object of results for each finished cell."""
    cells = []
    for path in sorted(folder.glob("*_*-*/summary.json")):
        row, _, seed = path.parent.name.rpartition("-")
        name, _, repeat = row.rpartition("_")
        summary = read_json(path)
        (arm,) = summary["arms"].values()
        late = arm["evaluations"][1:]
        cells.append(
            {
                "setting": name,
                "seed": int(seed),
                "repeat": int(repeat),
                "mean_of_last": summary["table"][-1]["success"],
                "last": late[-1]["success_rate"],
                "warm_up": summary["table"][1]["success"],
                "evaluations": [{name: e[name] for name in TOLD} for e in arm["evaluations"]],
                "n_tasks": summary["table"][-1]["n_tasks"],
                "weights": arm["weights"],
            }
        )
    return cells


def format_spreads(cells: list[dict[str, Any]]) -> str:
    """Return a table of the spread between repeats of the same seed."""
    by_setting: dict[str, dict[int, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        by_setting[cell["setting"]][cell["seed"]].append(cell)
    lines = [
        "| setting | repeats by seed | mean of the last five | range within a seed, largest | "
        "deviation within a seed | the last alone: range, largest |",
        "|---|---|---|---|---|---|",
    ]
    for name in sorted(by_setting, key=list(SETTINGS).index):
        seeds = [each for _, each in sorted(by_setting[name].items())]
        means = [[100 * cell["mean_of_last"] for cell in each] for each in seeds]
        alone = [[100 * cell["last"] for cell in each] for each in seeds]
        several = [each for each in means if len(each) > 1]
        within = fmean(stdev(each) ** 2 for each in several) ** 0.5 if several else float("nan")
        cells_ = (
            name,
            ", ".join(str(len(each)) for each in means),
            "; ".join(", ".join(f"{value:.1f}" for value in each) for each in means),
            f"{max(max(each) - min(each) for each in means):.1f}",
            f"{within:.1f}",
            f"{max(max(each) - min(each) for each in alone):.1f}",
        )
        lines.append("| " + " | ".join(cells_) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run the missing cells, and print the results of all cells."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default="1,2,", help="seeds, as in `coevo experiment`")
    parser.add_argument("--repeats", type=int, default=3, help="runs per seed and setting")
    parser.add_argument("--budget", choices=sorted(BUDGETS), default="tiny")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument(
        "--print", action="store_true", help="print the finished cells without running others"
    )
    parser.add_argument("--out", type=Path, help="file for the cells' results, as JSON lines")
    arguments = parser.parse_args()
    name = f"alfworld_spread_{arguments.budget}"
    if not arguments.print:
        os.makedirs(RUNS, exist_ok=True)
        file = RUNS / f"{name}.toml"
        file.write_text(experiment_toml(arguments.settings, arguments.repeats, arguments.budget))
        game.open_scene = lru_cache(SCENES)(game.Scene)  # type: ignore[assignment]
        sys.argv = ["coevo", "experiment", str(file), "--seeds", arguments.seeds, "--name", name]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise
    cells = read_results(RUNS / name)
    if arguments.out:
        arguments.out.write_text("".join(f"{canonical_json(cell)}\n" for cell in cells))
    print(format_spreads(cells))
    by_setting = forgetting.group_by_row(
        cell._replace(row=cell.row.rpartition("_")[0])
        for cell in forgetting.read_cells(RUNS / name)
    )
    print(f"\n{forgetting.format_overall(by_setting)}")
    print(f"\n{forgetting.format_by_type(by_setting, 'goal')}")


if __name__ == "__main__":
    main()
