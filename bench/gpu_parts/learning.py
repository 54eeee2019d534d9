"""Short learning runs side by side, with recorded and recomputed log-probabilities."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpu_parts.subjects import Subject

from coevo_gym.store.folder import RunFolder, read_lines

SEEDS = {"cuda": (1, 2), "cpu": (1,)}
OLD_LOGPROBS = ("recorded", "recomputed")
SMALLEST = (
    *("policy.chat.max_answer_tokens=4", "policy.model.max_context=4000", "warmup.n_tasks=2"),
    *("curriculum.initial_size=2", "rollout.group_size=2", "loop.groups_per_step=1"),
    *("loop.max_env_steps=50", "evaluation.n_tasks=2"),
)
"""Settings of a run on a CPU, which only suffices to check that it runs."""
_POLL_S = 0.5


class _Run(NamedTuple):
    seed: int
    old_logprobs: str
    folder: Path
    process: subprocess.Popen[bytes]


def measure_learning(
    subject: Subject, device: str, scratch: Path, limit_s: float
) -> Iterator[dict[str, Any]]:
    """Yield a row per seed and setting: the success after imitation and at each evaluation.

    All runs share the device. Those that have not ended after ``limit_s`` seconds are stopped; what
    they have evaluated until then counts.
    """
    started = time.monotonic()
    runs = [
        _start_run(subject, device, scratch, seed, old)
        for seed in SEEDS[device]
        for old in OLD_LOGPROBS
    ]
    while any(run.process.poll() is None for run in runs):
        if time.monotonic() - started > limit_s:
            break
        time.sleep(_POLL_S)
    for run in runs:
        ended = run.process.poll()
        if ended is None:
            run.process.kill()
            run.process.wait()
        yield {
            "model": subject.name,
            "seed": run.seed,
            "old_logprobs": run.old_logprobs,
            "ended": "time limit" if ended is None else "complete" if ended == 0 else "failed",
            "success": _read_success(run.folder),
            "message": "" if ended in (None, 0) else _last_line(run.folder / "log.txt"),
        }


def _start_run(subject: Subject, device: str, scratch: Path, seed: int, old_logprobs: str) -> _Run:
    folder = scratch / f"{old_logprobs}-{seed}"
    folder.mkdir(parents=True)
    sets = [
        f"policy.model.path={subject.folder}",
        f"policy.model.device={device}",
        f"learner.old_logprobs={old_logprobs}",
        *(("policy.model.dtype=float32", *SMALLEST) if device == "cpu" else ()),
    ]
    command = [sys.executable, "-m", "coevo_gym", "experiment", "lm_first", "--rows", "static"]
    command += ["--seeds", f"{seed},", "--name", "run", *_as_options(sets)]
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.getenv("PYTHONPATH"))))
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    return _Run(seed, old_logprobs, folder, process)


def _as_options(sets: Sequence[str]) -> list[str]:
    return [part for one in sets for part in ("--set", one)]


def _read_success(folder: Path) -> list[tuple[int, float]]:
    """Return the (learner step, success) of each evaluation; the first is the warm-up's."""
    (run, *_) = (*folder.glob("runs/run/static-*"), folder)
    return [
        (line["step"], line["eval.success_rate"])
        for line in read_lines(RunFolder(run).metrics)
        if line.get("event") == "eval" and line.get("arm") == "static"
    ]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
