"""From walks to drafts to tasks that the engine has proven."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest

import coevo_gym
from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Draft, Round
from coevo_gym.core.task import Split, Task
from coevo_gym.curricula.explore.evolver import GatedEvolver
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.gates.gates import default_gates, run_gates
from coevo_gym.envs.appworld import BENCHMARK
from coevo_gym.envs.appworld.builder import replay
from coevo_gym.envs.appworld.env import AppWorldEnv
from coevo_gym.envs.appworld.moves import (
    FINISH,
    LOOKS,
    act_code,
    answer_code,
    look_code,
    sign_in_code,
)
from coevo_gym.envs.appworld.world import AppWorldVerifier
from coevo_gym.episodes.episode import trajectory_of

LIBRARY = LOOKS[0]
SEEN = [sign_in_code("spotify"), look_code(LIBRARY)]


@pytest.fixture(scope="module")
def task(root: Path) -> Task:
    return coevo_gym.tasks("appworld", "train")[0]


@pytest.fixture(scope="module")
def songs(root: Path, task: Task) -> list[dict[str, Any]]:
    """The songs in the library of whom the task serves."""
    env = gym.make("CoEvolve-AppWorld-v0", disable_env_checker=True)
    env.reset(options={"task": task})
    output = [env.step(action)[0] for action in SEEN][-1]
    env.close()
    return cast("list[dict[str, Any]]", json.loads(output))


@pytest.fixture(scope="module")
def like(songs: list[dict[str, Any]]) -> str:
    """A move that likes a song that is not liked yet."""
    return act_code(LIBRARY, LIBRARY.acts[0], songs[-1])


def draft(task: Task, actions: Sequence[str], **changes: Any) -> Draft:
    fields = {
        "benchmark": "appworld",
        "scenario": task.scenario,
        "instruction": "Like a song.",
        "world": task.world,
        "solution": tuple(actions),
        "parents": (task.id,),
    }
    return Draft.model_validate({**fields, **changes})


@pytest.fixture(scope="module")
def evolved(task: Task, like: str) -> Task:
    return BENCHMARK.build(draft(task, [*SEEN, like, FINISH]))


def test_the_changes_of_the_actions_become_the_verifier_of_the_task(
    evolved: Task, task: Task
) -> None:
    assert (evolved.split, evolved.subset, evolved.origin) == (Split.TRAIN, "evolved", "evolved")
    assert evolved.world == task.world
    verifier = cast(AppWorldVerifier, evolved.verifier)
    assert verifier.changes is not None
    assert "spotify.SongLike" in verifier.changes
    assert verifier.answer == ""
    assert Task.from_json(evolved.to_json()) == evolved


def test_an_evolved_task_is_played_like_any_other(evolved: Task, like: str) -> None:
    env = cast(AppWorldEnv, gym.make("CoEvolve-AppWorld-v0", disable_env_checker=True).unwrapped)
    observation, _ = env.reset(options={"task": evolved})
    assert "Task: Like a song." in observation
    observation, *_ = env.step("print(apis.supervisor.show_active_task()['instruction'])")
    assert observation.strip() == "Like a song."
    for action in evolved.solution:
        _, reward, terminated, _, info = env.step(action)
    assert (reward, terminated) == (1.0, True)
    assert info["appworld.tests_passed"] == info["appworld.tests_total"]
    env.close()


def test_a_replay_scores_every_prefix(evolved: Task, like: str) -> None:
    result = replay(evolved, evolved.solution)
    assert result.errors == ("",) * 4
    assert result.scores == (0.0, 0.0, 0.0, 0.0, 1.0)
    assert replay(evolved, evolved.solution) == result
    other = replay(evolved, [*evolved.solution[:2], FINISH])
    assert other.scores[-1] == 0.0
    assert other.fingerprint != result.fingerprint
    assert replay(evolved, ["print(x)"]).errors[0].endswith("NameError: name 'x' is not defined")


def test_a_solution_that_changes_more_than_required_fails(
    evolved: Task, songs: list[dict[str, Any]]
) -> None:
    more = act_code(LIBRARY, LIBRARY.acts[1], songs[0])
    assert replay(evolved, [*evolved.solution[:-1], more, FINISH]).scores[-1] == 0.0


@pytest.mark.parametrize(
    ("actions", "changes", "reason"),
    [
        (["LIKE", "FINISH"], {}, "action 1 of 2 fails: .*NameError"),
        (["SEEN", "LIKE"], {}, "do not complete the task"),
        (["SEEN", "FINISH", "LIKE"], {}, "too early, by action 3 of 4"),
        (["SEEN", "FINISH"], {}, "neither change anything nor give an answer"),
        ([], {}, "there are no actions"),
        (["print("], {}, "action 1 of 1 fails: .*Syntax error"),
        (["import subprocess"], {}, "action 1 of 1 fails: .*not allowed"),
        (["apis.supervisor.complete_task(answer=float('inf'))"], {}, "action 1 of 1 fails: .*422"),
        (["apis.supervisor.complete_task(answer=chr(0xd800))"], {}, "action 1 of 1 fails: .*422"),
        (["SEEN", "LIKE", "FINISH"], {"instruction": " "}, "instruction is empty"),
        (["SEEN", "LIKE", "FINISH"], {"scenario": "builtin/0000000"}, "the draft names scenario"),
    ],
)
def test_a_draft_that_proves_no_task_is_refused_with_a_reason(
    task: Task, like: str, actions: list[str], changes: dict[str, Any], reason: str
) -> None:
    spelled = {"SEEN": SEEN, "LIKE": [like], "FINISH": [FINISH]}
    solution = [code for action in actions for code in spelled.get(action, [action])]
    with pytest.raises(BuildError, match=f"(?s){reason}"):
        BENCHMARK.build(draft(task, solution, **changes))


def test_an_answer_that_spells_nan_or_infinity_is_text(task: Task) -> None:
    built = BENCHMARK.build(draft(task, ["apis.supervisor.complete_task(answer='Nan')"]))
    assert replay(built, built.solution).scores == (0.0, 1.0)
    assert replay(built, ["apis.supervisor.complete_task(answer='Infinity')"]).scores[-1] == 0.0


def test_a_draft_whose_replays_differ_is_rejected(task: Task) -> None:
    code = "import random\nrandom.seed()\napis.supervisor.complete_task(answer=random.random())"
    verdict = run_gates(default_gates(BENCHMARK, min_steps=1), draft(task, [code])).verdict
    assert (verdict.gate, verdict.reason) == (
        "replay",
        "two replays of the solution gave different results",
    )


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_draft_in_a_held_out_world_is_refused(split: str, like: str, root: Path) -> None:
    held_out = coevo_gym.tasks("appworld", split)[0]
    with pytest.raises(BuildError, match="is not a training task"):
        BENCHMARK.build(draft(held_out, [*SEEN, like, FINISH]))


def test_the_answer_of_the_solution_becomes_the_required_answer(
    task: Task, songs: list[dict[str, Any]]
) -> None:
    built = BENCHMARK.build(draft(task, [*SEEN, answer_code(len(songs))]))
    assert float(cast(AppWorldVerifier, built.verifier).answer) == len(songs)
    assert replay(built, [*SEEN, answer_code(len(songs) + 1)]).scores[-1] == 0.0
    assert replay(built, [FINISH]).scores[-1] == 0.0


def test_a_walk_becomes_drafts_that_can_be_built(task: Task, like: str) -> None:
    env = cast(
        AppWorldEnv,
        gym.make("CoEvolve-AppWorld-v0", max_steps=4, disable_env_checker=True).unwrapped,
    )
    env.reset(options={"task": task})
    for action in (*SEEN, look_code(LOOKS[1]), like):
        env.step(action)
    context = Context(kind="unguided", task=task)
    wish, question = BENCHMARK.drafts(trajectory_of(env), context, np.random.default_rng(0))
    env.close()
    assert "like the song" in wish.instruction.lower()
    assert "songs that I like" in question.instruction
    for candidate in (wish, question):
        built = BENCHMARK.build(candidate)
        assert replay(built, built.solution).scores[-1] == 1.0


@pytest.mark.slow
def test_an_evolution_round_without_a_model_finds_tasks(root: Path) -> None:
    native = coevo_gym.tasks("appworld", "train")
    explorer = ScriptedExplorer(BENCHMARK, rounds=3, max_steps=10)
    evolver = GatedEvolver(BENCHMARK, explorer, native=native)
    result = evolver.run(Round.unguided(4, seed=1))
    assert len(result.accepted) >= 1, [verdict.reason for verdict in result.verdicts]


FORGED = """
import base64, hashlib, hmac, json
def part(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=")
claims = {"sub": "simple_note+EMAIL", "exp": 4102444800}
parts = ({"alg": "HS256", "typ": "JWT"}, claims)
said = b".".join(part(json.dumps(one).encode()) for one in parts)
token = (said + b"." + part(hmac.digest(b"SECRET", said, hashlib.sha256))).decode()
apis.simple_note.create_note(title="a", content="b", access_token=token)
"""


@pytest.mark.parametrize("email", ["ada.nord@gmail.com", "bo.lind@gmail.com"])
def test_a_draft_with_a_forged_token_is_refused(task: Task, email: str) -> None:
    code = FORGED.replace("EMAIL", email)
    forged = draft(task, [f"exec({code!r}, globals())", FINISH])
    with pytest.raises(BuildError, match=r"(?s)action 1 of 2 fails: .*status code is 401"):
        BENCHMARK.build(forged)
