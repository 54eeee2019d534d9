"""Evaluation of what a run has saved, and of models as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from coevo_gym.core.errors import ConfigError
from coevo_gym.run.evals.carry_out import Kept, KeptInFolder, carry_out, open_database
from coevo_gym.run.evals.identity import differences, identity, in_words
from coevo_gym.run.evals.job import EvalJob, run_job
from coevo_gym.run.evals.summary import EvalSummary, summarise
from coevo_gym.run.evolving.cost import require_consent
from coevo_gym.run.progress import Progress, ProgressFile
from coevo_gym.run.table import TableRow
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder, write_json


class Silent(Progress):
    """Progress that nobody sees."""

    def phase(self, name: str, total: int, done: int = 0, *, similar: int = 0) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""

    def update(self, done: int, **facts: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""

    def say(self, text: str) -> None:
        """See :class:`~coevo_gym.run.progress.Progress`."""


SILENT: Progress = Silent()


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
    return evaluate_unkept(job, progress or SILENT).row


def evaluate_unkept(job: EvalJob, progress: Progress, *, agreed: bool = False) -> EvalSummary:
    """Evaluate, and keep nothing; see :func:`evaluate_in` for ``agreed``."""
    if not agreed:
        require_consent(job.estimates())
    kept = Kept()
    try:
        carry_out(job, kept, progress)
    finally:
        job.close()
    return summarise(job, kept.lines)


def evaluate_in(
    folder: EvalFolder,
    job: EvalJob,
    progress: Progress,
    *,
    overwrite: bool = False,
    agreed: bool = False,
    begun: Callable[[int, int], None] = lambda done, total: None,
) -> EvalSummary:
    """Evaluate into a folder, or go on with what is there of the same evaluation.

    However it ends, what came to an end is kept; the same call goes on. Episodes that were lost
    are tried again by it.

    Args:
        folder: where to; made if it is not there.
        job: what to evaluate.
        progress: what a person sees.
        overwrite: delete what is there first.
        agreed: whether the user has agreed to what the policy's endpoint may cost.
        begun: called with how many episodes are done already, and of how many.

    Raises:
        ConfigError: if another evaluation is there, or it may cost money and ``agreed`` is False.
        StoreError: if it is in use, damaged, or cannot be written.
    """
    if not agreed:
        require_consent(job.estimates(0 if overwrite else len(folder.lines())))
    with (
        opened(folder, job, progress, overwrite=overwrite) as kept,
        ProgressFile(progress, folder.path, "eval", folder.path.name) as told,
    ):
        begun(len(kept.lines), len(job.tasks) * job.samples)
        try:
            carry_out(job, kept, told)
        finally:
            job.close()
        summary = summarise(job, kept.lines)
        write_json(folder.summary, summary.to_json())
    return summary


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
        with closing(open_database(folder.database, job)) as database:
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
