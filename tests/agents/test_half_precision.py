"""bf16 on a CPU: how far sampling, log-probabilities, loss and gradients are from fp32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402

from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig  # noqa: E402
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy  # noqa: E402
from coevo_gym.core.seams import Message, Prompt, Sampling  # noqa: E402
from coevo_gym.core.trajectory import Group, Segment, TokenDecision  # noqa: E402
from coevo_gym.trainers.grpo import GRPO, GRPOConfig  # noqa: E402
from coevo_gym.trainers.ppo import PPO  # noqa: E402
from coevo_gym.trainers.segments import segments  # noqa: E402
from coevo_gym.trainers.settings import PPOConfig  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402
from tests.trainers.episodes import group, trajectory  # noqa: E402

pytestmark = pytest.mark.usefixtures("one_thread")


def make_tiny_qwen3(folder: Path) -> Path:
    """A random Qwen3 beside the tiny Llama's tokenizer."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    make_tiny_llama(folder)
    config = Qwen3Config(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


DTYPES: tuple[Literal["float32", "bfloat16"], ...] = ("float32", "bfloat16")
MAKERS: dict[str, Callable[[Path], Path]] = {"llama": make_tiny_llama, "qwen3": make_tiny_qwen3}


@pytest.fixture(scope="module", params=MAKERS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return MAKERS[request.param](tmp_path_factory.mktemp(request.param))


class Pair:
    """The same weights in fp32 and in bf16, and what the second has sampled."""

    def __init__(self, folder: Path, lora_rank: int) -> None:
        self.exact: Any
        self.half: Any
        self.exact, self.half = (
            TransformersPolicy(
                ModelConfig(path=str(folder), device="cpu", dtype=dtype, lora_rank=lora_rank)
            )
            for dtype in DTYPES
        )
        if lora_rank:  # an untrained adapter changes nothing
            rng = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for one, other in zip(*self._weights(), strict=True):
                    noise = 0.05 * torch.randn(one.shape, generator=rng)
                    one += noise
                    other += noise
        texts = [f"go to table {n}" for n in range(16)]
        prompts = [Prompt((Message("user", text),), Sampling(1.0, 24)) for text in texts]
        answers = [answer.decision for answer in self.half.generate(prompts)]
        self.decisions = [answer for answer in answers if isinstance(answer, TokenDecision)]
        self.segments = segments(self.decisions)
        self.recorded = torch.tensor([p for answer in self.decisions for p in answer.logprobs])

    def _weights(self) -> tuple[list[Any], list[Any]]:
        return self.exact.parameters(), self.half.parameters()

    def logprobs(self, policy: LanguageModel) -> Tensor:
        with torch.no_grad():
            logps, mask = policy.logprobs(self.segments)
        return logps[mask]

    def groups(self) -> list[Group]:
        """Two groups; the first of each has the one success."""
        episodes = [trajectory([one], success=k % 8 == 0) for k, one in enumerate(self.decisions)]
        return [group(*episodes[:8]), group(*episodes[8:])]


@pytest.fixture(scope="module", params=[0, 4])
def pair(folder: Path, request: pytest.FixtureRequest) -> Pair:
    return Pair(folder, request.param)


def gradient(policy: LanguageModel) -> Tensor:
    grads = [weight.grad for weight in policy.parameters()]
    return torch.cat([grad.double().flatten() for grad in grads if grad is not None])


def test_bf16_log_probabilities_are_near_those_in_fp32(pair: Pair) -> None:
    gap = (pair.logprobs(pair.half) - pair.logprobs(pair.exact)).abs()
    assert 1e-3 < gap.mean() < 0.05
    assert gap.max() < 0.4


def test_sampled_log_probabilities_are_nearer_to_the_learners_than_bf16_rounding(
    pair: Pair,
) -> None:
    """The first update's ratios are near 1; a copy in bf16 would be 0.02 to 0.03 off."""
    gap = pair.recorded - pair.logprobs(pair.half)
    assert gap.abs().mean() < 0.015
    assert gap.abs().max() < 0.2
    assert (-gap).exp().mean().item() == pytest.approx(1.0, abs=0.005)


def test_bf16_gradients_have_the_direction_and_norm_of_those_in_fp32(pair: Pair) -> None:
    config = GRPOConfig(lr=1e-12, epochs=1, kl_coef=0, max_grad_norm=1e9)
    gradients = []
    for policy in (pair.exact, pair.half):
        metrics = GRPO(policy, config).update(pair.groups())
        assert metrics["clip_fraction"] < 0.02
        gradients.append(gradient(policy))
    norms = [one.norm() for one in gradients]
    assert torch.dot(*gradients) / (norms[0] * norms[1]) > 0.98
    assert (norms[1] / norms[0]).item() == pytest.approx(1.0, abs=0.05)


def test_bf16_probabilities_add_up_to_1(pair: Pair) -> None:
    """The softmax is in fp32, whatever the products are in."""
    vocabulary = pair.half.model.config.vocab_size
    for prompt in {decision.prompt_ids for decision in pair.decisions[:4]}:
        sampled = (False,) * len(prompt) + (True,)
        every = [Segment((*prompt, token), sampled, (0.0,)) for token in range(vocabulary)]
        with torch.no_grad():
            logps, _ = pair.half.logprobs(every)
        assert logps.exp().sum().item() == pytest.approx(1.0, abs=1e-4)


def test_the_loss_is_computed_in_fp32(pair: Pair) -> None:
    """All ratios are 1, to more digits than bf16 has.

    The reference has weights in bf16, unless it is the model without its adapter.
    """
    config = GRPOConfig(lr=1e-12, epochs=2, old_logprobs="recomputed", importance_cap=None)
    metrics = GRPO(pair.half, config).update(pair.groups(), [[1.0] * 8, [0.25] * 8])
    lengths = [len(one.ids) for one in pair.decisions]
    expected = (sum(lengths[:8]) + 0.25 * sum(lengths[8:])) / sum(lengths)
    assert metrics["policy_loss"] == pytest.approx(-expected, abs=1e-6)
    assert 0.0 <= metrics["kl"] <= (1e-9 if pair.half.config.lora_rank else 5e-3)


def test_values_are_in_fp32_and_the_ppo_value_loss_is_near_that_of_fp32(pair: Pair) -> None:
    losses = []
    for policy in (pair.exact, pair.half):
        learner = PPO(policy, PPOConfig(lr=1e-12, epochs=1))
        rng = torch.Generator().manual_seed(0)
        with torch.no_grad():
            learner.head.weight.copy_(0.1 * torch.randn(64, generator=rng))
        values = learner.values(pair.segments)
        assert values.dtype == torch.float32
        losses.append(learner.update(pair.groups())["value_loss"])
    # bf16 rounds by up to 0.4 %, and a loss is a square of what passed some ten roundings.
    assert losses[1] == pytest.approx(losses[0], rel=0.1)
