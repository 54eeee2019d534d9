"""Honest drafts get through the gates that ask for substance."""

from __future__ import annotations

from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
N = 50
MAX_LOST = {"webshop": 0, "bfcl": 2, "alfworld": 0, "appworld": 2}
"""Of fifty each: at most 4 of 200. BFCL's are told to say something back, which asks nothing."""


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", MAX_LOST)
def test_nearly_all_of_fifty_honest_drafts_pass_the_gates(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if name == "appworld":
        request.getfixturevalue("appworld_root")
    monkeypatch.syspath_prepend(BENCH)
    from honest_drafts import judge_drafts

    results = judge_drafts(name, N)
    lost = [(one.draft.instruction, one.verdict.reason) for one in results if one.lost]
    assert len(results) == N
    assert len(lost) <= MAX_LOST[name], lost


def test_every_honest_draft_of_a_small_sample_passes_the_gates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(BENCH)
    from honest_drafts import judge_drafts

    for name, n in {"webshop": N, "bfcl": 12, "alfworld": 4}.items():
        assert not [one.verdict.reason for one in judge_drafts(name, n) if one.lost]
