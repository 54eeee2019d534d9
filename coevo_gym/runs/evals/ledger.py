"""A table that combines the results of several policies on the same tasks.

Repeats, which are the results of one policy with several seeds, share a row. A row has two
intervals, which are never combined: the one over tasks says how far other tasks like these would
move the result, and the one over repeats how far other seeds would.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import NamedTuple

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import (
    mean_and_sd,
    mean_interval,
    paired_difference,
    paired_shares_interval,
    success_rate,
)
from coevo_gym.core.task import FrozenDict, canonical_json, thaw
from coevo_gym.runs.evals.best_of_n import MIN_SAMPLES, Rise, best_of_n_rise
from coevo_gym.runs.evals.comparison import (
    Side,
    describe_panel_differences,
    shorten_value,
    success_share,
)
from coevo_gym.runs.evals.peer_reading import PeerReading, describe_peer_readings, read_as_peer
from coevo_gym.runs.evals.sides import find_history, find_result
from coevo_gym.runs.panels.known import KnownNumber, known_numbers

_SEED = "seed"
"""The part of a protocol in which repeats differ."""


class BestOfN(NamedTuple):
    """A result that was chosen because it is the best of several.

    Attributes:
        side: the chosen result.
        n: number of results that it was chosen from.
        rise: rise in success of an unchanging policy by such a choice; None if there are too few
            episodes per task to tell.
    """

    side: Side
    n: int
    rise: Rise | None


@dataclass(frozen=True)
class LedgerDifference:
    """The difference in success between a row and the first row, on the same tasks.

    Attributes:
        mean: the difference.
        low: lower end of its 95% interval over tasks, which are paired.
        high: upper end of this interval.
        repeat_low: lower end of its 95% interval over repeats with the same seed, which are paired;
            None if the rows do not have the same seeds, at least two.
        repeat_high: upper end of this interval.
    """

    mean: float
    low: float
    high: float
    repeat_low: float | None = None
    repeat_high: float | None = None


@dataclass(frozen=True)
class LedgerRow:
    """The results of one policy, as a row of a ledger.

    Attributes:
        label: name of the row.
        results: names of its results, one per repeat.
        tasks: number of tasks that all repeats have.
        success: mean over tasks of the mean over repeats of the share of successful episodes.
        low: lower end of the 95% interval over tasks (Wilson), with the repeats as given.
        high: upper end of this interval.
        means: success of each repeat on these tasks.
        repeat_sd: sample standard deviation of these means; None for a single repeat.
        repeat_low: lower end of the 95% interval over repeats (Student's t), with the tasks as
            given; None for a single repeat.
        repeat_high: upper end of this interval.
        difference: difference to the first row; None for the first row, and for other tasks.
        notes: remarks, one sentence or more each.
    """

    label: str
    results: tuple[str, ...]
    tasks: int
    success: float
    low: float
    high: float
    means: tuple[float, ...]
    repeat_sd: float | None = None
    repeat_low: float | None = None
    repeat_high: float | None = None
    difference: LedgerDifference | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerRow:
    """The results of one policy, as verl-agent's evaluations would have reported them.

    Attributes:
        label: name of the policy's row in the table.
        mean: mean over the repeats.
        repeats: the reading of each repeat.
    """

    label: str
    mean: PeerReading
    repeats: tuple[PeerReading, ...]


@dataclass(frozen=True)
class Ledger:
    """A table of the results of several policies, with one row per policy.

    Attributes:
        benchmark: name of the benchmark.
        split: split of the tasks.
        panel: name and hash of the declared panel, or "".
        rows: one row per policy.
        peer: the results as verl-agent's evaluations would have reported them, if requested: one
            row per policy and size of an evaluation.
        known: published numbers of the benchmark, which no row includes.
        remarks: sentences about the whole table.
    """

    benchmark: str
    split: str
    panel: str
    rows: tuple[LedgerRow, ...]
    peer: tuple[PeerRow, ...] = ()
    known: tuple[KnownNumber, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Policy:
    """The results of one policy, with one result per repeat.

    Attributes:
        label: name of the policy.
        sides: the results.
        choices: the choices that they are from, if each is the best of several.
    """

    label: str
    sides: tuple[Side, ...]
    choices: tuple[BestOfN, ...] = ()
    shares: Mapping[str, tuple[float, ...]] = field(init=False)
    """Each repeat's share of successful episodes, by task that all repeats have."""

    def __post_init__(self) -> None:
        common = [id for id in self.sides[0].outcomes if all(id in x.outcomes for x in self.sides)]
        shares = {id: tuple(success_share(x.outcomes[id]) for x in self.sides) for id in common}
        object.__setattr__(self, "shares", shares)


def read_ledger(
    results: Sequence[str], *, known: bool = False, best: bool = False, peer: bool = False
) -> Ledger:
    """Load results, and put them into one table.

    Args:
        results: names of runs and evaluations, see
            :func:`~coevo_gym.runs.evals.sides.find_result`. With ``LABEL=RESULT``, the results of
            the same label are repeats.
        known: also list the published numbers of the benchmark.
        best: use the best evaluation of each trained policy instead of its last one.
        peer: also read all evaluations of each policy as verl-agent's.

    Raises:
        ConfigError: if a result does not exist, is passed twice, or cannot be in one table with the
            others; with ``peer``, if it cannot be read so.
        StoreError: if a file is missing or damaged.
    """
    labelled = []
    histories: dict[str, list[Side]] = {}
    for result in results:
        label, equals, name = result.rpartition("=")
        if equals and not label.strip():
            raise ConfigError(f"{result} has no label before '='. Pass LABEL=RESULT, or a result.")
        sides = find_result(name, each=best)
        labelled += [(label.strip(), side) for side in sides]
        if peer:
            histories[sides[-1].name] = find_history(name)
    return make_ledger(labelled, known=known, best=best, histories=histories)


def make_ledger(
    results: Iterable[tuple[str, Side]],
    *,
    known: bool = False,
    best: bool = False,
    histories: Mapping[str, Sequence[Side]] = FrozenDict(),
) -> Ledger:
    """Put results into one table. Results with the same identity and settings are repeats.

    Args:
        results: results, each with its label, or "" to group it by identity.
        known: also list the published numbers of the benchmark.
        best: use only the best of the results that evaluate the same trained policy, or that repeat
            the evaluation of an untrained one.
        histories: all evaluations of each result's policy in order, by the result's name, to read
            them as verl-agent's; none to leave this out.

    Raises:
        ConfigError: if a result occurs twice, the results are of different benchmarks, splits or
            declared panels, repeats differ in their settings or have no common tasks, or a history
            cannot be read as verl-agent's evaluations.
    """
    results = list(results)
    if not results:
        raise ConfigError("A table needs at least one result. Pass a run or an evaluation.")
    _check_same_tasks([side for _, side in results])
    first = results[0][1]
    policies = [_choose_best(one) for one in _group(results)] if best else _group(results)
    for policy in policies:
        _check_repeats(policy)
    rows = tuple(_unique_labels(_make_row(policy, policies[0]) for policy in policies))
    published = known_numbers(first.benchmark) if known else ()
    remarks: list[str] = []
    if histories:
        single = any(len(history) == 1 for history in histories.values())
        remarks += describe_peer_readings(first.benchmark, unchanging=single)
    if any(choice.n > 1 for policy in policies for choice in policy.choices):
        remarks.append(_HONEST_CHOICE)
    if known and not published:
        remarks.append(f"This package lists no published numbers of {first.benchmark}.")
    return Ledger(
        benchmark=first.benchmark,
        split=first.split,
        panel=next((side.panel.reference for _, side in results if side.panel), ""),
        rows=rows,
        peer=tuple(_read_as_peer(policies, rows, histories)) if histories else (),
        known=published,
        remarks=tuple(remarks),
    )


_HONEST_CHOICE = (
    "For a result without this rise, choose a checkpoint by its success on validation tasks, and "
    "report its success on test tasks, which it is evaluated on once: coevo eval RUN --split test."
)


def _group(results: Iterable[tuple[str, Side]]) -> list[_Policy]:
    """Group results by policy, in the order in which the policies first appear."""
    groups: dict[tuple[str, ...], list[Side]] = {}
    labels: dict[tuple[str, ...], str] = {}
    for label, side in results:
        how = canonical_json({**thaw(side.protocol.parts), _SEED: None})
        key = (label,) if label else ("", side.identity or side.name, how)
        groups.setdefault(key, []).append(side)
        labels.setdefault(key, label or side.policy)
    return [_Policy(labels[key], tuple(sides)) for key, sides in groups.items()]


def _choose_best(policy: _Policy) -> _Policy:
    """Keep only the best of the results that have the same origin."""
    by_origin: dict[str, list[Side]] = {}
    for side in policy.sides:
        by_origin.setdefault(side.origin, []).append(side)
    choices = tuple(choose_best(sides) for sides in by_origin.values())
    return _Policy(policy.label, tuple(choice.side for choice in choices), choices)


def choose_best(sides: Sequence[Side]) -> BestOfN:
    """Choose the result with the highest success or, in a tie, the first one.

    All must evaluate the same policy, or stages of its training, on the same tasks.
    """
    best = max(sides, key=lambda side: fmean(map(success_share, side.outcomes.values())))
    samples = [len(tries) for tries in best.outcomes.values()]
    if len(sides) == 1 or min(samples) < MIN_SAMPLES:
        return BestOfN(best, len(sides), None)
    successes = [sum(tries) for tries in best.outcomes.values()]
    rise = best_of_n_rise(successes, samples, n=len(sides), samples_per_evaluation=min(samples))
    return BestOfN(best, len(sides), rise)


def _read_as_peer(
    policies: Sequence[_Policy],
    rows: Sequence[LedgerRow],
    histories: Mapping[str, Sequence[Side]],
) -> Iterator[PeerRow]:
    """Yield each policy's readings, one for each size of an evaluation."""
    for policy, row in zip(policies, rows, strict=True):
        by_repeat = [read_as_peer(histories[side.name]) for side in policy.sides]
        for repeats in zip(*by_repeat, strict=True):
            yield PeerRow(row.label, PeerReading.mean(repeats), repeats)


def _make_row(policy: _Policy, first: _Policy) -> LedgerRow:
    """Return a policy's row, including its comparison with the first policy."""
    shares = policy.shares
    rate = success_rate([fmean(repeats) for repeats in shares.values()])
    means = _repeat_means(policy)
    low, high = mean_interval(means)
    several = len(means) > 1
    return LedgerRow(
        label=policy.label,
        results=tuple(side.name for side in policy.sides),
        tasks=rate.tasks,
        success=rate.success,
        low=rate.low,
        high=rate.high,
        means=means,
        repeat_sd=mean_and_sd(means)[1] if several else None,
        repeat_low=max(0.0, low) if several else None,
        repeat_high=min(1.0, high) if several else None,
        difference=None if policy is first else _difference(policy, first),
        notes=tuple(_notes(policy, first)),
    )


def _repeat_means(policy: _Policy) -> tuple[float, ...]:
    return tuple(fmean(of_repeat) for of_repeat in zip(*policy.shares.values(), strict=True))


def _difference(policy: _Policy, first: _Policy) -> LedgerDifference | None:
    """Return a policy's difference from the first policy; None if their tasks differ."""
    if policy.shares.keys() != first.shares.keys():
        return None
    differences = [fmean(policy.shares[id]) - fmean(first.shares[id]) for id in first.shares]
    low, high = paired_shares_interval(differences)
    mine, others = _means_by_seed(policy), _means_by_seed(first)
    ends: tuple[float | None, float | None] = (None, None)
    if len(mine) > 1 and mine.keys() == others.keys():
        paired = paired_difference([mine[seed] for seed in others], list(others.values()))
        ends = max(-1.0, paired.low), min(1.0, paired.high)
    return LedgerDifference(fmean(differences), low, high, *ends)


def _means_by_seed(policy: _Policy) -> dict[int, float]:
    """Return each repeat's success, keyed by seed; {} if a seed is unknown or repeated."""
    means = zip(policy.sides, _repeat_means(policy), strict=True)
    by_seed = {side.seed: mean for side, mean in means if side.seed is not None}
    return by_seed if len(by_seed) == len(policy.sides) else {}


def _notes(policy: _Policy, first: _Policy) -> Iterator[str]:
    """Yield the remarks on a policy's row."""
    if policy.choices:
        yield describe_choices(policy.choices)
    mine, others = policy.sides[0].protocol.parts, first.sides[0].protocol.parts
    for key in _protocol_differences(policy.sides[0], first.sides[0]):
        here, there = shorten_value(mine[key]), shorten_value(others[key])
        yield f"{key} is {here}, but {there} in the first row."
    left_out = {id for side in policy.sides for id in side.outcomes} - policy.shares.keys()
    if left_out:
        yield f"{len(left_out)} tasks are left out, because not all repeats have a result on them."
    if policy is not first and policy.shares.keys() != first.shares.keys():
        more, fewer = policy.shares.keys() - first.shares, first.shares.keys() - policy.shares
        yield (
            f"The tasks are not those of the first row ({len(more)} are only here, {len(fewer)} "
            "only there), so there is no difference. `coevo compare` uses the common tasks."
        )
    seeds = [side.seed for side in policy.sides]
    if len(set(seeds)) < len(seeds):
        yield "Some repeats have the same seed, so the interval over repeats may be too narrow."
    if all(side.trained for side in policy.sides):
        if len(seeds) == 1:
            yield "One training run: with another seed, training may give another result."
        elif len({side.origin for side in policy.sides}) == 1:
            yield "All repeats evaluate one training run, so no interval includes training seeds."


def describe_choices(choices: Sequence[BestOfN]) -> str:
    """Return a sentence that states how the best result was chosen, and with what effect."""
    if all(choice.n == 1 for choice in choices):
        return "There is only one evaluation to choose from."
    n = " and ".join(dict.fromkeys(str(choice.n) for choice in choices))
    each = f"each the best of {n}" if len(choices) > 1 else f"the best of {n}"
    chosen = f"Chosen: {each} evaluations on these tasks."
    rises = [choice.rise for choice in choices if choice.n > 1]
    known = [rise for rise in rises if rise is not None]
    if len(known) < len(rises):
        return (
            f"{chosen} By how much this choice alone raises the result cannot be told: that needs "
            f"at least {MIN_SAMPLES} episodes per task in the chosen evaluation "
            "(evaluation.samples, or coevo eval --samples)."
        )
    points = fmean(rise.points for rise in known)
    error = math.sqrt(math.fsum(rise.error**2 for rise in known)) / len(known)
    return (
        f"{chosen} This choice alone raises the result of a policy that does not change by "
        f"{points:.1f} points (simulated, ± {error:.2f})."
    )


def _unique_labels(rows: Iterable[LedgerRow]) -> Iterator[LedgerRow]:
    """Make labels unique by adding the name of a row's first result to each repeated label."""
    rows = list(rows)
    labels = [row.label for row in rows]
    for row in rows:
        several = labels.count(row.label) > 1
        yield replace(row, label=f"{row.label} ({row.results[0]})") if several else row


def _check_repeats(policy: _Policy) -> None:
    first = policy.sides[0]
    for side in policy.sides[1:]:
        if differing := _protocol_differences(side, first):
            raise ConfigError(
                f"{side.name} and {first.name} have the same label, but differ in "
                f"{', '.join(differing)}, so they are not repeats. Pass another label for one of "
                "them."
            )
    if not policy.shares:
        raise ConfigError(
            f"The repeats {', '.join(side.name for side in policy.sides)} have no tasks in common. "
            "Evaluate all of them on the same tasks."
        )
    for i, side in enumerate(policy.sides):
        for other in policy.sides[:i]:
            if side.seed == other.seed and side.outcomes == other.outcomes:
                raise ConfigError(
                    f"{other.name} and {side.name} have the same seed and the same outcomes, so "
                    "they are one result. Omit one of them, or evaluate with another seed."
                )


def _check_same_tasks(sides: Sequence[Side]) -> None:
    """Check that the results can share one table."""
    first = sides[0]
    for side in sides[1:]:
        for what in ("benchmark", "split"):
            a, b = getattr(first, what), getattr(side, what)
            if a != b:
                raise ConfigError(
                    f"{first.name} was evaluated on {a}, but {side.name} on {b}. Print a table for "
                    f"each {what}."
                )
    declared = [(side, side.panel) for side in sides if side.panel is not None]
    for side, panel in declared[1:]:
        other, wanted = declared[0]
        if panel.hash != wanted.hash:
            raise ConfigError(
                f"{other.name} was evaluated on the panel {wanted.reference}, but {side.name} was "
                f"evaluated on {panel.reference}: {describe_panel_differences(wanted, panel)}. "
                "Evaluate both on the same panel with `coevo eval … --panel`."
            )


def _protocol_differences(side: Side, other: Side) -> list[str]:
    """Return the settings, other than the seed, in which two protocols differ.

    A setting that only one of them has, such as the prompt of a language model, is left out.
    """
    parts = side.protocol.parts, other.protocol.parts
    return [
        key
        for key in side.protocol.differences(other.protocol)
        if key != _SEED and all(key in one for one in parts)
    ]
