"""The groups of one step of the loop, and what is learned from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import perf_counter
from typing import NamedTuple

from coevo_gym.core.errors import EnvBackendError, ModelError
from coevo_gym.core.notes import Notes
from coevo_gym.core.seams import Advantage, ClosedStep
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.episode import Fault
from coevo_gym.trainers.parts import Learner, LoopConfig, LoopState, Metrics, teaches


class Gathered(NamedTuple):
    """The groups of one step.

    Attributes:
        recorded: all that the curriculum recorded, and the signals it read.
        kept: those to learn from.
        metrics: how many of which.
    """

    recorded: ClosedStep
    kept: list[Group]
    metrics: Metrics


def teaching(groups: Sequence[Group], learner: Learner) -> list[Group]:
    """Those that teach anything.

    Some of their episodes solved the task and some did not, or the learner's advantages are not all
    0 before anything is noted about them.
    """
    judged = zip(groups, learner.advantages(groups), strict=True)
    return [group for group, values in judged if _differs(group) or teaches(values)]


def success_of(groups: Iterable[Group]) -> float:
    """Share of their episodes that solved the task; 0 without any."""
    solved = [float(t.success) for group in groups for t in group.trajectories]
    return sum(solved) / len(solved) if solved else 0.0


def study(
    guiding: Guiding,
    session: CurriculumSession,
    state: LoopState,
    groups: Sequence[Group],
    tell: Callable[[Notes], None],
) -> Notes:
    """What studies find in the groups of a step; curriculum and memories are told.

    Args:
        guiding: the studies and the memories.
        session: has recorded the groups.
        state: what it costs is added here.
        groups: all that were recorded.
        tell: told the notes before anybody makes anything of them.
    """
    found = guiding.examine(groups)
    state.count(found)
    notes = Notes(found.notes)
    if guiding.studies:
        tell(notes)
        session.note(notes)
    guiding.note(notes)
    return notes


def learn(
    config: LoopConfig,
    state: LoopState,
    learner: Learner,
    kept: Sequence[Group],
    notes: Notes,
    tell: Callable[[Sequence[Group], Sequence[Sequence[Advantage]]], None],
) -> Metrics:
    """Learn from the groups of a step, unless it is one that only studies.

    Args:
        config: how long, and how often.
        state: how far the loop has come.
        learner: who learns.
        kept: the groups.
        notes: what was noted about them.
        tell: told with which advantages they are learned from.
    """
    if studies(config, state):
        return {"success": success_of(kept), "update_s": 0.0}
    began = perf_counter()
    if hasattr(learner, "spent"):
        learner.spent = config.spent(state)
    advantages = learner.advantages(kept, notes)
    tell(kept, advantages)
    return {**learner.update(kept, advantages), "update_s": perf_counter() - began}


def studies(config: LoopConfig, state: LoopState) -> bool:
    """Whether nothing is learned in the step that is due."""
    return state.step < config.study_only_steps


def all_lost(n_episodes: int, first: Fault) -> EnvBackendError | ModelError:
    """The error that ends a run in which no episode can be finished any more."""
    kind = ModelError if isinstance(first, ModelError) else EnvBackendError
    return kind(f"All {n_episodes} episodes were lost, the first because: {first}")


def _differs(group: Group) -> bool:
    """Whether some episodes solved the task and some did not; lost ones say nothing."""
    return len({t.success for t in group.trajectories if not t.end_reason.lost}) > 1
