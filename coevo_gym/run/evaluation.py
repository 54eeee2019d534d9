"""Evaluation of what a run has saved, and of models as they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from typing import Any

from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.episodes.episode import Lost
from coevo_gym.episodes.evaluation import Evaluation, Kept, evaluate, evaluated_task
from coevo_gym.episodes.garbage import rare_full_collections
from coevo_gym.run.assembly import one_thread
from coevo_gym.run.evals.identity import differences, identity, in_words
from coevo_gym.run.evals.job import EvalJob, run_job
from coevo_gym.run.evolving.cost import require_consent
from coevo_gym.run.progress import Progress, ProgressFile, episodes_ahead
from coevo_gym.run.table import TableRow
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder, EvalLine
from coevo_gym.store.folder import RunFolder, append_line, write_json


class Silent(Progress):
    """Progress that nobody sees."""

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""

    def update(self, done: int, **facts: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""

    def say(self, text: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""


SILENT: Progress = Silent()


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
        """See :class:`~coevo_gym.episodes.evaluation.Kept`."""
        # The line comes last: an episode that has none is run again.
        self._database.add_eval_episode(self._policy, 0, line.ended, trajectory)
        append_line(self._folder.results, line.model_dump(mode="json"))
        self.lines[line.key] = line

    def lose(self, task: Task, sample: int, lost: Lost) -> None:
        """See :class:`~coevo_gym.episodes.evaluation.Kept`."""
        place = {"id": task.id, "sample": sample, "name": task.name}
        why = {"end_reason": str(lost.reason), "error": str(lost.error), "steps": lost.env_steps}
        append_line(self._folder.lost, {**place, **why})


def evaluate_policy(
    folder: RunFolder,
    policy: str | None,
    split: str,
    progress: Progress | None = None,
    *,
    samples: int = 1,
) -> TableRow:
    """Evaluate a policy of a run, and keep nothing; see :func:`run_job` for the arguments."""
    job = run_job(folder, policy, split, samples=samples)
    return job.row(evaluate_unkept(job, progress or SILENT))


def evaluate_unkept(job: EvalJob, progress: Progress, *, agreed: bool = False) -> Evaluation:
    """Evaluate, and keep nothing; see :func:`evaluate_in` for ``agreed``."""
    if not agreed:
        require_consent(job.estimates())
    try:
        return _evaluate(job, Kept(), progress)
    finally:
        job.close()


def evaluate_in(
    folder: EvalFolder,
    job: EvalJob,
    progress: Progress,
    *,
    overwrite: bool = False,
    agreed: bool = False,
    begun: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Evaluate into a folder, or go on with what is there of the same evaluation.

    Finished episodes are kept even after a crash; call it again to resume. Episodes that were lost
    to a fault are then tried again.

    Args:
        folder: where to; made if it is not there.
        job: what to evaluate.
        progress: what a person sees.
        overwrite: delete what is there first.
        agreed: whether the user has agreed to what the policy's endpoint may cost.
        begun: called with how many episodes are done already, and of how many.

    Raises:
        ConfigError: if another evaluation is there, it may cost money and ``agreed`` is False,
            there is no task, or the policy cannot play another benchmark than its own.
        StoreError: if it is in use, damaged, or cannot be written.
        EnvBackendError: if no episode ever finished, and the first was lost to its engine.
        ModelError: likewise, if it was lost to the model; or if an endpoint is down.
    """
    if not agreed:
        require_consent(job.estimates(0 if overwrite else len(folder.lines())))
    with (
        opened(folder, job, progress, overwrite=overwrite) as kept,
        ProgressFile(progress, folder.path, "eval", folder.path.name) as told,
    ):
        begun(len(kept.lines), len(job.tasks) * job.samples)
        try:
            found = _evaluate(job, kept, told)
        finally:
            job.close()
        write_json(folder.summary, to_json(job, found))
    return found


