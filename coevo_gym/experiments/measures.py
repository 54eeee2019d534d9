"""What a table needs of a cell beyond its summary; it is measured once, and kept beside it.

| measure | what it is |
|---|---|
| `seconds` | wall time of rollouts, updates and rounds; of every cell |
| `solved` | which held-out tasks it solves, a digit each: the first tasks of `evaluation.final`, |
| | if there are any; of every cell |
| `diversity` | SR@5 and ED_rel of the pool after each round, as in the report |
| `likeness` | how near evolved tasks come to native training tasks that were set aside |
| `transfer` | success on another benchmark |
| `subsets` | success at the last evaluation by the subset of the tasks |
| `types` | success at the last evaluation by the kind of the tasks' goals |
| `curve` | share of successes on each held-out task at each evaluation |
| `cpu_hours` | processor time of training, exploration and evaluation after the warm-up |
| `val`, `test` | success on that split, too |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coevo_gym.config import RunConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import SOLVED
from coevo_gym.core.task import Split
from coevo_gym.curricula.gates.similarity import set_aside
from coevo_gym.curricula.metrics import max_similarity
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.report.task_sets import ArmTasks, spread_of
from coevo_gym.run.evals.job import run_job
from coevo_gym.run.evaluation import Silent, evaluate_policy, evaluate_unkept
from coevo_gym.run.final import stored_as
from coevo_gym.run.manifest import read_manifest
from coevo_gym.run.table import WARMUP
from coevo_gym.store.evaluated import EvaluatedTask
from coevo_gym.store.folder import RunFolder, read_json, read_lines, write_json
from coevo_gym.store.reader import RunReader

ALWAYS = ("seconds", "solved")
FILE = "cell.json"
GOAL = "goal"
"""Kind of the tags that say what sort of goal a task has."""
PARTS = ("rollout", "update", "round")
"""What wall time is spent on."""


@dataclass(frozen=True)
class _Ended:
    """A finished run to be measured."""

    folder: RunFolder
    config: RunConfig
    arm: str
    others: Mapping[str, str]

    def lines(self, event: str) -> list[dict[str, Any]]:
        found = read_lines(self.folder.metrics)
        return [line for line in found if line.get("event") == event and line["arm"] == self.arm]


def measure(
    folder: RunFolder, arm: str, wanted: Sequence[str], others: Mapping[str, str]
) -> dict[str, Any]:
    """What was measured of a finished run; what was not is measured now.

    Args:
        folder: of the run.
        arm: its arm.
        wanted: names of measures, beside those of every cell.
        others: for ``transfer``: the benchmark to try, by the one that was practised; a subset of
            its test tasks may follow, as in ``appworld/test_normal``. It is for runs with final
            tasks alone: others try the split that they evaluate on.

    Returns:
        The measures by name, as they are kept in the run's folder.

    Raises:
        ConfigError: if there is no such measure, or it cannot be taken of this run.
        StoreError: if the run cannot be read.
    """
    path = folder.path / FILE
    known: dict[str, Any] = read_json(path) if path.is_file() else {}
    missing = [name for name in (*ALWAYS, *wanted) if name not in known]
    if missing:
        ended = _Ended(folder, read_manifest(folder)[1], arm, others)
        known |= {name: _measure(name)(ended) for name in missing}
        write_json(path, known)
    return known


def _measure(name: str) -> Callable[[_Ended], Any]:
    if name not in MEASURES:
        raise ConfigError(f"There is no measure {name!r}. Choose one of: {', '.join(MEASURES)}.")
    return MEASURES[name]


def _seconds(ended: _Ended) -> dict[str, float]:
    steps = ended.lines("step")
    return {part: sum(line.get(f"{part}_s", 0.0) for line in steps) for part in PARTS}


def _solved(ended: _Ended) -> str:
    if final := ended.config.evaluation.final:
        reader, kept = RunReader(ended.folder.database), stored_as(ended.arm, final[0])
        outcomes: dict[str, list[bool]] = {}
        for episode in reader.evaluation(kept, reader.evaluation_steps(kept)[-1]):
            outcomes.setdefault(episode.task_id, []).append(episode.success)
        return "".join("1" if np.mean(tries) >= SOLVED else "0" for tries in outcomes.values())
    found = [line["solved"] for line in ended.lines("eval") if line.get("solved")]
    return str(found[-1]) if found else ""


def _diversity(ended: _Ended) -> list[dict[str, float | None]]:
    """SR@5 of the pool after each round, and ED_rel of what has joined it from D_0."""
    rounds = RunReader(ended.folder.database).rounds(ended.arm)
    if not rounds:
        return []
    first, *later = (applied.result.accepted for applied in rounds)
    rows = list[dict[str, float | None]]()
    spread = spread_of(ArmTasks(ended.arm, first, tuple(later)))
    for applied, after in zip(rounds, spread.rounds, strict=True):
        numbers = {"sr": after.likeness, "ed": after.distance}
        known = {name: n if math.isfinite(n) else None for name, n in numbers.items()}
        n_tasks = len(applied.result.accepted)
        rows.append({"round": after.round, "step": applied.step, "tasks": n_tasks, **known})
    return rows


def _likeness(ended: _Ended) -> float | None:
    """Mean cosine of each evolved task to the nearest that was set aside; None without any."""
    rounds = RunReader(ended.folder.database).rounds(ended.arm)
    texts = [
        task.instruction
        for applied in rounds
        if not applied.is_first
        for task in applied.result.accepted
    ]
    settings = ended.config.benchmark
    practised = benchmark_of(settings.name, settings.hold_out)
    native = practised.tasks(Split.TRAIN, settings.subset)
    others = [task.instruction for task in set_aside(native)[0]]
    if not texts or not others:
        return None
    embed = HashingEmbedder()
    return float(np.mean(max_similarity(embed(texts), embed(others)).similarity))


def _transfer(ended: _Ended) -> dict[str, Any]:
    """Success on another benchmark's held-out tasks, of the arm and of the warm-up."""
    practised = ended.config.benchmark.name
    if practised not in ended.others:
        raise ConfigError(
            f"On which benchmark is a policy to be tried that practised {practised}? "
            f'others.{practised} = "…" in the table says so.'
        )
    other, _, subset = ended.others[practised].partition("/")
    asked = ended.config.evaluation
    split = "test" if asked.final else asked.split
    jobs = (
        run_job(
            ended.folder,
            name,
            split,
            samples=asked.samples,
            on=other,
            subset=subset if asked.final and subset else None,
        )
        for name in (WARMUP, ended.arm)
    )
    before, after = (evaluate_unkept(job, Silent()).success_rate for job in jobs)
    return {"benchmark": other, "before": before, "success": after}


