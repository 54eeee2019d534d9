"""Processor time that Role-Agent needs per learner step to compare predictions with observations.

A step has 128 episodes of 12 env steps with texts of 500 characters. Each similarity measure is
timed with horizons 1 and 3. The predictions are the real next texts with a tenth of their words
changed, so no model is needed.

Run: python bench/foresight.py     # 10 seconds
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from typing import get_args

from coevo_gym.core.task import Split, Task, UnknownVerifier, UnknownWorld
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.methods.role_agent.predictors import Made, Predictions, Predictor
from coevo_gym.methods.role_agent.study import Foresight
from coevo_gym.trainers.similarity import Measure

EPISODES, STEPS, CHARACTERS, SIZE = 128, 12, 500, 8
WORDS = "open shelf price mug next page size red cabinet click desk lamp you see nothing".split()  # noqa: SIM905


class Guesses(Predictor):
    """A predictor that returns the real next texts with a tenth of their words changed."""

    source = "rule"

    def __init__(self, rng: random.Random, horizon: int) -> None:
        super().__init__(horizon)
        self._rng = rng

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the next texts of each trajectory, with some words changed."""
        return Made([self._predict_texts(trajectory) for trajectory in asked])

    def _predict_texts(self, trajectory: Trajectory) -> Predictions:
        texts = [*(step.observation for step in trajectory.steps[1:]), trajectory.last_observation]
        return [
            [self._replace_words(text) for text in texts[step : step + self.horizon]]
            for step in range(len(texts))
        ]

    def _replace_words(self, text: str) -> str:
        rng = self._rng
        return " ".join(rng.choice(WORDS) if rng.random() < 0.1 else w for w in text.split())


def random_text(rng: random.Random) -> str:
    """Return a random text of :data:`CHARACTERS` characters."""
    return " ".join(rng.choice(WORDS) for _ in range(CHARACTERS))[:CHARACTERS]


def random_groups(rng: random.Random) -> list[Group]:
    """Return the solved episodes of one learner step, in groups."""
    task = Task(
        benchmark="bench",
        name="bench",
        split=Split.TRAIN,
        scenario="bench",
        instruction="",
        world=UnknownWorld(),
        verifier=UnknownVerifier(),
    )

    def episode() -> Trajectory:
        texts = [random_text(rng) for _ in range(STEPS)]
        return Trajectory(
            task_id=task.id,
            steps=tuple(Step(one, one, "act") for one in texts),
            score=1.0,
            success=True,
            end_reason=EndReason.SOLVED,
            last_observation=random_text(rng),
        )

    return [
        Group(f"g{number}", task, SIZE, tuple(episode() for _ in range(SIZE)))
        for number in range(EPISODES // SIZE)
    ]


def study_seconds(practised: Sequence[Group], measure: Measure, horizon: int) -> float:
    """Return the processor time of the study in seconds, without that of making predictions."""
    guesses = Guesses(random.Random(1), horizon)
    asked = [trajectory for group in practised for trajectory in group.trajectories]
    predictions = guesses.predict(asked, practised)
    guesses.predict = lambda asked, groups: predictions  # type: ignore[method-assign]
    study = Foresight(guesses, measure=measure)
    started = time.process_time()
    findings = study.examine(practised)
    duration = time.process_time() - started
    assert len(findings.notes) == EPISODES * STEPS
    return duration


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    practised = random_groups(random.Random(0))
    print(f"{EPISODES} episodes x {STEPS} steps x {CHARACTERS} characters")
    print("| measure | horizon | seconds |\n|---|---|---|")
    for measure in get_args(Measure):
        for horizon in (1, 3):
            print(f"| {measure} | {horizon} | {study_seconds(practised, measure, horizon):.2f} |")


if __name__ == "__main__":
    main()
