"""Runs the cells of a table: those that are not there, and what is left of those that were cut."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from time import monotonic

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import FrozenDict
from coevo_gym.experiments.cells import Cell, Counts
from coevo_gym.experiments.measures import measure
from coevo_gym.experiments.sharing import beside, take_over
from coevo_gym.run.evolving.cost import estimates, require_consent
from coevo_gym.run.progress import Progress
from coevo_gym.run.stop import Stopped, StopRequest
from coevo_gym.run.train import resume, train


def check_cells(cells: Sequence[Cell], *, agreed: bool = False) -> None:
    """Look whether all cells can be run before the first one is.

    Raises:
        ConfigError: if one was run with other settings, or nobody has agreed to what it may cost.
        StoreError: if one cannot be read.
    """
    for cell in cells:
        if cell.state != "finished" and not agreed:
            require_consent(estimates(cell.config))


def run_cells(
    cells: Sequence[Cell],
    measures: Sequence[str],
    others: dict[str, str],
    progress: Progress,
    stop: StopRequest,
    *,
    shown: Mapping[str, Sequence[str]] = FrozenDict(),
    agreed: bool = False,
) -> Counts:
    """Bring all cells to their end, in order, and measure each.

    Args:
        cells: of a table.
        measures: what is measured of each, see :func:`~coevo_gym.experiments.measures.measure`.
        others: for the measure ``transfer``.
        progress: what a person sees.
        stop: asked at every step boundary.
        shown: what rows show of the runs of a row beside its arm, by that row's name.
        agreed: whether somebody has agreed to what asking models may cost.

    Raises:
        Stopped: if ``stop`` said so; what is done is saved.
        CoevoError: if a cell fails; those before it stay.
    """
    check_cells(cells, agreed=agreed)
    counts, spent = Counts(), list[float]()
    left = sum(cell.state != "finished" for cell in cells)
    if left:
        progress.say(f"{left} of {len(cells)} cells are to be run.")
    for number, cell in enumerate(cells, start=1):
        if stop():
            raise Stopped
        state, started = cell.state, monotonic()
        told = _Told(progress, f"[{number}/{len(cells)}] {cell.folder.path.name}")
        if state != "finished":
            later_s = sum(spent) / len(spent) * (left - 1) if spent else None
            progress.part(number, len(cells), cell.folder.path.name, later_s if left > 1 else 0.0)
        if state == "finished":
            counts.there += 1
        elif state == "cut":
            resume(cell.folder, told, stop)
            counts.resumed += 1
        else:
            _begin(cell, told, stop)
            counts.new += 1
        measure(cell.folder, cell.row.name, measures, others, shown.get(cell.row.name, ()))
        if state != "finished":
            spent.append(monotonic() - started)
            left -= 1
            _tell(progress, told.name, spent, left)
            gc.collect()  # a run and its events hold each other; the next needs its memory
    return counts


def _begin(cell: Cell, progress: Progress, stop: StopRequest) -> None:
    def prepare(_: object) -> None:
        source = take_over(cell, beside(cell))
        if source is not None:
            progress.say(f"  warm-up and first tasks are those of {source.path.name}")

    folder = cell.folder
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    if folder.path.is_dir() and any(
        not item.name.startswith(".") for item in folder.path.iterdir()
    ):
        raise ConfigError(
            f"{folder.path} holds something that is no run. Move it away, or choose another --name."
        )
    train(folder, cell.resolved, progress, stop, agreed=True, prepare=prepare)


def _tell(progress: Progress, name: str, spent: Sequence[float], left: int) -> None:
    minutes = sum(spent) / len(spent) * left / 60
    later = f"; about {minutes:.0f} min for the {left} that are left" if left else ""
    progress.say(f"{name} took {spent[-1] / 60:.1f} min{later}")


class _Told:
    """Tells of a cell under its name."""

    def __init__(self, progress: Progress, name: str) -> None:
        self.progress, self.name = progress, name

    def part(self, number: int, of: int, name: str, later_s: float | None = None) -> None:
        """Do nothing: a cell has no parts, it is one."""

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.phase(f"{self.name}: {name}", total, done, similar=similar)

    def expect(self, steps: int, words: str, *, whole: bool = False) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.expect(steps, words, whole=whole)

    def update(self, done: int, **facts: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.update(done, **facts)

    def acted(self, steps: int, tokens: int) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.acted(steps, tokens)

    def spent(self, cost: Cost) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.spent(cost)

    def say(self, text: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""
        self.progress.say(text)
