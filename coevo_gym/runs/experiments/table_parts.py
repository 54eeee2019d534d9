"""Additional parts of a table, such as planned comparisons and training curves."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from coevo_gym.core.stats import (
    adjust_p_values,
    learning_efficiency,
    mean_and_sd,
    paired_shares_interval,
)
from coevo_gym.curricula.metrics import cross_table
from coevo_gym.runs.experiments.definition import Experiment, Row
from coevo_gym.runs.experiments.results import TableLine

Measured = Mapping[str, Mapping[int, Mapping[str, Any]]]
"""Measurements of finished cells, keyed by row key and seed."""

CROSS, CURVES, QUESTIONS, ROUNDS = "cross", "curves", "questions", "rounds"


def additional_parts(
    experiment: Experiment, rows: Sequence[Row], lines: Sequence[TableLine], measured: Measured
) -> dict[str, Any]:
    """Return the additional parts of a table, keyed by name, omitting parts without results."""
    parts = {
        QUESTIONS: _planned_comparisons(experiment, lines),
        CURVES: [line for row in rows for line in _curves(experiment, row, measured)],
        CROSS: [
            line
            for row in rows
            if experiment.cross
            for baseline in experiment.baselines_of(row)[:1]
            if (line := _cross_table(row, baseline, measured))
        ],
        ROUNDS: [line for row in rows for line in _round_diversity(row, measured)],
    }
    return {name: part for name, part in parts.items() if part}


def _planned_comparisons(
    experiment: Experiment, lines: Sequence[TableLine]
) -> list[dict[str, Any]]:
    """Return planned comparisons with raw and adjusted p-values, or [] if a p-value is missing."""
    p_values = {(line.key, one.baseline): one.p for line in lines for one in line.comparisons}
    known = [p for question in experiment.questions if (p := p_values.get(question)) is not None]
    if len(known) < len(experiment.questions):
        return []
    return [
        {"row": row, "baseline": baseline, "p": p, "p_holm": adjusted}
        for (row, baseline), p, adjusted in zip(
            experiment.questions, known, adjust_p_values(known), strict=True
        )
    ]


def _cross_table(row: Row, baseline: str, measured: Measured) -> dict[str, Any] | None:
    """Count the tasks solved by both, one or neither of two rows (arXiv 2604.15840, Table 8)."""
    ours, theirs = measured.get(row.name, {}), measured.get(baseline, {})
    pairs = [
        (theirs[seed]["solved"], ours[seed]["solved"])
        for seed in ours
        if seed in theirs and ours[seed]["solved"] and theirs[seed]["solved"]
    ]
    if not pairs:
        return None
    solved = [
        [digit == "1" for text in side for digit in text] for side in zip(*pairs, strict=True)
    ]
    table = cross_table(*solved)
    return {
        "row": row.name,
        "baseline": baseline,
        "both": table.cc,
        "only_baseline": table.cw,
        "only_row": table.wc,
        "neither": table.ww,
    }


def _curves(experiment: Experiment, row: Row, measured: Measured) -> list[dict[str, Any]]:
    """Return a row's success rate on held-out tasks during training, for each seed.

    The last evaluation is compared with the evaluation before training, and with the last
    evaluation of the row's first baseline. The 95% intervals are over tasks and do not cover other
    seeds.
    """
    lines = []
    baseline = (*experiment.baselines_of(row), row.name)[0]
    theirs = measured.get(baseline, {})
    for seed, cell in sorted(measured.get(row.name, {}).items()):
        if not (curve := cell.get("curve")):
            continue
        line = {
            "row": row.name,
            "seed": seed,
            "steps": [point["step"] for point in curve],
            "env_steps": [point["env_steps"] for point in curve],
            "success": [_mean(point["tasks"]) for point in curve],
            "from_start": _mean_difference(curve[-1], curve[0]),
        }
        if baseline != row.name and (other := theirs.get(seed, {}).get("curve")):
            line |= {"baseline": baseline, "from_baseline": _mean_difference(curve[-1], other[-1])}
        lines.append(line)
    return lines


def learning_speeds(
    experiment: Experiment, row: Row, measured: Measured
) -> dict[int, dict[str, float]]:
    """Return the learning speed of a row's cells, keyed by seed, based on the ``curve`` measure.

    ``auc`` is the mean success over training, and ``steps_90`` is the first evaluated learner step
    with 90% of the highest success of the row's first baseline with the same seed. ``steps_90`` is
    missing if the row never reaches this success, or if the baseline has no such cell.
    """
    baseline = (*experiment.baselines_of(row), row.name)[0]
    by_seed = {}
    for seed, cell in measured.get(row.name, {}).items():
        curve = _curve_points(cell)
        theirs = _curve_points(measured.get(baseline, {}).get(seed, {}))
        if curve:
            speed = learning_efficiency(curve, theirs or curve)
            reached = {} if speed.steps is None or not theirs else {"steps_90": speed.steps}
            by_seed[seed] = {"auc": speed.auc, **reached}
    return by_seed


def _curve_points(cell: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the learner step and success rate for every evaluation of an experiment cell."""
    points = ((point["step"], _mean(point["tasks"])) for point in cell.get("curve", ()))
    return [(step, success) for step, success in points if success is not None]


def _mean_difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, float]:
    """Return the mean difference in success on shared tasks, with its 95% confidence interval."""
    pairs = zip(ours["tasks"], theirs["tasks"], strict=True)
    differences = [a - b for a, b in pairs if a is not None and b is not None]
    low, high = paired_shares_interval(differences)
    return {"mean": mean_and_sd(differences)[0], "low": low, "high": high}


def _round_diversity(row: Row, measured: Measured) -> list[dict[str, Any]]:
    """Return each round's self-similarity and energy distance (arXiv 2604.15840, Table 15)."""
    by_round: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for cell in measured.get(row.name, {}).values():
        for one in cell.get("diversity", ()):
            by_round[one["round"]].append(one)
    return [  # one entry per round, averaged over seeds
        {
            "row": row.name,
            "round": number,
            "seeds": len(rounds),
            **{
                name: _mean([one[name] for one in rounds]) for name in ("step", "tasks", "sr", "ed")
            },
        }
        for number, rounds in sorted(by_round.items())
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean_and_sd(known)[0] if known else None
