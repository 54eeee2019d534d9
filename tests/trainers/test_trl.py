"""Loss and gradient on a real transformer: equal to those of TRL's trainer on the same batch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import Tensor  # noqa: E402
from torch.nn.utils.rnn import pad_sequence  # noqa: E402

from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig  # noqa: E402
from coevo_gym.core.trajectory import Group, Segment, TokenDecision  # noqa: E402
from coevo_gym.trainers.grpo import GRPO, GRPOConfig  # noqa: E402
from coevo_gym.trainers.segments import segments  # noqa: E402
from tests.agents.tiny_llama import make_tiny_llama  # noqa: E402
from tests.trainers.episodes import group, trajectory  # noqa: E402

BETA = 1e-3
SUCCESSES = ((1, 0, 0, 1), (1, 1, 1, 1))  # the second group has no spread
PINNED = {1.0: (0.0521282, 3.1533358), 0.7: (0.0526201, 4.5558224)}
"""Loss and gradient norm by temperature, as TRL 1.16.0 computes them. It does not bound k3, so the
model is moved less far than where the bound begins."""


class Setup(NamedTuple):
    """A model that has moved away from its reference, its learner, and what it shall learn."""

    model: LanguageModel
    learner: GRPO
    groups: list[Group]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llama(tmp_path_factory.mktemp("llama"))


def dialogue(k: int, rng: np.random.Generator, temperature: float) -> list[TokenDecision]:
    """A dialogue of a length of its own, most with an observation between two answers."""

    def draw(n: int) -> tuple[int, ...]:
        return tuple(int(i) for i in rng.integers(3, 280, size=n))

    prompt, decisions = draw(4 + k % 3), []
    for length in (2 + k, 5)[: 1 + (k % 4 > 0)]:
        ids = draw(length)
        decisions.append(TokenDecision(prompt, ids, (0.0,) * length, temperature))
        prompt += ids + draw(3)
    return decisions


def setup(folder: Path, temperature: float, **settings: Any) -> Setup:
    model = LanguageModel(ModelConfig(path=str(folder), device="cpu"))
    config = GRPOConfig(epochs=1, lr=1e-9, max_grad_norm=1e9, kl_coef=BETA, **settings)
    learner = GRPO(model, config)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.015 * torch.randn(weight.shape, generator=generator)
    rng = np.random.default_rng(0)
    trajectories = []
    for k, success in enumerate(np.ravel(SUCCESSES)):
        decisions = dialogue(k, rng, temperature)
        with torch.no_grad():
            logps = model.logprobs(segments(decisions))[0][0].numpy()
        old = iter(logps + rng.normal(0.0, 0.3, size=len(logps)))  # far enough to be clipped
        recorded = [
            TokenDecision(d.prompt_ids, d.ids, tuple(float(next(old)) for _ in d.ids), temperature)
            for d in decisions
        ]
        trajectories.append(trajectory(recorded, success=bool(success)))
    return Setup(model, learner, [group(*trajectories[:4]), group(*trajectories[4:])])


def ours(case: Setup) -> tuple[dict[str, float], dict[str, Tensor]]:
    metrics = case.learner.update(case.groups)
    parameters = case.model.model.named_parameters()
    return metrics, {name: weight.grad for name, weight in parameters}


def theirs(
    case: Setup, folder: Path, scratch: Path, temperature: float
) -> tuple[float, dict[str, Tensor]]:
    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig as TRLConfig
    from trl import GRPOTrainer

    args = TRLConfig(
        output_dir=str(scratch),
        loss_type="dapo",
        epsilon=0.2,
        epsilon_high=0.28,
        beta=BETA,
        use_bias_correction_kl=False,  # else the KL term is weighted by the ratio
        temperature=temperature,
        num_generations=4,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        gradient_checkpointing=False,
        bf16=False,
        use_cpu=True,
        report_to=[],
    )
    trainer = GRPOTrainer(
        model=str(folder),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "unused"}] * 8),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.model.load_state_dict(case.model.model.state_dict())
    trainer.current_gradient_accumulation_steps = 1
    inputs = trl_inputs(case)
    with torch.no_grad():
        inputs["ref_per_token_logps"] = trainer._get_per_token_logps_and_entropies(
            trainer.ref_model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
            inputs["completion_ids"].shape[1],
        )[0]
    trainer.model.train()
    loss = trainer.compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), {name: w.grad for name, w in trainer.model.named_parameters()}


def trl_inputs(case: Setup) -> dict[str, Tensor]:
    """What TRL calls this batch: prompts padded on the left, completions on the right."""
    samples: list[Segment] = []
    advantages: list[float] = []
    for one, values in zip(case.groups, case.learner.advantages(case.groups), strict=True):
        for episode, value in zip(one.trajectories, values, strict=True):
            assert isinstance(value, float)
            (segment,) = segments([s.decision for s in episode.steps])  # type: ignore[misc]
            samples.append(segment)
            advantages.append(value)
    starts = [segment.sampled.index(True) for segment in samples]
    prompts = [torch.tensor(s.ids[:n]) for s, n in zip(samples, starts, strict=True)]
    answers = [torch.tensor(s.ids[n:]) for s, n in zip(samples, starts, strict=True)]
    sampled = [torch.tensor(s.sampled[n:]) for s, n in zip(samples, starts, strict=True)]
    old = []
    for segment, is_sampled in zip(samples, sampled, strict=True):
        row = torch.zeros(len(is_sampled))
        row[is_sampled] = torch.tensor(segment.logprobs)
        old.append(row)

    def pad(rows: list[Tensor], side: str = "right") -> Tensor:
        return pad_sequence(rows, batch_first=True, padding_side=side)

    tool_mask = pad(sampled).long()
    return {
        "prompt_ids": pad(prompts, "left"),
        "prompt_mask": pad([torch.ones_like(row) for row in prompts], "left"),
        "completion_ids": pad(answers),
        "completion_mask": pad([torch.ones_like(row) for row in answers]),
        "tool_mask": tool_mask,
        "advantages": torch.tensor(advantages),
        "old_per_token_logps": pad(old),
        "num_items_in_batch": tool_mask.sum(),
    }


def norm(gradients: Mapping[str, Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradients.values()]).norm())


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("microbatch_tokens", [4096, 30])
def test_loss_and_gradient_equal_the_stored_numbers_of_trl(
    folder: Path, temperature: float, microbatch_tokens: int
) -> None:
    case = setup(folder, temperature, microbatch_tokens=microbatch_tokens)
    metrics, gradients = ours(case)
    loss, length = PINNED[temperature]
    assert metrics["clip_fraction"] > 0.05
    assert metrics["kl"] > 0.01
    assert metrics["degenerate_share"] == 0.5
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert norm(gradients) == pytest.approx(length, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_loss_and_gradient_equal_those_of_trl(
    folder: Path, tmp_path: Path, temperature: float
) -> None:
    pytest.importorskip("trl")
    case = setup(folder, temperature)
    loss, expected = theirs(case, folder, tmp_path, temperature)
    metrics, gradients = ours(case)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected[name], atol=1e-5, rtol=1e-4, msg=name)
    assert (loss, norm(expected)) == pytest.approx(PINNED[temperature], abs=1e-5)
