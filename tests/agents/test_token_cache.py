"""The cache of token ids: what it keeps, within its bound, for threads too."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coevo_gym.agents.chat.format import TokenCache, _entry_bytes

TEXTS = [letter * 1000 for letter in "abcdefghij"]


class Counted:
    """A tokenizer of letters that notes what it is asked."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.texts.append(text)
        return [ord(letter) for letter in text]


def test_the_least_recently_used_text_is_evicted_at_the_bound() -> None:
    tokenise = Counted()
    ids_of = TokenCache(tokenise, max_bytes=20_000)  # 1,000 letters and their ids take 5,000
    for text in (*TEXTS[:3], TEXTS[0], TEXTS[3]):
        assert ids_of(text).tolist() == [ord(text[0])] * 1000
        assert ids_of.n_bytes <= 20_000
    assert tokenise.texts == TEXTS[:4]
    ids_of(TEXTS[0])
    assert tokenise.texts == TEXTS[:4]
    ids_of(TEXTS[1])
    assert tokenise.texts == [*TEXTS[:4], TEXTS[1]]


def test_a_text_larger_than_the_bound_evicts_no_other() -> None:
    tokenise = Counted()
    ids_of = TokenCache(tokenise, max_bytes=20_000)
    ids_of("a")
    used = ids_of.n_bytes
    for _ in range(2):
        assert len(ids_of("x" * 10_000)) == 10_000
    assert ids_of.n_bytes == used
    ids_of("a")
    assert tokenise.texts == ["a", "x" * 10_000, "x" * 10_000]


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads that are switched as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_threads")
def test_threads_can_share_the_cache() -> None:
    ids_of = TokenCache(Counted(), max_bytes=20_000)
    with ThreadPoolExecutor(8) as pool:
        encodings = pool.map(ids_of, TEXTS * 400)
        assert all(ids[0] == ord(t[0]) for ids, t in zip(encodings, TEXTS * 400, strict=True))
    n_bytes = sum(_entry_bytes(text, ids) for text, ids in ids_of._known.items())
    assert 0 < ids_of.n_bytes == n_bytes
