"""A real model of 135 million parameters explores: what it finds is told, and not judged."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from coevo_gym.core.evolution import Round
from coevo_gym.core.seams import Sampling
from coevo_gym.core.spend import Caps
from tests.tapes.make import failure_contexts
from tests.tapes.pipeline import pipeline

# The models lie in the user's own folder; tests see another one.
SMOLLM2 = Path(os.environ.get("COEVO_HOME", "~/.cache/coevo")).expanduser() / "models/smollm2"
CALLS, TOKENS = 90, 150_000


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="SmolLM2 is not here (coevo model fetch smollm2)")
def test_a_small_model_explores_webshop_within_its_budget(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch = pytest.importorskip("torch")
    from coevo_gym.agents.lm.transformers_policy import ModelConfig, TransformersPolicy

    before = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other on a busy machine
    request.addfinalizer(lambda: torch.set_num_threads(before))
    policy = TransformersPolicy(ModelConfig(path=str(SMOLLM2), device="cpu"))
    evolver = pipeline(
        "webshop",
        policy,
        caps=Caps(max_calls_per_round=CALLS, max_tokens_per_round=TOKENS),
        max_tokens=64,
        sampling=Sampling(0.7, 64),
        walks=1,
        max_steps=6,
    )
    contexts = failure_contexts("webshop", 8, max_steps=6)
    result = evolver.run(Round(id="round-1", contexts=contexts, budget=32, seed=0))
    with capsys.disabled():
        print(
            "\nby gate:", dict(Counter(verdict.gate or "accepted" for verdict in result.verdicts))
        )
        print("problems:", dict(Counter(p for each in result.explored for p in each.problems)))
        print("usage:", {purpose: str(usage) for purpose, usage in result.usage.items()})
    assert [explored.context.id for explored in result.explored] == [c.id for c in contexts]
    assert any(walk.exchanges for explored in result.explored for walk in explored.walks)
    assert 0 < sum(usage.calls for usage in result.usage.values()) <= CALLS
    assert sum(usage.tokens for usage in result.usage.values()) <= TOKENS
    skipped = [verdict for verdict in result.verdicts if verdict.gate == "advisor"]
    assert len(result.verdicts) == len(skipped) + sum(bool(v.draft_id) for v in result.verdicts)
