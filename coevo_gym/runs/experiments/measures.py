"""Measurements taken when an experiment cell has finished. Each is taken once and then stored.

| measure | what it is |
|---|---|
| `seconds` | wall time of rollouts, updates and rounds; taken for every cell |
| `solved` | one digit per held-out task that tells if it is solved; the tasks are the first set |
| | in `evaluation.final`, if there is one; taken for every cell |
| `diversity` | SR@5 and ED_rel of the pool after each round, as in the report |
| `likeness` | similarity of evolved tasks to native training tasks that were set aside |
| `transfer` | success on another benchmark |
| `subsets` | success at the last evaluation by task subset |
| `types` | success by task tag, on the tasks of the reported success |
| `at_8` | avg@8 and best@8 on these tasks |
| `react` | success and score on these tasks with a thought before each action (ReAct) |
| `trials` | the same after up to three trials with reflections on failed tasks (Reflexion) |
| `told` | the same, with avg@8 and best@8, if the prompt contains the hints that the arm's coach |
| | would give at the end of training |
| `curve` | share of successes on each held-out task at each evaluation |
| `redraw` | the last and the best evaluation, read as verl-agent's; see ``peer_reading.py`` |
| `cpu_hours` | processor time of training, exploration and evaluation after the warm-up |
| `val`, `test` | success on that split |

Rows may show the policy before training (``shows`` in a table). Then `types` and `at_8` are also
measured for this policy; `react`, `trials` and `told` are measured only for this policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.stats import SOLVED, Rate, success_at_k
from coevo_gym.core.task import Split
from coevo_gym.curricula.gates.similarity import set_aside
from coevo_gym.curricula.metrics import similarity_histogram
from coevo_gym.curricula.pool.embed import HashingEmbedder
from coevo_gym.curricula.pool.growing import diversity
from coevo_gym.envs.held_out import benchmark_of
from coevo_gym.episodes.evaluation import by_task, rates_by_type
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.final import stored_name
from coevo_gym.runs.evals.job import EvalJob, TrialRules, make_run_job
from coevo_gym.runs.evals.peer_reading import read_as_peer
from coevo_gym.runs.evals.sides import find_history
from coevo_gym.runs.evals.trials import TrialFolder, make_cue_function, run_trials_in
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.progress_reports import SILENT
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder, read_json, read_lines, write_json
from coevo_gym.store.reader import RunReader

ALWAYS = ("seconds", "solved")
FILE = "cell.json"
PARTS = ("rollout", "update", "round")
"""Parts of a run's wall time."""
REACT, TRIALS, TOLD = "react", "trials", "told"
TRANSFER = "transfer"
REDRAW = "redraw"
ONLY_BEFORE = (REACT, TRIALS, TOLD)
"""Measures that are taken only for the policy before training, if a row shows it."""
ALSO_BEFORE = ("types", "at_8")
"""Measures that are also taken for the policy before training, if a row shows it."""
_AT = 8
_EVALUATIONS = "measured"
"""Subfolder of a run for the evaluations of its measures. Interrupted ones are resumed."""


@dataclass(frozen=True)
class _FinishedRun:
    """A finished run to measure."""

    folder: RunFolder
    config: RunConfig
    arm: str
    others: Mapping[str, str]

    def read_metrics(self, event: str) -> list[dict[str, Any]]:
        rows = read_lines(self.folder.metrics)
        return [line for line in rows if line.get("event") == event and line["arm"] == self.arm]


