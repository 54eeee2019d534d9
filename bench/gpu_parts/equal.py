"""Comparison of a GRPO step's loss and gradient on the device with the CPU in fp32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_parts.card import free_memory
from gpu_parts.subjects import Size, Subject, random_prompts, use_bf16_on
from torch import Tensor

import coevo_gym
from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.agents.lm.transformers_policy import TransformersPolicy
from coevo_gym.core.trajectory import EndReason, Group, Step, TokenDecision, Trajectory
from coevo_gym.trainers.grpo import GRPO, LearnablePolicy
from coevo_gym.trainers.settings import GRPOConfig

N_GROUPS, K = 2, 4
OFF_POLICY = 0.15
"""Standard deviation in nats of noise on recorded log-probabilities, so that some are clipped."""


class Tolerance(NamedTuple):
    """Maximum differences: absolute for the loss, relative to the CPU's values for the others."""

    loss: float
    grad_norm: float
    gradient: float


TOLERANCES = {
    "float32": Tolerance(loss=1e-4, grad_norm=1e-3, gradient=1e-2),
    # SmolLM2 in bf16 on a CPU: 4e-3, 0.06 and 0.27.
    "bfloat16": Tolerance(loss=2e-2, grad_norm=0.15, gradient=0.4),
    "bfloat16, compiled": Tolerance(loss=2e-2, grad_norm=0.15, gradient=0.4),
}
"""Tolerances by precision. Layers are compiled only on a GPU."""


class Gradient(NamedTuple):
    """The result of one step, as fp32 tensors on the CPU."""

    loss: float
    norm: float
    values: Tensor


def compare_with_cpu(
    subject: Subject, size: Size, device: str, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return one row per precision. ``ok`` is True if all differences are within tolerance."""
    exact = TransformersPolicy(ModelConfig(path=subject.folder, device="cpu"))
    groups = sample_groups(exact, size)
    wanted = compute_gradient(exact, groups)
    del exact
    tell(f"equal: {subject.name} on the CPU, loss {wanted.loss:+.5f}, norm {wanted.norm:.5f}")
    rows = []
    for dtype, tolerance in TOLERANCES.items():
        half, compiled = dtype != "float32", dtype.endswith("compiled")
        if compiled and device == "cpu":
            continue
        free_memory(device)
        settings = {"device": device, "dtype": "auto" if half else "float32"}
        with use_bf16_on(device) if half else nullcontext():
            config = ModelConfig.model_validate(
                {"path": subject.folder, **settings, "compile_layers": compiled}
            )
            actual = compute_gradient(LanguageModel(config), groups)
        row = _compare_gradients(actual, wanted, tolerance)
        rows.append({"model": subject.name, "dtype": dtype, **row})
        tell(
            f"equal: {device} {dtype}, off by {row['loss_off']:.1e} in the loss, "
            f"{row['grad_norm_off']:.1e} in the norm, {row['gradient_off']:.1e} in the gradient: "
            f"{'ok' if row['ok'] else f'beyond {tolerance}'}"
        )
    free_memory(device)
    return rows


def sample_groups(policy: TransformersPolicy, size: Size) -> list[Group]:
    """Return a small batch that the policy samples itself; it is always the same."""
    rng = np.random.default_rng(0)
    answer = (max(1, size.checked // 4), size.checked)
    task, groups = coevo_gym.tasks("webshop", "train")[0], []
    for g in range(N_GROUPS):
        asked = random_prompts(
            policy.format, policy.tokenizer, K, rng, prompt=size.prompt, answer=answer
        )
        decisions = []
        for completion in policy.generate(asked):
            d = completion.decision
            assert isinstance(d, TokenDecision)
            noise = rng.normal(0, OFF_POLICY, size=len(d.ids))
            recorded = tuple(float(p) for p in np.minimum(np.array(d.logprobs) + noise, 0))
            decisions.append(TokenDecision(d.prompt_ids, d.ids, recorded, d.temperature))
        groups.append(Group(f"g{g}", task, K, make_trajectories(task.id, [[d] for d in decisions])))
    return groups


def make_trajectories(
    task_id: str, decided: Sequence[Sequence[TokenDecision]]
) -> tuple[Trajectory, ...]:
    """Return episodes made of these decisions; every second one is solved."""
    return tuple(
        Trajectory(
            task_id=task_id,
            steps=tuple(Step("", "", "", decision) for decision in decisions),
            score=float(k % 2),
            success=k % 2 == 1,
            end_reason=EndReason.SOLVED if k % 2 else EndReason.FAILED,
        )
        for k, decisions in enumerate(decided)
    )


def compute_gradient(policy: LearnablePolicy, groups: Sequence[Group]) -> Gradient:
    """Return loss and gradient of a step that is too small to change the weights noticeably."""
    config = GRPOConfig(lr=1e-12, epochs=1, kl_coef=0, max_grad_norm=1e9, microbatch_tokens=16_384)
    metrics = GRPO(policy, config).update(groups)
    grads = [p.grad for p in policy.parameters()]
    flat = torch.cat([g.detach().cpu().float().flatten() for g in grads if g is not None])
    return Gradient(metrics["loss"], metrics["grad_norm"], flat)


def _compare_gradients(actual: Gradient, wanted: Gradient, tolerance: Tolerance) -> dict[str, Any]:
    off = Tolerance(
        loss=abs(actual.loss - wanted.loss),
        grad_norm=abs(actual.norm - wanted.norm) / wanted.norm,
        gradient=float((actual.values - wanted.values).norm() / wanted.values.norm()),
    )
    return {
        "loss": actual.loss,
        "loss_cpu": wanted.loss,
        "grad_norm": actual.norm,
        "grad_norm_cpu": wanted.norm,
        **{f"{name}_off": value for name, value in off._asdict().items()},
        "tolerance": tolerance._asdict(),
        "ok": all(o <= t for o, t in zip(off, tolerance, strict=True)),
    }
