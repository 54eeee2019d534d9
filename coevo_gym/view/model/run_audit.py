"""Audits of runs: comparisons of the tasks in training with the tasks in evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from coevo_gym.core.benchmark import Benchmark, scenarios_of, seen_subsets
from coevo_gym.core.task import Task
from coevo_gym.runs.assembly import Assembly
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evals.final import stored_name
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.table import RANDOM, WARMUP
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import EvaluatedTask, RunReader


@dataclass(frozen=True, slots=True)
class AuditedEvaluation:
    """The tasks in a policy's evaluations, compared with the tasks that it was trained on.

    Attributes:
        policy: name of the arm, or the policy after warm-up or the random policy.
        tasks: name of the evaluated task set.
        evaluations: number of evaluations.
        episodes: number of their episodes.
        distinct: number of different tasks in them.
        shared: number of these tasks that are in every one of the evaluations.
        trained: number of different tasks that the policy was trained on, warm-up included.
        same_task: evaluated tasks that are training tasks, also under another name: those with the
            same id, or with the same scenario and instruction.
        same_scenario: other evaluated tasks that share a scenario, such as a product or a room,
            with a training task.
        seen: part of ``same_scenario`` that the benchmark intends, such as the games of ALFWorld's
            valid_seen, which are set in training rooms.
    """

    policy: str
    tasks: str
    evaluations: int
    episodes: int
    distinct: int
    shared: int
    trained: int
    same_task: int
    same_scenario: int
    seen: int


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The result of an audit of a run.

    Attributes:
        run: folder of the run.
        benchmark: name of the benchmark.
        rows: one entry per policy and evaluated task set.
        warmup_tasks: number of tasks that the warm-up imitates.
    """

    run: str
    benchmark: str
    rows: tuple[AuditedEvaluation, ...]
    warmup_tasks: int


def audit_run(name: str) -> RunAudit:
    """Compare the tasks that a run was trained on with the tasks that it was evaluated on.

    Both come from the run's database, except the tasks of the warm-up, which are drawn again.

    Args:
        name: name or folder of the run.

    Raises:
        ConfigError: if there is no such run.
        StoreError: if its files are missing or damaged.
        BenchmarkNotInstalled: if the warm-up's tasks need a benchmark that is not installed.
    """
    folder = RunFolder.of(name)
    _, config = read_manifest(folder)
    assembly = Assembly(config)
    warmup = assembly.warmup_tasks() if config.warmup.max_epochs else ()
    reader = RunReader(folder.database)
    rows = _audit_policies(reader, config, assembly.benchmark, warmup)
    return RunAudit(str(folder.path), config.benchmark.name, tuple(rows), len(warmup))


def _audit_policies(
    reader: RunReader, config: RunConfig, benchmark: Benchmark, warmup: Iterable[Task]
) -> Iterator[AuditedEvaluation]:
    stored = {task.id: task for task in reader.tasks()}
    evaluated = {task.id: task for task in reader.evaluated_tasks()}
    practised: dict[str, dict[str, Task]] = {}
    for count in reader.task_counts():
        practised.setdefault(count.arm, {})[count.task_id] = stored[count.task_id]
    imitated = {task.id: task for task in warmup}
    for policy in (RANDOM, WARMUP, *config.arms):
        trained = {} if policy == RANDOM else imitated | practised.get(policy, {})
        sets: dict[str, str] = {config.evaluation.split: policy}
        sets |= {name: stored_name(policy, name) for name in config.evaluation.final_set_names}
        for tasks, stored_as in sets.items():
            steps = reader.evaluation_steps(stored_as)
            if not steps:
                continue
            each = [[one.task_id for one in reader.evaluation(stored_as, s)] for s in steps]
            ids = set().union(*each)
            same, near, seen = _count_matches(
                [evaluated[id] for id in ids], trained.values(), benchmark
            )
            yield AuditedEvaluation(
                policy=policy,
                tasks=tasks,
                evaluations=len(steps),
                episodes=sum(map(len, each)),
                distinct=len(ids),
                shared=len(set(each[0]).intersection(*each)),
                trained=len(trained),
                same_task=same,
                same_scenario=near,
                seen=seen,
            )


def _count_matches(
    evaluated: Iterable[EvaluatedTask], trained: Iterable[Task], benchmark: Benchmark
) -> tuple[int, int, int]:
    """Return the counts for the attributes ``same_task``, ``same_scenario`` and ``seen``."""
    trained = list(trained)
    ids = {task.id for task in trained}
    texts = {(task.scenario, task.instruction) for task in trained}
    scenarios = {scenario for task in trained for scenario in scenarios_of(benchmark, task)}
    same = near = seen = 0
    for task in evaluated:
        if task.id in ids or (task.scenario, task.instruction) in texts:
            same += 1
        elif task.scenario in scenarios:
            near += 1
            seen += task.subset in seen_subsets(benchmark)
    return same, near, seen
