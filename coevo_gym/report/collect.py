"""Collection of report data from a run folder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.config import RunConfig
from coevo_gym.core.errors import BenchmarkNotInstalled, StoreError
from coevo_gym.core.evolution import Verdict
from coevo_gym.core.notes import INTERFACE
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.task import Task
from coevo_gym.curricula.metrics import (
    conversion,
    cross_table,
    feedback_ratio,
    max_similarity,
)
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.curricula.pool.outcomes import OUTCOMES
from coevo_gym.report.data import (
    NAN,
    ArmCount,
    ArmSpread,
    CrossRow,
    Curve,
    CurvePoint,
    EvolutionRow,
    LineageRow,
    PracticeRow,
    RejectedRow,
    ReportData,
    RoundRow,
    Similarity,
    UsageRow,
)
from coevo_gym.report.noted import arm_labels, env_steps_of, versions_of
from coevo_gym.report.task_sets import ArmTasks, lengths_of, maps_of, spread_of
from coevo_gym.run.assembly import Assembly
from coevo_gym.run.evolving.answers import answers_of, warnings
from coevo_gym.run.final import final_scores
from coevo_gym.run.manifest import read_manifest
from coevo_gym.run.table import RANDOM, WARMUP, TableRow, tasks_of
from coevo_gym.store.folder import RunFolder, read_json, read_lines
from coevo_gym.store.reader import HOLD, RunReader
from coevo_gym.store.rows import StoredRound, TaskCount
from coevo_gym.trainers.parts import training_success

FIRST = "D_0"
_SIGNALS = "curriculum.signals_"
_FORGETTING = "curriculum.forgetting_by_"
_MAX_REJECTED = 60

Lines = Sequence[Mapping[str, Any]]


def load_report_data(folder: RunFolder) -> ReportData:
    """Load the report data of a run; for a running one, the data so far.

    Raises:
        StoreError: if one of the run's files is missing or damaged.
    """
    manifest, config = read_manifest(folder)
    reader = RunReader(folder.database)
    rounds, counts, tasks = reader.rounds(), reader.task_counts(), reader.tasks()
    if not folder.metrics.is_file():
        raise StoreError(
            f"{folder.metrics}, with the run's metrics over time, is missing. Restore it, "
            "or train again with --overwrite."
        )
    lines = read_lines(folder.metrics)
    warmup = next((line for line in lines if line["event"] == "warm-up"), {})
    later = [applied for applied in rounds if not applied.is_first]
    arms, held_out = _arm_tasks(config, rounds), _held_out(config)
    spreads = tuple(spread_of(tasks) for tasks in arms)
    spent = {arm: env_steps_of(lines, arm) for arm in config.arms}
    noted, turns, usage = reader.note_counts(), reader.turn_counts(), _usage(rounds)
    return ReportData(
        title=config.name,
        subtitle=f"{config.benchmark.name}, {manifest['model']}, seed {config.seed}",
        manifest=manifest,
        table=_table(folder, config, lines),
        final=final_scores(folder),
        curves=_curves(config, lines, "eval", _evaluated),
        training=_curves(config, lines, "step", _trained),
        cross=_cross(config, lines),
        rounds=tuple(_round(applied, lines) for applied in rounds),
        practice=_practice(config, lines),
        evolution=_evolution(spreads, rounds, lines),
        spreads=spreads,
        maps=maps_of(arms, held_out),
        lengths=lengths_of(reader, (RANDOM, WARMUP, *config.arms)),
        labels=tuple(
            row for arm in config.arms for row in arm_labels(noted, arm, spent[arm], turns)
        ),
        versions=tuple(
            row
            for arm in config.arms
            for row in versions_of(reader.notes_when(arm, INTERFACE), arm, spent[arm])
        ),
        usage=usage,
        rejections=_rejections(rounds),
        similarity=_similarity(held_out, rounds),
        lineage=_lineage(later, tasks, counts),
        rejected=_rejected(later),
        warmup_loss=tuple(warmup.get("losses", ())),
        notes=(*_unused(usage), *_notes(config, manifest)),
    )


def _table(folder: RunFolder, config: RunConfig, lines: Lines) -> tuple[TableRow, ...]:
    """Return the final table, or each arm's latest evaluation if the run has not finished."""
    if folder.summary.is_file():
        return tuple(TableRow(**row) for row in read_json(folder.summary)["table"])
    latest = {line["arm"]: line for line in lines if line["event"] == "eval"}
    return tuple(
        TableRow(
            name=arm,
            success=line["eval.success_rate"],
            low=line["eval.success_rate_low"],
            high=line["eval.success_rate_high"],
            score=line["eval.mean_score"],
            n_tasks=tasks_of(line, "eval."),
            env_steps=line["env_steps"],
        )
        for arm in config.arms
        if (line := latest.get(arm))
    )


