"""Checks that a language model fits its device, and suggestions if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

from coevo_gym.agents.lm.model_shape import shape_of
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.planning.device import GIB, Device, device_here
from coevo_gym.runs.planning.memory import MemoryEstimate, computes_in_half, memory_by_arm
from coevo_gym.trainers.settings import LearnerConfig, UpdateConfig

_PHASES = {
    "sampling": "Sampling",
    "update": "An update",
    "warm-up": "The warm-up",
    "checkpoint": "Writing a checkpoint",
}


def require_memory(config: RunConfig) -> None:
    """Refuse a run whose language model cannot fit the GPU or the memory of this machine.

    The check counts only certain needs: weights, gradients, optimiser state, reference and vLLM's
    share. It is skipped for other policies, for models of unknown shape, and without PyTorch.

    Raises:
        ConfigError: with the need, the available memory, suggestions, and the way to start anyway.
    """
    found = _on_this_machine(config, lambda memory: memory.least)
    if found is None or found.memory.least <= found.device.memory:
        return
    memory, learner, device = found
    parts = {
        "weights": memory.learner + (memory.sampler if memory.share is None else 0),
        "gradients and AdamW's moments": memory.gradients + memory.moments,
        "the reference": memory.reference,
        "the average of the weights": memory.average,
        "vLLM": memory.share or 0,
        "the weights that all arms start from": memory.kept,
    }
    named = ", ".join(f"{gib(size)} for {name}" for name, size in parts.items() if size)
    ways = _sentence(_ways(config, learner, memory, device))
    raise ConfigError(
        f"{config.policy.model.path} does not fit the {device.name} with these settings: training "
        f"takes at least {gib(memory.least)} ({named}), and it has {gib(device.memory)}. "
        f"To need less, {ways}. `coevo train … --dry-run` prints the whole estimate; pass "
        "--ignore-memory (ignore_memory=True in Python) to start anyway."
    )


def memory_warnings(config: RunConfig) -> Iterator[str]:
    """Yield a warning if a run's language model may not fit this machine."""
    found = _on_this_machine(config, lambda memory: max(memory.peaks.values()))
    if found is not None and (text := shortfall(config, *found)):
        yield text


def shortfall(
    config: RunConfig, memory: MemoryEstimate, learner: LearnerConfig, device: Device
) -> str:
    """Describe why a run may not fit its device, with suggestions; "" if it fits."""
    share = memory.share
    if share is not None and share < memory.sampler + memory.context:
        return (
            f"vLLM's share is {gib(share)}, its weights are {gib(memory.sampler)} and one full "
            f"context is {gib(memory.context)}. Raise {_vllm_setting(config)}."
        )
    phase, needed = max(memory.peaks.items(), key=lambda peak: peak[1])
    excess = needed + device.reserve - device.memory
    if excess <= 0:
        return ""
    ways = [*_lengths(config, learner, phase), *_ways(config, learner, memory, device)]
    return (
        f"{_PHASES[phase]} takes up to {gib(needed)}. With {gib(device.reserve)} in reserve that "
        f"is {gib(excess)} more than the {device.name} has ({gib(device.memory)}). To need less, "
        f"{_sentence(ways)}."
    )


def gib(size: float) -> str:
    """Return a size in words, such as ``15 GiB``."""
    if 0 < size < GIB:
        return f"{size / 2**20:.0f} MiB"
    digits = 0 if size >= 10 * GIB else 1
    return f"{size / GIB:.{digits}f}".removesuffix(".0") + " GiB"


class _Found(NamedTuple):
    memory: MemoryEstimate
    learner: LearnerConfig
    device: Device


def _on_this_machine(config: RunConfig, most: Callable[[MemoryEstimate], int]) -> _Found | None:
    """Return the memory of the arm with the largest ``most``; None if unknown."""
    if config.policy.kind not in LANGUAGE_MODELS or find_spec("torch") is None:
        return None
    try:
        shape = shape_of(config.policy.model.path)
    except ModelError:  # an unsupported or broken model; loading it reports the reason
        return None
    device = device_here(config.policy)
    if shape is None or device is None:
        return None
    memory, learner = max(memory_by_arm(config, shape, device), key=lambda arm: most(arm[0]))
    return _Found(memory, learner, device)


def _lengths(config: RunConfig, learner: LearnerConfig, phase: str) -> Iterator[str]:
    """Yield suggestions for smaller activations and caches in a phase."""
    settings = config.policy.model
    if phase == "sampling" and config.policy.kind == "transformers":
        yield "lower policy.model.prefix_cache_gib"
    if phase == "update":
        pg = isinstance(learner, UpdateConfig)
        yield f"lower learner.{'microbatch_tokens' if pg else 'imitation.batch_tokens'}"
    if phase == "warm-up":
        yield "lower warmup.batch_tokens"
    yield f"{'lower' if settings.max_context else 'set'} policy.model.max_context"
    if phase in ("update", "warm-up") and not settings.gradient_checkpointing:
        yield "set policy.model.gradient_checkpointing"


def _ways(
    config: RunConfig, learner: LearnerConfig, memory: MemoryEstimate, device: Device
) -> Iterator[str]:
    """Yield suggestions for smaller weights, gradients, moments and references."""
    settings = config.policy.model
    if memory.share is not None:
        yield f"lower {_vllm_setting(config)}"
    if not settings.lora_rank:
        yield "train an adapter (policy.model.lora_rank)"
    if not computes_in_half(config, device) and (settings.lora_rank or memory.reference):
        yield "compute in bf16 (policy.model.dtype)"
    if memory.reference:
        yield "leave out the reference (learner.kl_coef = 0)"
    if memory.average:
        yield "leave out the average (learner.average = 0)"
    yield "choose a smaller model (policy.model.path)"


def _vllm_setting(config: RunConfig) -> str:
    share = config.policy.vllm.kv_cache_gib is None
    return f"policy.vllm.{'gpu_memory_utilization' if share else 'kv_cache_gib'}"


def _sentence(ways: Iterable[str]) -> str:
    *first, last = ways
    return f"{', '.join(first)}, or {last}" if first else last