def measure_run(
    folder: RunFolder,
    arm: str,
    wanted: Sequence[str],
    others: Mapping[str, str],
    parts: Sequence[str] = (),
) -> dict[str, Any]:
    """Return a finished run's measures, computing any that are missing.

    Args:
        folder: the folder of the run.
        arm: name of the arm.
        wanted: names of measures, in addition to those of every cell.
        others: for ``transfer``: the benchmark to test on, by the benchmark trained on; a subset of
            its test tasks may follow, as in ``appworld/test_normal``. The subset is only used for
            runs with final tasks; other runs are tested on the split that they evaluate on.
        parts: further parts of the run that rows show, see
            :attr:`~coevo_gym.runs.experiments.definition.Row.shows`.

    Returns:
        The measures by name, as stored in the run's folder; those of the policy before training are
        under ``warm-up``.

    Raises:
        ConfigError: if there is no such measure, or it cannot be taken for this run.
        StoreError: if the run cannot be read.
    """
    known = read_measures(folder)
    missing = missing_measures(known, wanted, parts)
    if missing:
        config = read_manifest(folder)[1]
        for of, name in missing:
            if name not in MEASURES:
                raise ConfigError(
                    f"Unknown measure {name!r}. Choose one of: {', '.join(MEASURES)}."
                )
            if name in ONLY_BEFORE and config.policy.kind == "tiny":
                raise ConfigError(
                    f"The measure {name!r} needs a language model, but {folder.path.name} trains "
                    "the tiny policy. Choose another --budget."
                )
            value = MEASURES[name](_FinishedRun(folder, config, of or arm, others))
            (known.setdefault(of, {}) if of else known)[name] = value
            write_json(folder.path / FILE, known)
    return known


def read_measures(folder: RunFolder) -> dict[str, Any]:
    """Return a run's stored measurements, keyed by name, or {} if there are none.

    Raises:
        StoreError: if their file is damaged.
    """
    path = folder.path / FILE
    measures: dict[str, Any] = read_json(path) if path.is_file() else {}
    return measures


def missing_measures(
    known: Mapping[str, Any], wanted: Sequence[str], parts: Sequence[str] = ()
) -> list[tuple[str, str]]:
    """Return the measures that an experiment cell lacks, as (policy, name) pairs.

    The policy is ``warm-up`` for measures of the policy before training, and "" for all others. See
    :func:`measure_run` for ``wanted`` and ``parts``.
    """
    before = known.get(WARMUP, {})
    also = [name for name in wanted if name in ALSO_BEFORE and WARMUP in parts]
    also += [name for name in ONLY_BEFORE if name in parts]
    return [
        *(("", name) for name in (*ALWAYS, *wanted) if name not in known),
        *((WARMUP, name) for name in also if name not in before),
    ]


def _measure_seconds(ended: _FinishedRun) -> dict[str, float]:
    steps = ended.read_metrics("step")
    return {part: sum(line.get(f"{part}_s", 0.0) for line in steps) for part in PARTS}


def _reported_outcomes(ended: _FinishedRun) -> dict[str, list[bool]]:
    """Return the episode outcomes behind the reported success rate, keyed by task.

    They come from the first set of final tasks, or from the last evaluation if there is none.
    """
    final = ended.config.evaluation.final_set_names
    reader = RunReader(ended.folder.database)
    policy = stored_name(ended.arm, final[0]) if final else ended.arm
    return reader.outcomes(policy, *reader.evaluation_steps(policy)[-1:])


def _measure_solved(ended: _FinishedRun) -> str:
    if ended.config.evaluation.final:
        tried = _reported_outcomes(ended).values()
        return "".join("1" if np.mean(tries) >= SOLVED else "0" for tries in tried)
    values = [line["solved"] for line in ended.read_metrics("eval") if line.get("solved")]
    return str(values[-1]) if values else ""


def _measure_diversity(ended: _FinishedRun) -> list[dict[str, float | None]]:
    """Return the pool's SR@5 (self-similarity) and ED_rel (distance from D_0) after each round."""
    rounds = RunReader(ended.folder.database).rounds(ended.arm)
    if not rounds:
        return []
    rows = list[dict[str, float | None]]()
    sets = [[task.instruction for task in applied.result.accepted] for applied in rounds]
    for number, (applied, after) in enumerate(zip(rounds, diversity(sets), strict=True)):
        numbers = {"sr": after.self_similarity, "ed": after.distance}
        known = {name: n if math.isfinite(n) else None for name, n in numbers.items()}
        n_tasks = len(applied.result.accepted)
        rows.append({"round": number, "step": applied.step, "tasks": n_tasks, **known})
    return rows


