"""Curves over training: the values of each arm of several runs, and their mean over seeds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.stats import student_t_quantile
from coevo_gym.core.task import FrozenDict, canonical_json
from coevo_gym.runs.experiments.numbers import column
from coevo_gym.runs.experiments.writing import MIN_SEEDS
from coevo_gym.trainers.protocols import training_success
from coevo_gym.view.collection import Line, ShownRun

Band = Literal["sd", "interval"]
"""Kinds of bands around a mean: one sample standard deviation on each side, or the 95% interval of
the mean over seeds (Student's t), which needs three seeds."""
Points = Sequence[tuple[float, float]]
"""Points of a curve in order of x."""
STEP, ENV_STEPS, SUCCESS, SCORE, TRAINING = (
    "step",
    "env_steps",
    "success",
    "score",
    "training_success",
)
_HELD_OUT = {SUCCESS: "eval.success_rate", SCORE: "eval.mean_score"}
"""Short names of metrics of evaluations on held-out tasks."""
_SHORTENED = (*_HELD_OUT.values(), SUCCESS)
"""Logged names that have a short name; ``success`` of a step is success in training."""
_NOT_METRICS = ("event", "arm", STEP, ENV_STEPS)
MAX_POINTS = 400
"""Maximum number of points of a mean over several seeds."""


class Axis(NamedTuple):
    """The label of an axis, and whether its values are shares in [0, 1]."""

    label: str
    share: bool = False


_AXES = {
    STEP: Axis("learner steps"),
    ENV_STEPS: Axis("env steps, including exploration and gates"),
    SUCCESS: Axis("success on held-out tasks", share=True),
    SCORE: Axis("score on held-out tasks"),
    TRAINING: Axis("success in training", share=True),
}


class MeanCurve(NamedTuple):
    """The mean of an arm's curves over seeds, with a band.

    Attributes:
        label: name of the arm, with its runs if several settings have this arm.
        seeds: number of seeds.
        x: positions of the points, ascending.
        mean: mean over the seeds at each position.
        low: lower end of the band; empty without a band.
        high: upper end of the band.
    """

    label: str
    seeds: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


class _Member(NamedTuple):
    """An arm of a run, as one of the seeds of a curve."""

    run: ShownRun
    arm: str


def axis_of(name: str) -> Axis:
    """Return the axis for a metric."""
    if name in _AXES:
        return _AXES[name]
    title, form = column(name.rpartition(".")[2])
    return Axis(title, share="%" in form)


def metric_names(runs: Sequence[ShownRun]) -> dict[str, list[str]]:
    """Return the names of the metrics that the runs have logged, by the event that logs them.

    Returns:
        The names under ``eval`` (on held-out tasks) and ``step`` (in training), short names first.

    Raises:
        Damaged: if a run cannot be read.
    """
    names: dict[str, dict[str, None]] = {"eval": {}, "step": {}}
    for run in runs:
        for line in run.metric_lines:
            if (event := line["event"]) in names:
                known = (name for name, value in line.items() if _finite(value) is not None)
                names[event].update(dict.fromkeys(known))
    by_event = {
        event: [name for name in of if name not in _NOT_METRICS] for event, of in names.items()
    }
    short = [name for name, long in _HELD_OUT.items() if long in by_event["eval"]]
    of_training = [TRAINING] if "success" in by_event["step"] else []
    others = {
        event: [name for name in of if name not in _SHORTENED] for event, of in by_event.items()
    }
    return {"eval": [*short, *others["eval"]], "step": [*of_training, *others["step"]]}


def mean_curves(
    runs: Sequence[ShownRun],
    x: str = ENV_STEPS,
    y: str = SUCCESS,
    *,
    arms: Mapping[str, str] = FrozenDict(),
    band: Band = "sd",
) -> list[MeanCurve]:
    """Return the mean curve of each arm over the seeds of the runs.

    Runs are seeds of one curve if they have the same arm, and their settings differ only in the
    seed and the name of the run. Between two points, a seed's curve is a straight line. A mean
    covers the range of x that all seeds cover.

    Args:
        runs: the runs, all of the same benchmark.
        x: name of the metric on the horizontal axis, such as ``step`` or ``env_steps``.
        y: name of the metric, see :func:`metric_names`.
        arms: labels of the arms to include by name, in order; "" to use the name. Empty for all
            arms.
        band: kind of the band around each mean.

    Raises:
        ConfigError: if the runs are of different benchmarks, two runs are the same seed of an arm,
            there is no such arm, or an arm lacks x or y.
        Damaged: if a run cannot be read.
    """
    _check_benchmarks(runs)
    curves = []
    for label, members in _group_seeds(runs, arms).items():
        points = {member.run.name: _points(member, x, y, runs) for member in members}
        curves.append(average_points(label, points, band))
    return curves


def average_points(label: str, seeds: Mapping[str, Points], band: Band = "sd") -> MeanCurve:
    """Return the mean of one arm's curves, one for each seed.

    Args:
        label: name of the mean.
        seeds: the curves, keyed by the name of the run or the seed.
        band: kind of the band around the mean.

    Raises:
        ConfigError: if the curves have no common range.
    """
    xs = [np.array([x for x, _ in points]) for points in seeds.values()]
    ys = [np.array([y for _, y in points]) for points in seeds.values()]
    if len(seeds) == 1:
        return MeanCurve(label, 1, tuple(xs[0].tolist()), tuple(ys[0].tolist()))
    first, last = max(x[0] for x in xs), min(x[-1] for x in xs)
    if first > last:
        latest = max(seeds, key=lambda name: seeds[name][0][0])
        shortest = min(seeds, key=lambda name: seeds[name][-1][0])
        raise ConfigError(
            f"The curves of {label} have no common range: that of {latest} begins at {first:g}, "
            f"but that of {shortest} ends at {last:g}. Leave out {shortest}, or resume it."
        )
    grid = np.unique(np.concatenate([x[(x >= first) & (x <= last)] for x in xs]))
    if len(grid) > MAX_POINTS:
        grid = np.linspace(first, last, MAX_POINTS)
    values = np.stack([np.interp(grid, x, y) for x, y in zip(xs, ys, strict=True)])
    mean, half = values.mean(axis=0), _half_width(values, band)
    low, high = ((), ()) if half is None else (mean - half, mean + half)
    return MeanCurve(
        label, len(seeds), *(tuple(map(float, one)) for one in (grid, mean, low, high))
    )


def curves_in_table(
    stored: Sequence[Mapping[str, Any]], labels: Mapping[str, str]
) -> list[MeanCurve]:
    """Return the mean curves of the rows whose seeds' curves a table contains.

    Args:
        stored: the table's part ``curves``.
        labels: labels of the rows by key; others keep their key.
    """
    by_row: dict[str, dict[str, Points]] = {}
    for one in stored:
        pairs = zip(one["env_steps"], one["success"], strict=True)
        points = [(x, y) for x, y in pairs if y is not None]
        by_row.setdefault(one["row"], {})[f"seed {one['seed']}"] = points
    return [average_points(labels.get(row, row), points) for row, points in by_row.items()]


def _half_width(values: NDArray[np.float64], band: Band) -> NDArray[np.float64] | None:
    """Return half the height of a band; None if there are too few seeds for it."""
    seeds = len(values)
    sd: NDArray[np.float64] = values.std(axis=0, ddof=1)
    if band == "sd":
        return sd
    if seeds < MIN_SEEDS:
        return None
    return sd * (student_t_quantile(0.975, seeds - 1) / math.sqrt(seeds))


def _check_benchmarks(runs: Sequence[ShownRun]) -> None:
    by_name = {run.config.benchmark.name: run.name for run in reversed(runs)}
    if len(by_name) > 1:
        of = ", ".join(f"{run} is of {name}" for name, run in reversed(by_name.items()))
        raise ConfigError(f"The runs are of different benchmarks: {of}. Plot one at a time.")


def _group_seeds(runs: Sequence[ShownRun], arms: Mapping[str, str]) -> dict[str, list[_Member]]:
    """Return the seeds of each curve, keyed by the curve's label, in the order of the arms."""
    known = list(dict.fromkeys(arm for run in runs for arm in run.config.arms))
    for arm in arms:
        if arm not in known:
            raise ConfigError(
                f"No run has the arm {arm!r}. {did_you_mean(arm, known)}Arms: {', '.join(known)}."
            )
    grouped: dict[str, list[_Member]] = {}
    for arm in arms or known:
        by_settings: dict[str, list[_Member]] = defaultdict(list)
        for run in runs:
            if arm in run.config.arms:
                by_settings[_settings_key(run, arm)].append(_Member(run, arm))
        for members in by_settings.values():
            _check_seeds(members)
            name = arms.get(arm) or arm
            label = name if len(by_settings) == 1 else f"{name} ({_name_runs(members)})"
            grouped[label] = members
    return grouped


def _settings_key(run: ShownRun, arm: str) -> str:
    """Return the settings of an arm and its run that must be equal in all seeds of a curve."""
    config: dict[str, Any] = dict(run.config.to_json())
    mine = config.pop("arm", {}).get(arm)
    for name in ("name", "seed", "arms", "sinks", "arithmetic"):
        config.pop(name, None)
    return canonical_json({**config, "arm": mine})


def _check_seeds(members: Sequence[_Member]) -> None:
    runs: dict[int, ShownRun] = {}
    for run, arm in members:
        other = runs.setdefault(run.config.seed, run)
        if other is not run:
            raise ConfigError(
                f"{other.name} and {run.name} are the same seed ({run.config.seed}) of the arm "
                f"{arm}, with the same settings. Leave out one of them."
            )


def _name_runs(members: Sequence[_Member]) -> str:
    """Return the name of the runs' table, or their names."""
    names = [run.name for run, _ in members]
    tables = {name.rpartition("/")[0] for name in names}
    return table if len(tables) == 1 and (table := tables.pop()) else ", ".join(names)


def _points(member: _Member, x: str, y: str, runs: Sequence[ShownRun]) -> Points:
    """Return a seed's points.

    Raises:
        ConfigError: if the run lacks x or y, or x is not ascending.
    """
    run, arm = member
    lines = {event: run.arm_metrics(arm, event) for event in ("eval", "step")}
    event: Literal["eval", "step"]
    event = "eval" if y in _HELD_OUT or y.startswith("eval.") else "step"
    ys = _values(lines[event], y)
    if not ys:
        raise _missing_metric(member, "y", y, runs)
    other = _values(lines["step" if event == "eval" else "eval"], x)
    xs = other | _values(lines[event], x)  # a round may come between a step and its evaluation
    points = [(xs[step], ys[step]) for step in sorted(ys) if step in xs]
    if not points:
        raise _missing_metric(member, "x", x, runs)
    if any(after < before for (before, _), (after, _) in pairwise(points)):
        raise ConfigError(
            f"{x} cannot be the horizontal axis, because it decreases during the training of "
            f"{arm} in {run.name}. Use --x {ENV_STEPS} or --x {STEP}."
        )
    return points


def _values(lines: Mapping[int, Line], name: str) -> dict[int, float]:
    """Return the finite values of a metric, keyed by step."""
    numbers = {step: _number(line, name) for step, line in lines.items()}
    return {step: number for step, number in numbers.items() if number is not None}


def _number(line: Line, name: str) -> float | None:
    """Return a metric of a line of metrics; None if it is missing or not a finite number."""
    return _finite(
        training_success(line) if name == TRAINING else line.get(_HELD_OUT.get(name, name))
    )


def _finite(value: Any) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return None
    return float(value)


def _missing_metric(member: _Member, axis: str, name: str, runs: Sequence[ShownRun]) -> ConfigError:
    names = [STEP, ENV_STEPS, *(one for of in metric_names(runs).values() for one in of)]
    return ConfigError(
        f"{member.run.name} has no value of {name!r} for the arm {member.arm} (--{axis}). "
        f"{did_you_mean(name, names)}`coevo plot {member.run.name} --list` lists what is stored."
    )
