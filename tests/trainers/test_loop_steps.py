"""The loop has each of its steps recorded as one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest

from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.evolution import Signal
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.trainers.loop import Events, Loop, LoopConfig
from tests.curricula.episodes import TRAIN
from tests.curricula.test_steps import Batches
from tests.trainers.test_loop import Counts, Flaky, Picky


class Told(Events):
    """Keeps the groups of each step."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []

    def on_groups(self, groups: Sequence[Group], signals: Sequence[Signal]) -> None:
        self.groups.append([group.id for group in groups])


def loop(curriculum: Batches, envs: EnvPool, learner: Counts, **settings: Any) -> Loop:
    return Loop(
        LoopConfig(groups_per_step=4, evaluate_every_steps=0, **settings),
        session=CurriculumSession(curriculum, group_size=2),
        agent=ScriptedAgent({task.instruction: task.solution for task in TRAIN}),
        learner=learner,
        envs=envs,
        events=Told(),
    )


def test_each_step_is_recorded_as_one_batch(envs: EnvPool) -> None:
    curriculum = Batches()
    run = loop(curriculum, envs, Counts(), max_steps=3)
    run.run()
    numbers = [[f"group-{i}" for i in range(at, at + 4)] for at in (0, 4, 8)]
    assert (curriculum.asked, curriculum.told) == ([4, 4, 4], numbers)
    assert isinstance(run.events, Told)
    assert run.events.groups == numbers


def test_resampled_groups_belong_to_the_batch_of_their_step(envs: EnvPool) -> None:
    curriculum = Batches()
    picky = Picky(*range(5))
    loop(curriculum, envs, picky, max_steps=1, max_resamples=8).run()
    assert len(picky.seen) == 4
    assert len(curriculum.asked) > 1
    assert [len(batch) for batch in curriculum.told] == [sum(curriculum.asked)]


def test_groups_of_a_failed_step_are_recorded_with_the_next_step() -> None:
    curriculum = Batches()
    run = loop(curriculum, EnvPool(Flaky(broken=1000)), Counts(), max_steps=1)
    with pytest.raises(EnvBackendError):
        run.run()
    assert curriculum.told == []
    run.envs = EnvPool(lambda: gym.make("Toy-v0"))
    run.run()
    assert [len(batch) for batch in curriculum.told] == [8]
    assert run.session.n_ready_tickets == 0


def test_study_only_steps_are_recorded_without_resampling(envs: EnvPool) -> None:
    curriculum, learner, seen = Batches(), Picky(), list[dict[str, float]]()

    class Steps(Told):
        def on_step(self, metrics: dict[str, float]) -> None:
            seen.append(metrics)

    run = loop(curriculum, envs, learner, max_steps=3, study_only_steps=2, max_resamples=8)
    run.events = Steps()
    run.run()
    assert learner.version == 1
    assert [len(batch) for batch in curriculum.told[:2]] == [4, 4]  # nothing is drawn anew
    assert seen[0]["success"] == 1.0
    assert "success_before_filter" not in seen[0]