def _measure_native_similarity(ended: _FinishedRun) -> float | None:
    """Return the mean cosine similarity of evolved tasks to their nearest reserved tasks."""
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
    return float(np.mean(similarity_histogram(embed(texts), embed(others)).similarity))


def _measure_transfer(ended: _FinishedRun) -> dict[str, Any]:
    """Return the arm's and the warm-up's success rates on another benchmark's held-out tasks."""
    practised = ended.config.benchmark.name
    if practised not in ended.others:
        raise ConfigError(
            f"The measure 'transfer' needs a second benchmark for policies trained on {practised}. "
            f'Set others.{practised} = "NAME" in the table.'
        )
    other, _, subset = ended.others[practised].partition("/")
    asked = ended.config.evaluation
    split = "test" if asked.final else asked.split
    jobs = (
        make_run_job(
            ended.folder,
            name,
            split,
            samples=asked.samples,
            on=other,
            subset=subset if asked.final and subset else None,
        )
        for name in (WARMUP, ended.arm)
    )
    before, after = (evaluate_job(job).success_rate for job in jobs)
    return {"benchmark": other, "before": before, "success": after}


def _measure_success_by_subset(ended: _FinishedRun) -> dict[str, float]:
    """Return the success rate on each subset of tasks in the last evaluation."""
    reader = RunReader(ended.folder.database)
    steps = reader.evaluation_steps(ended.arm)[-1:]
    subset_of = {task.id: task.subset for task in reader.evaluated_tasks()}
    outcomes: dict[str, list[bool]] = {}
    for id, tries in reader.outcomes(ended.arm, *steps).items():
        if subset := subset_of.get(id):
            outcomes.setdefault(subset, []).extend(tries)
    return {
        subset: sum(successes) / len(successes) for subset, successes in sorted(outcomes.items())
    }


def _measure_success_by_tag(ended: _FinishedRun) -> dict[str, float]:
    """Return the success rate per tag, averaged over the tasks with that tag."""
    tags = {task.id: task.tags for task in RunReader(ended.folder.database).evaluated_tasks()}
    of_tag: dict[str, list[float]] = {}
    for id, tries in _reported_outcomes(ended).items():
        for tag in tags.get(id, ()):
            of_tag.setdefault(tag, []).append(float(np.mean(tries)))
    return {tag: float(np.mean(rates)) for tag, rates in sorted(of_tag.items())}


def _make_evaluation_job(
    ended: _FinishedRun, *, samples: int = 1, sets: Sequence[str] = ()
) -> EvalJob:
    """Create the job that evaluates a policy on the tasks used for the reported success rate."""
    asked = ended.config.evaluation
    final = asked.final_set_names[0] if asked.final else ""
    split = final if final in list(Split) else "test" if final else asked.split
    return make_run_job(ended.folder, ended.arm, split, samples=samples, final=final, sets=sets)


def _evaluation_path(ended: _FinishedRun, measure: str) -> Path:
    return ended.folder.path / _EVALUATIONS / f"{ended.arm}-{measure}"


def _measure_8_samples(ended: _FinishedRun) -> dict[str, float]:
    folder = EvalFolder(_evaluation_path(ended, "at_8"))
    evaluation = evaluate_job(_make_evaluation_job(ended, samples=_AT), folder=folder, agreed=True)
    return _avg_and_best(
        [[line.success for line in lines] for lines in evaluation.by_task.values()]
    )


