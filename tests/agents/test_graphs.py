"""Decoding step by step in fixed memory gives the answers that growing batches give."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from coevo_gym.agents.lm import graphs  # noqa: E402
from coevo_gym.agents.lm.answers import Ask, Sampled  # noqa: E402
from coevo_gym.agents.lm.graphs import GraphDecoder, padded_size  # noqa: E402
from coevo_gym.agents.lm.prefix_cache import PrefixCache  # noqa: E402
from coevo_gym.agents.lm.sampler import TokenSampler  # noqa: E402
from tests.agents import sampling  # noqa: E402
from tests.agents.test_prefix_cache import MODELS, ids  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

STOP = 0
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
_MADE: dict[tuple[str, str], tuple[Any, GraphDecoder]] = {}


def model_and_decoder(name: str, device: str) -> tuple[Any, GraphDecoder]:
    """A model in fp64, so that rounding decides no draw, and a decoder for all examples."""
    if (name, device) not in _MADE:
        with torch.random.fork_rng():
            torch.manual_seed(7)
            model = MODELS[name]().eval().double().to(device)
        _MADE[name, device] = model, GraphDecoder(model)
    return _MADE[name, device]


def sample(
    model: Any, asks: Sequence[Ask], seed: int, decoder: GraphDecoder | None, cached: int = 2**20
) -> list[Sampled]:
    prefixes = PrefixCache(cached)
    return sampling.sample(
        model, asks, seed=seed, max_pass_tokens=200, prefixes=prefixes, decoder=decoder
    )


def same(mine: Sequence[Sampled], theirs: Sequence[Sampled]) -> None:
    assert [one.ids for one in mine] == [one.ids for one in theirs]
    for one, other in zip(mine, theirs, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-6)


asks = st.builds(
    Ask,
    st.lists(ids, min_size=1, max_size=40).map(tuple),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(1, 30),
)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["llama", "qwen3", "sliding window"])
@settings(max_examples=15)
@given(st.lists(asks, min_size=1, max_size=9), st.integers(0, 2**62), st.sampled_from([0, 2**20]))
def test_answers_with_and_without_a_graph_decoder_are_equal(
    name: str, device: str, asked: list[Ask], seed: int, cached: int
) -> None:
    model, decoder = model_and_decoder(name, device)
    same(sample(model, asked, seed, decoder, cached), sample(model, asked, seed, None, cached))


@pytest.mark.parametrize("device", DEVICES)
def test_answers_stay_equal_while_a_batch_gets_more_slots_and_fewer_rows(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graphs, "_MIN_SLOTS", 8)
    model, _ = model_and_decoder("llama", device)
    decoder = GraphDecoder(model)
    asked = [Ask((1 + i, 2, 3), 1.0, 10 * i + 1) for i in range(7)]
    asked.append(Ask((8,) * 60, 1.0, 3))
    same(sample(model, asked, 5, decoder), sample(model, asked, 5, None))
    rows, slots = zip(*decoder._steps, strict=True)
    assert len(set(rows)) > 1
    assert len(set(slots)) > 1
    assert decoder.n_bytes > 0


@pytest.mark.parametrize("device", DEVICES)
def test_the_decoder_uses_changed_weights(device: str) -> None:
    model, decoder = model_and_decoder("llama", device)
    asked = [Ask((5, 6, 7), 0.0, 20)]
    before = sample(model, asked, 0, decoder)
    weight = model.lm_head.weight
    original = weight.detach().clone()
    with torch.no_grad():
        weight.copy_(weight.roll(1, 0))
    after = sample(model, asked, 0, decoder)
    wanted = sample(model, asked, 0, None)
    with torch.no_grad():
        weight.copy_(original)
    same(after, wanted)
    assert after != before


def pretend_cuda(monkeypatch: pytest.MonkeyPatch, record: Callable[..., Any]) -> None:
    """Let a decoder on a CPU record its steps with a stand-in for CUDA graphs."""

    def capture(decoder: GraphDecoder, step: Any) -> Callable[[], None]:
        step = SimpleNamespace(
            inputs=SimpleNamespace(device=SimpleNamespace(type="cuda")), run=step.run
        )
        return real(decoder, step)

    real = GraphDecoder._capture
    monkeypatch.setattr(GraphDecoder, "_capture", capture)
    monkeypatch.setattr(GraphDecoder, "_record", record)


def test_a_failed_capture_falls_back_to_sampling_without_graphs_and_warns_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    pretend_cuda(monkeypatch, fail)
    model, _ = model_and_decoder("llama", "cpu")
    decoder = GraphDecoder(model)
    asked = [Ask((1, 2), 1.0, 9), Ask((3,), 1.0, 9)]
    with caplog.at_level(logging.WARNING, "coevo_gym"):
        for _ in range(2):
            same(sample(model, asked, 1, decoder), sample(model, asked, 1, None))
    messages = [record.getMessage() for record in caplog.records]
    assert messages == [
        "sampling without CUDA graphs, reason=operation not permitted when stream is capturing"
    ]
    assert decoder.counts.captures == 0


@pytest.mark.parametrize("failing", range(1, 7))
@pytest.mark.parametrize("where", ["_record", "_make_room"])
def test_running_out_of_memory_in_a_capture_or_in_growth_ends_no_run(
    where: str, failing: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(graphs, "_MIN_SLOTS", 8)
    calls = itertools.count(1)

    def record(decoder: GraphDecoder, step: Any) -> Any:
        if where == "_record" and next(calls) == failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return SimpleNamespace(replay=step.run)

    make_room = GraphDecoder._make_room

    def grow(decoder: GraphDecoder, rows: Any) -> bool:
        if where == "_make_room" and next(calls) == failing:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return make_room(decoder, rows)

    pretend_cuda(monkeypatch, record)
    monkeypatch.setattr(GraphDecoder, "_make_room", grow)
    model, _ = model_and_decoder("llama", "cpu")
    decoder = GraphDecoder(model)
    asked = [Ask((1 + i, 2, 3), 1.0, 6 * i + 2) for i in range(7)]
    with caplog.at_level(logging.WARNING, "coevo_gym"):
        answers = sample(model, asked, 5, decoder)
    same(answers, sample(model, asked, 5, None))
    assert next(calls) > failing
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("sampling ran out of memory")
    assert "rollout.max_envs" in message


def test_too_little_memory_for_a_batch_is_logged_once_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def too_little(decoder: GraphDecoder, rows: Any) -> bool:
        decoder._warn_once("memory", "8 rows need 9.0 GiB")
        decoder.counts.declined += 1
        return False

    monkeypatch.setattr(GraphDecoder, "_make_room", too_little)
    model, _ = model_and_decoder("llama", "cpu")
    decoder = GraphDecoder(model)
    asked = [Ask((1, 2), 1.0, 9), Ask((3,), 1.0, 9)]
    with caplog.at_level(logging.WARNING, "coevo_gym"):
        for _ in range(2):
            same(sample(model, asked, 1, decoder), sample(model, asked, 1, None))
    assert len(caplog.records) == 1
    assert decoder.counts.declined >= 2


def test_rows_of_two_samplers_share_a_decoder() -> None:
    model, _ = model_and_decoder("llama", "cpu")
    decoder = GraphDecoder(model)
    shared = {"stop_ids": [STOP], "max_pass_tokens": 200, "prefixes": PrefixCache(0)}
    samplers = [TokenSampler[int](model, **shared, decoder=decoder) for _ in range(2)]
    asked = [Ask((4, 5 + i), 1.0, 12, (8, i)) for i in range(4)]
    for i, ask in enumerate(asked):
        samplers[i % 2].add(i, ask)
    answers = dict[int, Sampled]()
    while any(len(sampler) for sampler in samplers):
        for sampler in samplers:
            answers.update(sampler.step())
    same([answers[i] for i in range(4)], sample(model, asked, 8, None))


@given(st.integers(1, 10_000))
def test_a_padded_size_wastes_less_than_a_third(n: int) -> None:
    assert n <= padded_size(n) < n * 1.5 or n <= 2
    assert padded_size(padded_size(n)) == padded_size(n)
