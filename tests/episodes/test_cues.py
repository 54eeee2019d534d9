"""What an agent is told beyond its task: in training episodes, never in an evaluation."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
import typing
from collections.abc import Sequence
from typing import Any

import pytest

from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.agents.scripted import ScriptedAgent
from coevo_gym.agents.tiny import TinyPolicy
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Act
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import ChoiceDecision, Cue, EvalTrajectory, Trajectory, View
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.episodes import EnvPool, EvalEpisode, Finished, Runner, TrainingEpisode, evaluate
from coevo_gym.episodes.runner import Mode
from tests.toy import BENCHMARK

TRAIN, VAL = BENCHMARK.tasks(Split.TRAIN), BENCHMARK.tasks(Split.VAL)
CUES = (
    Cue("You explore.", "system", "guide"),
    Cue("Try red first.", "first", "exp-7", strip=True),
    Cue("One action.", "turn"),
)


class Watching:
    """Plays references, and keeps the views it was shown."""

    def __init__(self) -> None:
        self.views: list[View] = []
        self._agent = ScriptedAgent({t.instruction: t.solution for t in (*TRAIN, *VAL)})

    def act(self, views: Sequence[View]) -> Sequence[Act]:
        self.views += views
        return self._agent.act(views)


def played(envs: EnvPool, agent: Any, *episodes: TrainingEpisode, mode: Mode) -> list[Trajectory]:
    outcomes = sorted(Runner(envs, mode).run(episodes, agent), key=lambda outcome: outcome.index)
    return [outcome.record for outcome in outcomes if isinstance(outcome, Finished)]


@pytest.mark.parametrize("mode", ["lock_step", "async"])
def test_each_view_contains_the_cues_of_its_own_episode_only(envs: EnvPool, mode: Mode) -> None:
    agent = Watching()
    episode, free = TrainingEpisode(TRAIN[0], 0, cues=CUES), TrainingEpisode(TRAIN[1], 0)
    with_cues, without = played(envs, agent, episode, free, mode=mode)
    for view in agent.views:
        assert view.cues == (CUES if view.instruction == TRAIN[0].instruction else ())
    assert len(agent.views) == len(with_cues.steps) + len(without.steps)
    assert (with_cues.cue_ids, without.cue_ids) == (("guide", "exp-7", ""), ())
    again = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(with_cues))))
    assert again.cue_ids == with_cues.cue_ids


def test_cues_do_not_change_what_the_env_shows(envs: EnvPool) -> None:
    with_cues, free = Watching(), Watching()
    played(envs, with_cues, TrainingEpisode(TRAIN[0], 0, cues=CUES), mode="lock_step")
    played(envs, free, TrainingEpisode(TRAIN[0], 0), mode="lock_step")
    assert [dataclasses.replace(view, cues=()) for view in with_cues.views] == free.views


def test_views_with_cues_can_be_pickled_and_compared() -> None:
    view = TrainingEpisode(TRAIN[0], 0, cues=CUES).show(View("Press red.", "None."))
    assert view.cues == CUES
    assert pickle.loads(pickle.dumps(view)) == view
    assert view != View("Press red.", "None.")
    assert hash(view) == hash(dataclasses.replace(view))


def test_an_episode_without_cues_leaves_views_unchanged() -> None:
    view = View("Press red.", "None.")
    assert TrainingEpisode(TRAIN[0], 0).show(view) is view
    assert EvalEpisode(VAL[0], 0).show(view) is view


def test_cue_text_is_cleaned_and_cut_and_an_unknown_place_is_refused() -> None:
    broken = Cue("a\ud800b" + "x" * 200_000, "turn")
    (cue,) = TrainingEpisode(TRAIN[0], 0, cues=(broken,)).cues
    assert cue.text.startswith("a\ufffdb")
    assert 99_000 < len(cue.text) <= 100_000
    misplaced: Any = Cue("Look.", "last")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"one of system, first, turn, got 'last'"):
        TrainingEpisode(TRAIN[0], 0, cues=(misplaced,))


class TestEvaluation:
    def test_no_parameter_of_an_evaluation_accepts_a_cue(self) -> None:
        with pytest.raises(TypeError, match="cues"):
            EvalEpisode(VAL[0], 0, cues=CUES)  # type: ignore[call-arg]
        parameters = {*inspect.signature(evaluate).parameters}
        allowed = {
            "agent",
            "tasks",
            "envs",
            "seed",
            "samples",
            "results",
            "on_done",
            "mode",
            "admission",
        }
        assert parameters <= allowed, "what else may an evaluation be told?"
        hints = typing.get_type_hints(evaluate).values()
        assert not [hint for hint in hints if "Cue" in str(hint)]

    def test_no_field_of_an_evaluation_episode_or_record_holds_a_cue(self) -> None:
        for kind in (EvalEpisode, EvalTrajectory):
            assert not [f.name for f in dataclasses.fields(kind) if "cue" in f.name.lower()]
        assert [field.name for field in dataclasses.fields(EvalEpisode)] == ["task", "seed"]

    def test_views_in_an_evaluation_contain_no_cues(self, envs: EnvPool) -> None:
        agent = Watching()
        episode = TrainingEpisode(TRAIN[0], 0, cues=CUES)
        played(envs, agent, episode, mode="lock_step")  # in the very env that is used again
        assert [view.cues for view in agent.views] == [CUES] * len(TRAIN[0].solution)
        agent.views.clear()
        assert evaluate(agent, VAL[:2], envs).success_rate == 1.0
        assert {view.cues for view in agent.views} == {()}


def test_a_choice_agent_records_cues_but_chooses_regardless_of_them(envs: EnvPool) -> None:
    trajectories = []
    without: tuple[Cue, ...] = ()
    for cues in (without, CUES):
        agent = ChoiceAgent(TinyPolicy(seed=1), BENCHMARK.choices)
        (one,) = played(envs, agent, TrainingEpisode(TRAIN[0], 0, cues=cues), mode="lock_step")
        trajectories.append(one)
        again = trajectory_from_json(json.loads(json.dumps(trajectory_to_json(one))))
        decision = again.steps[-1].decision
        assert isinstance(decision, ChoiceDecision)
        assert decision.context.cues == cues
        assert all(isinstance(cue, Cue) for cue in decision.context.cues)
    free, with_cues = trajectories
    assert free.actions == with_cues.actions
    chosen = [
        [(d.index, d.logprob) for s in one.steps if isinstance(d := s.decision, ChoiceDecision)]
        for one in trajectories
    ]
    assert chosen[0] == chosen[1]
