"""The numbers of an evaluation, from the ends of its episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coevo_gym.core.stats import Rate, at_k, success_rate
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.run.evals.job import EvalJob
from coevo_gym.run.table import TableRow
from coevo_gym.store.eval_folder import EvalLine, Key


@dataclass(frozen=True)
class EvalSummary:
    """The numbers of an evaluation.

    Attributes:
        row: success, score and what training has cost, as a line of a table.
        split: which tasks.
        samples: episodes of each task.
        episodes: those that came to an end.
        lost: those that were lost to a fault, or are still to be run; they are in no number.
        scenario_success: share of scenarios all of whose episodes succeeded, of those that lost
            none; NaN without any.
        steps: mean env steps of an episode.
        end_reasons: how many episodes ended for which reason.
        pass_at: pass@k for several k up to ``samples``: how likely one of k episodes succeeds
            (unbiased), over the tasks with at least k episodes.
        types: by kind and value of the tasks' tags, how much of those tasks was solved.
        prompt_tokens: tokens that a model read.
        completion_tokens: tokens that it wrote.
        usd: price of these in US dollars, as far as prices are set.
    """

    row: TableRow
    split: str
    samples: int
    episodes: int
    lost: int
    scenario_success: float
    steps: float
    end_reasons: Mapping[str, int]
    pass_at: Mapping[int, float]
    types: Mapping[str, Mapping[str, Rate]]
    prompt_tokens: int
    completion_tokens: int
    usd: float

    def to_json(self) -> dict[str, Any]:
        """It as one JSON object, the table's row at its top."""
        found = asdict(self)
        row = found.pop("row")
        of_models = {key: found.pop(key) for key in ("prompt_tokens", "completion_tokens", "usd")}
        pass_at = {str(k): value for k, value in found.pop("pass_at").items()}
        return {**row, **found, "pass_at": pass_at, "evaluation": of_models}


def summarise(job: EvalJob, lines: Mapping[Key, EvalLine]) -> EvalSummary:
    """Count an evaluation's episodes, in the order of its tasks.

    Raises:
        ValueError: if none came to an end.
    """
    of_task = {
        task.id: [lines[key] for s in range(job.samples) if (key := (task.id, s)) in lines]
        for task in job.tasks
    }
    tried = [found for found in of_task.values() if found]
    episodes = [line for found in tried for line in found]
    rate = rate_of(tried)
    return EvalSummary(
        row=TableRow(
            name=job.policy,
            success=rate.success,
            low=rate.low,
            high=rate.high,
            score=_mean([_mean([line.score for line in found]) for found in tried]),
            n_tasks=len(tried),
            env_steps=job.env_steps,
        ),
        split=job.split,
        samples=job.samples,
        episodes=len(episodes),
        lost=len(of_task) * job.samples - len(episodes),
        scenario_success=_scenario_success(job, of_task),
        steps=_mean([line.steps for line in episodes]),
        end_reasons=dict(sorted(Counter(line.end_reason for line in episodes).items())),
        pass_at=pass_at(tried, job.samples),
        types=by_type(tried),
        prompt_tokens=sum(line.prompt_tokens for line in episodes),
        completion_tokens=sum(line.completion_tokens for line in episodes),
        usd=math.fsum(line.usd for line in episodes),
    )


def rate_of(tried: Sequence[Sequence[EvalLine]]) -> Rate:
    """How much of some tasks was solved; each has at least one episode."""
    return success_rate([_mean([float(line.success) for line in found]) for found in tried])


def by_type(tried: Sequence[Sequence[EvalLine]]) -> dict[str, dict[str, Rate]]:
    """How much of the tasks of each type was solved, by kind and value of their tags."""
    of_tag: dict[str, list[Sequence[EvalLine]]] = {}
    for found in tried:
        for tag in found[0].tags:
            of_tag.setdefault(tag, []).append(found)
    types: dict[str, dict[str, Rate]] = {}
    for tag in sorted(of_tag):
        types.setdefault(kind_of_tag(tag), {})[value_of_tag(tag)] = rate_of(of_tag[tag])
    return types


def pass_at(tried: Sequence[Sequence[EvalLine]], samples: int) -> dict[int, float]:
    """pass@k for several k up to ``samples``; {} where each task was tried once."""
    if samples < 2:
        return {}
    powers = [2**i for i in range(samples.bit_length()) if 2**i < samples]
    found = {}
    for k in [*powers, samples]:
        outcomes = [[int(line.success) for line in lines] for lines in tried if len(lines) >= k]
        if outcomes:
            found[k] = at_k(outcomes, k).passed
    return found


def _scenario_success(job: EvalJob, of_task: Mapping[str, Sequence[EvalLine]]) -> float:
    of_scenario: dict[str, list[Sequence[EvalLine]]] = {}
    for task in job.tasks:
        of_scenario.setdefault(task.scenario, []).append(of_task[task.id])
    whole = [
        all(line.success for found in each for line in found)
        for each in of_scenario.values()
        if all(len(found) == job.samples for found in each)
    ]
    return _mean([float(solved) for solved in whole])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan
