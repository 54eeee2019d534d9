"""Makes the tapes in this folder, each by a script of rules in place of a model.

    python -m tests.tapes.make [NAME …]

A test makes them again and compares. Make them anew where a prompt or what is asked has changed,
and say why in the commit.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from coevo_gym.agents.advice.tape import TapeMode
from coevo_gym.agents.scripted import RandomAgent
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Context, Round, RoundResult
from coevo_gym.core.inquiry import AnswerStore
from coevo_gym.core.seams import Policy
from coevo_gym.core.task import Split
from coevo_gym.curricula.growth.contexts import context_of
from coevo_gym.episodes import EnvPool, Finished, Runner, TrainingEpisode
from coevo_gym.prompts import load_prompt
from coevo_gym.store.answers import AnswerFile
from tests.standins import appworld, webshop
from tests.tapes.pipeline import pipeline, tape_file
from tests.tapes.standin import StandIn
from tests.tapes.training import train_on_tape
from tests.tapes.webshop import Shopper, browse

KINDS = ("forgetting", "boundary", "rare", "learnable")
N_WEAK = 16


class Tape(NamedTuple):
    """What is on a tape.

    Attributes:
        benchmark: what is explored.
        round: the round that is carried out.
        model: who answers.
        settings: of the pipeline.
    """

    benchmark: str
    round: Callable[[], Round]
    model: Callable[[], Policy]
    settings: Mapping[str, Any]


def failure_contexts(name: str, n: int, max_steps: int | None = None) -> tuple[Context, ...]:
    """Contexts of two random rollouts each, on the first training tasks."""
    benchmark = get_benchmark(name)
    tasks = benchmark.tasks(Split.TRAIN)[:n]
    agent = RandomAgent(benchmark.choices, np.random.default_rng(0))
    keywords = {} if max_steps is None else {"max_steps": max_steps}
    make_env = partial(gym.make, benchmark.env_id, disable_env_checker=True, **keywords)
    with closing(EnvPool(make_env, max_envs=1)) as envs:
        episodes = [TrainingEpisode(task, seed=0) for task in tasks for _ in range(2)]
        outcomes = list(Runner(envs).run(episodes, agent))
    rollouts = [each.record for each in outcomes if isinstance(each, Finished)]
    return tuple(
        context_of(
            KINDS[place % len(KINDS)],
            task,
            rollouts[2 * place],
            "It fails now and then.",
            contrast=rollouts[2 * place + 1].actions,
        )
        for place, task in enumerate(tasks)
    )


def _guided_round() -> Round:
    return Round(id="round-1", contexts=failure_contexts("webshop", N_WEAK), budget=64, seed=1)


def _unguided_round() -> Round:
    return Round.unguided(100, seed=1)


def _shop_policy() -> Policy:
    return StandIn(browse, webshop.propose, load_prompt("webshop").header.answer)


def _app_policy() -> Policy:
    return StandIn(appworld.busy, appworld.propose, load_prompt("appworld").header.answer)


TAPES: Mapping[str, Tape] = {
    "webshop": Tape("webshop", _guided_round, lambda: Shopper().policy(), {"max_steps": 8}),
    "webshop_first": Tape("webshop", _unguided_round, _shop_policy, {"walks": 1, "max_steps": 6}),
    "appworld_first": Tape(
        "appworld", _unguided_round, _app_policy, {"walks": 1, "max_steps": 6, "concurrency": 4}
    ),
}
"""Tapes of single rounds by name."""
OF_TRAINING = "webshop_llm"
"""The tape of a whole run, see :mod:`tests.tapes.training`."""


def run_tape(
    name: str,
    store: AnswerStore,
    mode: TapeMode,
    model: Policy | None = None,
    round: Round | None = None,
) -> RoundResult:
    """The round of a tape, or another one; ``replay`` needs no model."""
    tape = TAPES[name]
    evolver = pipeline(tape.benchmark, model, store, mode, **tape.settings)
    return evolver.run(round or tape.round())


def make(name: str, path: Path, round: Round | None = None) -> RoundResult:
    """Record a tape."""
    path.unlink(missing_ok=True)
    return run_tape(name, AnswerFile(path), "record", TAPES[name].model(), round)


def make_training_tape(path: Path) -> None:
    """Record the tape of a whole run."""
    path.unlink(missing_ok=True)
    with TemporaryDirectory() as folder:
        train_on_tape(Path(folder) / "run", path, record=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or (*TAPES, OF_TRAINING):
        if each == OF_TRAINING:
            make_training_tape(tape_file(each))
        else:
            result = make(each, tape_file(each))
            print(each, len(result.accepted), "accepted of", len(result.verdicts))