def _subsets(ended: _Ended) -> dict[str, float]:
    """Success at the last evaluation on the tasks of each subset; of tasks without one, nothing."""
    return _success_by(ended, lambda task: (task.subset,) if task.subset else ())


def _types(ended: _Ended) -> dict[str, float]:
    """Success at the last evaluation by kind of goal, such as ``goal_pick``, from tasks' tags."""
    return _success_by(
        ended,
        lambda task: (
            f"{GOAL}_{value_of_tag(tag)}" for tag in task.tags if kind_of_tag(tag) == GOAL
        ),
    )


def _success_by(ended: _Ended, parts: Callable[[EvaluatedTask], Iterable[str]]) -> dict[str, float]:
    """Return success at the last evaluation on the tasks of each part."""
    reader = RunReader(ended.folder.database)
    steps = reader.evaluation_steps(ended.arm)
    parts_of = {task.id: tuple(parts(task)) for task in reader.evaluated_tasks()}
    outcomes: dict[str, list[bool]] = {}
    for episode in reader.evaluation(ended.arm, steps[-1]) if steps else ():
        for part in parts_of.get(episode.task_id, ()):
            outcomes.setdefault(part, []).append(episode.success)
    return {part: sum(found) / len(found) for part, found in sorted(outcomes.items())}


def _curve(ended: _Ended) -> list[dict[str, Any]]:
    """Return step, env steps and each task's share of successes, None if lost, by evaluation."""
    reader = RunReader(ended.folder.database)
    split = ended.config.evaluation.split
    tasks = [task.id for task in reader.evaluated_tasks() if task.split == split]
    env_steps = {line["step"]: line["env_steps"] for line in ended.lines("eval")}
    evaluated = [(0, WARMUP), *((step, ended.arm) for step in reader.evaluation_steps(ended.arm))]
    points = []
    for step, name in evaluated:
        found: dict[str, list[bool]] = {}
        for episode in reader.evaluation(name, step):
            found.setdefault(episode.task_id, []).append(episode.success)
        rates = [float(np.mean(found[id])) if id in found else None for id in tasks]
        points.append({"step": step, "env_steps": env_steps[step], "tasks": rates})
    return points


def _cpu_hours(ended: _Ended) -> float:
    return float(sum(line["cpu_s"] for line in ended.lines("step"))) / 3600


def _on(split: str) -> Callable[[_Ended], float]:
    def success(ended: _Ended) -> float:
        samples = ended.config.evaluation.samples
        return evaluate_policy(ended.folder, ended.arm, split, samples=samples).success

    return success


MEASURES: dict[str, Callable[[_Ended], Any]] = {
    "seconds": _seconds,
    "solved": _solved,
    "diversity": _diversity,
    "likeness": _likeness,
    "transfer": _transfer,
    "subsets": _subsets,
    "types": _types,
    "curve": _curve,
    "cpu_hours": _cpu_hours,
    "val": _on("val"),
    "test": _on("test"),
}
