"""The list of runs, and single runs with their arms side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.config.keys import with_current_keys
from coevo_gym.runs.table import RANDOM, WARMUP, TableRow, tasks_of
from coevo_gym.store.secrets import without_secrets
from coevo_gym.trainers.protocols import training_success
from coevo_gym.view.model.evals import eval_rows
from coevo_gym.view.model.measures import unused_answers, usage_of
from coevo_gym.view.model.progress import progress_of, unreadable
from coevo_gym.view.model.rounds import rounds_of
from coevo_gym.view.numbers import headline
from coevo_gym.view.refusals import Damaged
from coevo_gym.view.shapes.runs import (
    ArmRow,
    EvaluationPoint,
    RunDetail,
    RunList,
    RunRow,
    Series,
)
from coevo_gym.view.shapes.steps import RoundRow
from coevo_gym.view.shelf import Line, Shelf, ShownRun, told_as_damaged


def run_list(shelf: Shelf) -> RunList:
    """Return all runs and evaluations, latest first."""
    runs = sorted(map(_row, shelf.runs()), key=_when, reverse=True)
    return RunList(runs=tuple(runs), evals=eval_rows(shelf))


def run_detail(run: ShownRun) -> RunDetail:
    """Return a run with its arms side by side.

    Raises:
        Damaged: if the run cannot be read.
    """
    manifest, config, lines = run.manifest, run.config, run.lines
    table = _table(run)
    rounds = {arm: rounds_of(run, arm) for arm in config.arms}
    arms = _arms(run, table, rounds)
    return RunDetail(
        id=run.id,
        name=run.name,
        path=str(run.folder.path),
        benchmark=config.benchmark.name,
        model=str(manifest.get("model", "")),
        seed=config.seed,
        split=config.evaluation.split,
        headline=headline([row for row in table if row.success is not None]),
        progress=progress_of(run),
        arms=arms,
        evaluations=tuple(_evaluations(run)),
        training=tuple(_training(config, lines)),
        gates=_added(row.rejected for row in _each_once(rounds.values())),
        signals=_added(arm.signals for arm in arms),
        record=config.store.record,
        stores=_stores(run),
        config=without_secrets(with_current_keys(manifest["config"])),
        manifest=without_secrets({k: v for k, v in manifest.items() if k != "config"}),
        notes=(*unused_answers(usage_of(rounds)), *_notes(config, manifest)),
    )


def _row(run: ShownRun) -> RunRow:
    path = run.folder.path
    try:
        manifest, config = run.manifest, run.config
        table = _table(run)
        last = next((row for row in reversed(table) if row.name in config.arms), None)
        trajectories, tasks = _counts(run)
        return RunRow(
            id=run.id,
            name=run.name,
            path=str(path),
            benchmark=config.benchmark.name,
            model=str(manifest.get("model", "")),
            seed=config.seed,
            arms=config.arms,
            progress=progress_of(run),
            success=last and last.success,
            low=last and last.low,
            high=last and last.high,
            trajectories=trajectories,
            tasks=tasks,
        )
    except Damaged as error:
        return RunRow(
            id=run.id,
            name=run.name,
            path=str(path),
            progress=unreadable(run, error),
            problem=str(error),
        )


def _when(row: RunRow) -> str:
    return row.progress.updated_at or ""


def _counts(run: ShownRun) -> tuple[int, int]:
    """Return the numbers of stored episodes and tasks, without creating an index."""
    if not run.folder.database.is_file():
        return 0, 0
    with told_as_damaged():
        return run.reader.counts()


def _table(run: ShownRun) -> list[TableRow]:
    """Return the final table; before the run is finished, the latest evaluation of each arm."""
    summary, config = run.summary, run.config
    if summary is not None:
        with told_as_damaged():
            fields = TableRow.__dataclass_fields__
            return [
                TableRow(**{k: v for k, v in row.items() if k in fields})
                for row in summary["table"]
            ]
    latest = {line["arm"]: line for line in run.lines if line["event"] == "eval"}
    return [_of_line(arm, latest[arm]) for arm in config.arms if arm in latest]


def _of_line(arm: str, line: Line) -> TableRow:
    return TableRow(
        name=arm,
        success=line.get("eval.success_rate", float("nan")),
        low=line.get("eval.success_rate_low", float("nan")),
        high=line.get("eval.success_rate_high", float("nan")),
        score=line.get("eval.mean_score", float("nan")),
        n_tasks=tasks_of(line, "eval."),
        env_steps=line.get("env_steps", 0),
    )


def _arms(
    run: ShownRun, table: Sequence[TableRow], rounds: Mapping[str, Sequence[RoundRow]]
) -> tuple[ArmRow, ...]:
    config, over = run.config, run.summary is not None
    shown = {row.name: row for row in table}
    counts = _counts_of_arms(run)
    steps: dict[str, Line] = {line["arm"]: line for line in run.lines if line["event"] == "step"}
    order = [name for name in (RANDOM, WARMUP) if name in shown] + list(config.arms)
    at_work = next((arm for arm in reversed(config.arms) if arm in steps), None)
    found = []
    for name in order:
        row, step = shown.get(name), steps.get(name, {})
        mine = rounds.get(name, ())
        found.append(
            ArmRow(
                name=name,
                method=_method(config, name),
                trained=name in config.arms,
                **(_numbers(row) if row else {"env_steps": int(step.get("env_steps", 0))}),
                steps=int(step.get("step", 0)),
                rounds=len(mine),
                pool_size=int(
                    step.get("curriculum.pool_size") or (mine[-1].pool_size if mine else 0)
                ),
                **counts.get(name, {}),
                drafts=sum(one.drafts for one in mine),
                accepted=sum(one.accepted for one in mine),
                over=over or name not in config.arms or (name in steps and name != at_work),
            )
        )
    return tuple(found)


def _numbers(row: TableRow) -> dict[str, Any]:
    names = (
        "success", "low", "high", "score", "n_tasks", "env_steps", "tokens", "usd",
        "mixed_groups", "explored", "mark",
    )  # fmt: skip
    return {name: getattr(row, name) for name in names}


def _method(config: RunConfig, arm: str) -> str:
    if arm not in config.arms:
        return ""
    settings = config.arm.get(arm)
    return (settings.method if settings else None) or arm


def _counts_of_arms(run: ShownRun) -> dict[str, dict[str, Any]]:
    """Return the numbers of groups, stored episodes and signals of each arm."""
    found: dict[str, dict[str, Any]] = {}

    def of(arm: str) -> dict[str, Any]:
        return found.setdefault(arm, {"groups": 0, "trajectories": 0, "signals": {}})

    with told_as_damaged():
        run.index.refresh()
        for arm, n in run.index.rows("SELECT arm, count(*) FROM groups GROUP BY arm"):
            of(arm)["groups"] = n
        for arm, n in run.index.rows("SELECT arm, count(*) FROM trajectories GROUP BY arm"):
            of(arm)["trajectories"] = n
        query = "SELECT arm, kind, sum(count) FROM signals GROUP BY arm, kind ORDER BY kind"
        for arm, kind, n in run.index.rows(query):
            of(arm)["signals"][kind] = n
    return found


def _evaluations(run: ShownRun) -> list[EvaluationPoint]:
    config = run.config
    kept: dict[str, set[int]] = {}
    with told_as_damaged():
        if run.folder.database.is_file():
            for arm in (*config.arms, RANDOM, WARMUP):
                kept[arm] = set(run.reader.evaluation_steps(arm))
    summary = run.summary
    table = {row["name"]: row for row in summary["table"]} if summary else {}
    found = [
        EvaluationPoint(
            arm=name,
            step=0,
            env_steps=int(row.get("env_steps") or 0),
            success=row.get("success"),
            low=row.get("low"),
            high=row.get("high"),
            score=row.get("score"),
            episodes=int(row.get("n_tasks") or 0),
            kept=0 in kept.get(name, ()),
        )
        for name in (RANDOM, WARMUP)
        if (row := table.get(name)) is not None
    ]
    for arm in config.arms:
        lines = {
            line["step"]: line
            for line in run.lines
            if line["event"] == "eval" and line.get("arm") == arm
        }
        for step in sorted(lines):
            row_ = _of_line(arm, lines[step])
            found.append(
                EvaluationPoint(
                    arm=arm,
                    step=step,
                    env_steps=row_.env_steps,
                    success=row_.success,
                    low=row_.low,
                    high=row_.high,
                    score=row_.score,
                    episodes=row_.n_tasks,
                    kept=step in kept.get(arm, ()),
                )
            )
    return found


def _training(config: RunConfig, lines: Sequence[Line]) -> list[Series]:
    found = []
    for arm in config.arms:
        mine = {
            line["step"]: line
            for line in lines
            if line["event"] == "step" and line.get("arm") == arm
        }
        steps = sorted(mine)
        found.append(
            Series(
                arm=arm,
                step=tuple(steps),
                env_steps=tuple(int(mine[step].get("env_steps", 0)) for step in steps),
                success=tuple(training_success(mine[step]) for step in steps),
            )
        )
    return [series for series in found if series.step]


def _each_once(rounds: Any) -> list[RoundRow]:
    """Return all rounds, without duplicates of rounds that arms share."""
    found: dict[tuple[str, str], RoundRow] = {}
    for mine in rounds:
        for row in mine:
            found.setdefault(("" if row.first else row.arm, row.id), row)
    return list(found.values())


def _added(counts: Any) -> dict[str, int]:
    """Return the sums of counts by name, largest first."""
    total: dict[str, int] = {}
    for one in counts:
        for name, n in one.items():
            total[name] = total.get(name, 0) + n
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _stores(run: ShownRun) -> dict[str, bool]:
    if not run.folder.database.is_file():
        return dict.fromkeys(("choices", "tokens", "advantages"), False)
    with told_as_damaged():
        return run.reader.kept()


def _notes(config: RunConfig, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    marks = manifest.get("marks", {})
    return (
        "All arms start from the same warmed-up policy and the same first task set (D_0). Env "
        "steps count training, exploration and the replays of gates, not warm-up or evaluation.",
        f"Success is measured on {config.evaluation.split} tasks, which never reach exploration, "
        f"drafting or training. The policy acts {config.evaluation.manner}.",
        f"All numbers are from one run with seed {config.seed}. The intervals cover the choice of "
        "held-out tasks, not the variation between seeds.",
        *(f"{arm} is a control: its new tasks are {mark}." for arm, mark in marks.items()),
    )
