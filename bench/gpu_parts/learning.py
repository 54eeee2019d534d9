"""Short training of a language model on ALFWorld, with an evolving and with a fixed task set.

Each arm is a separate run with half of the minutes and the same seed: warm-up by imitation, initial
tasks, GRPO. It stops after the step during which its time runs out, and its saved policy is
evaluated. Evaluation time does not count. The second arm takes at most as many env steps as the
first one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from gpu_parts.card import free
from gpu_parts.subjects import Subject
from rich.console import Console

from coevo_gym.cli.progress import RunProgress
from coevo_gym.runs.config import load_config
from coevo_gym.runs.evaluation import evaluate_policy
from coevo_gym.runs.stop import Stopped, StopRequest
from coevo_gym.runs.table import WARMUP, TableRow, table_row
from coevo_gym.runs.train import train
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder

ARMS = ("static", "coevolve")
SETTINGS = (
    "policy.kind=transformers",
    "policy.chat.max_answer_tokens=32",
    "warmup.n_tasks=300",
    "warmup.lr=2e-5",
    "warmup.batch_decisions=16",
    "warmup.max_grad_norm=1.0",
    "warmup.max_epochs=4",
    "learner.lr=2e-6",
    "learner.epochs=1",
    "learner.minibatches=2",
    "learner.microbatch_tokens=16384",
    "learner.old_logprobs=recomputed",
    "loop.evaluate_every_steps=0",
    "loop.max_env_steps=10000000",
    "store.record=none",
    "store.checkpoint_every_steps=1000",
)
"""Untuned settings on top of the preset ``alfworld``."""


class Deadline(StopRequest):
    """A callable that requests a stop when the time is up, and reports progress ten times.

    Args:
        seconds: seconds until the stop.
        tell: prints a progress message.
    """

    def __init__(self, seconds: float, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._seconds, self._tell = seconds, tell
        self._begun, self._tenths = monotonic(), 0

    def __call__(self) -> bool:
        """Return True if the run should stop after the current step."""
        passed = monotonic() - self._begun
        tenths = int(10 * min(1.0, passed / self._seconds)) if self._seconds > 0 else 10
        if tenths > self._tenths:
            self._tell(f"learn: {passed / 60:.1f} of {self._seconds / 60:.1f} minutes")
            self._tenths = tenths
        return super().__call__() or tenths == 10


def measure_learning(
    subject: Subject,
    device: str,
    minutes: float,
    sets: Sequence[str],
    folder: Path,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return one row per arm, with success on held-out tasks before and after GRPO."""
    rows: list[dict[str, Any]] = []
    spent: list[str] = []
    for arm in ARMS:
        free(device)
        given = [*SETTINGS, *spent, *sets, f"arms={arm}"]
        given += [f"policy.model.path={subject.folder}", f"policy.model.device={device}"]
        stop = Deadline(minutes * 60 / len(ARMS), tell)
        found = _arm(arm, given, stop, RunFolder(folder / arm))
        rows.append({"model": subject.name, "arm": arm, **found})
        tell(f"learn: {_said(rows[-1])}")
        if not spent and rows[-1]["env_steps"]:
            spent = [f"loop.max_env_steps={rows[-1]['env_steps']}"]
    free(device)
    return rows


def _arm(arm: str, sets: Sequence[str], stop: StopRequest, folder: RunFolder) -> dict[str, Any]:
    resolved = load_config("alfworld", sets=sets)
    over, after = True, None
    with RunProgress(Console()) as progress:
        try:
            after = train(folder, resolved, progress, stop, overwrite=True).table[-1]
        except Stopped:
            over = False
    split, last = resolved.config.evaluation.split, Checkpoints(folder.checkpoints / arm).latest()
    if not over and last is not None:
        free(
            resolved.config.policy.model.device
        )  # free the run's model before the next one is loaded
        after = evaluate_policy(folder, arm, split)
    first = Checkpoints(folder.checkpoints / WARMUP).latest()
    before = first and table_row(WARMUP, first.state["warmup"], int(first.state["env_steps"]))
    loop = json.loads(last.state["loop"])["state"] if last else {}
    return {
        "benchmark": resolved.config.benchmark.name,
        "split": split,
        "stopped_by_clock": not over,
        "steps": loop.get("step", 0),
        "env_steps": loop.get("env_steps", 0),
        "before": _numbers(before),
        "after": _numbers(after),
    }


def _numbers(row: TableRow | None) -> dict[str, float] | None:
    if row is None:
        return None
    return {"success": row.success, "low": row.low, "high": row.high, "n_tasks": row.n_tasks}


def _said(row: dict[str, Any]) -> str:
    def rate(numbers: dict[str, float] | None) -> str:
        if numbers is None:
            return "not reached"
        return f"{numbers['success']:.1%} ({numbers['low']:.1%} – {numbers['high']:.1%})"

    return (
        f"{row['arm']}, {row['steps']} steps, {row['env_steps']:,} env steps: success "
        f"{rate(row['before'])} before, {rate(row['after'])} after"
    )
