"""The tape: what is asked once is not asked again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from coevo_gym.agents.advice.tape import Tape, TapeMode
from coevo_gym.core.errors import AnswerMissing, ConfigError
from coevo_gym.core.inquiry import AnswerStore
from coevo_gym.core.seams import (
    Choice,
    Completion,
    Finish,
    Message,
    Policy,
    Prompt,
    Request,
    Sampling,
)
from coevo_gym.core.spend import Scopes
from coevo_gym.core.trajectory import TokenDecision, View
from coevo_gym.store.answers import AnswerFile, AnswerTable
from coevo_gym.testing.scripted_models import ScriptedPolicy
from tests.hostile import HOSTILE, HostilePolicy

StoreOf = Callable[[], AnswerStore]


@pytest.fixture(params=["file", "table"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOf:
    """Opens the same store again and again."""
    if request.param == "file":
        return lambda: AnswerFile(tmp_path / "tape.jsonl")
    return lambda: AnswerTable(tmp_path / "run.db")


def prompt(text: str, template: str = "", **sampling: float) -> Prompt:
    return Prompt((Message("user", text),), Sampling(**sampling), template=template)  # type: ignore[arg-type]


class Counting:
    """Numbers its answers."""

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.n = 0

    def generate(self, requests: object) -> list[Completion]:
        completions = []
        for _ in requests:  # type: ignore[attr-defined]
            self.n += 1
            completions.append(Completion(f"answer {self.n}", None))
        return completions


def tape(
    policy: Policy | None, store: AnswerStore | None, mode: TapeMode, model: str = "m"
) -> Tape:
    return Tape(policy, store, mode, model=model)


def texts(tape: Tape, *asked: str) -> list[str]:
    return [completion.text for completion in tape.generate([prompt(text) for text in asked])]


def test_mode_off_asks_every_time_and_stores_nothing(store: StoreOf) -> None:
    policy, answers = Counting(), store()
    off = tape(policy, answers, "off")
    assert texts(off, "a", "a") == ["answer 1", "answer 2"]
    with pytest.raises(AnswerMissing):
        texts(tape(None, store(), "replay"), "a")
    assert texts(tape(policy, None, "off"), "a") == ["answer 3"]


def test_recorded_answers_are_replayed_without_a_policy(store: StoreOf) -> None:
    recorded = texts(tape(Counting(), store(), "record"), "a", "b", "a")
    assert recorded == ["answer 1", "answer 2", "answer 3"]
    assert texts(tape(None, store(), "replay"), "a", "b", "a") == recorded


def test_a_missing_answer_in_a_replay_raises_with_prompt_and_key_and_sends_no_request(
    store: StoreOf,
) -> None:
    policy = Counting()
    replay = tape(policy, store(), "replay")
    with (
        replay.scopes("round-3"),
        pytest.raises(AnswerMissing, match=r"'shop@2' in 'round-3' \(key [0-9a-f]{64}\).*'Buy\.'"),
    ):
        replay.generate([prompt("Buy.", "shop@2")])
    assert policy.n == 0


def test_mode_fill_asks_only_for_missing_answers(store: StoreOf) -> None:
    texts(tape(Counting(), store(), "record"), "a", "b")
    policy = Counting()
    fill = tape(policy, store(), "fill")
    policy.n = 10
    assert texts(fill, "a", "new", "b", "a") == ["answer 1", "answer 11", "answer 2", "answer 12"]
    assert texts(tape(None, store(), "replay"), "a", "new") == ["answer 1", "answer 11"]


def test_mode_record_asks_again_and_replaces_the_answer(store: StoreOf) -> None:
    policy = Counting()
    assert texts(tape(policy, store(), "record"), "a") == ["answer 1"]
    assert texts(tape(policy, store(), "record"), "a") == ["answer 2"]
    assert texts(tape(None, store(), "replay"), "a") == ["answer 2"]


def test_mode_record_repeats_no_request_if_a_scope_is_entered_again(store: StoreOf) -> None:
    texts(tape(Counting(), store(), "record"), "a")
    policy = Counting()
    policy.n = 10
    record = tape(policy, store(), "record")
    for _ in range(2):
        with record.scopes("round-1"):
            assert texts(record, "a", "b") == ["answer 11", "answer 12"]
    assert policy.n == 12


def test_equal_requests_are_numbered_across_batches_of_a_scope(store: StoreOf) -> None:
    fill = tape(Counting(), store(), "fill")
    with fill.scopes("round-1"):
        assert texts(fill, "a") + texts(fill, "a") == ["answer 1", "answer 2"]
    with fill.scopes("round-2"):
        assert texts(fill, "a") == ["answer 3"]
    with fill.scopes("round-1"):  # a piece of work that is done again
        assert texts(fill, "a", "a", "a") == ["answer 1", "answer 2", "answer 4"]


def test_entering_a_scope_again_repeats_its_answers_and_those_of_inner_scopes(
    store: StoreOf,
) -> None:
    fill = tape(Counting(), store(), "fill")
    for _ in range(2):
        with fill.scopes("round-1"):
            assert texts(fill, "a") == ["answer 1"]
            with fill.scopes("round-1/draft-0"):
                assert texts(fill, "a") == ["answer 2"]


@pytest.mark.parametrize(
    ("other", "model", "version"),
    [
        (prompt("b"), "m", 0),
        (prompt("a", temperature=0.5), "m", 0),
        (prompt("a", max_tokens=5), "m", 0),
        (prompt("a", "shop@1"), "m", 0),
        (Prompt((Message("system", "a"),)), "m", 0),
        (Prompt((Message("user", "a", (1, 2)),)), "m", 0),
        (Prompt((Message("user", "a"),), trained=(Message("user", "b"),)), "m", 0),
        (Prompt((Message("user", "a"),), after=TokenDecision((1,), (2,), (-0.5,))), "m", 0),
        (prompt("a"), "other", 0),
        (prompt("a"), "m", 1),
    ],
)
def test_an_answer_is_replayed_only_for_the_same_prompt_sampling_model_and_version(
    tmp_path: Path, other: Prompt, model: str, version: int
) -> None:
    store = AnswerFile(tmp_path / "tape.jsonl")
    tape(Counting(), store, "record").generate([prompt("a")])
    assert tape(Counting(), store, "replay").generate([prompt("a")])[0].text == "answer 1"
    with pytest.raises(AnswerMissing):
        tape(Counting(version), store, "replay", model).generate([other])


def test_prompts_after_different_token_ids_have_different_answers(tmp_path: Path) -> None:
    prompts = [
        Prompt((Message("user", "a"),), after=TokenDecision(before, ids, (0.0,) * len(ids)))
        for before, ids in (((1,), (2,)), ((1,), (3,)), ((1, 2), ()), ((), (1, 2)))
    ]
    completions = tape(Counting(), AnswerFile(tmp_path / "tape.jsonl"), "record").generate(prompts)
    again = tape(None, AnswerFile(tmp_path / "tape.jsonl"), "replay").generate(prompts[::-1])
    assert [one.text for one in again] == [one.text for one in completions][::-1]


def test_the_purpose_of_a_request_is_not_part_of_its_key(tmp_path: Path) -> None:
    store = AnswerFile(tmp_path / "tape.jsonl")
    tape(Counting(), store, "record").generate([Prompt((Message("user", "a"),), purpose="x")])
    assert texts(tape(None, store, "replay"), "a") == ["answer 1"]


class Drawing:
    """Answers with a number that it draws."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    @contextmanager
    def use_seed(self, seed: int) -> Iterator[None]:
        before, self.rng = self.rng, np.random.default_rng(seed)
        yield
        self.rng = before

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [Completion(str(self.rng.integers(10**9)), None) for _ in requests]