def _curves(config: RunConfig, lines: Lines, event: str, point: Any) -> tuple[Curve, ...]:
    """Return one curve per arm, with one point per step."""
    curves = []
    for arm in config.arms:
        mine = {line["step"]: point(line) for line in lines if _is(line, event, arm)}
        curves.append(Curve(arm, tuple(mine[step] for step in sorted(mine))))
    return tuple(curve for curve in curves if curve.points)


def _evaluated(line: Mapping[str, Any]) -> CurvePoint:
    return CurvePoint(
        line["env_steps"],
        line["eval.success_rate"],
        line["eval.success_rate_low"],
        line["eval.success_rate_high"],
    )


def _trained(line: Mapping[str, Any]) -> CurvePoint:
    success = training_success(line)
    return CurvePoint(line["env_steps"], NAN if success is None else success)


def _round(applied: StoredRound, lines: Lines) -> RoundRow:
    return RoundRow(
        arm=applied.arm,
        id=applied.round.id,
        env_steps=applied.arm_env_steps,
        signals=_counted_before(applied, lines, _SIGNALS),
        contexts=len(applied.round.contexts) or applied.round.n_unguided,
        drafts=len(applied.result.judged),
        accepted=len(applied.result.accepted),
        pool_size=applied.pool_size,
        forgetting=_counted_before(applied, lines, _FORGETTING),
    )


def _counted_before(applied: StoredRound, lines: Lines, prefix: str) -> dict[str, int]:
    """Return the metric counts between the arm's previous round and this round.

    Args:
        applied: the round.
        lines: the run's metrics.
        prefix: prefix of the metric names; the rest of each name becomes the key.
    """
    counted = {line["step"]: line for line in lines if _is(line, "step", applied.arm)}
    earlier = [
        line["step"]
        for line in lines
        if _is(line, "round", applied.arm) and line["step"] < applied.step
    ]
    now, before = counted.get(applied.step, {}), counted.get(max(earlier, default=0), {})
    return {
        name.removeprefix(prefix): int(count - before.get(name, 0))
        for name, count in now.items()
        if name.startswith(prefix)
    }


def _is(line: Mapping[str, Any], event: str, arm: str) -> bool:
    return bool(line["event"] == event and line["arm"] == arm)


def _cross(config: RunConfig, lines: Lines) -> tuple[CrossRow, ...]:
    """Compare each arm with the last arm on the tasks of their latest evaluations."""
    latest = {line["arm"]: line.get("solved", "") for line in lines if line["event"] == "eval"}
    *others, ours = config.arms
    rows = []
    for baseline in others:
        pair = [[digit == "1" for digit in latest.get(arm, "")] for arm in (baseline, ours)]
        n = len(pair[0])
        if n and n == len(pair[1]):
            counts = (round(share * n) for share in cross_table(*pair))
            both, only_baseline, only_ours, neither = counts
            rows.append(CrossRow(baseline, ours, both, only_baseline, only_ours, neither))
    return tuple(rows)


def _practice(config: RunConfig, lines: Lines) -> tuple[PracticeRow, ...]:
    """Return each arm's practice up to its latest step; arms without counts are omitted."""
    rows = []
    for arm in config.arms:
        steps = [_latest(arm, f"curriculum.steps_{outcome}", lines) for outcome in OUTCOMES]
        if not any(steps) or not all(map(math.isfinite, steps)):
            continue
        fail, mixed, solved = (n / sum(steps) for n in steps)
        rows.append(
            PracticeRow(
                arm=arm,
                groups=_latest(arm, "curriculum.groups", lines),
                mixed=_latest(arm, "curriculum.mixed_groups", lines),
                mixed_recent=_latest(arm, "curriculum.mixed_groups_recent", lines),
                fail_share=fail,
                mixed_share=mixed,
                pass_share=solved,
                reserve=_latest(arm, "curriculum.reserve", lines),
                tags=_latest(arm, "curriculum.tags_covered", lines),
            )
        )
    return tuple(rows)


