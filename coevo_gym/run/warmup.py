"""The warm-up: a policy imitates references, and goes on where it was stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from coevo_gym.agents.tiny.policy import TinyPolicy
from coevo_gym.run.assembly import Assembly, restoring
from coevo_gym.run.progress import Progress
from coevo_gym.run.stop import Stopped
from coevo_gym.run.table import WARMUP
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.trainers.demonstrations import demonstrate
from coevo_gym.trainers.sft import Imitation, ImitationStep, Imitator


def imitate_references(
    assembly: Assembly, folder: Path, progress: Progress, stop: Callable[[], bool]
) -> Imitation | None:
    """Let the policy of a run imitate references.

    An epoch of a language model may take many minutes, so its progress is reported after each step
    of the optimiser, and its state is saved after each epoch. All epochs of the tiny policy take
    seconds: they are one line, and saved only when they are stopped.

    Args:
        assembly: the parts of the run.
        folder: where the state is saved between epochs. A call that finds one there goes on from
            it; it plays the references again, to have the same demonstrations.
        progress: what a person sees.
        stop: whether to stop; asked between epochs.

    Returns:
        How it went; None if there is no task to imitate.

    Raises:
        Stopped: if ``stop`` said so; what is done is saved.
        StoreError: if the state cannot be saved, or the saved one does not fit.
    """
    tasks, policy, config = assembly.warmup_tasks(), assembly.policy, assembly.config
    slow, epochs = config.policy.kind != "tiny", config.warmup.max_epochs
    if slow and tasks:
        progress.phase("demonstrations", total=len(tasks))
    else:
        progress.phase(WARMUP, total=epochs)
    if not tasks:
        progress.update(epochs, tasks="0")
        return None
    with closing(assembly.envs()) as envs:
        demonstrations = demonstrate(
            tasks,
            envs,
            assembly.benchmark,
            assembly.agent(policy),
            seed=assembly.seed("demonstrations"),
        )
    if isinstance(policy, TinyPolicy):
        policy.fit_words(demonstrations.texts)
    imitator = Imitator(policy, demonstrations, config.warmup, seed=assembly.seed("imitation"))
    checkpoints = Checkpoints(folder, keep=1)
    saved = checkpoints.latest()
    if saved is not None:
        with restoring(saved, policy):
            policy.load_state_dict(saved.state["policy"])
            imitator.load_state_dict(saved.state["imitator"])
        del saved  # its copy of the weights and their moments is not needed any more

    def save() -> None:
        state = {"policy": policy.state_dict(), "imitator": imitator.state_dict()}
        checkpoints.save(len(imitator.losses), state)

    total = epochs
    if slow:
        progress.update(len(tasks), env_steps=f"{demonstrations.env_steps:,}")
        total = epochs * imitator.steps_per_epoch
        progress.phase(WARMUP, total, len(imitator.losses) * imitator.steps_per_epoch)
    while not (imitator.over or stop()):
        imitator.epoch(_reporting(imitator, progress) if slow else None)
        if slow:
            save()
    if stop():
        if not slow:
            save()
        raise Stopped
    progress.update(total, tasks=str(len(tasks)))
    return imitator.finish()


def _reporting(imitator: Imitator, progress: Progress) -> Callable[[ImitationStep], None]:
    """Return what reports the steps of the epoch that begins now."""
    done, begun = len(imitator.losses), time.monotonic()
    facts = {"epoch": f"{done + 1} of {imitator.config.max_epochs}"}
    if imitator.watched != imitator.losses:  # some tasks are held out
        facts["watched_loss"] = f"{imitator.watched[-1]:.3f}"

    def report(at: ImitationStep) -> None:
        rate = at.tokens / max(time.monotonic() - begun, 1e-9)
        progress.update(
            done * imitator.steps_per_epoch + at.step,
            **facts,
            loss=f"{at.loss:.3f}",
            speed=f"{rate:,.0f} tokens/s",
        )

    return report
