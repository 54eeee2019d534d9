"""The final table of a run or an evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from statistics import fmean
from types import MappingProxyType
from typing import Any, Self

from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.stats import wilson_interval
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.text_tables import html_table

RANDOM, WARMUP, SCRIPTED = "random", "warm-up", "scripted"
"""Names of the baselines in a run's table."""
PERSON = "person"
"""Policy name for episodes that a user plays by hand."""

FinalScores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Scores on the tasks of ``evaluation.final``, by policy and task set."""
NO_SCORES: FinalScores = FrozenDict()
NO_NUMBERS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class TableRow:
    """One row of the final table: the results of an arm or a baseline on held-out tasks.

    Attributes:
        name: name of the arm.
        success: success rate in [0, 1].
        low: lower end of its 95% interval.
        high: upper end of its 95% interval.
        score: mean score in [0, 1].
        n_tasks: number of held-out tasks.
        env_steps: env steps spent on training and exploration; 0 for an untrained policy.
        tokens: tokens read and written by models in its rounds; for an evaluation, by its policy.
        usd: price of these tokens in US dollars, as far as prices are set.
        mixed_groups: share of the arm's groups with both outcomes; None if unknown.
        explored: share of its env steps spent on exploration; None if unknown.
        rollout_tokens: tokens (or choices) that the policy sampled in training; None if unknown.
        gradient_tokens: tokens that updates learned from with an advantage other than 0; None if
            unknown.
        mark: caveat for comparisons with the other rows, or "".
    """

    name: str
    success: float
    low: float = math.nan
    high: float = math.nan
    score: float = math.nan
    n_tasks: int = 0
    env_steps: int = 0
    tokens: int = 0
    usd: float = 0.0
    mixed_groups: float | None = None
    explored: float | None = None
    rollout_tokens: int | None = None
    gradient_tokens: int | None = None
    mark: str = ""

    def _repr_html_(self) -> str:
        return html_table(*result_cells([self]))

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Self:
        """Create a row from a run's summary, where null stands for an unknown value."""
        known = {one.name for one in fields(cls)}
        values = {key: value for key, value in row.items() if key in known and value is not None}
        return cls(**{"success": math.nan, **values})


def mean_of_last(evaluations: Sequence[Mapping[str, float]], last: int) -> dict[str, float]:
    """Average the results of an arm's last few evaluations.

    Args:
        evaluations: all evaluations of the arm, in order; the first is the warm-up's, which is
            used only if there is no other.
        last: number of evaluations to average.

    Returns:
        The means of success and score. The interval is that of the mean success on the tasks of one
        evaluation, because all evaluations share the same tasks.
    """
    late = list(evaluations[1:] or evaluations)[-last:]
    if len(late) == 1:
        return dict(late[0])
    success, score = (
        fmean(numbers[name] for numbers in late) for name in ("success_rate", "mean_score")
    )
    tasks = round(fmean(map(n_tasks, late)))
    low, high = wilson_interval(success * tasks, tasks)
    return {
        "success_rate": success,
        "success_rate_low": low,
        "success_rate_high": high,
        "mean_score": score,
        "tasks": float(tasks),
    }


def n_tasks(numbers: Mapping[str, float], prefix: str = "") -> int:
    """Return the number of tasks in an evaluation.

    Args:
        numbers: metrics of the evaluation.
        prefix: prefix of the metrics' names.
    """
    return int(numbers[f"{prefix}tasks"])


def final_columns(final: FinalScores) -> dict[str, dict[str, float]]:
    """Return the success rates on the final tasks, in [0, 1], keyed by column title and policy.

    If scenarios have several tasks, a second column is the share of scenarios in which every
    episode succeeded (AppWorld's scenario goal completion).

    Args:
        final: scores of a run.
    """
    columns = dict[str, dict[str, float]]()
    for name in dict.fromkeys(name for scores in final.values() for name in scores):
        scores = {policy: of[name] for policy, of in final.items() if name in of}
        tasks = {policy: one["success_rate"] for policy, one in scores.items()}
        scenarios = {policy: one["scenario_success_rate"] for policy, one in scores.items()}
        columns[f"{name}, once"] = tasks
        if scenarios != tasks:
            columns[f"{name}, whole scenarios"] = scenarios
    return columns


