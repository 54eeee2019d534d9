"""Playing the episodes of an evaluation, and keeping each as soon as it is over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import ConfigError, EnvBackendError, ModelError, TaskError
from coevo_gym.core.seams import Agent
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.episodes.episode import EvalEpisode, Finished, Lost, Outcome
from coevo_gym.episodes.garbage import rare_full_collections
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import Runner
from coevo_gym.run.assembly import one_thread
from coevo_gym.run.evals.job import EvalJob
from coevo_gym.run.evals.types import evaluated_task, types_of
from coevo_gym.run.progress import Progress, episodes_ahead
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder, EvalLine, Key
from coevo_gym.store.evaluated import Evaluated
from coevo_gym.store.folder import append_line
from coevo_gym.store.progress import Cost

Ended = Outcome[EvalTrajectory]


class Kept:
    """The episodes of an evaluation, in memory.

    Attributes:
        lines: those that came to an end, in that order.
    """

    def __init__(self) -> None:
        self.lines: dict[Key, EvalLine] = {}

    def add(self, line: EvalLine, trajectory: EvalTrajectory) -> None:
        """Keep an episode that came to an end."""
        self.lines[line.key] = line

    def lose(self, line: dict[str, Any]) -> None:
        """Note an episode that was lost."""


class KeptInFolder(Kept):
    """The episodes of an evaluation, on disk as soon as each is over, and of earlier tries.

    Args:
        folder: where.
        policy: what is evaluated.
        database: of that folder, opened for writing.
    """

    def __init__(self, folder: EvalFolder, policy: str, database: RunStore) -> None:
        super().__init__()
        self.lines = folder.lines()
        self._folder, self._policy, self._database = folder, policy, database

    def add(self, line: EvalLine, trajectory: EvalTrajectory) -> None:
        """See :class:`Kept`. The line comes last: what has none is run again."""
        ended = Evaluated(
            line.id, line.success, line.score, line.end_reason, line.steps, line.sample
        )
        self._database.add_eval_episode(self._policy, 0, ended, trajectory)
        append_line(self._folder.results, line.model_dump(mode="json"))
        super().add(line, trajectory)

    def lose(self, line: dict[str, Any]) -> None:
        """See :class:`Kept`."""
        append_line(self._folder.lost, line)


def open_database(path: Path, job: EvalJob) -> RunStore:
    """The database of an evaluation's folder, which knows what its tasks ask for."""
    database = RunStore(path)
    database.add_evaluated_tasks(map(evaluated_task, job.tasks))
    return database


def carry_out(job: EvalJob, kept: Kept, progress: Progress) -> None:
    """Play what is not kept yet.

    Raises:
        EnvBackendError: if nothing ever came to an end, and the first was lost to its engine.
        ModelError: the same, lost to the model; or if an endpoint is down.
        ConfigError: if there is no task, or the policy can do nothing on another benchmark than
            its own.
    """
    tasks, total = job.tasks, len(job.tasks) * job.samples
    if not tasks:
        raise ConfigError(f"{job.source} has no {job.split} tasks to evaluate {job.policy} on.")
    wanted = {(task.id, sample) for task in tasks for sample in range(job.samples)}
    done = len(wanted & kept.lines.keys())
    progress.phase(job.policy, total=total, done=done)
    cost = sum((_cost(line) for line in kept.lines.values()), Cost())
    progress.spent(cost)
    if done == total:
        return
    progress.expect(*episodes_ahead(total - done, job.assembly.max_steps), whole=True)
    lost: list[Lost] = []
    scope = one_thread(job.assembly.config) if job.model else nullcontext()
    with scope, rare_full_collections(), closing(job.assembly.envs(job.split)) as envs:
        for task, sample, outcome in _outcomes(job, kept, envs):
            place = {"id": task.id, "sample": sample, "name": task.name}
            if isinstance(outcome, Finished):
                line = line_of(job, task, sample, outcome)
                kept.add(line, outcome.record)
                cost += _cost(line)
                progress.spent(cost)
            else:
                lost.append(outcome)
                why = {"end_reason": str(outcome.reason), "error": str(outcome.error)}
                kept.lose({**place, **why, "steps": outcome.env_steps})
            done += 1
            progress.update(done)
    if not kept.lines:
        first = lost[0].error
        kind = ModelError if isinstance(first, ModelError) else EnvBackendError
        raise kind(
            f"All {len(lost)} evaluation episodes were lost, the first because: {first}"
        ) from first
    if lost:
        progress.say(f"{len(lost)} episodes were lost to a fault and are in no number.")


def _outcomes(job: EvalJob, kept: Kept, envs: EnvPool) -> Iterator[tuple[Task, int, Ended]]:
    """What comes of each episode that is not kept yet, as it ends."""
    for sample in range(job.samples):
        waiting = [task for task in job.tasks if (task.id, sample) not in kept.lines]
        if not waiting:
            continue
        with job.playing(sample, len(job.tasks) - len(waiting)) as agent:
            try:
                for part, player in _parts(waiting, agent):
                    episodes = [EvalEpisode(task, job.seed_of(task, sample)) for task in part]
                    for outcome in Runner(envs).run(episodes, player):
                        yield part[outcome.index], sample, outcome
            except TaskError as error:
                if not job.elsewhere:
                    raise
                raise ConfigError(
                    f"{job.policy} of {job.source} cannot play "
                    f"{job.assembly.config.benchmark.name}: {error}"
                ) from error


def _parts(tasks: Sequence[Task], agent: Agent | None) -> Iterator[tuple[Sequence[Task], Agent]]:
    """Tasks with who plays them: an agent all of them, references each its own."""
    if agent is not None:
        yield tasks, agent
        return
    for task in tasks:
        yield [task], ScriptedAgent(task.solution, after="")


def _cost(line: EvalLine) -> Cost:
    tokens = line.prompt_tokens + line.completion_tokens
    return Cost(env_steps=line.steps, tokens=tokens, usd=line.usd)


def line_of(job: EvalJob, task: Task, sample: int, ended: Finished[EvalTrajectory]) -> EvalLine:
    """What is told of an episode that came to its end."""
    return EvalLine(
        id=task.id,
        sample=sample,
        name=task.name,
        scenario=task.scenario,
        tags=types_of(task),
        success=ended.record.success,
        score=ended.record.score,
        steps=ended.env_steps,
        end_reason=str(ended.record.end_reason),
        seed=job.seed_of(task, sample),
        prompt_tokens=ended.usage.prompt_tokens,
        completion_tokens=ended.usage.completion_tokens,
        usd=ended.usage.usd,
    )
