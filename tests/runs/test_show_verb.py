"""``coevo show`` prints an episode in a terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coevo_gym.store.eval_folder import EvalFolder
from tests.runs.conftest import Coevo
from tests.view.test_data_export import evaluated

EVALUATE = ("eval", "toy", "--policy=random", "--set=evaluation.n_tasks=6", "--name=toyed")


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path


def test_an_episode_is_printed_step_by_step_with_its_verdict(coevo: Coevo, tmp_path: Path) -> None:
    coevo(*EVALUATE)
    line, trajectory = next(EvalFolder(tmp_path / "evals" / "toyed").read_episodes())
    output = coevo("show", "toyed", line.id[:12])
    assert output.startswith(f"{line.name}: {'solved' if line.success else 'not solved'}")
    for number, step in enumerate(trajectory.steps, start=1):
        assert f"step {number}: action" in output
        assert step.action in output
    assert "Evaluation data (val split), for viewing only" in output
    assert f"score {line.score:.2f}, {line.end_reason}" in output
    assert coevo("show", "toyed", line.name) == output
    assert json.loads(coevo("show", "toyed", f"{line.id}.0", "--json"))["id"] == f"{line.id}.0"


def test_the_system_message_and_answers_of_a_language_model_are_printed(
    coevo: Coevo, tmp_path: Path
) -> None:
    folder, server = evaluated(tmp_path, n=2, **{"policy.chat.style": "openai"})
    line, trajectory = next(folder.read_episodes())
    output = coevo("show", "asked", line.name)
    assert server.bodies[0]["messages"][0]["content"].splitlines()[0] in output
    assert "step 1 (turn 1): user message" in output
    assert "step 1 (turn 1): action" in output
    assert trajectory.transcript is not None
    tools = [tool for text in trajectory.transcript.tools for tool in json.loads(text)]
    assert tools
    assert all(f"{tool['function']['name']}(" in output for tool in tools)


def test_wrong_names_say_what_to_choose(coevo: Coevo, tmp_path: Path) -> None:
    coevo(*EVALUATE)
    output = coevo("show", "toyed", "nosuch", code=2)
    assert "In toyed, there is no episode 'nosuch'. Choose one of:" in output
    assert "6 episodes match ''" in coevo("show", "toyed", "", code=2)
    assert "Did you mean 'toyed'" in coevo("show", "toyd", "x", code=2)
