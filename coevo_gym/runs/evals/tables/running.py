"""A runner for tables of evaluations that starts missing cells and resumes interrupted ones."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from gymnasium.error import Error as GymnasiumError

from coevo_gym.core.errors import BudgetSpent, CoevoError, ConfigError, StoreError
from coevo_gym.core.spend import Cost
from coevo_gym.runs.evals.evaluation import (
    evaluate_job,
    identity,
    join_differences,
    list_differences,
    list_origin_warnings,
)
from coevo_gym.runs.evals.tables.definition import EvalCell, EvalTableDefinition
from coevo_gym.runs.evals.tables.table import (
    EvalTable,
    build_eval_table,
    group_problems,
    write_eval_table,
)
from coevo_gym.runs.planning.cost import CostEstimate, merge_evaluation_costs, refuse_if_paid
from coevo_gym.runs.progress_reports import PartProgress, ProgressFile, ProgressSink
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.links import link_cell, remove_dead_link

_ASIDE = ("git_commit",)
"""Values of an evaluation that may differ, because the hashes of the source code say more."""
_FAULTS = (CoevoError, GymnasiumError, OSError, ImportError)
"""Errors that end one cell, but not the table."""


class PlannedCell(NamedTuple):
    """The work that is left in a cell.

    Attributes:
        cell: the cell.
        done: number of finished episodes.
        total: number of episodes; None if it cannot be determined, see ``problem``.
        max_steps: maximum number of env steps per episode.
        costs: estimated cost of an endpoint.
        used_from: another table's evaluation that will be used; "" for none.
        problem: the reason why the cell cannot be run, or "".
        changes: settings that differ from those with which the cell was started.
        warnings: warnings about the code and the processor with which the cell was started.
    """

    cell: EvalCell
    done: int
    total: int | None = None
    max_steps: int = 0
    costs: tuple[CostEstimate, ...] = ()
    used_from: str = ""
    problem: str = ""
    changes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to do."""
        return self.done == self.total and self.cell.has_result


def plan_eval_table(
    table: EvalTableDefinition, *, fresh: bool = False, only_begun: bool = False
) -> list[PlannedCell]:
    """Return what is left to do in each cell, without running anything.

    Weights of trained runs are loaded, but no model is.

    Args:
        table: the table.
        fresh: plan to start over, whatever the table's folder contains.
        only_begun: leave out cells that were not started, unless they use an endpoint, which may
            cost money.

    Raises:
        ConfigError: if an evaluation in the table's folder was started with other settings.
    """
    plans = [
        _plan_cell(cell, fresh=fresh)
        for cell in table.cells
        if not only_begun or cell.uses_endpoint or (cell.is_started and not fresh)
    ]
    _refuse_changes(table, plans)
    return plans


def _plan_cell(cell: EvalCell, *, fresh: bool) -> PlannedCell:
    started = cell.is_started and not fresh
    done = len(cell.folder.read_results()) if started else 0
    try:
        job = cell.make_job()
        wanted = identity(job)
        there = cell.folder.read_config() if started else wanted
        changes = tuple(list_differences(there, wanted))
        warnings = tuple(list_origin_warnings(there, wanted))
        total = len(job.tasks) * job.samples
        used = None if started else find_identical_evaluation(wanted, cell.folder)
        left = 0 if used or changes else total - done
        costs = tuple(job.estimate_costs(total - left)) if left else ()
        steps = job.assembly.max_steps
    except _FAULTS as error:
        return PlannedCell(cell, done, problem=describe_error(error))
    where = "" if used is None else str(used.path)
    return PlannedCell(cell, done, total, steps, costs, where, "", changes, warnings)


def _refuse_changes(table: EvalTableDefinition, plans: Sequence[PlannedCell]) -> None:
    """Refuse to continue a table whose evaluations were started with other settings.

    Raises:
        ConfigError: if the settings of a planned cell differ.
    """
    changed = [plan for plan in plans if plan.changes]
    if not changed:
        return
    # Cells mostly differ in the same settings, so each setting is listed once.
    by_setting: dict[str, str] = {}
    for plan in changed:
        for change in plan.changes:
            by_setting.setdefault(change.partition(": ")[0], f"{change} ({plan.cell.name})")
    raise ConfigError(
        f"{table.folder} contains a table with other settings; {len(changed)} of "
        f"{len(table.cells)} cells differ. {join_differences(list(by_setting.values()))}. Choose "
        "another --name, or pass --overwrite to delete the cells and start over."
    )


def group_warnings(plans: Sequence[PlannedCell]) -> Iterator[tuple[str, str]]:
    """Yield each warning about planned cells once, with the places of the cells."""
    return group_problems((plan.cell, warning) for plan in plans for warning in plan.warnings)


def merge_costs(plans: Sequence[PlannedCell]) -> list[CostEstimate]:
    """Return the remaining cost of each endpoint. A model's caps apply to all of its cells."""
    return merge_evaluation_costs([estimate for plan in plans for estimate in plan.costs])