def _arm_tasks(config: RunConfig, rounds: Sequence[StoredRound]) -> list[ArmTasks]:
    """Return the tasks of each arm that evolved."""
    found = []
    for arm in config.arms:
        mine = [applied for applied in rounds if applied.arm == arm]
        first = tuple(task for a in mine if a.is_first for task in a.result.accepted)
        later = tuple(a.result.accepted for a in mine if not a.is_first)
        if later:
            found.append(ArmTasks(arm, first, later))
    return found


def _evolution(
    spreads: Sequence[ArmSpread], rounds: Sequence[StoredRound], lines: Lines
) -> tuple[EvolutionRow, ...]:
    """Return the costs and yields of each arm's rounds, and their effect on the task set."""
    rows = []
    for spread in spreads:
        arm, before, after = spread.arm, spread.rounds[0], spread.rounds[-1]
        later = [applied for applied in rounds if applied.arm == arm and not applied.is_first]
        totals = {
            "signals": sum(
                sum(_counted_before(applied, lines, _SIGNALS).values()) for applied in later
            ),
            "contexts": sum(len(a.round.contexts) or a.round.n_unguided for a in later),
            "candidates": sum(len(applied.result.judged) for applied in later),
            "accepted": sum(len(applied.result.accepted) for applied in later),
        }
        ratios = conversion(**totals)
        rows.append(
            EvolutionRow(
                arm=arm,
                signals=totals["signals"],
                contexts=totals["contexts"],
                drafts=totals["candidates"],
                accepted=totals["accepted"],
                per_context=ratios.candidates_per_context,
                pass_rate=ratios.pass_rate,
                per_signal=ratios.conversion,
                likeness_before=before.likeness,
                likeness_after=after.likeness,
                distance=after.distance,
                time_share=_time_share(arm, later, lines),
                explore_share=_latest(arm, "curriculum.share_explore_steps", lines),
                gate_share=_latest(arm, "curriculum.share_gate_steps", lines),
            )
        )
    return tuple(rows)


def _time_share(arm: str, rounds: Sequence[StoredRound], lines: Lines) -> float:
    """Return the share of the arm's rollout, update and round time that was spent in rounds.

    For a round that ran concurrently with training, only the waiting time counts.
    """
    steps = [line for line in lines if _is(line, "step", arm)]
    in_rounds = sum(applied.result.seconds for applied in rounds)
    if all("round_s" in line for line in steps):
        in_rounds = sum(line["round_s"] for line in steps)
    training = sum(line.get("rollout_s", 0.0) + line.get("update_s", 0.0) for line in steps)
    return feedback_ratio(len(rounds), in_rounds / len(rounds), training + in_rounds)


def _latest(arm: str, name: str, lines: Lines) -> float:
    """Return a metric of the arm's latest step; NaN for runs that did not record it."""
    found = [line[name] for line in lines if _is(line, "step", arm) and name in line]
    return float(found[-1]) if found else NAN


def _each_once(rounds: Sequence[StoredRound]) -> Iterator[tuple[str, StoredRound]]:
    """Yield every round with its arm; the shared round of D_0 is yielded once."""
    seen = set()
    for applied in rounds:
        arm = FIRST if applied.is_first else applied.arm
        if (arm, applied.round.id) not in seen:
            seen.add((arm, applied.round.id))
            yield arm, applied


def _usage(rounds: Sequence[StoredRound]) -> tuple[UsageRow, ...]:
    """Return model usage by arm and purpose; usage for the shared D_0 is counted once."""
    found: dict[tuple[str, str], Usage] = {}
    for arm, applied in _each_once(rounds):
        for purpose, used in applied.result.usage.items():
            found[arm, purpose] = found.get((arm, purpose), NO_USAGE) + used
    return tuple(UsageRow(*key, used) for key, used in found.items())


def _unused(usage: Sequence[UsageRow]) -> Iterator[str]:
    """Yield a warning for each purpose for which no model answer was usable."""
    asked_by: dict[str, dict[str, Mapping[str, int]]] = {}
    for row in usage:
        asked_by.setdefault(row.arm, {}).update(answers_of({row.purpose: row.usage}))
    return warnings(asked_by)


def _rejections(rounds: Sequence[StoredRound]) -> tuple[ArmCount, ...]:
    """Return rejected drafts by arm and gate; drafts of the shared D_0 are counted once."""
    found: dict[tuple[str, str], int] = {}
    for arm, applied in _each_once(rounds):
        for verdict in applied.result.judged:
            if not verdict.accepted and verdict.gate != HOLD:
                key = (arm, verdict.gate)
                found[key] = found.get(key, 0) + 1
    return tuple(ArmCount(arm, gate, count) for (arm, gate), count in found.items())


