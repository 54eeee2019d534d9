"""A small real run and an evaluation of it: what pages are made and tested with.

    python -m tests.view.sample FOLDER    makes FOLDER/runs/small and FOLDER/evals/small-val

Two arms on the built-in shop, four steps each, with a round of evolution; every episode is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coevo_gym.runs.config import load_config
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_run_job
from coevo_gym.runs.progress_reports import SILENT
from coevo_gym.runs.stop import StopRequest
from coevo_gym.runs.train import train
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RUNS, RunFolder

RUN, EVAL = "small", "small-val"
SETS = [
    f"name={RUN}",
    "store.record=all",
    "warmup.n_tasks=30",
    "curriculum.initial_size=8",
    "curriculum.growth.every_groups=8",
    "curriculum.growth.max_contexts=6",
    "curriculum.growth.drafts=12",
    "rollout.group_size=4",
    "loop.max_env_steps=none",
    "loop.max_steps=5",
    "loop.groups_per_step=6",
    "loop.evaluate_every_steps=2",
    "evaluation.n_tasks=12",
]


def make(folder: Path) -> Path:
    """Make the run and the evaluation in a folder, unless they are there; returns the folder."""
    with _change_folder(folder):
        run = RunFolder(RUNS / RUN)
        if not run.summary.is_file():
            resolved = load_config("quickstart", sets=SETS, environ={})
            train(run, resolved, SILENT, StopRequest(), overwrite=True)
        evaluated = EvalFolder.by_name(EVAL)
        if not evaluated.summary.is_file():
            evaluate_job(make_run_job(run, None, "val", samples=2), folder=evaluated)
    return folder


@contextmanager
def _change_folder(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


if __name__ == "__main__":
    print(make(Path(sys.argv[1])))