def run_eval_table(
    table: EvalTableDefinition,
    plans: Sequence[PlannedCell],
    progress: ProgressSink,
    *,
    overwrite: bool = False,
    agreed: bool = False,
) -> EvalTable:
    """Run a table's missing evaluations, and write its files, at first and after each cell.

    A cell that fails does not stop the others; the table contains its reason, and the same call
    continues it later. Before a cell is run, an identical finished evaluation in ``evals/`` is
    looked for; if there is one, the cell's folder becomes a link to it.

    Args:
        table: the table.
        plans: plans of the cells that were started or use an endpoint, see :func:`plan_eval_table`.
        progress: progress display.
        overwrite: delete the cells that exist, and use no other table's.
        agreed: True if the user has accepted the cost of the endpoints.

    Raises:
        KeyboardInterrupt: if a stop was requested; the table's files are written first.
        ConfigError: if the table may cost money and ``agreed`` is False.
        StoreError: if a file of the table cannot be written.
    """
    if not agreed:
        refuse_if_paid(merge_costs(plans))
    complete = [plan for plan in plans if plan.is_complete and not overwrite]
    names = {plan.cell.name for plan in complete}
    problems: dict[str, str] = {}
    cells, spent = table.cells, list[float]()

    def save() -> EvalTable:
        result = build_eval_table(table, problems)
        write_eval_table(table.folder, result)
        return result

    with ProgressFile(progress, table.folder, "eval", table.folder.name) as reporter:
        if complete:
            reporter.say(
                f"{len(complete)} of {len(cells)} evaluations are already done. Use --overwrite to "
                "run them again."
            )
        for places, warning in group_warnings(complete):
            reporter.say(f"{places}: {warning}")
        try:
            save()  # so that the viewer shows the table from the start
            for number, cell in enumerate(cells, start=1):
                later = len(cells) - number
                later_s = sum(spent) / len(spent) * later if spent else None
                reporter.begin_part(number, len(cells), cell.name, later_s if later else 0.0)
                name = f"[{number}/{len(cells)}] {cell.place}"
                if cell.name in names:
                    continue
                started = monotonic()
                try:
                    played = _run_cell(table, cell, PartProgress(reporter, name), overwrite)
                except _FAULTS as error:
                    problems[cell.name] = describe_error(error)
                    reporter.say(f"{name} failed: {problems[cell.name]}")
                    save()
                    continue
                if played:
                    spent.append(monotonic() - started)
                    save()
                gc.collect()  # free the model now: its reference cycles would keep the memory
        finally:
            result = save()
    return result


def _run_cell(
    table: EvalTableDefinition, cell: EvalCell, progress: PartProgress, overwrite: bool
) -> bool:
    """Run a cell's missing episodes, or use another table's. Return True if episodes were played.

    Raises:
        KeyboardInterrupt: if a stop was requested.
        CoevoError: if the cell fails.
    """
    folder = cell.folder
    remove_dead_link(folder.path)
    if folder.path.is_symlink() and overwrite:
        folder.path.unlink()
    others = table.spent_by_others(cell)
    job = cell.make_job(progress, others)
    if not overwrite and not folder.config.is_file():
        there = find_identical_evaluation(identity(job), folder)
        if there is not None and link_cell(folder.path, there.path):
            progress.say(f"{progress.name}: the identical evaluation {there.path} is used.")
    if folder.path.is_symlink():
        return False
    before = 0 if overwrite else len(folder.read_results())
    if before:
        total = len(job.tasks) * job.samples
        progress.say(f"{progress.name}: {before} of {total} episodes are already done.")
    with job.stop_request() as stop:
        try:
            evaluation = evaluate_job(
                job, progress, folder=folder, overwrite=overwrite, agreed=True, stop=stop
            )
        except BudgetSpent as error:
            if others != Cost():
                error.args = (f"{error} {_describe_shared_cap(cell, others)}",)
            raise
    return len(evaluation.lines) > before


def find_identical_evaluation(wanted: Mapping[str, Any], but: EvalFolder) -> EvalFolder | None:
    """Return a finished evaluation in ``evals/`` that is identical to a new one, or None.

    Everything must be equal that the result depends on: the settings, the seed, the model and its
    weights, the tasks, the versions of packages, the source code and the data of the benchmark.

    Args:
        wanted: settings that the results depend on, from
            :func:`~coevo_gym.runs.evals.evaluation.identity`.
        but: folder that is not looked at.
    """
    if wanted["model"] and not wanted["weights"] and "endpoint" not in wanted["settings"]:
        return None  # the files of a model on a hub may change
    if "" in wanted["software"].values():
        return None  # the code exists only in this process
    for folder in _evaluations():
        if folder.path == but.path or folder.path.is_symlink():
            continue
        try:
            there = folder.read_config()
            same = _without_aside(there) == _without_aside(wanted)
            if same and len(folder.read_results()) == wanted["n_tasks"] * wanted["samples"]:
                return folder
        except StoreError:  # damaged
            continue
    return None


def _evaluations() -> Iterator[EvalFolder]:
    """Yield the finished evaluations in ``evals/``, first those outside of tables."""
    for pattern in ("*/summary.json", "*/*/summary.json"):
        for path in sorted(EVALS.glob(pattern)):
            folder = EvalFolder(path.parent)
            if folder.config.is_file():
                yield folder


def _without_aside(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in _ASIDE}


def _describe_shared_cap(cell: EvalCell, others: Cost) -> str:
    usd = f", {others.usd:.2f} USD" if others.usd else ""
    return (
        f"A model's caps include all of its cells; the other cells of {cell.row} have used "
        f"{others.tokens:,} tokens{usd}."
    )


def describe_error(error: BaseException) -> str:
    """Return an error's type and message in one line, with its notes."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return " ".join(f"{type(error).__name__}: {error} {' '.join(notes)}".split())
