"""Resumable, parallel runs of one arm in one simulated world over many seeds.

    cell = SimulatedCell(world="skew", curriculum={"growth": {"kind": "blind"}})
    summaries = run_seeds(folder, cell, range(3000, 3100), workers=2)

Each finished seed is a line of ``seeds.jsonl`` in the folder and is not run again.
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


class SimulatedCell(FrozenModel):
    """A simulated experiment that can be run with any seed."""

    world: str
    """Name of the world."""
    curriculum: JsonObject = FrozenDict()
    """The arm's curriculum settings, as in the curriculum section of a run; missing settings
    default to values that fit the world."""
    proof: bool | None = None
    """Verify drafts in the arm's rounds by replaying them; None to use the world's setting."""

    def parts(self) -> tuple[WorldConfig, CurriculumConfig]:
        """Return the world and curriculum settings for the simulation, with defaults filled in.

        Raises:
            ConfigError: if the world does not exist.
            ValidationError: if a curriculum setting is invalid.
        """
        world = world_named(self.world)
        settings = overlay(CurriculumConfig, world_settings(world), thaw(self.curriculum))
        return world, CurriculumConfig.model_validate(settings)

    def run(self, seed: int) -> Numbers:
        """Run one seed; see :func:`~coevo_gym.testing.simulated.simulation.simulate`."""
        world, settings = self.parts()
        return simulate(world, settings, seed=seed, proof=self.proof)


def run_seeds(
    folder: Path,
    cell: SimulatedCell,
    seeds: Sequence[int],
    *,
    workers: int = 1,
    on_seed: Callable[[int, Numbers], None] = lambda seed, numbers: None,
) -> list[Numbers]:
    """Run the missing seeds and return the results of all seeds.

    With one worker, seeds run in this process. ``on_seed`` is called after each seed that was run;
    an exception in it stops the remaining seeds.

    Returns:
        Each seed's results, in the order of ``seeds``, including the ``seed`` itself.

    Raises:
        ConfigError: if the folder contains seeds that were run with different settings.
        StoreError: if the folder cannot be written.
        WorkersFailed: if a worker process was killed; finished seeds are kept.
    """
    done = {int(line["seed"]): line for line in _kept(folder, cell)}
    missing = [seed for seed in dict.fromkeys(seeds) if seed not in done]
    for seed, numbers in _run(cell, missing, min(workers, len(missing))):
        done[seed] = {"seed": seed, **numbers}
        append_line(folder / SEEDS, done[seed])
        on_seed(seed, numbers)
    return [done[seed] for seed in seeds]


def _kept(folder: Path, cell: SimulatedCell) -> list[Numbers]:
    """Load the results of finished seeds. If the folder is new, save the settings first."""
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
            f"{folder} contains seeds that were run with different settings (see {path.name}). "
            "Delete the folder to run them again, or choose another folder."
        )
    return read_lines(folder / SEEDS)


def _is_of(kept: Any, cell: SimulatedCell) -> bool:
    """Return True if the stored settings equal the given settings.

    Settings that did not exist when they were stored have their default values.
    """
    try:
        world = WorldConfig.model_validate(kept["world"])
        settings = CurriculumConfig.model_validate(kept["curriculum"])
    except (KeyError, TypeError, ValidationError):
        return False
    return (world, settings) == cell.parts() and kept.get("proof") == cell.proof


def _run(cell: SimulatedCell, seeds: Sequence[int], workers: int) -> Iterator[tuple[int, Numbers]]:
    """Yield each seed with its results, in order of completion."""
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
            "A worker process was killed, possibly because it ran out of memory. The results of "
            "finished seeds are saved. Run the same command again to resume."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Make a worker exit as soon as its parent is killed, and ignore Ctrl-C.

    A terminal sends Ctrl-C to all processes; only the parent handles it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
