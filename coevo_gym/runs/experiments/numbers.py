"""Named results of an experiment cell, taken from its summary and its measurements."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from coevo_gym.runs.config.run_sections import task_set_name
from coevo_gym.runs.experiments.measures import ALSO_BEFORE, ONLY_BEFORE, REDRAW
from coevo_gym.runs.experiments.records import CellRecord
from coevo_gym.runs.table import WARMUP

Numbers = Mapping[str, float]


class Column(NamedTuple):
    """The title and format of a table column.

    Attributes:
        title: title of the column.
        form: format string; ``{:.1%}`` for a share.
    """

    title: str
    form: str


REDRAWN = {"last_redrawn": "last", "best_redrawn": "best"}
"""Parts of a run that rows show from the measure ``redraw``, and their fields of a reading."""
_PEER_COLUMNS = {
    "panel_best": Column("best on the panel", "{:.1%}"),
    "last_redrawn": Column("last redrawn", "{:.1%}"),
    "last_redrawn_sd": Column("its sd", "{:.1%}"),
    "best_redrawn": Column("best redrawn", "{:.1%}"),
    "rise": Column("rise", "{:.1%}"),
    "rise_unchanging": Column("rise, 31 of the last policy", "{:.1%}"),
}
_SIZES = {"128": "", "256": "_256"}
"""Endings of these columns, by episodes per evaluation."""
REPORTED = "reported"
"""Success on the first task set in ``evaluation.final``, or else on the evaluated tasks."""
COLUMNS: Mapping[str, Column] = {
    "success": Column("success", "{:.1%}"),
    REPORTED: Column("success, reported", "{:.1%}"),
    "final_test": Column("test", "{:.1%}"),
    "final_test_normal": Column("TestN TGC", "{:.1%}"),
    "final_test_normal_scenarios": Column("TestN SGC", "{:.1%}"),
    "final_test_challenge": Column("TestC TGC", "{:.1%}"),
    "final_test_challenge_scenarios": Column("TestC SGC", "{:.1%}"),
    "final_base": Column("base, test", "{:.1%}"),
    "final_miss_func": Column("miss_func, test", "{:.1%}"),
    "final_miss_param": Column("miss_param, test", "{:.1%}"),
    "final_long_context": Column("long_context, test", "{:.1%}"),
    "average": Column("average", "{:.1%}"),
    "success_val": Column("success on val", "{:.1%}"),
    "success_test": Column("success on test", "{:.1%}"),
    "success_base": Column("base", "{:.1%}"),
    "success_miss_func": Column("miss_func", "{:.1%}"),
    "success_miss_param": Column("miss_param", "{:.1%}"),
    "success_long_context": Column("long_context", "{:.1%}"),
    "success_goal_pick": Column("pick", "{:.1%}"),
    "success_goal_look": Column("look", "{:.1%}"),
    "success_goal_clean": Column("clean", "{:.1%}"),
    "success_goal_heat": Column("heat", "{:.1%}"),
    "success_goal_cool": Column("cool", "{:.1%}"),
    "success_goal_two": Column("pick two", "{:.1%}"),
    "avg_at_8": Column("avg@8", "{:.1%}"),
    "best_at_8": Column("best@8", "{:.1%}"),
    "steps_90": Column("steps to 90 %", "{:,.0f}"),
    "auc": Column("AUC", "{:.1%}"),
    "score": Column("score", "{:.3f}"),
    "env_steps": Column("env steps", "{:,.0f}"),
    "share_explore_steps": Column("explored", "{:.1%}"),
    "share_gate_steps": Column("gates", "{:.1%}"),
    "mixed_groups": Column("mixed groups", "{:.1%}"),
    "mixed_groups_recent": Column("mixed, last 64", "{:.1%}"),
    "rollout_tokens": Column("tokens sampled", "{:,.0f}"),
    "gradient_tokens": Column("tokens with gradient", "{:,.0f}"),
    "steps_all_fail": Column("steps, all fail", "{:,.0f}"),
    "steps_mixed": Column("steps, mixed", "{:,.0f}"),
    "steps_all_pass": Column("steps, all pass", "{:,.0f}"),
    "tags_covered": Column("tags", "{:,.0f}"),
    "reserve": Column("reserve", "{:.1f}"),
    "pool_size": Column("tasks", "{:,.0f}"),
    "rounds": Column("rounds", "{:.1f}"),
    "pass_rate": Column("accepted", "{:.1%}"),
    "tokens": Column("tokens", "{:,.0f}"),
    "usd": Column("USD", "{:.2f}"),
    "hours": Column("hours", "{:.3f}"),
    "cpu_hours": Column("CPU hours", "{:.2f}"),
    "seconds_rollout": Column("s of rollouts", "{:,.1f}"),
    "seconds_update": Column("s of updates", "{:,.1f}"),
    "seconds_round": Column("s of rounds", "{:,.1f}"),
    "seconds_per_round": Column("s per round", "{:,.1f}"),
    "seconds_all": Column("s in all", "{:,.1f}"),
    "round_share": Column("time in rounds", "{:.1%}"),
    "likeness": Column("likeness", "{:.1%}"),
    "transfer": Column("elsewhere", "{:.1%}"),
    "transfer_before": Column("elsewhere, before", "{:.1%}"),
    **_PEER_COLUMNS,
    **{
        f"{name}_256": Column(f"{title}, 256 tasks", form)
        for name, (title, form) in _PEER_COLUMNS.items()
    },
}
USUAL = (
    "env_steps", "share_explore_steps", "mixed_groups", "tags_covered", "tokens", "usd", "hours",
)  # fmt: skip
"""Columns that every table prints."""


_OF_A_TAG = "success_"
_SIGNS = re.compile(r"\W+")


def column(name: str) -> Column:
    """Return the title and format of a column. The title of an unknown column is its name."""
    form = "{:.1%}" if name.startswith(_OF_A_TAG) else "{:.3g}"
    return COLUMNS.get(name, Column(name.removeprefix(_OF_A_TAG).replace("_", " "), form))


def numbers_of(record: CellRecord, part: str) -> dict[str, float]:
    """Return the results of one arm, baseline or measure of a finished run.

    Args:
        record: settings and results of the run.
        part: name of an arm, a baseline of the run, a measure of the policy before training, or a
            redrawn evaluation of the arm.

    Returns:
        Numbers from the summary's table, the scores on final tasks, the arm, its curriculum, and
        the run's measurements. Values that are not numbers are omitted. For a measure, its results;
        empty if it was not taken for this run.
    """
    summary, measures = record.summary, record.measures
    before = measures.get(WARMUP, {})
    if part in REDRAWN:
        reading = next(iter(measures.get(REDRAW, {}).values()), None)
        return {"success": reading[REDRAWN[part]]} if reading else {}
    if part in ONLY_BEFORE:
        return _only_numbers(_policy_numbers(before[part])) if part in before else {}
    row = next(row for row in summary["table"] if row["name"] == part)
    outcome = summary["arms"].get(part)
    numbers: dict[str, Any] = dict(row)
    final: dict[str, dict[str, float]] = summary["final"].get(part, {})
    numbers[REPORTED] = final.get(_first_final_set(record), row).get("success_rate", row["success"])
    for tasks, scores in final.items():
        numbers[f"final_{tasks}"] = scores["success_rate"]
        numbers[f"final_{tasks}_scenarios"] = scores["scenario_success_rate"]
    if outcome is not None:
        numbers |= {**outcome.get("curriculum", {}), **outcome}
        numbers |= _run_numbers(measures) if measures else {}
        if numbers.get("rounds") and "seconds_round" in numbers:
            numbers["seconds_per_round"] = numbers["seconds_round"] / numbers["rounds"]
    elif part == WARMUP:
        numbers |= _policy_numbers(before)
    return _only_numbers(numbers)


def _first_final_set(record: CellRecord) -> str:
    """Return the name of the first task set in ``evaluation.final``, or "" if there is none."""
    evaluation = record.manifest["config"].get("evaluation", {})
    return next(map(task_set_name, evaluation.get("final", ())), "")


def _only_numbers(numbers: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in numbers.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _policy_numbers(measures: Mapping[str, Any]) -> dict[str, Any]:
    """Return the results measured for a policy, keyed by column name."""
    numbers = {name: measures[name] for name in ("success", "score") if name in measures}
    types = measures.get("types", {})
    return {
        **numbers,
        **({REPORTED: numbers["success"]} if numbers else {}),
        **{f"{_OF_A_TAG}{_SIGNS.sub('_', tag)}": rate for tag, rate in types.items()},
        **measures.get("at_8", {}),
    }


def _run_numbers(measures: Mapping[str, Any]) -> dict[str, Any]:
    seconds = measures["seconds"]
    total = sum(seconds.values())
    transfer = measures.get("transfer", {})
    return {
        **{f"seconds_{part}": value for part, value in seconds.items()},
        "hours": total / 3600,
        "seconds_all": total,
        "round_share": seconds["round"] / total if total else None,
        "cpu_hours": measures.get("cpu_hours"),
        "likeness": measures.get("likeness"),
        "success_val": measures.get("val"),
        "success_test": measures.get("test"),
        **{f"success_{subset}": success for subset, success in measures.get("subsets", {}).items()},
        "transfer": transfer.get("success"),
        "transfer_before": transfer.get("before"),
        **_peer_numbers(measures.get(REDRAW, {})),
        **_policy_numbers({name: measures.get(name, {}) for name in ALSO_BEFORE}),
        **{
            f"{number}_{name}": value
            for name in ONLY_BEFORE
            for number, value in _policy_numbers(measures.get(name, {})).items()
        },
    }


def _peer_numbers(readings: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the columns of the measure ``redraw``."""
    fields = {name: name for name in _PEER_COLUMNS} | {"last_redrawn_sd": "last_sd", **REDRAWN}
    return {
        f"{name}{_SIZES[size]}": one[field]
        for size, one in readings.items()
        for name, field in fields.items()
    }
