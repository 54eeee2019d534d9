"""A person's score: episodes that stand in an evaluation's folder like those of any agent."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, EvalTrajectory
from coevo_gym.episodes.episode import Finished, Lost
from coevo_gym.episodes.evaluation import Kept, line_of, seed_of_sample
from coevo_gym.run.evals.job import EvalJob, person_job
from coevo_gym.run.evaluation import opened, to_json
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import write_json


class Scores:
    """The episodes of one person on the tasks that others are evaluated on, too.

    They are taken in the order of an evaluation, so that nobody picks the easy ones. The first
    episode of a task that comes to its end counts; one that was begun and left is written down as
    lost, and may be played again. Not for two threads at once.

    Args:
        folder: where they are kept.
        job: what is evaluated: a person, on which tasks.
        kept: the folder, opened for writing.
    """

    def __init__(self, folder: EvalFolder, job: EvalJob, kept: Kept) -> None:
        self.folder, self._job, self._kept = folder, job, kept
        self._seed = job.assembly.config.seed

    def make_env(self) -> gym.Env[str, str]:
        """An env as every agent of this evaluation is put into."""
        return self._job.assembly.make_env(self._job.split)

    def next(self, *, besides: set[str] | frozenset[str] = frozenset()) -> Task | None:
        """The next task that was not played; None if all were.

        Args:
            besides: ids of tasks to pass over, because they are being played.
        """
        played = {id for id, _ in self._kept.lines}
        waiting = (task for task in self._job.tasks if task.id not in played | besides)
        return next(waiting, None)

    def seed_of(self, task: Task) -> int:
        """The seed of the env in which a task is played, the same for every agent."""
        return seed_of_sample(self._seed, task, 0)

    def add(self, task: Task, record: EvalTrajectory) -> None:
        """Count an episode, unless its task was counted before; the last one ends the evaluation.

        Raises:
            StoreError: if it cannot be written.
        """
        line = line_of(task, 0, self._seed, Finished(0, record, len(record.steps)))
        if line.key in self._kept.lines:
            return
        self._kept.add(line, record)
        if len(self._kept.lines) == len(self._job.tasks):
            found = self._kept.evaluation(self._job.tasks, 1)
            write_json(self.folder.summary, to_json(self._job, found))

    def lose(self, task: Task, steps: int, reason: EndReason, why: str) -> None:
        """Write down an episode that was begun and did not come to its end.

        Raises:
            StoreError: if it cannot be written.
        """
        self._kept.lose(task, 0, Lost(0, reason, EnvBackendError(why), steps))

    def to_json(self) -> dict[str, Any]:
        """How far it is, and how good."""
        lines = list(self._kept.lines.values())
        solved = sum(line.success for line in lines)
        return {
            "folder": str(self.folder.path),
            "name": self.folder.path.name,
            "played": len(lines),
            "solved": solved,
            "tasks": len(self._job.tasks),
        }


@contextmanager
def open_scores(name: str, benchmark: str, split: str) -> Iterator[Scores]:
    """A person's score under a name, begun or gone on with; nobody else writes to it meanwhile.

    Args:
        name: name of the evaluation.
        benchmark: what is played.
        split: which tasks.

    Raises:
        ConfigError: if there is another evaluation of that name, or it cannot be one's name.
        StoreError: if it is in use, damaged, or cannot be written.
    """
    folder, job = EvalFolder.named(name), person_job(benchmark, split)
    with opened(folder, job) as kept:
        yield Scores(folder, job, kept)
