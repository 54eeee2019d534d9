"""A chat in which every observation is shown otherwise: one segment, and prompts that hold it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import gymnasium as gym
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from coevo_gym.agents.chat import ChatAgent, ChatConfig
from coevo_gym.core.seams import Act
from coevo_gym.core.task import FrozenDict, Split
from coevo_gym.core.trajectory import Cue, TokenDecision, View
from coevo_gym.episodes import EnvPool, Finished, TrainingEpisode, evaluate, run_one
from coevo_gym.prompts import parse_prompt
from coevo_gym.trainers.segments import segments
from tests.agents.test_chat_format import TEMPLATES
from tests.agents.test_stripping import CONFIGS, Drawing, format_of
from tests.toy import BENCHMARK, PROMPT

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
TELLS = parse_prompt(
    PROMPT.replace('"observation", ', '"observation", "info", ').replace(
        "{{ observation }}\n{% endblock %}",
        "{{ observation }} ({{ info.error_kind }})\n{% endblock %}",
    )
)
ANSWERS = ("<action>press red</action>", "<action>press pink</action>", "hm")
STEPS = 4


@dataclass(frozen=True)
class Remarks:
    """Adds to each text what it was never asked to add before."""

    version: str = "remarks@1"
    asked: list[View] = field(default_factory=list, compare=False)

    def show(self, view: View) -> View:
        self.asked.append(view)
        mark = f"M{len(self.asked)}M"
        info = FrozenDict({**view.info, "error_kind": f"{mark} {view.info['error_kind']}"})
        return replace(view, observation=f"{view.observation} {mark}", info=info)


class AskedTwice:
    """Has an agent act twice on the same views, and goes by the second time."""

    def __init__(self, agent: ChatAgent) -> None:
        self.agent = agent

    def act(self, views: Sequence[View]) -> list[Act]:
        self.agent.act(views)
        return self.agent.act(views)


@pytest.fixture(scope="module")
def envs() -> Iterator[EnvPool]:
    pool = EnvPool(lambda: gym.make("Toy-v0", disable_env_checker=True, max_steps=STEPS))
    yield pool
    pool.close()


@pytest.mark.parametrize("name", [*TEMPLATES])
@pytest.mark.parametrize("strip", [False, True])
def test_a_causal_episode_with_changed_observations_stays_one_segment(
    name: str, strip: bool, envs: EnvPool
) -> None:
    format_ = format_of(name)
    policy, interface = Drawing(format_, ANSWERS), Remarks()
    cue = Cue("Red is fine.", "turn", "red", strip)
    episode = TrainingEpisode(TRAIN[0], 0, cues=(cue,), interface=interface)
    outcome = run_one(episode, ChatAgent(policy, TELLS), envs)
    assert isinstance(outcome, Finished)
    decisions = [s.decision for s in outcome.record.steps if isinstance(s.decision, TokenDecision)]
    (whole,) = segments(decisions)
    assert len(decisions) == STEPS == len(interface.asked)
    assert sum(whole.sampled) == sum(len(decision.ids) for decision in decisions)
    text = format_.decode(whole.ids)
    marks = [f"M{number}M" for number in range(1, STEPS + 1)]
    assert [text.count(mark) for mark in marks] == [2] * STEPS  # in its observation and its info


@pytest.mark.parametrize("context", [*CONFIGS])
def test_the_observation_recorded_for_a_step_is_the_one_in_its_prompt(
    context: str, envs: EnvPool
) -> None:
    policy, interface = Drawing(format_of(next(iter(TEMPLATES))), ANSWERS), Remarks()
    agent = ChatAgent(policy, TELLS, CONFIGS[context])
    episode = TrainingEpisode(TRAIN[0], 0, interface=interface)
    outcome = run_one(episode, AskedTwice(agent), envs)  # type: ignore[arg-type]
    assert isinstance(outcome, Finished)
    steps = outcome.record.steps
    assert len(interface.asked) == len(steps)  # a second asking shows nothing anew
    notes = [prompt for prompt in policy.prompts if prompt.purpose == "memory"]
    prompts = [prompt for prompt in policy.prompts if prompt.purpose != "memory"]
    assert bool(notes) == (CONFIGS[context].memory == "model")
    if not notes:  # the model's own notes differ when it is asked again
        assert prompts[::2] == prompts[1::2]
    for number, (step, prompt) in enumerate(zip(steps, prompts[1::2], strict=True), 1):
        assert f"{step.observation} M{number}M" == step.shown
        assert step.shown in prompt.messages[-1].content
    for prompt in [*prompts[1::2], *notes]:
        text = "\n".join(message.content for message in prompt.messages if message.role == "user")
        for before in steps:  # no text of the env's own is shown again without its remark
            own = re.escape(before.observation)
            assert len(re.findall(own, text)) == len(re.findall(own + r" M\d+M", text))


def test_changed_observations_in_training_do_not_change_evaluation_prompts(envs: EnvPool) -> None:
    free = Drawing(format_of(next(iter(TEMPLATES))), ANSWERS)
    evaluate(ChatAgent(free, TELLS), VAL[:2], envs)
    policy = Drawing(format_of(next(iter(TEMPLATES))), ANSWERS)
    agent = ChatAgent(policy, TELLS, ChatConfig())
    run_one(TrainingEpisode(TRAIN[0], 0, interface=Remarks()), agent, envs)
    policy.prompts.clear()
    policy._drawn = 0
    evaluate(agent, VAL[:2], envs)
    assert policy.prompts == free.prompts
