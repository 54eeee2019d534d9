"""Curricula compared with a simulated learner, whose runs take about a second.

    python bench/simulate.py     # ten worlds x 100 seeds, an hour on two cores

Prints the mean success on held-out tasks of each row in each world, and for each baseline the
difference, paired by seed, with its 95% interval. docs/benchmarks.md describes the worlds and the
results.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import fmean
from typing import Any, NamedTuple

from simulated.simulation import curriculum_settings, simulate
from simulated.worlds import CONTROLS, NULL, WORLDS, WorldConfig, find_world

from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.stats import Paired, paired_difference
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.runs.config import arm_configs, load_config

PROOF = "replay"
"""The gate that is turned off in rows that accept drafts without replaying them."""


class Row(NamedTuple):
    """An arm of the comparison.

    Attributes:
        method: name of the method; "" for the name of the row.
        set: the arm's own settings, with dotted keys.
        baselines: rows to compare with.
        worlds: worlds to run in; () for all.
    """

    method: str = ""
    set: Mapping[str, Any] = {}
    baselines: Sequence[str] = ("random_append", "static")
    worlds: Sequence[str] = ()


ROWS: Mapping[str, Row] = {
    "static": Row(baselines=("random_append",)),
    "random_append": Row(baselines=("static",)),
    "signal_blind": Row(),
    "coevolve": Row(baselines=("random_append", "static", "signal_blind")),
    "unproven": Row(
        method="coevolve",
        set={"gates.off": [PROOF, "prefix"]},
        baselines=("coevolve", "static"),
        worlds=("skewed",),
    ),
    "static_band": Row(),
    "shuffled": Row(),
    "band_reserve": Row(
        method="random_append",
        set={"curriculum.selector.kind": "band", "curriculum.growth.when": "reserve"},
    ),
    "coevolve_rbc": Row(baselines=("random_append", "static", "shuffled")),
}
"""The rows, by name."""


class Simulation(NamedTuple):
    """The settings of a row in a world. It can be run with any seed."""

    world: WorldConfig
    curriculum: CurriculumConfig
    proof: bool | None

    def run(self, seed: int) -> dict[str, float]:
        """Run one seed; see :func:`~simulated.simulation.simulate`."""
        return simulate(self.world, self.curriculum, seed=seed, proof=self.proof)


def simulation_of(name: str, row: Row, world: str) -> Simulation:
    """Return the simulation of a row in a world.

    Raises:
        ConfigError: if the world does not exist, or a setting is invalid.
    """
    config = find_world(world)
    tree = {
        **dict(flatten({"curriculum": curriculum_settings(config)})),
        "arms": [name],
        "arm": {name: {"method": row.method or name, "set": row.set}},
    }
    arm = arm_configs(load_config(tree, environ={}, origin=name).config)[name]
    return Simulation(config, arm.curriculum, False if PROOF in arm.gates.off else None)


class Line(NamedTuple):
    """The success of a row in a world, by seed, and its comparison with each baseline."""

    row: str
    successes: Sequence[float]
    against: Mapping[str, Paired]


def lines_of(results: Mapping[str, Sequence[float]]) -> Iterator[Line]:
    """Yield the lines of one world. ``results`` maps each row to its success, seed by seed."""
    for name, successes in results.items():
        there = [baseline for baseline in ROWS[name].baselines if baseline in results]
        yield Line(name, successes, {b: paired_difference(successes, results[b]) for b in there})


def summary(lines: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    """Yield sentences that state in how many worlds a row is ahead of or behind a baseline.

    Control worlds are not counted. For the null world, in which no row can be better, the spread of
    the means is reported.
    """
    groups: dict[tuple[str, str], list[Paired]] = {}
    for world, of_world in lines.items():
        for line in of_world if world not in CONTROLS else ():
            for baseline, difference in line.against.items():
                groups.setdefault((line.row, baseline), []).append(difference)
    for (row, baseline), differences in groups.items():
        better = sum(one.low > 0 for one in differences)
        worse = sum(one.high < 0 for one in differences)
        clearly = sum(one.mean >= 0.05 for one in differences)
        yield (
            f"{row} against {baseline}: the interval lies above 0 in {better} of "
            f"{len(differences)} worlds and below in {worse}; 5 points or more in {clearly}."
        )
    means = [fmean(line.successes) for line in lines.get(NULL, ())]
    if len(means) > 1:
        points = 100 * (max(means) - min(means))
        yield f"{NULL}: the means of all rows lie within {points:.1f} points."


def _run_seed(simulation: Simulation, seed: int) -> float:
    return simulation.run(seed)["success"]


def _format_line(line: Line) -> str:
    parts = [f"{line.row:14}", f"{fmean(line.successes):6.1%}"]
    for baseline, one in line.against.items():
        low, high = 100 * one.low, 100 * one.high
        parts.append(f"{baseline} {100 * one.mean:+.1f} [{low:+.1f}, {high:+.1f}]")
    return "  ".join(parts)


def main() -> None:
    """Run the chosen rows, worlds and seeds, and print a table for each world."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", nargs="+", default=[*WORLDS], help="worlds (default: all)")
    parser.add_argument("--rows", nargs="+", default=[*ROWS], choices=ROWS, help="rows")
    parser.add_argument("--seeds", default="3001-3100", help="first and last seed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    chosen = parser.parse_args()
    first, _, last = chosen.seeds.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    lines: dict[str, list[Line]] = {}
    with ProcessPoolExecutor(chosen.jobs, mp_context=get_context("spawn")) as pool:
        for world in chosen.worlds:
            rows = {n: ROWS[n] for n in chosen.rows if world in (ROWS[n].worlds or [world])}
            runs = {name: simulation_of(name, row, world) for name, row in rows.items()}
            waiting = {n: pool.map(partial(_run_seed, run), seeds) for n, run in runs.items()}
            lines[world] = [*lines_of({name: [*values] for name, values in waiting.items()})]
            print(f"{world}, {len(seeds)} seeds", *map(_format_line, lines[world]), sep="\n  ")
    print(*summary(lines), sep="\n")


if __name__ == "__main__":
    main()
