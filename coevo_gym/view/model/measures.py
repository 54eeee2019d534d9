"""Metrics of a whole run: training, evolution, costs, and episode lengths."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from coevo_gym.core.errors import CoevoError, StoreError
from coevo_gym.core.spend import NO_USAGE, Usage
from coevo_gym.core.waiting import forbid_setup
from coevo_gym.curricula.metrics import cross_table, round_time_share, similarity_histogram
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.curricula.pool.growing import diversity
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evals.final import final_scores
from coevo_gym.runs.evolving.answers import count_answers, unusable_answer_warnings
from coevo_gym.runs.table import RANDOM, WARMUP, final_columns
from coevo_gym.view.collection import Line, ShownRun, raise_as_damaged
from coevo_gym.view.model.rounds import RoundRow, distinct_rounds, rounds_of
from coevo_gym.view.rows import Shape


class ArmMeasures(Shape):
    """Metrics of an arm's training, and the costs and results of its evolution rounds.

    Attributes:
        arm: name of the arm.
        numbers: the latest value of each curriculum metric, by name without the prefix
            ``curriculum.``, and of ``gradient_tokens`` and ``gradient_share``; null if it is not
            finite.
        signals: number of signals emitted in the arm; the sum of its ``ArmRow.signals``.
        rounds: number of rounds of evolution, without the round that found D_0.
        round_time: share of the arm's wall time spent in these rounds; null without rounds.
    """

    arm: str
    numbers: dict[str, float | None]
    signals: int
    rounds: int
    round_time: float | None


class PurposeUsage(Shape):
    """The model requests made for one purpose, with their token counts and cost.

    Attributes:
        arm: name of the arm; ``D_0`` for the first task set, which all arms share.
        purpose: purpose of the requests.
        usage: requests, tokens and cost, and how many answers were used.
    """

    arm: str
    purpose: str
    usage: Usage


class Lengths(Shape):
    """The episode lengths in a policy's last evaluation on held-out tasks.

    Attributes:
        policy: name of the arm or baseline.
        solved: env steps of each successful episode.
        failed: env steps of each failed episode.
    """

    policy: str
    solved: tuple[int, ...]
    failed: tuple[int, ...]


class CrossRow(Shape):
    """Counts of held-out tasks solved by both arms, by only one, or by neither.

    Attributes:
        baseline: name of the first arm.
        ours: name of the last arm.
        both: number of tasks solved by both.
        only_baseline: number of tasks solved only by ``baseline``.
        only_ours: number of tasks solved only by ``ours``.
        neither: number of tasks solved by neither.
    """

    baseline: str
    ours: str
    both: int
    only_baseline: int
    only_ours: int
    neither: int


class RunMeasures(Shape):
    """Metrics of a whole run.

    Attributes:
        arms: training and evolution, one row per arm with at least one step.
        cross: outcomes of each arm and the last arm on the same tasks, at their latest evaluations.
        final: success rates on the final tasks, by column and policy; empty if the run scores none.
        lengths: episode lengths of the last evaluation of each policy, if stored.
        usage: model usage in rounds, by arm and purpose.
        warmup_loss: loss of each imitation step before training; null if it is not finite.
    """

    arms: tuple[ArmMeasures, ...]
    cross: tuple[CrossRow, ...]
    final: dict[str, dict[str, float]]
    lengths: tuple[Lengths, ...]
    usage: tuple[PurposeUsage, ...]
    warmup_loss: tuple[float | None, ...]


class ArmTaskSet(Shape):
    """The diversity of an arm's tasks per round.

    Attributes:
        arm: name of the arm.
        self_similarity: SR@5 of the first task set and of the pool after each later round: the mean
            cosine of a task to its 5 nearest tasks; null if undefined.
        distance: ED_rel after each round: the energy distance of the evolved tasks from the first
            task set; null if undefined.
    """

    arm: str
    self_similarity: tuple[float | None, ...]
    distance: tuple[float | None, ...]


class Similarity(Shape):
    """The similarity of a set of tasks to the held-out tasks.

    Attributes:
        label: name of the set, such as ``D_0``.
        counts: number of tasks by highest cosine to a held-out task, in equal bins over [0, 1].
    """

    label: str
    counts: tuple[int, ...]


class TaskSet(Shape):
    """A comparison of the task sets that arms evolved, based on the words in task instructions.

    Attributes:
        arms: one entry per arm with evolution rounds.
        similarity: similarity of the first task set and of each arm's evolved tasks to the held-out
            tasks; empty if the benchmark is not installed.
    """

    arms: tuple[ArmTaskSet, ...]
    similarity: tuple[Similarity, ...]


FIRST = "D_0"
"""Name of the first task set, which all arms share."""
_CURRICULUM = "curriculum."
_LEARNED = ("gradient_tokens", "gradient_share")


def run_measures(run: ShownRun) -> RunMeasures:
    """Compute the metrics of a run so far.

    Raises:
        Damaged: if the run cannot be read.
    """
    config, lines = run.config, run.metric_lines
    rounds = {arm: rounds_of(run, arm) for arm in config.arms}
    warmup = next((line for line in lines if line["event"] == "warm-up"), {})
    return RunMeasures(
        arms=tuple(_arm_measures(run, rounds)),
        cross=tuple(_cross_rows(config, lines)),
        final=_final_columns(run),
        lengths=tuple(_episode_lengths(run)),
        usage=usage_by_purpose(rounds),
        warmup_loss=tuple(map(_finite_or_none, warmup.get("losses", ()))),
    )


def usage_by_purpose(rounds: Mapping[str, Sequence[RoundRow]]) -> tuple[PurposeUsage, ...]:
    """Return each arm's model usage, by purpose. The first task set is counted once."""
    totals: dict[tuple[str, str], Usage] = {}
    for row in distinct_rounds(rounds):
        for purpose, used in row.usage.items():
            key = (FIRST if row.first else row.arm, purpose)
            totals[key] = totals.get(key, NO_USAGE) + used
    return tuple(
        PurposeUsage(arm=arm, purpose=purpose, usage=used)
        for (arm, purpose), used in totals.items()
    )


