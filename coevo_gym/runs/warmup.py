"""The warm-up phase, which trains a policy to imitate solutions. It can resume between steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from coevo_gym.agents.tiny.policy import TinyPolicy
from coevo_gym.runs.assembly import Assembly, raise_restore_errors
from coevo_gym.runs.progress_reports import ProgressSink
from coevo_gym.runs.stop import Stopped
from coevo_gym.runs.table import WARMUP
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.trainers.demonstrations import demonstrate
from coevo_gym.trainers.sft import Imitation, ImitationStep, Imitator


def imitate_references(
    assembly: Assembly, folder: Path, progress: ProgressSink, stop: Callable[[], bool]
) -> Imitation | None:
    """Train a run's policy to imitate reference solutions.

    An epoch of a language model may take many minutes, so its progress is reported after each
    optimiser step, and its state is saved after each epoch. The tiny policy takes seconds for all
    epochs: its progress is one line, and it is saved only when the user stops it. A stop takes
    effect before the next optimiser step, and the state is saved then. A call that finds a state in
    the folder continues from it, after playing the references again to collect the same
    demonstrations.

    Returns:
        The results; None if there are no tasks to imitate.

    Raises:
        Stopped: if ``stop`` returned True; finished work is saved.
        StoreError: if the state cannot be saved, or a saved state does not fit.
    """
    tasks, policy, config = assembly.warmup_tasks(), assembly.policy, assembly.config
    slow, epochs = config.policy.kind != "tiny", config.warmup.max_epochs
    if slow and tasks:
        progress.begin_phase("demonstrations", total=len(tasks))
    else:
        progress.begin_phase(WARMUP, total=epochs)
    if not tasks:
        progress.update(epochs, tasks="0")
        return None
    with closing(assembly.make_env_pool()) as envs:
        demonstrations = demonstrate(
            tasks,
            envs,
            assembly.benchmark,
            assembly.agent(policy),
            seed=assembly.seed("demonstrations"),
        )
    if isinstance(policy, TinyPolicy):
        policy.fit_word_weights(demonstrations.texts)
    imitator = assembly.make_imitator(demonstrations)
    checkpoints = Checkpoints(folder, keep=1)
    saved = checkpoints.load_latest()
    if saved is not None:
        with raise_restore_errors(saved, policy):
            policy.load_state_dict(saved.state["policy"])
            imitator.load_state_dict(saved.state["imitator"])
        del saved  # its copy of weights and optimiser state is no longer needed

    def save() -> None:
        state = {"policy": policy.state_dict(), "imitator": imitator.state_dict()}
        checkpoints.save(imitator.steps, state)

    total = epochs
    if slow:
        progress.update(len(tasks), env_steps=f"{demonstrations.env_steps:,}")
        total = epochs * imitator.steps_per_epoch
        progress.begin_phase(WARMUP, total, imitator.steps)
    while not (imitator.is_over or stop()):
        imitator.run_epoch(_make_reporter(imitator, progress) if slow else None, stop)
        if slow and not stop():
            save()
    if stop():
        save()
        raise Stopped
    progress.update(total, tasks=str(len(tasks)))
    return imitator.finish()


def _make_reporter(imitator: Imitator, progress: ProgressSink) -> Callable[[ImitationStep], None]:
    """Return a callback that reports progress within the epoch being started or resumed."""
    epoch, begun = len(imitator.losses) + 1, time.monotonic()
    facts = {"epoch": f"{epoch} of {imitator.config.max_epochs}"}
    if imitator.watched != imitator.losses:  # some tasks are held out
        facts["watched_loss"] = f"{imitator.watched[-1]:.3f}"
    already = imitator.epoch_tokens

    def report(at: ImitationStep) -> None:
        rate = (at.tokens - already) / max(time.monotonic() - begun, 1e-9)
        progress.update(
            (epoch - 1) * imitator.steps_per_epoch + at.step,
            **facts,
            loss=f"{at.loss:.3f}",
            speed=f"{rate:,.0f} tokens/s",
        )

    return report