def format_part(part: int | None, whole: int | None) -> str:
    """Format a count with its share of the whole, as ``"1,204 (31.0%)"``; "" if unknown."""
    if part is None or whole is None:
        return ""
    return f"{part:,} ({part / whole:.1%})" if whole else f"{part:,}"


def result_cells(
    rows: Sequence[TableRow], split: str = "", *, samples: int = 1, final: FinalScores = NO_SCORES
) -> tuple[list[str], list[list[str]]]:
    """Return the heads and the cells of a table of policies' results, as text.

    Args:
        rows: one row per policy.
        split: the split that the tasks belong to; "" to leave it out.
        samples: episodes per task; success is their mean.
        final: scores on final tasks; see :func:`final_columns`.
    """
    success = "success" if samples == 1 else f"avg@{samples}"
    heads = [
        *("policy", f"{success} on {split}" if split else success),
        *("95 % interval", "mean score", "tasks", "env steps"),
    ]
    practised = any(row.mixed_groups is not None for row in rows)
    has_gradients = any(row.gradient_tokens is not None for row in rows)
    asked = any(row.tokens for row in rows)
    scored = final_columns(final)
    heads += [*_PRACTISED * practised, *_GRADIENTS * has_gradients, *_ASKED * asked, *scored]
    cells = []
    for row in rows:
        rates = [column.get(row.name) for column in scored.values()]
        cells.append(
            [
                *_result_cells(row),
                *_practice_cells(row) * practised,
                *(format_part(row.gradient_tokens, row.rollout_tokens),) * has_gradients,
                *_model_cells(row) * asked,
                *("" if rate is None else f"{rate:.1%}" for rate in rates),
            ]
        )
    return heads, cells


_PRACTISED = ("mixed groups", "explored")
_GRADIENTS = ("tokens with gradient",)
_ASKED = ("tokens of models", "USD")


def _practice_cells(row: TableRow) -> tuple[str, ...]:
    return tuple("" if n is None else f"{n:.1%}" for n in (row.mixed_groups, row.explored))


def _model_cells(row: TableRow) -> tuple[str, ...]:
    priced = row.usd or not row.tokens
    return f"{row.tokens:,}", f"{row.usd:.2f}" if priced else "price not set"


def _result_cells(row: TableRow) -> tuple[str, ...]:
    return (
        f"{row.name} ({row.mark})" if row.mark else row.name,
        f"{row.success:.1%}",
        f"{row.low:.1%} – {row.high:.1%}",
        f"{row.score:.3f}",
        str(row.n_tasks),
        f"{row.env_steps:,}",
    )


def table_row(
    name: str,
    numbers: Mapping[str, float],
    env_steps: int,
    *,
    usage: Usage = NO_USAGE,
    curriculum: Mapping[str, float] = NO_NUMBERS,
    rollout_tokens: int | None = None,
    gradient_tokens: int | None = None,
    mark: str = "",
) -> TableRow:
    """Create a row of the final table from an evaluation and the cost of the arm.

    Args:
        name: name of the arm.
        numbers: metrics of the evaluation.
        env_steps: env steps spent on training and exploration.
        usage: cost of model answers.
        curriculum: metrics of the arm's curriculum.
        rollout_tokens: see :class:`TableRow`.
        gradient_tokens: see :class:`TableRow`.
        mark: see :class:`TableRow`.
    """
    return TableRow(
        name=name,
        success=numbers["success_rate"],
        low=numbers["success_rate_low"],
        high=numbers["success_rate_high"],
        score=numbers["mean_score"],
        n_tasks=n_tasks(numbers),
        env_steps=env_steps,
        tokens=usage.tokens,
        usd=usage.usd,
        mixed_groups=curriculum.get("mixed_groups"),
        explored=curriculum.get("share_explore_steps"),
        rollout_tokens=rollout_tokens,
        gradient_tokens=gradient_tokens,
        mark=mark,
    )