def answer_warnings(usage: Sequence[PurposeUsage]) -> Iterator[str]:
    """Yield a warning for each type of question (such as judging) that got few usable answers."""
    asked_by: dict[str, dict[str, Mapping[str, int]]] = {}
    for row in usage:
        asked_by.setdefault(row.arm, {}).update(count_answers({row.purpose: row.usage}))
    return unusable_answer_warnings(asked_by)


def _arm_measures(run: ShownRun, rounds: Mapping[str, Sequence[RoundRow]]) -> Iterator[ArmMeasures]:
    fired = dict(run.query_rows("SELECT arm, count(*) FROM signals GROUP BY arm"))
    for arm, rows in rounds.items():
        steps = list(run.arm_metrics(arm).values())
        if not steps:
            continue
        later = [row for row in rows if not row.first]
        yield ArmMeasures(
            arm=arm,
            numbers={
                name.removeprefix(_CURRICULUM): _finite_or_none(value)
                for line in steps
                for name, value in line.items()
                if name.startswith(_CURRICULUM) or name in _LEARNED
            },
            signals=fired.get(arm, 0),
            rounds=len(later),
            round_time=_round_time_share(later, steps) if later else None,
        )


def _round_time_share(rounds: Sequence[RoundRow], steps: Sequence[Line]) -> float:
    """Return the share of an arm's running time that was spent on evolution rounds.

    For a round that ran concurrently with training, only the waiting time counts.
    """
    in_rounds = sum(row.seconds for row in rounds)
    if all("round_s" in line for line in steps):
        in_rounds = sum(line["round_s"] for line in steps)
    training = sum(line.get("rollout_s", 0.0) + line.get("update_s", 0.0) for line in steps)
    return round_time_share(len(rounds), in_rounds / len(rounds), training + in_rounds)


def _cross_rows(config: RunConfig, lines: Sequence[Line]) -> Iterator[CrossRow]:
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


