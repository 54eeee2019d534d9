"""Copies of linear layers in another layout, which sampling on a CPU multiplies by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from coevo_gym.agents.lm import blocked_weights  # noqa: E402
from coevo_gym.agents.lm.blocked_weights import BlockedWeights, can_block  # noqa: E402
from coevo_gym.agents.lm.language_model import ModelConfig  # noqa: E402
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy  # noqa: E402
from coevo_gym.core.arithmetic import Arithmetic  # noqa: E402
from coevo_gym.core.seams import Message, Prompt, Sampling  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402

CPU = torch.device("cpu")
pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"
)
HALF_WORKS = torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()
PROMPTS = [Prompt((Message("user", text),), Sampling(0.0, 12)) for text in ("Hello!", "And you?")]


class Body(nn.Module):
    """Two layers and a head."""

    def __init__(self, head_dtype: Any = torch.float32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(96, 160), nn.Linear(160, 96, bias=False)
        self.head = nn.Linear(96, 300, bias=False, dtype=head_dtype)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).relu())


@pytest.fixture(autouse=True)
def native_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests compute with portable arithmetic, which does without blocked weights."""
    native = Arithmetic("native", "any", "AVX512")
    monkeypatch.setattr(blocked_weights, "freeze_arithmetic", lambda: native)


@pytest.fixture
def policy(tmp_path: Path) -> TransformersPolicy:
    make_tiny_llama(tmp_path)
    return TransformersPolicy(ModelConfig(path=str(tmp_path), device="cpu", dtype="float32"))


@pytest.mark.parametrize("rows", [1, 2, 7, 33, 200])
@torch.no_grad()
def test_blocked_products_equal_those_of_the_layers_up_to_rounding(rows: int) -> None:
    torch.manual_seed(rows)
    body, x = Body(), torch.randn(1, rows, 96)
    with BlockedWeights(body, torch.float32, body.head).use():
        blocked, logits = body(x), body.head(x)
    torch.testing.assert_close(blocked, body(x))
    torch.testing.assert_close(logits, body.head(x))


@pytest.mark.skipif(not HALF_WORKS, reason="this CPU has no blocked products in bf16")
@pytest.mark.parametrize("rows", [1, 7, 33])
@torch.no_grad()
def test_blocked_products_in_bf16_are_those_of_autocast(rows: int) -> None:
    torch.manual_seed(rows)
    body, x = Body(), torch.randn(rows, 96)
    blocked_weights = BlockedWeights(body, torch.bfloat16, body.head)
    with torch.autocast("cpu", torch.bfloat16):
        plain = body(x)
        with blocked_weights.use():
            blocked = body(x)
            with torch.autocast("cpu", enabled=False):
                logits = body.head(x)
    assert blocked.dtype == torch.bfloat16
    torch.testing.assert_close(blocked, plain, atol=0.02, rtol=0.02)
    torch.testing.assert_close(logits, body.head(x))


def test_a_copy_is_used_in_its_block_only_and_does_not_follow_the_weights() -> None:
    body, x = Body(), torch.randn(3, 96)
    with torch.no_grad():
        blocked, before = BlockedWeights(body, torch.float32, body.head), body(x)
        body.first.weight.zero_()
        with blocked.use():
            torch.testing.assert_close(body(x), before)
        with pytest.raises(ZeroDivisionError), blocked.use():
            _ = 1 / 0
    body(x).sum().backward()
    assert body.first.weight.grad is not None
    assert not torch.equal(body(x), before)


@torch.no_grad()
def test_a_head_in_bf16_keeps_its_own_product() -> None:
    body = Body(torch.bfloat16)
    with BlockedWeights(body, torch.float32, body.head).use():
        assert body.head(torch.ones(1, 96, dtype=torch.bfloat16)).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("device", "dtype"), [("cuda", torch.float32), ("cpu", torch.float64), ("cpu", torch.float16)]
)
def test_other_devices_and_dtypes_have_no_blocked_products(device: str, dtype: Any) -> None:
    assert not can_block(torch.device(device), dtype)


def test_portable_arithmetic_has_no_blocked_products(monkeypatch: pytest.MonkeyPatch) -> None:
    portable = Arithmetic("portable", "any", "DEFAULT")
    monkeypatch.setattr(blocked_weights, "freeze_arithmetic", lambda: portable)
    assert not can_block(CPU, torch.float32)


def test_a_policy_samples_the_same_answers_without_blocked_weights(
    policy: TransformersPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = policy.generate(PROMPTS)
    assert policy._blocked is not None
    policy.train()
    policy.train(mode=False)
    monkeypatch.setattr("coevo_gym.agents.lm.transformers_policy.can_block", lambda *_: False)
    plain = policy.generate(PROMPTS)
    assert policy._blocked is None
    assert [answer.decision.ids for answer in blocked] == [a.decision.ids for a in plain]


def test_a_policys_copy_is_kept_between_calls_and_freed_before_an_update(
    policy: TransformersPolicy,
) -> None:
    policy.generate(PROMPTS)
    blocked = policy._blocked
    policy.generate(PROMPTS)
    assert policy._blocked is blocked is not None
    policy.train()
    assert policy._blocked is None


@pytest.mark.parametrize("replaced", [False, True])
def test_a_policys_copy_follows_changed_weights(policy: TransformersPolicy, replaced: bool) -> None:
    policy.generate(PROMPTS)
    state = policy.state_dict()
    if replaced:
        for layer in policy.model.model.layers:
            layer.mlp.down_proj.weight = nn.Parameter(layer.mlp.down_proj.weight * -9)
    else:
        with torch.no_grad():
            for weight in policy.parameters():
                weight.mul_(1.5)
    changed = policy.generate(PROMPTS)
    fresh = policy.frozen_copy().generate(PROMPTS)
    assert [answer.decision for answer in changed] == [answer.decision for answer in fresh]
    restored = policy.load_state_dict(state).generate(PROMPTS)
    assert [answer.decision.ids for answer in restored] != [a.decision.ids for a in changed]