def test_sampled_answers_do_not_depend_on_how_many_were_replayed(tmp_path: Path) -> None:
    def work(path: Path, policy: Policy, batches: int) -> list[str]:
        fill = tape(policy, AnswerTable(path), "fill")
        with fill.scopes("round-1"):
            return [text for _ in range(batches) for text in texts(fill, "a", "b")]

    policy = Drawing(1)
    whole = work(tmp_path / "whole.db", policy, 3)
    assert len(set(whole)) == 6
    assert policy.rng.integers(10**9) == np.random.default_rng(1).integers(10**9)
    work(tmp_path / "cut.db", Drawing(2), 1)
    assert work(tmp_path / "cut.db", Drawing(3), 3) == whole


def test_choices_are_recorded_and_replayed(store: StoreOf) -> None:
    ask = Choice(View("Press red.", "Nothing."), ("red", "blue"))
    tape(Counting(), store(), "record").generate([ask])
    assert tape(None, store(), "replay").generate([ask])[0].text == "answer 1"
    other = Choice(View("Press red.", "Nothing."), ("blue", "red"))
    with pytest.raises(AnswerMissing, match="a prompt without a file"):
        tape(None, store(), "replay").generate([other])


def test_a_replay_restores_decision_finish_and_usage_and_counts_as_cached(
    store: StoreOf,
) -> None:
    decision = TokenDecision((1, 2), (3,), (-0.1234567890123456789,), 0.7, 4)
    completion = Completion("x", decision, Finish.LENGTH)
    policy = ScriptedPolicy([("a", completion), ("b", "two words")])
    asked = [prompt("a"), prompt("b c d")]
    recorded = tape(policy, store(), "record").generate(asked)
    first, second = tape(None, store(), "replay").generate(asked)
    assert first._replace(usage=completion.usage) == completion
    assert (first.usage.calls, first.usage.cached) == (0, 1)
    usage = recorded[1].usage
    assert second.usage == usage.model_copy(update={"calls": 0, "cached": 1})
    assert (usage.calls, usage.prompt_tokens, usage.completion_tokens) == (1, 3, 2)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_texts_are_replayed_exactly(
    store: StoreOf, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = HostilePolicy(7)
    monkeypatch.setattr("tests.hostile.HOSTILE", {kind: HOSTILE[kind]})
    asked = [prompt(str(i)) for i in range(4)]
    recorded = tape(bad, store(), "record").generate(asked)
    replayed = tape(None, store(), "replay").generate(asked)
    assert [completion.text for completion in replayed] == [
        completion.text for completion in recorded
    ]
    assert [completion.finish for completion in replayed] == [
        completion.finish for completion in recorded
    ]


def test_a_prompt_with_lone_surrogates_has_a_key(store: StoreOf) -> None:
    assert texts(tape(Counting(), store(), "fill"), "\ud800", "\udfff") == ["answer 1", "answer 2"]


def test_a_mode_without_its_policy_or_store_is_refused(tmp_path: Path) -> None:
    store = AnswerFile(tmp_path / "tape.jsonl")
    with pytest.raises(ConfigError, match="'fill' requires a policy"):
        tape(None, store, "fill")
    with pytest.raises(ConfigError, match="'record' requires a store"):
        tape(Counting(), None, "record")


def test_each_thread_has_its_own_scopes() -> None:
    import threading

    scopes, seen = Scopes(), []
    with scopes("round-1"):
        thread = threading.Thread(target=lambda: seen.append(scopes.path))
        thread.start()
        thread.join()
        assert scopes.path == "round-1"
    assert seen == [""]
    assert scopes.path == ""


def test_a_scope_is_left_on_an_exception() -> None:
    scopes = Scopes()
    with pytest.raises(ZeroDivisionError), scopes("round-1"), scopes("draft-1"):
        raise ZeroDivisionError
    assert scopes.path == ""


def of_episode(text: str, episode: str) -> Prompt:
    return Prompt((Message("user", text),), episode=episode)


def test_episodes_do_not_share_the_answers_to_equal_requests(store: StoreOf) -> None:
    model = Counting()
    tape = Tape(model, store(), "fill", model="m", by_episode=True)
    first = tape.generate([of_episode("hello", "a"), of_episode("hello", "b")])
    assert [one.text for one in first] == ["answer 1", "answer 2"]
    # Episode a is finished and not run again; b begins anew, and gets its own answer.
    again = Tape(model, store(), "fill", model="m", by_episode=True)
    (answer,) = again.generate([of_episode("hello", "b")])
    assert (answer.text, answer.usage.cached, model.n) == ("answer 2", 1, 2)
    (answer,) = again.generate([of_episode("hello", "b")])
    assert (answer.text, model.n) == ("answer 3", 3)


def test_a_lost_answer_of_an_episode_is_requested_again(store: StoreOf) -> None:
    class Losing:
        finish = Finish.LOST

        def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return [Completion("", None, self.finish) for _ in requests]

    model = Losing()
    tape = Tape(model, store(), "fill", model="m", by_episode=True)
    assert tape.generate([of_episode("hello", "a")])[0].finish is Finish.LOST
    model.finish = Finish.STOP
    again = Tape(model, store(), "fill", model="m", by_episode=True)
    assert again.generate([of_episode("hello", "a")])[0].finish is Finish.STOP
