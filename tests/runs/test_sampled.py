"""What is stored of decisions: candidates with probabilities, tokens with texts, advantages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import (
    ChoiceDecision,
    EndReason,
    Group,
    Step,
    TokenDecision,
    Trajectory,
    View,
)
from coevo_gym.store.database import RunStore
from coevo_gym.store.sampled import (
    ChoicesMade,
    TokensSampled,
    mean_and_json_of_advantages,
    sampled_from_json,
    sampled_to_json,
)
from coevo_gym.view.reader import ViewReader
from tests.toy import BENCHMARK

TASK = BENCHMARK.tasks(Split.TRAIN)[0]
VOCABULARY = {1: "<user>", 2: "see", 3: "<bot>", 4: "go", 5: "<end>", 6: " on"}


def spell(ids: Sequence[int]) -> str:
    return "".join(VOCABULARY[id] for id in ids)


def episode(*steps: Step) -> Trajectory:
    return Trajectory(
        task_id=TASK.id, steps=steps, score=1.0, success=True, end_reason=EndReason.SOLVED
    )


def step(decision: ChoiceDecision | TokenDecision | None) -> Step:
    return Step("a room", "a room", "go", decision=decision)


def stored(path: Path, *episodes: Trajectory, spelt: bool = True) -> ViewReader:
    group = Group("group-1", TASK, len(episodes), episodes)
    with closing(RunStore(path, record="all")) as store:
        store.spell = spell if spelt else None
        store.add_groups("a", 1, [group], [])
        store.add_advantages("a", 1, [group], [[0.25, [1.0, [0.5, 0.0]]][: len(episodes)]])
    return ViewReader(path)


def test_candidates_are_stored_with_their_probabilities(tmp_path: Path) -> None:
    chances = (0.7, 0.2, 0.1)
    names = ("go", "stay", "press a very long button " * 9)
    logprobs = tuple(math.log(chance) for chance in chances)
    chose = ChoiceDecision(View("i", "o"), names, 1, logprobs[1], 3, logprobs)
    bare = replace(chose, logprobs=())
    reader = stored(tmp_path / "run.db", episode(step(chose), step(None), step(bare)))
    first, nothing, last = reader.sampled_decisions("a", "group-1", 0) or ()
    assert isinstance(first, ChoicesMade)
    assert (first.choices, first.taken, first.policy_version) == (names, 1, 3)
    assert [math.exp(one) for one in first.logprobs] == pytest.approx(chances, abs=1e-3)
    assert nothing is None
    assert isinstance(last, ChoicesMade)
    assert last.logprobs == pytest.approx((logprobs[1],), abs=1e-4)
    assert reader.stored_parts() == {"choices": True, "tokens": False, "advantages": True}


def test_tokens_are_stored_with_the_prompt_of_the_model(tmp_path: Path) -> None:
    first = TokenDecision((1, 2, 3), (4, 5), (-0.5, -0.25), policy_version=2)
    goes_on = TokenDecision((1, 2, 3, 4, 5, 1, 2, 3), (4, 6), (-0.1, -1.5), policy_version=2)
    anew = TokenDecision((1, 3), (5,), (-0.3,), policy_version=4)
    path = tmp_path / "run.db"
    reader = stored(path, episode(step(first), step(goes_on), step(anew)))
    samples = [one for one in reader.sampled_decisions("a", "group-1", 0) or () if one is not None]
    assert all(isinstance(one, TokensSampled) for one in samples)
    prompts = [one.told for one in samples if isinstance(one, TokensSampled)]
    assert prompts == ["<user>see<bot>", "<user>see<bot>", "<user><bot>"]
    sampled = [(one.ids, one.logprobs) for one in samples if isinstance(one, TokensSampled)]
    assert sampled == [((4, 5), (-0.5, -0.25)), ((4, 6), (-0.1, -1.5)), ((5,), (-0.3,))]
    assert reader.token_texts([4, 5, 6, 99]) == {4: "go", 5: "<end>", 6: " on"}
    assert reader.stored_parts()["tokens"]


def test_no_token_texts_are_stored_without_a_decoder(tmp_path: Path) -> None:
    sampled = TokenDecision((1, 2, 3), (4, 5), (-0.5, -0.25))
    reader = stored(tmp_path / "run.db", episode(step(sampled)), spelt=False)
    (sample,) = reader.sampled_decisions("a", "group-1", 0) or ()
    assert isinstance(sample, TokensSampled)
    assert (sample.ids, sample.told) == ((4, 5), None)
    assert reader.token_texts([4]) == {}


def test_no_decisions_are_stored_for_scripts(tmp_path: Path) -> None:
    reader = stored(tmp_path / "run.db", episode(step(None)))
    assert reader.sampled_decisions("a", "group-1", 0) is None


def test_advantages_are_stored_per_episode_or_per_step(tmp_path: Path) -> None:
    path = tmp_path / "run.db"
    reader = stored(path, episode(step(None)), episode(step(None), step(None)))
    assert reader.advantages("a", "group-1", 0) == 0.25
    assert reader.advantages("a", "group-1", 1) == [1.0, 0.25]  # of tokens, their mean
    assert mean_and_json_of_advantages([1.0, [0.5, 0.0]])[0] == 0.625
    with closing(RunStore(path)) as store:
        store.delete_after("a", 0)
    reader = ViewReader(path)
    assert reader.advantages("a", "group-1", 0) is None
    assert reader.sampled_decisions("a", "group-1", 0) is None


def test_no_decisions_or_advantages_are_stored_for_unrecorded_episodes(tmp_path: Path) -> None:
    chose = ChoiceDecision(View("i", "o"), ("go", "stay"), 0, -0.5)
    group = Group("group-1", TASK, 1, (episode(step(chose)),))
    for record in ("signals", "none"):
        path = tmp_path / f"{record}.db"
        with closing(RunStore(path, record=record)) as store:  # type: ignore[arg-type]
            store.add_groups("a", 1, [group], [])
            store.add_advantages("a", 1, [group], [[1.0]])
        assert ViewReader(path).stored_parts() == dict.fromkeys(
            ("choices", "tokens", "advantages"), False
        )


@given(
    names=st.lists(st.text(max_size=30), min_size=1),
    data=st.data(),
)
def test_any_candidates_survive_a_json_round_trip(names: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(names) - 1))
    chose = ChoiceDecision(View("i", "o"), tuple(names), place, -0.5)
    packed = sampled_to_json(episode(step(chose)), lambda text: text, None)
    assert packed is not None
    (sample,) = sampled_from_json(packed, str)
    assert isinstance(sample, ChoicesMade)
    assert (sample.choices, sample.taken) == (tuple(names), place)


def test_prompt_ids_are_read_back_and_missing_in_older_files() -> None:
    decisions = [
        TokenDecision((1, 2), (3,), (-0.5,)),
        TokenDecision((1, 2, 3, 4), (5, 6), (-0.5, -1.0)),
        TokenDecision((1, 9), (3,), (-0.5,)),
    ]
    packed = sampled_to_json(episode(*map(step, decisions)), lambda text: text, None)
    assert packed is not None
    assert [row["prompt"] for row in packed] == [(1, 2), (4,), (9,)]
    samples = sampled_from_json(packed, str)
    for sample, decision in zip(samples, decisions, strict=True):
        assert isinstance(sample, TokensSampled)
        assert (sample.prompt_ids, sample.ids) == (decision.prompt_ids, decision.ids)
    for row in packed:
        del row["prompt"], row["shared"]
    for sample in sampled_from_json(packed, str):
        assert isinstance(sample, TokensSampled)
        assert sample.prompt_ids is None