def _final_columns(run: ShownRun) -> dict[str, dict[str, float]]:
    try:
        return final_columns(final_scores(run.folder))
    except StoreError:
        return {}  # there are no metrics yet


def _episode_lengths(run: ShownRun) -> Iterator[Lengths]:
    with raise_as_damaged():
        reader = run.reader
        for policy in (RANDOM, WARMUP, *run.config.arms):
            if steps := reader.evaluation_steps(policy):
                ends = reader.evaluation(policy, steps[-1])
                yield Lengths(
                    policy=policy,
                    solved=tuple(end.steps for end in ends if end.success),
                    failed=tuple(end.steps for end in ends if not end.success),
                )


def _finite_or_none(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


class AskedTasks(NamedTuple):
    """A task's id and instruction."""

    id: str
    text: str


def task_set_comparison(run: ShownRun) -> TaskSet:
    """Return a comparison of the task sets of all arms that have evolution rounds.

    Raises:
        Damaged: if the run cannot be read.
    """

    def compare() -> TaskSet:
        arms = _tasks_by_arm(run)
        return _compare_task_sets(arms, _held_out_tasks(run) if arms else ())

    return run.get_or_make("task set", compare)


def _tasks_by_arm(run: ShownRun) -> dict[str, list[list[AskedTasks]]]:
    """Return each evolving arm's tasks: the first task set, then the new tasks of each round."""
    texts = dict(run.query_rows("SELECT id, instruction FROM tasks"))
    rounds = "SELECT arm, round_id FROM rounds ORDER BY rowid"
    by_arm: dict[str, dict[str, list[AskedTasks]]] = {}
    for arm, round_id in run.query_rows(rounds):
        by_arm.setdefault(arm, {})[round_id] = []
    tasks = "SELECT DISTINCT arm, round_id, task_id FROM lineage"
    for arm, round_id, id in run.query_rows(tasks):
        if id in texts and round_id in by_arm.get(arm, {}):
            by_arm[arm][round_id].append(AskedTasks(id, texts[id]))
    sets = {arm: list(of.values()) for arm, of in by_arm.items()}
    return {arm: of for arm, of in sets.items() if len(of) > 1}


def _held_out_tasks(run: ShownRun) -> Sequence[AskedTasks]:
    """Return the tasks used to compare arms, or () if the benchmark is not installed."""
    config = run.config

    def read() -> tuple[AskedTasks, ...]:
        try:
            with forbid_setup():
                tasks = Assembly(config, run_folder=run.folder).held_out_tasks
        except CoevoError:
            return ()
        return tuple(AskedTasks(task.id, task.instruction) for task in tasks)

    return run.get_or_make("held-out instructions", read, until=config)


def _compare_task_sets(
    arms: Mapping[str, list[list[AskedTasks]]], held_out: Sequence[AskedTasks]
) -> TaskSet:
    return TaskSet(
        arms=tuple(_arm_task_set(arm, sets) for arm, sets in arms.items()),
        similarity=tuple(_similarities(arms, [text for _, text in held_out])),
    )


def _arm_task_set(arm: str, sets: Sequence[Sequence[AskedTasks]]) -> ArmTaskSet:
    diversities = diversity([[task.text for task in tasks] for tasks in sets])
    return ArmTaskSet(
        arm=arm,
        self_similarity=tuple(_finite_or_none(one.self_similarity) for one in diversities),
        distance=tuple(_finite_or_none(one.distance) for one in diversities),
    )


def _similarities(
    arms: Mapping[str, Sequence[Sequence[AskedTasks]]], held_out: Sequence[str]
) -> Iterator[Similarity]:
    if not held_out:
        return
    embed = HashingEmbedder()
    wanted = embed(list(held_out))
    sets = {FIRST: {task for each in arms.values() for task in each[0]}}
    for arm, (_, *later) in arms.items():
        sets[f"evolved by {arm}"] = {task for each in later for task in each}
    for label, tasks in sets.items():
        if tasks:
            counts = similarity_histogram(embed([task.text for task in tasks]), wanted).counts
            yield Similarity(label=label, counts=tuple(int(n) for n in counts))
