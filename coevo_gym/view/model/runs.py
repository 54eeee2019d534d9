"""Lists of runs, and the results of each run's arms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any, Literal

from coevo_gym.core.task import FrozenDict
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.folders.listing import inspect_run, preset_of
from coevo_gym.runs.table import NO_NUMBERS, RANDOM, WARMUP, TableRow, n_tasks
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.links import linked_folder
from coevo_gym.store.secrets import redact_secrets
from coevo_gym.trainers.protocols import training_success
from coevo_gym.view.collection import Line, RunCollection, ShownRun, raise_as_damaged
from coevo_gym.view.model.evals import EvalRow, eval_rows
from coevo_gym.view.model.measures import answer_warnings, usage_by_purpose
from coevo_gym.view.model.rounds import RoundRow, distinct_rounds, rounds_of
from coevo_gym.view.model.run_progress import ProgressView, latest_change, progress_of
from coevo_gym.view.numbers import headline
from coevo_gym.view.refusals import Damaged
from coevo_gym.view.rows import FolderRow, Rated, Shape


class RunRow(FolderRow):
    """A row in the list of runs, with the success rate of the last arm on held-out tasks.

    Attributes:
        preset: its preset or settings file; "" for settings from Python.
        seed: seed of the run; null if the run cannot be read.
        arms: names of its arms, in order.
        progress: progress of the run.
        trajectories: number of stored trajectories.
        tasks: number of stored tasks.
        mixed_groups: share of all arms' groups with both outcomes; null without groups.
        rollout_tokens: tokens (or choices) that all arms sampled in training; null if unknown.
        gradient_tokens: tokens that updates learned from with an advantage other than 0; null if
            unknown.
    """

    preset: str = ""
    seed: int | None = None
    arms: tuple[str, ...] = ()
    progress: ProgressView
    trajectories: int = 0
    tasks: int = 0
    mixed_groups: float | None = None
    rollout_tokens: int | None = None
    gradient_tokens: int | None = None


class RunList(Shape):
    """All runs and evaluations that the viewer shows, latest first."""

    runs: tuple[RunRow, ...]
    evals: tuple[EvalRow, ...]


@dataclass(frozen=True)
class ArmRow(TableRow):
    """An arm of a run, or a baseline without training (``random``, ``warm-up``).

    Results on held-out tasks are the final results, or else come from the latest evaluation.

    Attributes:
        method: name of its method; "" for a baseline.
        trained: true for an arm, false for a baseline.
        steps: number of learner steps.
        rounds: number of applied rounds of evolution.
        pool_size: number of tasks in the pool.
        groups: number of groups used for training.
        trajectories: number of stored episodes.
        signals: number of signals emitted, by kind.
        drafts: number of drafts tried.
        accepted: number of drafts that passed every gate.
        over: true if the arm is finished.
    """

    method: str = ""
    trained: bool = True
    steps: int = 0
    rounds: int = 0
    pool_size: int = 0
    groups: int = 0
    trajectories: int = 0
    signals: Mapping[str, int] = FrozenDict()
    drafts: int = 0
    accepted: int = 0
    over: bool = False


class EvaluationPoint(Rated):
    """An evaluation of an arm on held-out tasks.

    Attributes:
        arm: name of the arm.
        step: the arm's step at the evaluation.
        env_steps: env steps that the arm had spent by that step.
        score: mean score in [0, 1].
        episodes: number of held-out tasks evaluated.
        kept: true if ``runs/{run}/evaluations/{arm}/{step}`` returns the results per task.
    """

    arm: str
    step: int
    env_steps: int
    score: float | None = None
    episodes: int = 0
    kept: bool = False


class Series(Shape):
    """The training success rate of an arm at each of its steps. All arrays have equal length.

    Attributes:
        arm: name of the arm.
        step: learner steps.
        env_steps: env steps spent by the end of each step.
        success: share of the step's episodes that solved their task; null if unknown.
    """

    arm: str
    step: tuple[int, ...]
    env_steps: tuple[int, ...]
    success: tuple[float | None, ...]


class RunDetail(Shape):
    """A run with the results of all its arms.

    Attributes:
        id: id of the run, used in paths.
        name: name of the run.
        path: path of its folder.
        benchmark: name of the benchmark.
        model: short name of the policy's model.
        seed: seed of the run.
        split: split of the held-out tasks used to compare arms.
        headline: the result in one sentence.
        progress: progress of the run.
        arms: baselines first, then arms in order.
        evaluations: all evaluations on held-out tasks, by arm, then in step order.
        training: training success, one series per arm.
        gates: number of rejected drafts by gate across all arms, largest first; held drafts are
            under ``hold``.
        signals: number of signals emitted by kind, across all arms.
        record: the episodes that the run stores: ``signals`` (only groups with a signal), ``all``
            or ``none``.
        stores: flags for ``choices``, ``tokens`` and ``advantages``: true if the run stores them.
        config: the run's settings, without secrets.
        manifest: other inputs that determine the result: versions, hashes, git commit.
        notes: sentences to read before interpreting the numbers.
    """

    id: str
    name: str
    path: str
    benchmark: str
    model: str
    seed: int
    split: str
    headline: str
    progress: ProgressView
    arms: tuple[ArmRow, ...]
    evaluations: tuple[EvaluationPoint, ...]
    training: tuple[Series, ...]
    gates: dict[str, int]
    signals: dict[str, int]
    record: Literal["signals", "all", "none"]
    stores: dict[str, bool]
    config: dict[str, Any]
    manifest: dict[str, Any]
    notes: tuple[str, ...] = ()


def run_list(collection: RunCollection) -> RunList:
    """Return all runs and evaluations, latest first."""
    rows = map(_run_row, collection.runs())
    runs = sorted(rows, key=lambda row: row.progress.updated_at or "", reverse=True)
    return RunList(runs=tuple(runs), evals=eval_rows(collection))


def run_detail(run: ShownRun) -> RunDetail:
    """Return a run with the results of all its arms.

    Raises:
        Damaged: if the run cannot be read.
    """
    manifest, config = run.manifest, run.config
    with raise_as_damaged():
        stores = run.reader.stored_parts()
    table = _results_table(run)
    rounds = {arm: rounds_of(run, arm) for arm in config.arms}
    arms = _arm_rows(run, table, rounds)
    return RunDetail(
        id=run.id,
        name=run.name,
        path=str(run.folder.path),
        benchmark=config.benchmark.name,
        model=str(manifest.get("model", "")),
        seed=config.seed,
        split=config.evaluation.split,
        headline=headline(table),
        progress=progress_of(run),
        arms=arms,
        evaluations=tuple(_evaluation_points(run, table)),
        training=tuple(_training_series(run)),
        gates=_sum_counts(row.rejected for row in distinct_rounds(rounds)),
        signals=_sum_counts(arm.signals for arm in arms),
        record=config.store.record,
        stores=stores,
        config=redact_secrets(manifest["config"]),
        manifest=redact_secrets({k: v for k, v in manifest.items() if k != "config"}),
        notes=(
            *_link_remark(run.folder),
            *answer_warnings(usage_by_purpose(rounds)),
            *_remarks(config, manifest),
        ),
    )


def _link_remark(folder: RunFolder) -> Iterator[str]:
    """Yield a note if the run belongs to another table that had the identical cell."""
    if there := linked_folder(folder.path):
        yield f"This table uses the identical run {there}, which was not run again."


def run_rows_for_terminal(collection: RunCollection) -> list[RunRow]:
    """Return the rows of all runs for terminal output, sorted by name."""
    rows = [(run.folder, _run_row(run)) for run in collection.runs()]
    return [
        row.model_copy(update={"on_disk": inspect_run(folder, row.arms)}) for folder, row in rows
    ]


def _run_row(run: ShownRun) -> RunRow:
    known = {"id": run.id, "name": run.name, "path": str(run.folder.path)}
    try:
        manifest, config = run.manifest, run.config
        table = _results_table(run)
        arms = [row for row in table if row.name in config.arms]
        last = arms[-1] if arms else None
        ((trajectories, tasks, mixed_groups),) = run.query_rows(
            "SELECT (SELECT count(*) FROM trajectories), (SELECT count(*) FROM tasks), (SELECT "
            "avg(successes BETWEEN 1 AND episodes - 1) FROM groups WHERE episodes > 0)"
        )
        return RunRow(
            **known,
            benchmark=config.benchmark.name,
            model=str(manifest.get("model", "")),
            preset=preset_of(manifest.get("origins", {})),
            seed=config.seed,
            arms=config.arms,
            progress=progress_of(run),
            success=last and last.success,
            low=last and last.low,
            high=last and last.high,
            trajectories=trajectories,
            tasks=tasks,
            mixed_groups=mixed_groups,
            rollout_tokens=_sum_known(row.rollout_tokens for row in arms),
            gradient_tokens=_sum_known(row.gradient_tokens for row in arms),
        )
    except Damaged as error:
        progress = ProgressView(state="damaged", updated_at=latest_change(run.folder.manifest))
        return RunRow(**known, progress=progress, problem=str(error))


def _results_table(run: ShownRun) -> list[TableRow]:
    """Return a run's final results. For an unfinished run, return each arm's latest evaluation."""
    summary, config = run.summary, run.config
    if summary is not None:
        with raise_as_damaged():
            return [TableRow.from_json(row) for row in summary["table"]]
    latest = {line["arm"]: line for line in run.metric_lines if line["event"] == "eval"}
    steps = {line["arm"]: line for line in run.metric_lines if line["event"] == "step"}
    return [
        _row_from_line(arm, latest[arm], steps.get(arm, {})) for arm in config.arms if arm in latest
    ]


def _row_from_line(arm: str, line: Line, step: Line = NO_NUMBERS) -> TableRow:
    """Create a row from an evaluation and the metrics of a training step, if any."""
    rollout_tokens, gradient_tokens = step.get("rollout_tokens"), step.get("gradient_tokens")
    return TableRow(
        name=arm,
        success=line.get("eval.success_rate", nan),
        low=line.get("eval.success_rate_low", nan),
        high=line.get("eval.success_rate_high", nan),
        score=line.get("eval.mean_score", nan),
        n_tasks=n_tasks(line, "eval."),
        env_steps=line.get("env_steps", 0),
        mixed_groups=step.get("curriculum.mixed_groups"),
        explored=step.get("curriculum.share_explore_steps"),
        rollout_tokens=None if rollout_tokens is None else int(rollout_tokens),
        gradient_tokens=None if gradient_tokens is None else int(gradient_tokens),
    )


def _arm_rows(
    run: ShownRun, table: Sequence[TableRow], rounds: Mapping[str, Sequence[RoundRow]]
) -> tuple[ArmRow, ...]:
    config, over = run.config, run.summary is not None
    by_name = {row.name: row for row in table}
    counts = _counts_of_arms(run)
    steps: dict[str, Line] = {
        line["arm"]: line for line in run.metric_lines if line["event"] == "step"
    }
    order = [name for name in (RANDOM, WARMUP) if name in by_name] + list(config.arms)
    at_work = next((arm for arm in reversed(config.arms) if arm in steps), None)
    views = []
    for name in order:
        step, mine = steps.get(name, {}), rounds.get(name, ())
        row = by_name.get(name) or TableRow(name, nan, env_steps=int(step.get("env_steps", 0)))
        views.append(
            ArmRow(
                **asdict(row),
                method=_method_of(config, name),
                trained=name in config.arms,
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
    return tuple(views)


def _method_of(config: RunConfig, arm: str) -> str:
    if arm not in config.arms:
        return ""
    settings = config.arm.get(arm)
    return (settings.method if settings else None) or arm


def _counts_of_arms(run: ShownRun) -> dict[str, dict[str, Any]]:
    """Count the groups, stored episodes and signals of each arm."""
    counts: dict[str, dict[str, Any]] = {}

    def counts_of(arm: str) -> dict[str, Any]:
        return counts.setdefault(arm, {"groups": 0, "trajectories": 0, "signals": {}})

    for arm, n in run.query_rows("SELECT arm, count(*) FROM groups GROUP BY arm"):
        counts_of(arm)["groups"] = n
    for arm, n in run.query_rows("SELECT arm, count(*) FROM trajectories GROUP BY arm"):
        counts_of(arm)["trajectories"] = n
    query = "SELECT arm, kind, count(*) FROM signals GROUP BY arm, kind ORDER BY kind"
    for arm, kind, n in run.query_rows(query):
        counts_of(arm)["signals"][kind] = n
    return counts


def _evaluation_points(run: ShownRun, table: Sequence[TableRow]) -> Iterator[EvaluationPoint]:
    by_arm: dict[str, set[int]] = {}
    with raise_as_damaged():
        for arm in (*run.config.arms, RANDOM, WARMUP):
            by_arm[arm] = set(run.reader.evaluation_steps(arm))
    pairs = [(row, 0) for row in table if row.name in (RANDOM, WARMUP)]
    for arm in run.config.arms:
        lines = run.arm_metrics(arm, "eval")
        pairs += [(_row_from_line(arm, lines[step]), step) for step in sorted(lines)]
    for row, step in pairs:
        yield EvaluationPoint(
            arm=row.name,
            step=step,
            env_steps=row.env_steps,
            success=row.success,
            low=row.low,
            high=row.high,
            score=row.score,
            episodes=row.n_tasks,
            kept=step in by_arm.get(row.name, ()),
        )


def _training_series(run: ShownRun) -> Iterator[Series]:
    for arm in run.config.arms:
        lines = sorted(run.arm_metrics(arm).items())
        if lines:
            yield Series(
                arm=arm,
                step=tuple(step for step, _ in lines),
                env_steps=tuple(int(line.get("env_steps", 0)) for _, line in lines),
                success=tuple(training_success(line) for _, line in lines),
            )


def _sum_known(counts: Iterable[int | None]) -> int | None:
    """Return the sum of the arms' counts, or None if there are no arms or a count is unknown."""
    known = list(counts)
    return sum(n for n in known if n is not None) if known and None not in known else None


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Add up the counts for each name, and return the sums in descending order."""
    total = Counter[str]()
    for one in counts:
        total.update(one)
    return dict(total.most_common())


def _remarks(config: RunConfig, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    marks = manifest.get("marks", {})
    return (
        "All arms start from the same warmed-up policy and the same first task set (D_0). Env "
        "steps include training, exploration and replays by gates, but not warm-up or evaluation.",
        f"Success is measured on {config.evaluation.split} tasks, which never reach exploration, "
        f"drafting or training. The policy acts {config.evaluation.describe_sampling()}.",
        f"All numbers are from one run with seed {config.seed}. The intervals cover the choice of "
        "held-out tasks, not the variation between seeds.",
        *(f"{arm} is a control: its new tasks are {mark}." for arm, mark in marks.items()),
    )