def _avg_and_best(tried: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Return avg@8 and best@8 over the tasks that were played 8 times."""
    whole = [tries for tries in tried if len(tries) == _AT]
    return {
        f"{name}_at_{_AT}": n for name, n in success_at_k(whole, _AT)._asdict().items() if whole
    }


def _measure_react(ended: _FinishedRun) -> dict[str, Any]:
    sets = ["policy.chat.style=react", "policy.chat.thinking=false"]
    folder = EvalFolder(_evaluation_path(ended, REACT))
    evaluation = evaluate_job(_make_evaluation_job(ended, sets=sets), folder=folder, agreed=True)
    return _scores_to_json(evaluation.success_rate, evaluation.mean_score, evaluation.rates_by_type)


def _measure_reflexion_trials(ended: _FinishedRun) -> dict[str, Any]:
    job = replace(_make_evaluation_job(ended), trials=TrialRules())
    trials = run_trials_in(TrialFolder(_evaluation_path(ended, TRIALS)), job, SILENT, agreed=True)
    score = float(np.mean([line.score for line in trials.final_lines]))
    return _scores_to_json(
        trials.rates_by_trial[-1], score, rates_by_type([line] for line in trials.final_lines)
    )


def _measure_with_hints(ended: _FinishedRun) -> dict[str, Any]:
    trials = run_trials_in(
        TrialFolder(_evaluation_path(ended, TOLD)),
        _make_evaluation_job(ended, samples=_AT),
        SILENT,
        agreed=True,
        cues=make_cue_function(ended.folder, ended.config.arms[-1]),
    )
    tried = by_task(trials.lines).values()
    at_8 = _avg_and_best([[line.success for line in lines] for lines in tried])
    success = np.mean([np.mean([line.success for line in lines]) for lines in tried])
    score = np.mean([np.mean([line.score for line in lines]) for lines in tried])
    return _scores_to_json(float(success), float(score), rates_by_type(tried)) | {"at_8": at_8}


def _scores_to_json(
    success: float, score: float, types: Mapping[str, Mapping[str, Rate]]
) -> dict[str, Any]:
    by_tag = {
        f"{kind}:{value}": rate.success
        for kind, rates in types.items()
        for value, rate in rates.items()
    }
    return {"success": success, "score": score, "types": by_tag}


def _measure_curve(ended: _FinishedRun) -> list[dict[str, Any]]:
    """Return the step, env steps and task outcomes of each evaluation. Lost episodes are None."""
    reader = RunReader(ended.folder.database)
    split = ended.config.evaluation.split
    tasks = [task.id for task in reader.evaluated_tasks() if task.split == split]
    env_steps = {line["step"]: line["env_steps"] for line in ended.read_metrics("eval")}
    evaluated = [(0, WARMUP), *((step, ended.arm) for step in reader.evaluation_steps(ended.arm))]
    points = []
    for step, name in evaluated:
        outcomes = reader.outcomes(name, step)
        rates = [float(np.mean(outcomes[id])) if id in outcomes else None for id in tasks]
        points.append({"step": step, "env_steps": env_steps[step], "tasks": rates})
    return points


def _measure_redraw(ended: _FinishedRun) -> dict[str, dict[str, float]]:
    """Return the readings of the arm's evaluations as verl-agent's, by episodes per evaluation.

    ``rise_unchanging`` is the rise of the last evaluation alone, read as 31 evaluations.
    """
    history = find_history(f"{ended.folder.path}:{ended.arm}")
    return {
        str(one.tasks): {**one._asdict(), "rise_unchanging": alone.rise}
        for one, alone in zip(read_as_peer(history), read_as_peer(history[-1:]), strict=True)
    }


def _measure_cpu_hours(ended: _FinishedRun) -> float:
    return float(sum(line["cpu_s"] for line in ended.read_metrics("step"))) / 3600


def _make_success_measure(split: str) -> Callable[[_FinishedRun], float]:
    def measure_success(ended: _FinishedRun) -> float:
        samples = ended.config.evaluation.samples
        return evaluate_job(
            make_run_job(ended.folder, ended.arm, split, samples=samples)
        ).success_rate

    return measure_success


MEASURES: dict[str, Callable[[_FinishedRun], Any]] = {
    "seconds": _measure_seconds,
    "solved": _measure_solved,
    "diversity": _measure_diversity,
    "likeness": _measure_native_similarity,
    "transfer": _measure_transfer,
    "subsets": _measure_success_by_subset,
    "types": _measure_success_by_tag,
    "at_8": _measure_8_samples,
    REACT: _measure_react,
    TRIALS: _measure_reflexion_trials,
    TOLD: _measure_with_hints,
    "curve": _measure_curve,
    REDRAW: _measure_redraw,
    "cpu_hours": _measure_cpu_hours,
    "val": _make_success_measure("val"),
    "test": _make_success_measure("test"),
}
