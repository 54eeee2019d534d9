"""The cues of a trained arm's coach, for episodes in which a policy is told them at test time."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Coach, Ticket
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Cue
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.episodes.trials import Told
from coevo_gym.run.assembly import Assembly
from coevo_gym.run.manifest import read_manifest
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder


def cues_of(folder: RunFolder, arm: str) -> Told:
    """Return what the coach of a finished arm would tell about a task, with its last memories.

    Args:
        folder: the run.
        arm: name of the arm.

    Returns:
        A function that returns the cues of the first of a group's episodes that is told any; () if
        none is.

    Raises:
        ConfigError: if the arm has no coach, or no checkpoint.
    """
    _, config = read_manifest(folder)
    assembly = Assembly(config)
    method = assembly.method(assembly.arms[arm])
    saved = Checkpoints(folder.checkpoints / arm).latest()
    if method.coach is None or saved is None:
        lacks = "coach" if method.coach is None else "checkpoint"
        raise ConfigError(
            f"The arm {arm!r} of {config.name} has no {lacks}, so it tells a policy nothing. "
            "Choose an arm whose method guides episodes, and train it to its end."
        )
    guiding = Guiding(method.coach, method.studies, method.memories)
    guiding.load_state_dict(json.loads(saved.state["loop"]))
    return told_by(method.coach, config.rollout.group_size)


def told_by(coach: Coach, group_size: int) -> Told:
    """Return what a coach tells about a task, see :func:`cues_of`."""

    def cues(task: Task) -> tuple[Cue, ...]:
        tickets = [Ticket(f"{task.id}-{n}", task, task.id, n) for n in range(group_size)]
        return _first([guidance.cues for guidance in coach.guide(tickets)])

    return cues


def _first(found: Sequence[tuple[Cue, ...]]) -> tuple[Cue, ...]:
    """Return the first cues of several episodes; nothing is stripped where nothing is trained."""
    cues = next((each for each in found if each), ())
    return tuple(cue._replace(strip=False) for cue in cues)
