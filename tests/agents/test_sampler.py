"""Answers do not depend on when their prompts join the batch."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from coevo_gym.agents.lm import sampler as sampler_module  # noqa: E402
from coevo_gym.agents.lm.answers import Ask, Sampled, SamplingCounts, run_to_end  # noqa: E402
from coevo_gym.agents.lm.graphs import GraphDecoder  # noqa: E402
from coevo_gym.agents.lm.prefix_cache import PrefixCache  # noqa: E402
from coevo_gym.agents.lm.sampler import TokenSampler  # noqa: E402
from tests.agents import sampling  # noqa: E402
from tests.agents.test_prefix_cache import CLOSE, MODELS, ids, margin, model  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

asks = st.builds(
    Ask,
    st.lists(ids, min_size=1, max_size=40).map(tuple),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(1, 12),
    st.tuples(st.integers(0, 2**40), st.integers(0, 9)),
)
prompts_and_passes = st.lists(st.tuples(asks, st.integers(0, 6)), min_size=1, max_size=7)
"""Prompts, and the number of passes before each joins."""


def new_sampler(network: Any, max_bytes: int = 0, **changes: Any) -> TokenSampler[int]:
    usual = {"stop_ids": [0], "max_pass_tokens": 60, "prefixes": PrefixCache(max_bytes)}
    return TokenSampler(network, **{**usual, **changes})


def sample_in_order(
    sampler: TokenSampler[int], prompts: list[tuple[Ask, int]]
) -> dict[int, Sampled]:
    """Add each prompt after its number of passes; return the answers by place."""
    answers = dict[int, Sampled]()
    for now in range(1 + max(passes for _, passes in prompts)):
        for place, (ask, passes) in enumerate(prompts):
            if passes == now:
                sampler.add(place, ask)
        answers.update(sampler.step() if len(sampler) else [])
    return answers | dict(run_to_end(sampler))


def alone(network: Any, ask: Ask) -> Sampled:
    sampler = new_sampler(network)
    sampler.add(0, ask)
    ((_, answer),) = run_to_end(sampler)
    return answer


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12)
@given(prompts_and_passes, st.sampled_from([0, 120_000, 10**9]), st.booleans())
def test_an_answer_is_the_same_whenever_its_prompt_joins(
    name: str, prompts: list[tuple[Ask, int]], max_bytes: int, with_decoder: bool
) -> None:
    network = model(name, torch.float64)
    decoder = GraphDecoder(network) if with_decoder else None
    answers = sample_in_order(new_sampler(network, max_bytes, decoder=decoder), prompts)
    for place, (ask, _) in enumerate(prompts):
        wanted = alone(network, ask)
        assert answers[place].ids == wanted.ids
        assert answers[place].logprobs == pytest.approx(wanted.logprobs, abs=1e-9)


@settings(max_examples=12)
@given(prompts_and_passes, st.sampled_from([0, 10**9]))
def test_in_fp32_answers_differ_only_where_rounding_decides(
    prompts: list[tuple[Ask, int]], max_bytes: int
) -> None:
    network, decided = model("llama", torch.float32), 0
    answers = sample_in_order(new_sampler(network, max_bytes), prompts)
    for place, (ask, _) in enumerate(prompts):
        wanted, answer = alone(network, ask), answers[place]
        pairs = enumerate(zip(wanted.ids, answer.ids, strict=False))
        n = next((i for i, (one, other) in pairs if one != other), None)
        if n is None:
            assert answer.ids == wanted.ids
            continue
        assert margin("llama", (*ask.prompt, *wanted.ids[:n]), ask, ask.seed, n) < CLOSE
        decided += 1
    note(f"draws decided by rounding: {decided}")


repeating = st.builds(
    Ask,
    st.lists(st.integers(1, 3), min_size=3, max_size=40).map(tuple),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.integers(1, 30),
    st.tuples(st.integers(0, 2**40)),
)


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=12)
@given(st.lists(repeating, min_size=1, max_size=20), st.sampled_from([0, 10**9]))
def test_guesses_do_not_change_answers(name: str, prompts: list[Ask], max_bytes: int) -> None:
    network = model(name, torch.float64)
    both = []
    for most in (sampler_module._most_guessed, lambda n_rows: 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sampler_module, "_most_guessed", most)
            sampler = new_sampler(network, max_bytes)
            for place, ask in enumerate(prompts):
                sampler.add(place, ask)
            answers = dict(run_to_end(sampler))
        counts = sampler.counts
        assert counts.fed == counts.read + counts.guessed + counts.rows - len(prompts)
        assert counts.sampled == sum(len(answer.ids) for answer in answers.values())
        assert counts.rows <= counts.sampled <= counts.rows + counts.guessed
        both.append(answers)
    assert counts.guessed == 0
    for place in range(len(prompts)):
        assert both[0][place].ids == both[1][place].ids
        assert both[0][place].logprobs == pytest.approx(both[1][place].logprobs, abs=1e-9)


def test_right_guesses_save_passes() -> None:
    network = model("llama", torch.float64)
    sampler = new_sampler(network, stop_ids=[])
    sampler.add(0, Ask((1, 2, 3), 0.0, 100))  # greedy answers of a tiny model repeat themselves
    ((_, answer),) = run_to_end(sampler)
    assert len(answer.ids) == 100
    assert sampler.counts.passes < 80


def test_a_full_batch_makes_no_guesses() -> None:
    sampler = new_sampler(model("llama", torch.float64), stop_ids=[], max_pass_tokens=10**6)
    for place in range(32):
        sampler.add(place, Ask((1 + place, 2, 3, 1 + place, 2, 3), 1.0, 4, (place,)))
    [*run_to_end(sampler)]
    assert sampler.counts.guessed == 0


@settings(max_examples=10)
@given(prompts_and_passes, st.integers(1, 8))
def test_withdrawn_answers_go_on_in_another_sampler(
    prompts: list[tuple[Ask, int]], passes: int
) -> None:
    network = model("llama", torch.float64)
    first, second = new_sampler(network), new_sampler(network)
    answers = dict[int, Sampled]()
    for place, (ask, _) in enumerate(prompts):
        first.add(place, ask)
    for _ in range(passes):
        answers.update(first.step() if len(first) else [])
    for unfinished in first.withdraw():
        second.add(*unfinished)
    assert len(first) == 0
    answers |= dict(run_to_end(second))
    for place, (ask, _) in enumerate(prompts):
        assert answers[place].ids == alone(network, ask).ids


def test_siblings_wait_for_the_prompt_that_they_share() -> None:
    network, counts = model("llama", torch.float64), SamplingCounts()
    prompt = tuple(range(1, 31))
    sampler = new_sampler(network, counts=counts, stop_ids=[])
    for place in range(4):
        sampler.add(place, Ask(prompt, 1.0, 6, (place,)))
    sampler.step()
    assert (counts.read, counts.rows) == (30, 1)
    sampler.step()
    assert (counts.read, counts.reused, counts.rows) == (33, 3 * 29, 5)


def test_memory_that_runs_out_halves_the_batch_and_ends_no_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    network, failing = model("llama", torch.float64), [3, 5]
    asked = [Ask((1 + i, 2, 3), 1.0, 9) for i in range(8)]
    wanted = sampling.sample(network, asked, seed=4, stop_ids=[])
    sampler = new_sampler(network, stop_ids=[])
    draw, calls = TokenSampler._draw_eagerly, iter(range(1, 10**6))

    def out_of_memory(self: Any, rows: Any, **options: Any) -> Any:
        if next(calls) in failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return draw(self, rows, **options)

    monkeypatch.setattr(TokenSampler, "_draw_eagerly", out_of_memory)
    for place, ask in enumerate(asked):
        sampler.add(place, ask._replace(seed=(4, place)))
    with caplog.at_level(logging.WARNING, "coevo_gym"):
        answers = dict(run_to_end(sampler))
    assert [answers[place].ids for place in range(8)] == [one.ids for one in wanted]
    assert len(caplog.records) == 2
    assert sampler.counts.restarts == 8 + 4
    assert sampler.counts.fed > sampler.counts.read


def test_memory_for_less_than_one_row_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(TokenSampler, "_draw_eagerly", fail)
    sampler = new_sampler(model("llama", torch.float64))
    sampler.add(0, Ask((1, 2), 1.0, 3))
    with pytest.raises(torch.OutOfMemoryError):
        sampler.step()
