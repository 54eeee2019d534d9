from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.seams import Act
from coevo_gym.core.task import FrozenDict, Split
from coevo_gym.core.trajectory import (
    UNKNOWN_VERSION,
    ChoiceDecision,
    Decision,
    EndReason,
    PastStep,
    Step,
    TokenDecision,
    Trajectory,
    View,
)
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.episodes.episode import eval_trajectory_of, trajectory_of
from tests.toy import BENCHMARK, ToyEnv

TASK = BENCHMARK.tasks(Split.TRAIN)[0]
OLD = """
{"task_id": "t1", "steps": [
  {"observation": "A room.", "shown": "A room.", "action": "go", "decision": {
     "context": {"instruction": "Do.", "observation": "A room.",
       "info": {"admissible": ["go", "stay"]},
       "history": [["A door.", "open", "<t>open</t>", {"prompt_ids": [1, 2], "ids": [3],
         "logprobs": [-0.5], "temperature": 1.0}, {}]]},
     "choices": ["go", "stay"], "index": 0, "logprob": -0.7},
   "reward": 0.0, "terminated": false, "truncated": false, "calls": ["go"], "error_kind": "",
   "extras": {"x": [1]}},
  {"observation": "B", "shown": "B", "action": "stay", "decision": {"prompt_ids": [1, 2],
     "ids": [3, 4], "logprobs": [-0.5, -0.25], "temperature": 0.7},
   "reward": 1.0, "terminated": true, "truncated": false, "calls": [], "error_kind": "",
   "extras": {}}],
 "score": 1.0, "success": true, "end_reason": "solved", "report": {"a": {"b": [1]}},
 "group_id": "g", "policy_version": 3}
"""


def trajectory(*decisions: Decision | None, **fields: Any) -> Trajectory:
    steps = tuple(Step("seen", "seen", "act", decision) for decision in decisions)
    known = {"score": 0.0, "success": False, "end_reason": EndReason.FAILED, **fields}
    return Trajectory(task_id=TASK.id, steps=steps, **known)


def tokens(version: int = UNKNOWN_VERSION) -> TokenDecision:
    return TokenDecision((1,), (2, 3), (-0.5, -0.25), policy_version=version)


def choice(version: int = UNKNOWN_VERSION) -> ChoiceDecision:
    return ChoiceDecision(View("Do.", "A room."), ("go", "stay"), 1, -0.7, version)


def test_only_four_end_reasons_count_as_lost() -> None:
    lost = {reason for reason in EndReason if reason.is_lost}
    assert lost == {
        EndReason.WORKER_LOST,
        EndReason.MODEL_LOST,
        EndReason.CAPPED,
        EndReason.ABANDONED,
    }


def test_policy_versions_contains_every_version_used_in_an_episode() -> None:
    assert trajectory(policy_version=4).policy_versions == {4}
    assert trajectory(None, tokens(), choice(), policy_version=4).policy_versions == {4}
    assert trajectory(tokens(5), None, choice(6), policy_version=4).policy_versions == {5, 6}


def test_trajectories_of_older_versions_are_read() -> None:
    old = trajectory_from_json(json.loads(OLD))
    assert [step.said for step in old.steps] == ["", ""]
    assert (old.cue_ids, old.interface, old.last_observation) == ((), "", "")
    assert old.policy_versions == {3}
    chosen, sampled = (step.decision for step in old.steps)
    assert isinstance(chosen, ChoiceDecision)
    assert isinstance(sampled, TokenDecision)
    assert chosen.policy_version == sampled.policy_version == UNKNOWN_VERSION
    (past,) = chosen.context.history
    assert isinstance(past, PastStep)
    assert (past.said, past.decision) == ("<t>open</t>", TokenDecision((1, 2), (3,), (-0.5,)))


@given(
    st.lists(st.tuples(st.sampled_from([None, tokens, choice]), st.integers(-1, 9), st.text())),
    st.lists(st.text()),
    st.text(),
    st.text(),
)
def test_a_trajectory_survives_a_json_round_trip(
    rows: list[tuple[Any, int, str]], cue_ids: list[str], interface: str, last: str
) -> None:
    steps = tuple(
        Step("seen", "shown", "act", kind and kind(version), said=text)
        for kind, version, text in rows
    )
    whole = Trajectory(
        task_id=TASK.id,
        steps=steps,
        score=0.5,
        success=False,
        end_reason=EndReason.MAX_STEPS,
        report=FrozenDict(),
        last_observation=last,
        group_id="g",
        policy_version=2,
        cue_ids=tuple(cue_ids),
        interface=interface,
    )
    assert trajectory_from_json(json.loads(json.dumps(trajectory_to_json(whole)))) == whole


def test_wall_times_are_stored_but_do_not_count_in_comparisons() -> None:
    bare = Step("seen", "shown", "act")
    timed = replace(bare, answer_s=1.23456789, env_s=0.0)
    assert timed == bare
    assert hash(timed) == hash(bare)
    whole = Trajectory(
        task_id=TASK.id, steps=(timed, bare), score=0.5, success=False, end_reason=EndReason.FAILED
    )
    data = json.loads(json.dumps(trajectory_to_json(whole)))
    assert [step.get("answer_s") for step in data["steps"]] == [1.234568, None]
    assert "env_s" not in data["steps"][1]  # as in the records of versions without times
    again = trajectory_from_json(data)
    assert [(step.answer_s, step.env_s) for step in again.steps] == [(1.234568, 0.0), (None, None)]


class TestRecord:
    def played(self, *actions: str) -> ToyEnv:
        env = ToyEnv()
        env.reset(options={"task": TASK})
        for action in actions:
            env.step(action)
        return env

    def test_a_record_contains_the_agents_texts_and_the_last_observation(self) -> None:
        acts = [Act("press red", tokens(3), "I press red."), Act("done", None)]
        record = trajectory_of(self.played("press red", "done"), acts=acts, policy_version=3)
        assert [(s.action, s.said, s.decision) for s in record.steps] == [
            ("press red", "I press red.", tokens(3)),
            ("done", "", None),
        ]
        assert record.last_observation.endswith("Pressed: red.")
        assert record.policy_versions == {3}

    def test_an_episode_without_steps_records_its_first_observation(self) -> None:
        env = self.played()
        env.cut(EndReason.CONTEXT_OVERFLOW)
        record = eval_trajectory_of(env)
        assert record.steps == ()
        assert record.last_observation.endswith("Pressed: nothing.")

    def test_an_evaluation_record_has_no_fields_for_guidance(self) -> None:
        record = eval_trajectory_of(self.played("done"))
        assert not {"cue_ids", "interface"} & set(type(record).__dataclass_fields__)

    def test_a_record_needs_one_act_per_step(self) -> None:
        env = self.played("press red", "done")
        with pytest.raises(ValueError, match="2 steps needs an act for each step, got 1"):
            trajectory_of(env, acts=[Act("press red")])
