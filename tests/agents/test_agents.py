from __future__ import annotations

import numpy as np
import pytest

from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.agents.scripted import RandomAgent, ScriptedAgent
from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.seams import Choice, Completion, Sampling
from coevo_gym.core.trajectory import PastStep, View

VIEW = View("Press red.", "Pressed: nothing.")
LATER = View("Press red.", "Pressed: red.", history=(PastStep("Pressed: nothing.", "press red"),))


class TestScriptedAgent:
    def test_chooses_the_action_by_the_length_of_the_history(self) -> None:
        agent = ScriptedAgent(["press red", "done"])
        assert [act.text for act in agent.act([LATER, VIEW])] == ["done", "press red"]

    def test_chooses_the_script_by_the_instruction(self) -> None:
        agent = ScriptedAgent({"Press red.": ("press red",)}, after="done")
        assert [act.text for act in agent.act([VIEW, LATER])] == ["press red", "done"]
        with pytest.raises(ConfigError, match="no script"):
            agent.act([View("Press blue.", "")])

    def test_plays_the_actions_that_a_function_returns(self) -> None:
        agent = ScriptedAgent(lambda view: view.observation.lower())
        assert agent.act([VIEW])[0].text == "pressed: nothing."

    def test_a_string_as_script_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="list of actions"):
            ScriptedAgent("done")


def test_random_agent_repeats_with_its_seed() -> None:
    def draw() -> list[str]:
        agent = RandomAgent(lambda view: "abcdef", np.random.default_rng(1))
        return [act.text for act in agent.act([VIEW] * 50)]

    assert draw() == draw()
    assert set(draw()) == set("abcdef")


def test_a_view_without_choices_raises_a_task_error() -> None:
    with pytest.raises(TaskError, match="Pressed: nothing"):
        RandomAgent(lambda view: (), np.random.default_rng(0)).act([VIEW])
    with pytest.raises(TaskError, match="Pressed: nothing"):
        ChoiceAgent(Recorder(), lambda view: ()).act([VIEW])


class Recorder:
    def __init__(self) -> None:
        self.requests: list[Choice] = []

    def generate(self, requests: list[Choice]) -> list[Completion]:  # type: ignore[override]
        self.requests += requests
        return [Completion(request.choices[-1], None) for request in requests]


def test_choice_agent_asks_its_policy_for_all_views_at_once() -> None:
    policy = Recorder()
    agent = ChoiceAgent(policy, lambda view: ("a", view.observation), Sampling(0.9))  # type: ignore[arg-type]
    acts = agent.act([VIEW, LATER])
    assert [act.text for act in acts] == ["Pressed: nothing.", "Pressed: red."]
    assert policy.requests[1] == Choice(LATER, ("a", "Pressed: red."), Sampling(0.9))
    agent.greedy().act([VIEW])
    assert policy.requests[2].sampling == Sampling(0.0)
    assert agent.sampling == Sampling(0.9)
