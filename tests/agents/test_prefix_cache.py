"""Sampling from what has been read before is the same as reading all of it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from coevo_gym.agents.lm import cached_attention  # noqa: E402
from coevo_gym.agents.lm.answers import Ask, Sampled, SamplingCounts  # noqa: E402
from coevo_gym.agents.lm.prefix_cache import PrefixCache, SequenceCache  # noqa: E402
from tests.agents import sampling  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")

VOCABULARY = 40
STOP = 0
CLOSE = 1e-4
"""A distance in probability within which rounding may decide in fp32."""
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.4,
}
MODELS: dict[str, Callable[[], Any]] = {
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)),
    "qwen3": lambda: transformers.Qwen3ForCausalLM(transformers.Qwen3Config(head_dim=8, **SHAPE)),
    "sliding window": lambda: transformers.MistralForCausalLM(
        transformers.MistralConfig(sliding_window=12, **SHAPE)
    ),
}
_MADE: dict[tuple[str, Any], Any] = {}


def model(name: str, dtype: Any) -> Any:
    if (name, dtype) not in _MADE:
        with torch.random.fork_rng():
            torch.manual_seed(5)
            _MADE[name, dtype] = MODELS[name]().eval().to(dtype)
    return _MADE[name, dtype]


def sample(
    network: Any, asks: Sequence[Ask], prefixes: PrefixCache, **changed: Any
) -> list[Sampled]:
    usual = {"seed": 3, "max_pass_tokens": 200, "prefixes": prefixes}
    return sampling.sample(network, asks, **{**usual, **changed})


ids = st.integers(1, VOCABULARY - 1)


class Call(NamedTuple):
    """What happens to some conversations before their next answers, and how these are drawn."""

    changes: dict[int, tuple[str, list[int]]]
    temperature: float
    max_tokens: int
    seed: int


calls = st.builds(
    Call,
    st.dictionaries(
        st.integers(0, 3),
        st.tuples(
            st.sampled_from(["append", "append", "append", "rewrite", "cut", "begin anew"]),
            st.lists(ids, min_size=1, max_size=25),
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([0.0, 0.7, 1.0]),
    st.integers(1, 9),
    st.integers(0, 2**62),
)


def changed(history: list[int], how: str, new: list[int], beginning: list[int]) -> list[int]:
    middle = max(1, len(history) // 2)
    if how == "append":
        return history + new
    if how == "rewrite":
        return history[:middle] + new + history[middle + len(new) :]
    return history[:middle] if how == "cut" else beginning + new


class Played(NamedTuple):
    """Answers to one call, with a cache and without."""

    asks: list[Ask]
    cached: list[Sampled]
    plain: list[Sampled]


def play(name: str, dtype: Any, script: Sequence[Call], max_bytes: int) -> list[Played]:
    """Run a script of calls on conversations that begin alike, with and without a cache."""
    network, prefixes = model(name, dtype), PrefixCache(max_bytes)
    beginning = [1 + i % (VOCABULARY - 1) for i in range(30)]
    histories = [list(beginning) for _ in range(4)]
    played = []
    for call in script:
        asks = []
        for place, (how, new) in call.changes.items():
            histories[place] = changed(histories[place], how, new, beginning)
            asks.append(Ask(tuple(histories[place]), call.temperature, call.max_tokens))
        cached = sample(network, asks, prefixes, seed=call.seed)
        plain = sample(network, asks, PrefixCache(0), seed=call.seed)
        played.append(Played(asks, cached, plain))
        for place, answer in zip(call.changes, plain, strict=True):
            histories[place] += answer.ids
        assert prefixes.n_bytes <= max_bytes
    return played


scripts = st.lists(calls, min_size=1, max_size=8)
memories = st.sampled_from([10**9, 120_000, 30_000])
"""Room for all that is read, for some conversations, and for less than one."""


def check_double(name: str, script: Sequence[Call], max_bytes: int) -> None:
    for played in play(name, torch.float64, script, max_bytes):
        for cached, plain in zip(played.cached, played.plain, strict=True):
            assert cached.ids == plain.ids
            assert cached.logprobs == pytest.approx(plain.logprobs, abs=1e-9)


def check_single(name: str, script: Sequence[Call], max_bytes: int) -> int:
    """Check that answers agree up to the first draw that rounding may decide; count those."""
    decided = 0
    for call, played in zip(script, play(name, torch.float32, script, max_bytes), strict=True):
        for place, (ask, cached, plain) in enumerate(zip(*played, strict=True)):
            pairs = enumerate(zip(cached.ids, plain.ids, strict=False))
            n = next((i for i, (one, other) in pairs if one != other), None)
            if n is None:
                assert cached.ids == plain.ids
                assert cached.logprobs == pytest.approx(plain.logprobs, abs=1e-4)
                continue
            prompt = (*ask.prompt, *plain.ids[:n])
            assert margin(name, prompt, ask, (call.seed, place), n) < CLOSE
            decided += 1
    return decided


def margin(name: str, prompt: Sequence[int], ask: Ask, seed: tuple[int, int], n: int) -> float:
    """Distance to another token: of the two best, or of the draw from the end of its share."""
    import numpy as np

    with torch.no_grad():
        logits = model(name, torch.float64)(torch.tensor([prompt])).logits[0, -1]
    if not ask.temperature:
        best = torch.log_softmax(logits, 0).topk(2).values
        return float(best[0] - best[1])
    ends = torch.softmax(logits / ask.temperature, 0).cumsum(0)
    draw = np.random.default_rng(seed).random(ask.max_tokens)[n]
    return float((ends - draw).abs().min())


@pytest.mark.parametrize("name", MODELS)
@given(script=scripts, max_bytes=memories)
@settings(max_examples=12)
def test_sampled_ids_are_equal_with_and_without_a_cache(
    name: str, script: list[Call], max_bytes: int
) -> None:
    check_double(name, script, max_bytes)
    note(f"draws decided by rounding: {check_single(name, script, max_bytes)}")


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_sampled_ids_are_equal_with_and_without_a_cache_in_500_conversations(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    decided = []

    @given(script=scripts, max_bytes=memories)
    @settings(max_examples=500)
    def run(script: list[Call], max_bytes: int) -> None:
        check_double(name, script, max_bytes)
        decided.append(check_single(name, script, max_bytes))

    run()
    with capsys.disabled():
        print(f"\n{name}: {len(decided)} scripts, {sum(decided)} draws decided by rounding in fp32")


def sample_counted(
    network: Any, asks: Sequence[Ask], prefixes: PrefixCache, seed: int = 3
) -> tuple[list[Sampled], SamplingCounts]:
    counts = SamplingCounts()
    return sample(network, asks, prefixes, seed=seed, counts=counts), counts


@pytest.mark.parametrize("name", MODELS)
def test_each_token_is_computed_once(name: str) -> None:
    network, prefixes = model(name, torch.float32), PrefixCache(10**9)
    asks = [Ask(tuple(range(1, 31)) + (place % 2 + 1,) * 20, 1.0, 4) for place in range(8)]
    _, counts = sample_counted(network, asks, prefixes)
    # A whole prompt, what another half does not share with it, and then one token each.
    assert counts.read == 50 + 20 + 6
    for _ in range(3):
        answers, counts = sample_counted(network, asks, prefixes)
        assert counts.read == 8  # nothing but the last token of each prompt
        asks = [
            Ask(ask.prompt + answer.ids + (7,) * 5, 1.0, 4)
            for ask, answer in zip(asks, answers, strict=True)
        ]
        answers, counts = sample_counted(network, asks, prefixes)
        assert counts.read == 8 * 6  # the answer's last token and five new ones
        assert counts.reused == sum(len(ask.prompt) for ask in asks) - counts.read
        assert counts.sampled == sum(len(answer.ids) for answer in answers)
        assert counts.fed == counts.read + counts.guessed + counts.rows - len(asks)


def converse(n: int, turns: int, max_bytes: int) -> SamplingCounts:
    """Let ``n`` conversations of different lengths take turns; return the counts."""
    network, prefixes, counts = (
        model("llama", torch.float32),
        PrefixCache(max_bytes),
        SamplingCounts(),
    )
    histories = [(1 + i, 2, 3) * (2 + i % 5) for i in range(n)]
    for turn in range(turns):
        asks = [Ask(history, 1.0, 3 + (i + turn) % 5) for i, history in enumerate(histories)]
        answers = sample(network, asks, prefixes, seed=turn, counts=counts)
        histories = [
            history + answer.ids + (5, 6)
            for history, answer in zip(histories, answers, strict=True)
        ]
    return counts


def test_a_cache_that_is_too_small_reads_less_than_none_in_proportion_to_its_size() -> None:
    none = converse(10, 8, 0)
    full = converse(10, 8, 10**9)
    fed = [none.fed]
    for share in (10, 4, 2):
        counts = converse(10, 8, 10 * 30_000 // share)
        assert counts.restarts == 0
        assert counts.fed <= fed[-1]
        fed.append(counts.fed)
    assert full.fed <= fed[-1] < (none.fed + full.fed) / 2 * 1.1


def test_an_answer_does_not_depend_on_its_batch() -> None:
    network = model("llama", torch.float64)
    asks = [Ask((1, 2, 3) * n, 1.0, 9) for n in (1, 9, 4, 20)]
    whole = sample(network, asks, PrefixCache(0))
    alone = sample(network, asks, PrefixCache(0), max_pass_tokens=1)
    assert [one.ids for one in whole] == [one.ids for one in alone]
    assert len({one.ids for one in sample(network, [asks[0]] * 6, PrefixCache(0))}) > 1


def stored(n: int = 5) -> SequenceCache:
    """A sequence of ``n`` tokens; with its free slots it takes 16 bytes a slot."""
    cache = SequenceCache()
    cache.append(0, torch.zeros(1, 1, n, 2), torch.zeros(1, 1, n, 2))
    cache.length = n
    return cache


SIZE = stored().n_bytes


def take(prefixes: PrefixCache, ids: tuple[int, ...]) -> int:
    """Continue a stored sequence with the next tokens; return the length of its prefix."""
    prefixes.count_lookup()
    n, key = prefixes.match(np.asarray(ids))
    if key is not None:
        prefixes.take(key, n)
    return n


def sequence(first: int) -> tuple[int, ...]:
    return (first, 9, 9, 9, 9)


def test_a_full_cache_keeps_the_older_sequences_because_the_newest_is_read_last() -> None:
    prefixes = PrefixCache(2 * SIZE)
    for _ in range(3):
        for first in (1, 2, 3, 4):
            prefixes.put(sequence(first), stored())
        assert [take(prefixes, (*sequence(first), 8)) for first in (1, 2, 3, 4)] == [5, 5, 0, 0]
    assert prefixes.n_bytes == 0


def test_sequences_that_are_not_continued_make_room() -> None:
    prefixes = PrefixCache(2 * SIZE)
    for first in (1, 2):
        prefixes.put(sequence(first), stored())
    take(prefixes, (*sequence(1), 8))  # the usual wait is one prompt
    prefixes.put((*sequence(1), 8), stored(6))
    for first in (5, 6, 7):
        take(prefixes, (first,))
    prefixes.put(sequence(5), stored())  # in the place of 2 or 1
    assert take(prefixes, (*sequence(5), 8)) == 5


def test_a_sequence_that_is_larger_than_the_cache_evicts_nothing() -> None:
    prefixes = PrefixCache(SIZE)
    prefixes.put(sequence(1), stored())
    for _ in range(9):
        prefixes.count_lookup()
    prefixes.put(sequence(2) * 20, stored(100))
    assert prefixes.n_bytes == SIZE
    prefixes.clear()
    assert prefixes.n_bytes == 0


def test_a_longer_sequence_replaces_its_beginning() -> None:
    prefixes = PrefixCache(10 * SIZE)
    prefixes.put(sequence(1), stored())
    prefixes.put((*sequence(1), 8), stored(6))
    assert prefixes.n_bytes == stored(6).n_bytes
    assert prefixes.match(np.asarray((*sequence(1), 7))) == (5, (*sequence(1), 8))
    before = prefixes.take((*sequence(1), 8), 3)  # a copy, because the sequence goes on differently
    assert before.length == 3
    assert prefixes.n_bytes == stored(6).n_bytes


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_equal_those_of_a_transformers_forward_pass(name: str) -> None:
    network = model(name, torch.float64)
    rng = np.random.default_rng(1)
    asks = [Ask(tuple(rng.integers(1, VOCABULARY, size=n).tolist()), 1.0, 6) for n in (3, 20, 9)]
    for ask, answer in zip(asks, sample(network, asks, PrefixCache(0), stop_ids=[]), strict=True):
        ids = torch.tensor([[*ask.prompt, *answer.ids]])
        with torch.no_grad():
            logps = network(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
        wanted = [logps[len(ask.prompt) + k - 1, token] for k, token in enumerate(answer.ids)]
        assert answer.logprobs == pytest.approx([float(logp) for logp in wanted], abs=1e-12)


def test_decoding_a_token_attends_once_per_key_head(monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[tuple[int, int]] = []
    attention = cached_attention.scaled_dot_product_attention

    def watched(query: Any, key: Any, *rest: Any, **settings: Any) -> Any:
        heads.append((query.shape[1], key.shape[1]))
        return attention(query, key, *rest, **settings)

    monkeypatch.setattr(cached_attention, "scaled_dot_product_attention", watched)
    network = model("llama", torch.float32)
    sample(network, [Ask((1, 2, 3), 1.0, 4), Ask((4, 5), 1.0, 4)], PrefixCache(0), stop_ids=[])
    n_layers = SHAPE["num_hidden_layers"]
    assert heads[2 * n_layers :] == [(2, 2)] * (2 * 3 * n_layers)  # after two prompts
    assert network.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("max_prepared", [0, 200, 2**18])  # no mask, small ones, all
def test_logits_of_continued_sequences_equal_those_of_whole_ones(
    name: str, max_prepared: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_attention, "_MAX_PREPARED", max_prepared)
    network = model(name, torch.float64)
    texts = np.random.default_rng(2).integers(1, VOCABULARY, size=(3, 200)).tolist()
    caches = [SequenceCache() for _ in texts]
    for sizes in ((20, 3, 9), (1, 4, 30), (5, 140, 2), (1, 1, 1)):
        starts = [cache.length for cache in caches]
        parts = [
            text[start : start + n] for text, start, n in zip(texts, starts, sizes, strict=True)
        ]
        parts_logits = cached_attention.next_logits(network, caches, parts, sizes).split(sizes)
        for text, start, n, logits in zip(texts, starts, sizes, parts_logits, strict=True):
            with torch.no_grad():
                whole = network(input_ids=torch.tensor([text[: start + n]]), use_cache=False)
            torch.testing.assert_close(logits, whole.logits[0, start:])
