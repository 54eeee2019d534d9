"""Result tables for a simulated learner. Each row runs one batch of seeds in each world.

A batch is stored in ``runs/TABLE/WORLD-ROW``, with one line per seed in ``seeds.jsonl``. Finished
seeds are not run again.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.sections import flat
from coevo_gym.runs.config import arm_configs, load_config
from coevo_gym.runs.experiments.cells import CellCounts, Chosen
from coevo_gym.runs.experiments.definition import Experiment, Row
from coevo_gym.runs.experiments.results import RowComparison, TableLine, Values
from coevo_gym.runs.progress import ProgressSink
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.store.folder import read_lines
from coevo_gym.testing.simulated.batch import SEEDS, SimulatedCell, run_seeds
from coevo_gym.testing.simulated.simulation import world_settings
from coevo_gym.testing.simulated.worlds import CONTROLS, NULL, world_named

PROOF = "replay"
"""The gate that is turned off in arms that accept drafts without replaying them."""


def in_worlds(rows: Sequence[Row], worlds: Sequence[str]) -> tuple[Row, ...]:
    """Return copies of each row, one for every world it is simulated in, grouped by world.

    Raises:
        ConfigError: if a world is unknown.
    """
    for world in worlds:
        world_named(world)
    return tuple(
        row.model_copy(update={"group": world})
        for world in worlds
        for row in rows
        if not row.worlds or world in row.worlds
    )


def batch_of(experiment: Experiment, row: Row) -> SimulatedCell:
    """Return the simulation settings for one row of an experiment table.

    Raises:
        ConfigError: if a setting is invalid; the message names the row.
    """
    tree = {
        **dict(flat({"curriculum": world_settings(world_named(row.group))})),
        **dict(flat(experiment.settings)),
        "arms": [row.name],
        "arm": {row.name: {**({"method": row.method} if row.method else {}), "set": row.set}},
    }
    try:
        arm = arm_configs(load_config(tree, environ={}, origin=f"{experiment.name}.toml").config)[
            row.name
        ]
    except ConfigError as error:
        raise ConfigError(f"{experiment.name}, row {row.name}: {error}") from error
    return SimulatedCell(
        world=row.group,
        curriculum=arm.curriculum.model_dump(mode="json"),
        proof=False if PROOF in arm.gates.off else None,
    )


def run_batches(
    chosen: Chosen, progress: ProgressSink, stop: StopRequest
) -> tuple[Values, CellCounts]:
    """Simulate all seeds without saved results, and return the results for all seeds.

    Raises:
        Stopped: if a stop was requested; finished seeds are kept.
        ConfigError: if a setting is invalid, or a batch was run with different settings.
    """
    rows, seeds = chosen.rows, chosen.seeds
    batches = {row.key: batch_of(chosen.experiment, row) for row in rows}
    counts, values = CellCounts(), dict[str, Mapping[int, Mapping[str, float]]]()
    for number, row in enumerate(rows, start=1):
        own = chosen.folder / row.key
        known = {int(line["seed"]) for line in read_lines(own / SEEDS)}
        missing = [seed for seed in seeds if seed not in known]
        counts.there += len(seeds) - len(missing)
        done = iter(range(1, len(missing) + 1))
        if missing:
            progress.part(number, len(rows), row.key, 0.0)  # later rows are similar
            similar = len(rows) - number
            progress.phase(f"[{number}/{len(rows)}] {row.key}", len(missing), similar=similar)

        def on_seed(seed: int, numbers: Mapping[str, float]) -> None:
            counts.new += 1
            progress.update(next(done), success=f"{numbers['success']:.1%}")  # noqa: B023
            if stop():
                raise Stopped

        if stop():
            raise Stopped
        found = run_seeds(
            own, batches[row.key], seeds, workers=os.cpu_count() or 1, on_seed=on_seed
        )
        values[row.key] = {
            int(numbers["seed"]): {
                name: value for name, value in numbers.items() if value is not None
            }
            for numbers in found
        }
    return values, counts


def over_worlds(lines: Sequence[TableLine]) -> Iterator[str]:
    """Yield sentences that state in how many worlds a row beats or trails a baseline.

    Control worlds are not counted. For the null world, in which no row can be better, the spread of
    the means is reported.
    """
    found: dict[tuple[str, str], list[RowComparison]] = defaultdict(list)
    for line in lines:
        if line.group in CONTROLS:
            continue
        for comparison in line.comparisons:
            pair = (_bare(line.key, line.group), _bare(comparison.baseline, line.group))
            found[pair].append(comparison)
    for (row, baseline), comparisons in found.items():
        differences = [one for one in comparisons if one.low is not None]
        better = sum((one.low or 0.0) > 0 for one in differences)
        worse = sum((one.high or 0.0) < 0 for one in differences)
        clearly = sum((one.mean or 0.0) >= 0.05 for one in differences)
        yield (
            f"{row} against {baseline}: the interval lies above 0 in {better} of "
            f"{len(differences)} worlds and below in {worse}; 5 points or more in {clearly}."
        )
    means = [line.mean for line in lines if line.group == NULL and line.mean is not None]
    if len(means) > 1:
        points = 100 * (max(means) - min(means))
        yield f"{NULL}: the means of all rows lie within {points:.1f} points."


def _bare(key: str, group: str) -> str:
    return key.removeprefix(f"{group}-")
