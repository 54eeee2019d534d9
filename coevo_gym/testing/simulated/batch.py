"""Many seeds of one arm in one world: in processes of their own, and resumed by seed.

    cell = Cell(world="skew", curriculum={"evolve": "blind"})
    summaries = run_seeds(folder, cell, range(3000, 3100), workers=2)

Each seed that is done is a line of ``seeds.jsonl`` in the folder, and is not run again.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.errors import ConfigError, WorkersFailed
from coevo_gym.core.sections import overlay
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, thaw
from coevo_gym.curricula.pool_curriculum import CurriculumConfig
from coevo_gym.store.folder import append_line, read_json, read_lines, write_json
from coevo_gym.testing.simulated.simulation import simulate, world_settings
from coevo_gym.testing.simulated.worlds import WorldConfig, world_named

CELL, SEEDS = "cell.json", "seeds.jsonl"
Numbers = dict[str, float]


class Cell(FrozenModel):
    """An arm in a world, whatever the seed."""

    world: str
    """Name of the world."""
    curriculum: JsonObject = FrozenDict()
    """The arm's settings of the curriculum, as in a run's section of that name; what it leaves out
    is what fits the world."""
    proof: bool | None = None
    """Whether rounds of the arm prove their drafts by replay; none for what the world does."""

    def parts(self) -> tuple[WorldConfig, CurriculumConfig]:
        """The world, and all settings of the curriculum.

        Raises:
            ConfigError: if there is no such world.
            ValidationError: if a setting of the curriculum is none.
        """
        world = world_named(self.world)
        settings = overlay(CurriculumConfig, world_settings(world), thaw(self.curriculum))
        return world, CurriculumConfig.model_validate(settings)

    def run(self, seed: int) -> Numbers:
        """One seed; see :func:`~coevo_gym.testing.simulated.simulation.simulate`."""
        world, settings = self.parts()
        return simulate(world, settings, seed=seed, proof=self.proof)


def run_seeds(
    folder: Path,
    cell: Cell,
    seeds: Sequence[int],
    *,
    workers: int = 1,
    on_seed: Callable[[int, Numbers], None] = lambda seed, numbers: None,
) -> list[Numbers]:
    """Run the seeds that are not done yet, and give the numbers of all of them.

    Args:
        folder: where they are kept; made if it is not there.
        cell: what is run.
        seeds: which ones.
        workers: processes; with 1 it is this one.
        on_seed: told of each seed that has just been run. What it raises stops the rest.

    Returns:
        The numbers of each seed, in the order of ``seeds``, with the ``seed`` itself.

    Raises:
        ConfigError: if the folder holds seeds of other settings.
        StoreError: if the folder cannot be written.
        WorkersFailed: if something ended a worker process; the seeds that are done stay.
    """
    done = {int(line["seed"]): line for line in _kept(folder, cell)}
    missing = [seed for seed in dict.fromkeys(seeds) if seed not in done]
    for seed, numbers in _run(cell, missing, min(workers, len(missing))):
        done[seed] = {"seed": seed, **numbers}
        append_line(folder / SEEDS, done[seed])
        on_seed(seed, numbers)
    return [done[seed] for seed in seeds]


def _kept(folder: Path, cell: Cell) -> list[Numbers]:
    """What is done already; the folder says from now on what it is of."""
    world, settings = cell.parts()
    path = folder / CELL
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_json(
            path,
            {
                "name": cell.world,
                "world": world.model_dump(mode="json"),
                "curriculum": settings.model_dump(mode="json"),
                "proof": cell.proof,
            },
        )
        return []
    if not _is_of(read_json(path), cell):
        raise ConfigError(
            f"{folder} holds seeds of other settings, see {path.name} there. Delete the folder to "
            "run them anew, or choose another one."
        )
    return read_lines(folder / SEEDS)


def _is_of(kept: Any, cell: Cell) -> bool:
    """Whether it is what a folder says that holds seeds of this cell.

    Settings that there were not yet when it was written are as they are by default.
    """
    try:
        world = WorldConfig.model_validate(kept["world"])
        settings = CurriculumConfig.model_validate(kept["curriculum"])
    except (KeyError, TypeError, ValidationError):
        return False
    return (world, settings) == cell.parts() and kept.get("proof") == cell.proof


def _run(cell: Cell, seeds: Sequence[int], workers: int) -> Iterator[tuple[int, Numbers]]:
    """Each seed with its numbers, as they come."""
    if workers <= 1:
        yield from ((seed, cell.run(seed)) for seed in seeds)
        return
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    try:
        runs = {pool.submit(cell.run, seed): seed for seed in seeds}
        for run in as_completed(runs):
            yield runs[run], run.result()
    except BrokenProcessPool as error:
        raise WorkersFailed(
            "A worker process was ended from outside, for want of memory perhaps. The seeds that "
            "are done are kept; the same command goes on."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """A worker whose parent was killed ends at once, and does not wait for more to do.

    Ctrl-C, which a terminal sends to all of them, is the parent's affair.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
