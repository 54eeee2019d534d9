"""Measures of a whole run: practice, evolution, costs, and episode lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from coevo_gym.core.errors import StoreError
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.curricula.metrics import cross_table, feedback_ratio
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evolving.answers import answers_of, warnings
from coevo_gym.runs.final import final_scores
from coevo_gym.runs.table import RANDOM, WARMUP, final_columns
from coevo_gym.view.model.rounds import rounds_of
from coevo_gym.view.shapes.measures import (
    ArmMeasures,
    CrossRow,
    Lengths,
    PurposeUsage,
    RunMeasures,
)
from coevo_gym.view.shapes.steps import RoundRow
from coevo_gym.view.shelf import Line, ShownRun, told_as_damaged

FIRST = "D_0"
"""Name of the first task set, which all arms share."""
_CURRICULUM = "curriculum."


def run_measures(run: ShownRun) -> RunMeasures:
    """Return the measures of a run so far.

    Raises:
        Damaged: if the run cannot be read.
    """
    config, lines = run.config, run.lines
    rounds = {arm: rounds_of(run, arm) for arm in config.arms}
    warmup = next((line for line in lines if line["event"] == "warm-up"), {})
    return RunMeasures(
        arms=tuple(_arms(run, rounds)),
        cross=tuple(_cross(config, lines)),
        final=_final(run),
        lengths=tuple(_lengths(run)),
        usage=usage_of(rounds),
        warmup_loss=tuple(map(_known, warmup.get("losses", ()))),
    )


def usage_of(rounds: Mapping[str, Sequence[RoundRow]]) -> tuple[PurposeUsage, ...]:
    """Return model usage by arm and purpose; usage for the shared D_0 is counted once."""
    found: dict[tuple[str, str], Usage] = {}
    seen = set[str]()
    for arm, rows in rounds.items():
        for row in rows:
            if row.first and row.id in seen:
                continue
            seen |= {row.id} if row.first else set()
            for purpose, used in row.usage.items():
                key = (FIRST if row.first else arm, purpose)
                found[key] = found.get(key, NO_USAGE) + used
    return tuple(
        PurposeUsage(arm=arm, purpose=purpose, usage=used) for (arm, purpose), used in found.items()
    )


def unused_answers(usage: Sequence[PurposeUsage]) -> Iterator[str]:
    """Yield a warning for each purpose for which most model answers were unusable."""
    asked_by: dict[str, dict[str, Mapping[str, int]]] = {}
    for row in usage:
        asked_by.setdefault(row.arm, {}).update(answers_of({row.purpose: row.usage}))
    return warnings(asked_by)


def _arms(run: ShownRun, rounds: Mapping[str, Sequence[RoundRow]]) -> Iterator[ArmMeasures]:
    with told_as_damaged():
        run.index.refresh()
        fired = dict(run.index.rows("SELECT arm, sum(count) FROM signals GROUP BY arm"))
    for arm, rows in rounds.items():
        steps = [line for line in run.lines if line["event"] == "step" and line.get("arm") == arm]
        if not steps:
            continue
        later = [row for row in rows if not row.first]
        yield ArmMeasures(
            arm=arm,
            numbers={
                name.removeprefix(_CURRICULUM): _known(value)
                for line in steps
                for name, value in line.items()
                if name.startswith(_CURRICULUM)
            },
            signals=fired.get(arm, 0),
            rounds=len(later),
            round_time=_round_time(later, steps) if later else None,
        )


def _round_time(rounds: Sequence[RoundRow], steps: Sequence[Line]) -> float:
    """Return the share of an arm's rollout, update and round time that was spent in rounds.

    For a round that ran concurrently with training, only the waiting time counts.
    """
    in_rounds = sum(row.seconds for row in rounds)
    if all("round_s" in line for line in steps):
        in_rounds = sum(line["round_s"] for line in steps)
    training = sum(line.get("rollout_s", 0.0) + line.get("update_s", 0.0) for line in steps)
    return feedback_ratio(len(rounds), in_rounds / len(rounds), training + in_rounds)


def _cross(config: RunConfig, lines: Sequence[Line]) -> Iterator[CrossRow]:
    latest = {line["arm"]: line.get("solved", "") for line in lines if line["event"] == "eval"}
    *others, ours = config.arms
    for baseline in others:
        pair = [[digit == "1" for digit in latest.get(arm, "")] for arm in (baseline, ours)]
        n = len(pair[0])
        if n and n == len(pair[1]):
            both, only_baseline, only_ours, neither = (round(s * n) for s in cross_table(*pair))
            yield CrossRow(
                baseline=baseline,
                ours=ours,
                both=both,
                only_baseline=only_baseline,
                only_ours=only_ours,
                neither=neither,
            )


def _final(run: ShownRun) -> dict[str, dict[str, float]]:
    try:
        return final_columns(final_scores(run.folder))
    except StoreError:
        return {}  # there are no metrics yet


def _lengths(run: ShownRun) -> Iterator[Lengths]:
    if not run.folder.database.is_file():
        return
    with told_as_damaged():
        reader = run.reader
        for policy in (RANDOM, WARMUP, *run.config.arms):
            if steps := reader.evaluation_steps(policy):
                ends = reader.evaluation(policy, steps[-1])
                yield Lengths(
                    policy=policy,
                    solved=tuple(end.steps for end in ends if end.success),
                    failed=tuple(end.steps for end in ends if not end.success),
                )


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