def _held_out(config: RunConfig) -> Sequence[Task]:
    """Return the tasks that arms are compared on; none if the benchmark is not installed."""
    try:
        return Assembly(config).held_out_tasks
    except BenchmarkNotInstalled:
        return ()  # a report does not require an installed benchmark


def _similarity(held_out: Sequence[Task], rounds: Sequence[StoredRound]) -> tuple[Similarity, ...]:
    """Return the similarity of each set of tasks to the held-out tasks, by words."""
    if not held_out:
        return ()
    sets: dict[str, dict[str, str]] = {}
    for applied in rounds:
        label = FIRST if applied.is_first else f"evolved by {applied.arm}"
        tasks = sets.setdefault(label, {})
        tasks.update({task.id: task.instruction for task in applied.result.accepted})
    embed = HashingEmbedder()
    wanted = embed([task.instruction for task in held_out])
    return tuple(
        Similarity(label, tuple(int(n) for n in max_similarity(embed(texts), wanted).counts))
        for label, tasks in sets.items()
        if (texts := list(tasks.values()))
    )


def _lineage(
    rounds: Sequence[StoredRound],
    tasks: Sequence[Task],
    counts: Sequence[TaskCount],
) -> tuple[LineageRow, ...]:
    by_id = {task.id: task for task in tasks}
    served = {(row.arm, row.task_id): row for row in counts}
    rows = []
    for applied in rounds:
        summaries = {context.id: context.summary for context in applied.round.contexts}
        checks = {verdict.draft_id: verdict.checks for verdict in applied.result.verdicts}
        for task in applied.result.accepted:
            # The first parent is the context's task; a parent may be missing in the store.
            parent = next((by_id[id] for id in task.parents if id in by_id), None)
            passed = [check.gate for check in checks.get(str(task.provenance.get("draft")), ())]
            gates = ", ".join(dict.fromkeys(passed)) or "every gate"
            practice = served.get((applied.arm, task.id))
            rows.append(
                LineageRow(
                    task=task.name,
                    instruction=task.instruction,
                    arm=applied.arm,
                    round_id=applied.round.id,
                    signal=str(task.provenance.get("kind", "")),
                    context=summaries.get(str(task.provenance.get("context", "")), ""),
                    parent=parent.name if parent else "",
                    parent_instruction=parent.instruction if parent else "",
                    actions=task.solution,
                    verdict=f"passed {gates}",
                    served=practice.episodes if practice else 0,
                    success=practice.successes / practice.episodes
                    if practice and practice.episodes
                    else None,
                )
            )
    return tuple(rows)


def _rejected(rounds: Sequence[StoredRound]) -> tuple[RejectedRow, ...]:
    """Return a sample of rejected drafts, evenly spread over the rounds."""
    rows = []
    for applied in rounds:
        kinds = {context.id: str(context.kind) for context in applied.round.contexts}
        for verdict in applied.result.judged:
            if not verdict.accepted and verdict.gate != HOLD:
                rows.append(
                    RejectedRow(
                        instruction=_wanted(verdict),
                        gate=verdict.gate,
                        reason=verdict.reason,
                        signal=kinds.get(verdict.context_id, "unguided"),
                        round_id=applied.round.id,
                        arm=applied.arm,
                    )
                )
    every = max(1, -(-len(rows) // _MAX_REJECTED))
    return tuple(rows[::every])


def _wanted(verdict: Verdict) -> str:
    draft = verdict.draft
    wanted = draft.get("instruction") or draft.get("text") or verdict.proposal.get("description")
    return str(wanted or "")


def _notes(config: RunConfig, manifest: Mapping[str, Any]) -> tuple[str, ...]:
    marks = manifest.get("marks", {})
    return (
        "All arms start from one warmed-up policy and one first task set (D_0). Env steps count "
        "training, exploration and the replays of gates; warm-up and evaluation are not in them.",
        f"Every number is of one run with seed {config.seed}: the intervals say how sure the "
        "success rates are on tasks like the held-out ones, not how another seed would end.",
        f"Success is measured on {config.evaluation.split} tasks, which never reach exploration, "
        f"drafting or training. The policy acts {config.evaluation.manner}.",
        *(
            f"{arm} is for comparison only: its new tasks are {mark}."
            for arm, mark in marks.items()
        ),
    )
