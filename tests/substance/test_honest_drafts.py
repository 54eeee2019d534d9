"""Honest drafts get through the gates that ask for substance."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
N = 50
MOST_LOST = 1
"""Of fifty: at most 4 of the 200 of all benchmarks."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["webshop", "bfcl", "alfworld", "appworld"])
def test_fifty_honest_drafts_pass(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "appworld":
        request.getfixturevalue("appworld_root")
    monkeypatch.syspath_prepend(BENCH)
    from honest_drafts import judged

    found = judged(name, N)
    lost = [(one.draft.instruction, one.verdict.reason) for one in found if one.lost]
    assert len(found) == N
    assert len(lost) <= MOST_LOST, lost


def test_some_honest_drafts_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from honest_drafts import judged

    for name, n in {"webshop": N, "bfcl": 12, "alfworld": 4}.items():
        assert not [one.verdict.reason for one in judged(name, n) if one.lost]
