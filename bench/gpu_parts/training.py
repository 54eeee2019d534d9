"""Speed of GRPO updates: tokens per second, share of the peak matrix rate, padding, memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_parts.card import Peaks, free_memory, peak_memory, time_call
from gpu_parts.equal import make_trajectories
from gpu_parts.subjects import Size, Subject

import coevo_gym
from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.agents.lm.model_shape import ModelShape
from coevo_gym.core.trajectory import Group, TokenDecision
from coevo_gym.runs.config import load_config
from coevo_gym.runs.planning.device import find_card
from coevo_gym.runs.planning.memory import MemoryEstimate, memory_by_arm
from coevo_gym.trainers.grpo import GRPO
from coevo_gym.trainers.settings import GRPOConfig

K = 8
ANSWERED = 3
"""One in this many tokens is sampled; the others belong to prompts and observations."""
TURN = 96
"""Maximum tokens of a turn, which is an observation and an answer."""
VARIANTS = {
    "cuda": ((False, False), (False, True), (True, True)),
    "cpu": ((False, False), (True, False)),
}
"""Pairs that say if activations are checkpointed and if layers are compiled, by device."""


def measure_training(
    subject: Subject, size: Size, device: str, peaks: Peaks, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return one row per variant and token budget."""
    groups = random_groups(subject.shape.vocabulary, size)
    rows = []
    for checkpointing, compiled in VARIANTS[device]:
        settings = {"gradient_checkpointing": checkpointing, "compile_layers": compiled}
        for budget in size.budgets:
            free_memory(device)
            row: dict[str, Any] = {
                "model": subject.name,
                "parameters": subject.shape.n_parameters,
                "budget_tokens": budget,
                "checkpointing": checkpointing,
                "compiled": compiled,
            }
            if device == "cuda":
                row["planned_memory"] = planned_memory(subject, budget, checkpointing)
            try:
                row |= _measure_updates(subject, groups, budget, settings, size, device, peaks)
            except torch.OutOfMemoryError:
                row["out_of_memory"] = True
            rows.append(row)
            tell(f"train: {_format_row(row)}")
    free_memory(device)
    return rows


def random_groups(vocabulary: int, size: Size) -> list[Group]:
    """Return episodes of random tokens in several turns, with about ``update_tokens`` tokens."""
    rng = np.random.default_rng(0)
    task = coevo_gym.tasks("webshop", "train")[0]
    groups: list[Group] = []
    tokens = 0
    while tokens < size.update_tokens:
        decided = [_random_episode(rng, vocabulary, size.segment) for _ in range(K)]
        tokens += sum(len(e[-1].prompt_ids) + len(e[-1].ids) for e in decided)
        groups.append(Group(f"g{len(groups)}", task, K, make_trajectories(task.id, decided)))
    return groups


def planned_memory(subject: Subject, budget: int, checkpointing: bool) -> int:
    """Return the planner's estimate of an update's peak bytes on a GPU, without compiled layers."""
    sets = (
        f"policy.model.path={subject.folder}",
        f"policy.model.max_context={budget}",
        f"policy.model.gradient_checkpointing={str(checkpointing).lower()}",
        f"learner.microbatch_tokens={budget}",
        f"learner.kl_coef={GRPOConfig().kl_coef}",
    )
    memory = estimate_memory("webshop_smollm2", sets, subject.shape)
    return memory.peaks["update"] - memory.sampler  # no answers are sampled


def estimate_memory(preset: str, sets: Sequence[str], shape: ModelShape) -> MemoryEstimate:
    """Return the planner's estimate for a GPU; without vLLM, it is equal for all GPUs."""
    config = load_config(preset, sets=sets).config
    return memory_by_arm(config, shape, find_card("h100"))[0][0]


def training_flops(shape: ModelShape, tokens: int, sampled: int) -> float:
    """Return the matrix operations of a forward and a backward pass: 6 per weight and token.

    The LM head processes only sampled positions. Attention scores, the embedding, recomputation by
    checkpointing, and passes without gradients are not counted.
    """
    head = shape.vocabulary * shape.hidden
    blocks = shape.n_active_parameters - head * (1 if shape.tied else 2)
    return 6.0 * (blocks * tokens + head * sampled)


def _measure_updates(
    subject: Subject,
    groups: Sequence[Group],
    budget: int,
    settings: Mapping[str, bool],
    size: Size,
    device: str,
    peaks: Peaks,
) -> dict[str, Any]:
    config = ModelConfig.model_validate(
        {
            "path": subject.folder,
            "device": device,
            "pack_tokens": budget,
            **settings,
        }
    )
    policy = LanguageModel(config)
    grpo = GRPOConfig(
        lr=1e-6,
        epochs=1,
        old_logprobs="recomputed",
        importance_cap=None,
        microbatch_tokens=budget,
    )
    learner = GRPO(policy, grpo)
    with _record_token_counts(policy) as fed:
        metrics = learner.update(groups)
    seconds, steps = [], []
    for _ in range(size.updates):
        metrics, spent = time_call(device, lambda: learner.update(groups))
        seconds.append(spent)
        steps.append(spent - metrics["reference_s"] - metrics["old_s"])
    # The last token of a segment predicts nothing, so the model does not process it.
    useful = int(metrics["tokens"] - metrics["samples"])
    step_s = median(steps)
    flops = training_flops(subject.shape, useful, int(metrics["tokens_sampled"])) / step_s
    return {
        "tokens": useful,
        "tokens_sampled": int(metrics["tokens_sampled"]),
        "update_s": median(seconds),
        "step_s": step_s,
        "tokens_per_s": useful / median(seconds),
        "step_tokens_per_s": useful / step_s,
        "mfu": flops / peaks.flops,
        "mfu_data_sheet": None if peaks.data_sheet is None else flops / peaks.data_sheet,
        "padding": 1.0 - useful / sum(fed),
        "peak_memory": peak_memory(device),
    }


@contextmanager
def _record_token_counts(policy: LanguageModel) -> Iterator[list[int]]:
    """Yield a list that records the tokens, with padding, of each forward pass of the policy."""
    seen: list[int] = []

    def note(module: Any, args: Any, settings: dict[str, Any]) -> None:
        seen.append(settings["input_ids"].numel())

    handle = policy.model.base_model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield seen
    finally:
        handle.remove()


def _random_episode(
    rng: np.random.Generator, vocabulary: int, lengths: tuple[int, int]
) -> list[TokenDecision]:
    """Return the turns of one conversation; each prompt continues all earlier turns."""
    length = int(rng.integers(lengths[0], lengths[1], endpoint=True))
    ids = tuple(rng.integers(vocabulary, size=length).tolist())
    decisions, start = [], 0
    while start < length:
        end = min(length, start + TURN)
        answer = max(1, (end - start) // ANSWERED)
        if end - answer > 0:
            answer_ids = ids[end - answer : end]
            decisions.append(TokenDecision(ids[: end - answer], answer_ids, (-1.0,) * answer))
        start = end
    return decisions


def _format_row(row: dict[str, Any]) -> str:
    what = f"{row['model']}, {row['budget_tokens']:,} tokens per pass"
    what += "".join(f", {kind}" for kind in ("checkpointing", "compiled") if row[kind])
    if row.get("out_of_memory"):
        return f"{what}: out of memory"
    memory = row["peak_memory"]
    return (
        f"{what}: {row['tokens_per_s']:,.0f} tokens/s, {row['step_tokens_per_s']:,.0f} in steps, "
        f"MFU {row['mfu']:.1%}, padding {row['padding']:.1%}"
        + ("" if memory is None else f", {memory / 2**30:.1f} GiB")
    )