def _evaluate(job: EvalJob, kept: Kept, progress: Progress) -> Evaluation:
    """Play what is not kept yet."""
    total, done = len(job.tasks) * job.samples, len(kept.lines)
    if not job.tasks:
        raise ConfigError(f"{job.source} has no {job.split} tasks to evaluate {job.policy} on.")
    progress.phase(job.policy, total=total, done=done)
    cost = sum(map(_cost, kept.lines.values()), Cost())
    progress.spent(cost)
    if done == total:
        return kept.evaluation(job.tasks, job.samples)
    progress.expect(*episodes_ahead(total - done, job.assembly.max_steps), whole=True)

    def on_done(over: int) -> None:
        nonlocal cost, done
        if len(kept.lines) > done:
            cost += _cost(next(reversed(kept.lines.values())))
            progress.spent(cost)
        done = len(kept.lines)
        progress.update(over)

    scope = one_thread(job.assembly.config) if job.model else nullcontext()
    with scope, rare_full_collections(), closing(job.assembly.envs(job.split)) as envs:
        try:
            found = evaluate(
                job.players,
                job.tasks,
                envs,
                seed=job.assembly.config.seed,
                samples=job.samples,
                kept=kept,
                on_done=on_done,
            )
        except TaskError as error:
            if not job.elsewhere:
                raise
            raise ConfigError(
                f"{job.policy} of {job.source} cannot play "
                f"{job.assembly.config.benchmark.name}: {error}"
            ) from error
    if found.faults:
        progress.say(
            f"{found.faults} episodes failed on infrastructure errors and are excluded from all "
            "statistics."
        )
    return found


def to_json(job: EvalJob, found: Evaluation) -> dict[str, Any]:
    """Return the numbers of an evaluation as one JSON object, the table's row at its top."""
    return {
        **asdict(job.row(found)),
        "split": job.split,
        "samples": job.samples,
        "episodes": len(found.lines),
        "lost": found.faults,
        "scenario_success": found.scenario_success_rate,
        "steps": found.steps,
        "end_reasons": found.end_reasons,
        "types": {
            kind: {value: asdict(rate) for value, rate in rates.items()}
            for kind, rates in found.types.items()
        },
        "pass_at": {str(k): value for k, value in found.pass_at.items()},
        "evaluation": {
            "prompt_tokens": sum(line.prompt_tokens for line in found.lines),
            "completion_tokens": sum(line.completion_tokens for line in found.lines),
            "usd": math.fsum(line.usd for line in found.lines),
        },
    }


def _cost(line: EvalLine) -> Cost:
    tokens = line.prompt_tokens + line.completion_tokens
    return Cost(env_steps=line.steps, tokens=tokens, usd=line.usd)


@contextmanager
def opened(
    folder: EvalFolder, job: EvalJob, progress: Progress = SILENT, *, overwrite: bool = False
) -> Iterator[KeptInFolder]:
    """A scope in which the episodes of an evaluation are written, and by nobody else.

    Args:
        folder: where to; made if it is not there.
        job: what is evaluated; what is there has to be of the same.
        progress: what a person sees.
        overwrite: delete what is there first.

    Raises:
        ConfigError: if another evaluation lies there.
        StoreError: if it is in use, damaged, or cannot be written.
    """
    wanted = identity(job)
    if overwrite or not folder.config.is_file():
        folder.contents()  # what is not ours is refused before a lock file is put beside it
    with folder.locked():
        if overwrite or not folder.config.is_file():
            folder.empty()
            write_json(folder.config, wanted)
        else:
            _check_same(folder, wanted, progress)
        with closing(RunStore(folder.database)) as database:
            database.add_evaluated_tasks(map(evaluated_task, job.tasks))
            database.check()
            yield KeptInFolder(folder, job.policy, database)


def _check_same(folder: EvalFolder, wanted: dict[str, object], progress: Progress) -> None:
    there = folder.read_config()
    found = differences(there, wanted)
    if found:
        raise ConfigError(
            f"{folder.path} holds another evaluation. {in_words(found)}. Choose another --name, or "
            "pass --overwrite to delete it."
        )
    before, now = there.get("git_commit", ""), wanted["git_commit"]
    if before != now or str(now).endswith("+"):
        progress.say(
            f"{folder.path} was begun with the code of {before or 'a release'}, and this is "
            f"{now or 'a release'}; --overwrite evaluates anew."
        )
