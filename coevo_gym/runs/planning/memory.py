"""Estimates of the memory needed to train a language model, and advice on saving memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple

from coevo_gym.agents.lm.model_shape import ModelShape, shape_of
from coevo_gym.agents.lm.vllm_engine import adapter_bytes, check_vllm_settings
from coevo_gym.agents.lm.vllm_launch import check_server_settings
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.provision import install_hint
from coevo_gym.runs.config import RunConfig, arm_configs
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.planning.device import GIB, Device, device_here
from coevo_gym.trainers.settings import (
    NEEDS_TORCHAO,
    OFFLOAD_NEEDS_GPU,
    LearnerConfig,
    RestConfig,
    UpdateConfig,
)

UNKNOWN_CONTEXT = 8192
"""Context length in tokens for estimates, if the settings leave it to the model."""


@dataclass(frozen=True)
class MemoryEstimate:
    """An estimate of the memory needed to train one arm's language model.

    All values except ``trained`` are bytes. Weights, gradients, moments, reference and average are
    exact except for norms and biases; activations are an estimate.

    Attributes:
        trained: number of trained weights.
        learner: weights of the learner, including the model below an adapter.
        sampler: copy of the weights for sampling, with vLLM's adapters if they are handed over
            alone; 0 if the learner's weights are used.
        blocked: upper bound for a CPU's copy of the weights, which exists while sampling.
        gradients: gradients of an update, in fp32.
        moments: AdamW's two moments during training; 0 if they are offloaded.
        reference: the frozen reference; 0 with an adapter, which is disabled instead.
        average: the moving average of the weights, in fp32.
        activations: upper bound for forward and backward pass of one microbatch.
        imitation: upper bound for one pass of the warm-up; 0 without a warm-up.
        warmup_moments: AdamW's two moments during the warm-up; 0 if they are offloaded.
        context: key-value cache of one full context.
        share: total memory of vLLM on the learner's device; None if transformers samples.
        sleeping: part of ``share`` that vLLM keeps during updates; 0 if it sleeps then.
        prefixes: upper bound for keys and values of past conversations; 0 with vLLM.
        kept: on a CPU, the initial weights of all arms, which the run holds in memory.
        checkpoint: on a CPU, a checkpoint while it is written.
        host: on a GPU, main memory for offloaded moments and for the weights of a sleeping vLLM.
    """

    trained: int
    learner: int
    sampler: int
    blocked: int
    gradients: int
    moments: int
    reference: int
    average: int
    activations: int
    imitation: int
    warmup_moments: int
    context: int
    share: int | None
    sleeping: int
    prefixes: int
    kept: int
    checkpoint: int
    host: int

    @property
    def weights(self) -> int:
        """The total size, in bytes, of the learner's and the sampler's weights."""
        return self.learner + self.sampler

    @property
    def training(self) -> int:
        """The memory, in bytes, that training needs in addition to weights and activations."""
        return self.gradients + self.moments + self.reference + self.average

    @property
    def least(self) -> int:
        """The memory, in bytes, that is needed without activations and key-value caches.

        This is the memory of an update or, if vLLM sleeps during updates, of sampling.
        """
        return max(self.least_update, self.least_sampling)

    @property
    def least_update(self) -> int:
        """The memory, in bytes, that an update needs in addition to activations."""
        sampler = self.sampler if self.share is None else self.sleeping
        return self.learner + sampler + self.training + self.kept

    @property
    def least_sampling(self) -> int:
        """The memory, in bytes, that sampling needs in addition to key-value caches."""
        sampler = self.sampler if self.share is None else self.share
        return self.learner + sampler + self.training - self.gradients + self.kept

    @property
    def peaks(self) -> dict[str, int]:
        """The peak memory of each phase, in bytes.

        Sampling and updates do not add up: sampling drops the gradients, and an update first
        empties the cache of past conversations. The sampler's copy stays, and so does vLLM's share
        unless vLLM sleeps.
        """
        # During the evaluation of the average, a copy of the trained weights is kept.
        caches = self.average + (self.prefixes + self.context if self.share is None else 0)
        peaks = {
            "sampling": self.least_sampling + self.blocked + caches,
            "update": self.least_update + self.activations,
        }
        if self.imitation:
            own = self.learner + self.gradients + self.warmup_moments + self.kept
            peaks["warm-up"] = own + self.sleeping + self.imitation
        if self.checkpoint:
            peaks["checkpoint"] = self.least_update + self.checkpoint
        return peaks

    def cache_bytes(self, device: Device) -> int:
        """Return the number of bytes left for key-value caches."""
        if self.share is not None:
            return max(0, self.share - self.sampler)
        others = self.peaks["sampling"] - self.prefixes - self.context
        return max(0, device.memory - device.reserve - others)


def memory_by_arm(
    config: RunConfig, shape: ModelShape, device: Device
) -> list[tuple[MemoryEstimate, LearnerConfig]]:
    """Return each arm's memory estimate, together with the arm's learner settings."""
    learners = [arm.learner for arm in arm_configs(config).values()]
    return [(_estimate_memory(config, learner, shape, device), learner) for learner in learners]


def _estimate_memory(
    config: RunConfig, learner: LearnerConfig, shape: ModelShape, device: Device
) -> MemoryEstimate:
    settings, update = config.policy.model, update_settings_of(learner)
    adapter, half = settings.lora_rank > 0, computes_in_half(config, device)
    n, width = shape.n_parameters, 2 if half else 4
    trained = shape.n_lora_parameters(settings.lora_rank) if adapter else n
    # An adapter is fp32, on weights in the precision of the passes; weights that are trained
    # themselves are fp32, and then bf16 takes a copy to sample with, except on a CPU.
    engines = _count_engines(config, device)
    if engines is None:
        sampler = width * n if half and not adapter and device.is_gpu else 0
    elif config.policy.vllm.adapter == "alone":
        sampler = engines * (width * n + adapter_bytes(settings.lora_rank, width * trained))
    else:
        sampler = engines * width * n
    context = settings.max_context or UNKNOWN_CONTEXT
    average = 4 * trained if update.average else 0
    share = None if engines is None else _vllm_memory(config, engines, sampler, device)
    vllm = config.policy.vllm
    sleeps = share is not None and vllm.sleep
    offloaded = _OFFLOADED[update.optimizer] * trained
    estimate = MemoryEstimate(
        trained=trained,
        learner=width * n + 4 * trained if adapter else 4 * n,
        sampler=sampler,
        blocked=width * n if engines is None and not device.is_gpu else 0,
        gradients=4 * trained,
        moments=int(_MOMENTS[update.optimizer] * trained),
        reference=0 if adapter or not update.kl_coef else width * n,
        average=average,
        activations=_activation_bytes(
            config, shape, trained, max(update.microbatch_tokens, context), half=half
        ),
        imitation=_activation_bytes(
            config, shape, trained, _warmup_tokens(config, context), half=half
        ),
        warmup_moments=int(_MOMENTS[config.warmup.optimizer] * trained),
        context=width * context * shape.kv_values_per_token,
        share=share,
        sleeping=0 if sleeps else share or 0,
        prefixes=int(settings.prefix_cache_gib * GIB) if share is None else 0,
        kept=0 if device.is_gpu else 4 * trained,
        checkpoint=0 if device.is_gpu else checkpoint_bytes(trained, update),
        host=offloaded + (sampler if sleeps and vllm.adapter == "alone" else 0),
    )
    return _shard(estimate, device.count) if settings.shard and device.is_gpu else estimate


def _shard(memory: MemoryEstimate, n: int) -> MemoryEstimate:
    """Return the memory of the first of ``n`` GPUs that share a sharded model.

    It also has the whole weights, to sample with them.
    """
    if n == 1:
        return memory
    return replace(
        memory,
        learner=memory.learner + memory.learner // n,
        gradients=memory.gradients // n,
        moments=memory.moments // n,
        warmup_moments=memory.warmup_moments // n,
        reference=memory.reference // n,
    )


_OFFLOADED = {"adamw": 0, "adamw_8bit": 0, "adamw_offload": 8}
"""Bytes per trained weight of the moments in main memory, by optimiser."""
_MOMENTS = {"adamw": 8, "adamw_8bit": 2 + 2 * 4 / 256, "adamw_offload": 0}
"""Bytes per trained weight of the moments on the device. 8-bit moments have fp32 scales."""


def checkpoint_bytes(trained: int, update: UpdateConfig) -> int:
    """Return the size in bytes of a checkpoint with fp32 weights, moments and averaged weights."""
    moments = _MOMENTS[update.optimizer] + _OFFLOADED[update.optimizer]
    return int((4 + moments + (4 if update.average else 0)) * trained)


def computes_in_half(config: RunConfig, device: Device) -> bool:
    """Return True if a run computes in bf16; see ``policy.model.dtype``."""
    dtype = config.policy.model.dtype
    return dtype == "bfloat16" or (dtype == "auto" and device.is_gpu)


def update_settings_of(learner: LearnerConfig) -> UpdateConfig:
    """Return a learner's update settings.

    Imitation is assumed to accept all samples, and a user-defined learner to update like ``pg``.
    """
    if isinstance(learner, UpdateConfig):
        return learner
    if not isinstance(learner, RestConfig):
        return UpdateConfig()
    settings = learner.imitation
    return UpdateConfig(
        epochs=settings.max_epochs * len(learner.thresholds),
        minibatches=2,
        microbatch_tokens=settings.batch_tokens,
        kl_coef=0.0,
        optimizer=settings.optimizer,
    )


def simultaneous_episodes(config: RunConfig, device: Device) -> int | None:
    """Return how many conversations fit into the key-value caches, at least 1; None if unknown.

    A conversation grows up to ``max_context`` tokens, so a live one has half of them on average.
    """
    if config.policy.kind not in LANGUAGE_MODELS:
        return None
    try:
        shape = shape_of(config.policy.model.path)
    except ModelError:  # loading the model reports the reason
        return None
    if shape is None:
        return None
    estimates = [memory for memory, _ in memory_by_arm(config, shape, device)]
    if estimates[0].share == 0:
        return None  # the servers are elsewhere
    room = min(memory.cache_bytes(device) for memory in estimates)
    return max(1, 2 * room // estimates[0].context)


def _count_engines(config: RunConfig, device: Device) -> int | None:
    """Return the number of vLLM engines on the learner's device; None if transformers samples.

    Servers that a run starts on GPUs use the learner's GPU last, and never that of one of several
    learning processes.
    """
    if config.policy.kind == "vllm":
        return 1
    if config.policy.kind != "vllm_server":
        return None
    servers = config.policy.servers
    if servers.urls:
        return 0
    if not device.is_gpu:
        return servers.replicas or 1
    if device.count > 1:
        return 0
    import torch

    n_gpus = max(1, torch.cuda.device_count())
    return int((servers.replicas or max(1, n_gpus - 1)) >= n_gpus)


def _vllm_memory(config: RunConfig, engines: int, sampler: int, device: Device) -> int:
    settings = config.policy.vllm
    if settings.kv_cache_gib is not None:
        return sampler + engines * int(settings.kv_cache_gib * GIB)
    return engines * int(settings.gpu_memory_utilization * device.memory)


def _warmup_tokens(config: RunConfig, context: int) -> int:
    """Return the maximum number of tokens in one warm-up pass, or 0 if there is no warm-up."""
    warmup = config.warmup
    if not warmup.n_tasks and warmup.demonstrations is None:
        return 0
    return min(warmup.batch_tokens, warmup.batch_decisions * context)


def _activation_bytes(
    config: RunConfig, shape: ModelShape, trained: int, tokens: int, *, half: bool
) -> int:
    """Return the memory, in bytes, that activations take up in one pass.

    With checkpointing, only layer inputs are stored. The peak is at the end of the forward pass,
    including bf16 copies of trained weights, or while a layer is recomputed with its gradients.
    """
    if not tokens:
        return 0
    settings = config.policy.model
    activations = tokens * shape.activation_bytes_per_token_and_layer * (1 if half else 2)
    casts = 2 * trained if half else 0
    if not settings.gradient_checkpointing:
        return shape.layers * activations + casts
    stream = 2 if half and settings.lora_rank else 4
    return shape.layers * tokens * shape.hidden * stream + max(casts, 2 * activations)


_PHASES = {
    "sampling": "Sampling",
    "update": "An update",
    "warm-up": "The warm-up",
    "checkpoint": "Writing a checkpoint",
}


def check_memory_settings(config: RunConfig) -> None:
    """Check that settings that save memory suit a run's device, model and packages.

    Raises:
        ConfigError: if they do not suit the device or the model.
        ImportError: if the optimiser's package is not installed.
    """
    policy = config.policy
    if policy.kind not in LANGUAGE_MODELS or find_spec("torch") is None:
        return
    device = device_here(policy)
    if device is None:
        return
    if policy.kind == "vllm":
        check_vllm_settings(policy.model.lora_rank, policy.vllm, has_gpu=device.is_gpu)
    if policy.kind == "vllm_server":
        check_server_settings(
            policy.model.lora_rank, policy.vllm, policy.servers, has_gpu=device.is_gpu
        )
    learners = [arm.learner for arm in arm_configs(config).values()]
    optimizers = {update_settings_of(learner).optimizer for learner in learners}
    optimizers.add(config.warmup.optimizer)
    if "adamw_offload" in optimizers and not device.is_gpu:
        raise ConfigError(OFFLOAD_NEEDS_GPU)
    if "adamw_8bit" in optimizers and find_spec("torchao") is None:
        raise ImportError(f"{NEEDS_TORCHAO} {install_hint('torchao')}.")


def require_memory(config: RunConfig, processes: int = 1) -> None:
    """Reject a run whose language model cannot fit in this machine's GPUs or main memory.

    The check counts only memory that is always needed: weights, gradients, optimiser state,
    reference and vLLM's share. It is skipped for other policies, for models of unknown shape, and
    without PyTorch.

    Raises:
        ConfigError: if the model cannot fit; the message says how to save memory or start anyway.
    """
    estimate = _largest_estimate(config, lambda memory: memory.least, processes)
    if estimate is None:
        return
    memory, learner, device = estimate
    if memory.least <= device.memory:
        _require_room_for_prefixes(config, memory, device)
        return
    updates = memory.least == memory.least_update
    moments = "gradients and AdamW's moments" if updates else "AdamW's moments"
    parts = {
        "weights": memory.learner + (memory.sampler if memory.share is None else 0),
        moments: memory.moments + (memory.gradients if updates else 0),
        "the reference": memory.reference,
        "the average of the weights": memory.average,
        "vLLM": memory.sleeping if updates else memory.share or 0,
        "the weights that all arms start from": memory.kept,
    }
    text = ", ".join(f"{format_bytes(size)} for {name}" for name, size in parts.items() if size)
    ways = _join_ways(_ways_to_save_weights(config, learner, memory, device))
    raise ConfigError(
        f"{config.policy.model.path} does not fit on the {device.name} with these settings: "
        f"training needs at least {format_bytes(memory.least)} ({text}), but only "
        f"{format_bytes(device.memory)} is available. To reduce memory use, {ways}. "
        "`coevo train … --dry-run` prints the whole estimate; pass --ignore-memory "
        "(ignore_memory=True in Python) to start anyway."
    )


def _require_room_for_prefixes(config: RunConfig, memory: MemoryEstimate, device: Device) -> None:
    if memory.prefixes > device.memory:
        raise ConfigError(
            f"policy.model.prefix_cache_gib is {config.policy.model.prefix_cache_gib:g}, but the "
            f"{device.name} has {format_bytes(device.memory)} of memory. Set a smaller size, or "
            "pass --ignore-memory (ignore_memory=True in Python) to start anyway."
        )


def memory_warnings(config: RunConfig) -> Iterator[str]:
    """Yield a warning if a run's language model may not fit in this machine's memory."""
    estimate = _largest_estimate(config, lambda memory: max(memory.peaks.values()))
    if estimate is not None and (text := describe_shortfall(config, *estimate)):
        yield text


def describe_shortfall(
    config: RunConfig, memory: MemoryEstimate, learner: LearnerConfig, device: Device
) -> str:
    """Describe why a run may not fit on its device, and suggest changes. Return "" if it fits."""
    share = memory.share
    if share and share < memory.sampler + memory.context:
        return (
            f"vLLM's share is {format_bytes(share)}, but its weights take "
            f"{format_bytes(memory.sampler)}, and one full context takes "
            f"{format_bytes(memory.context)}. Raise {_vllm_memory_setting(config)}."
        )
    phase, needed = max(memory.peaks.items(), key=lambda peak: peak[1])
    excess = needed + device.reserve - device.memory
    if excess <= 0:
        return ""
    ways = [
        *_ways_to_save_activations(config, learner, phase),
        *_ways_to_save_weights(config, learner, memory, device),
    ]
    return (
        f"{_PHASES[phase]} takes up to {format_bytes(needed)}. With {format_bytes(device.reserve)} "
        f"in reserve that is {format_bytes(excess)} more than the {device.name} has "
        f"({format_bytes(device.memory)}). To reduce memory use, {_join_ways(ways)}."
    )


def format_bytes(size: float) -> str:
    """Return a size in bytes as text, such as ``15 GiB``."""
    if 0 < size < GIB:
        return f"{size / 2**20:.0f} MiB"
    digits = 0 if size >= 10 * GIB else 1
    return f"{size / GIB:.{digits}f}".removesuffix(".0") + " GiB"


class _Found(NamedTuple):
    memory: MemoryEstimate
    learner: LearnerConfig
    device: Device


def _largest_estimate(
    config: RunConfig, most: Callable[[MemoryEstimate], int], processes: int = 1
) -> _Found | None:
    """Return the memory estimate, learner and device of the arm that needs the most memory."""
    if config.policy.kind not in LANGUAGE_MODELS or find_spec("torch") is None:
        return None
    try:
        shape = shape_of(config.policy.model.path)
    except ModelError:  # an unsupported or broken model; loading it reports the reason
        return None
    device = device_here(config.policy)
    if shape is None or device is None:
        return None
    if processes > 1:
        device = replace(device, count=processes)
    memory, learner = max(memory_by_arm(config, shape, device), key=lambda arm: most(arm[0]))
    return _Found(memory, learner, device)


def _ways_to_save_activations(
    config: RunConfig, learner: LearnerConfig, phase: str
) -> Iterator[str]:
    """Yield ways to save memory on activations and caches in the given phase."""
    settings = config.policy.model
    if phase == "sampling" and config.policy.kind == "transformers":
        yield "lower policy.model.prefix_cache_gib"
    if phase == "update":
        if isinstance(learner, UpdateConfig):
            yield "lower learner.microbatch_tokens"
        elif isinstance(learner, RestConfig):
            yield "lower learner.imitation.batch_tokens"
    if phase == "warm-up":
        yield "lower warmup.batch_tokens"
    yield f"{'lower' if settings.max_context else 'set'} policy.model.max_context"
    if phase in ("update", "warm-up") and not settings.gradient_checkpointing:
        yield "set policy.model.gradient_checkpointing"


def _ways_to_save_weights(
    config: RunConfig, learner: LearnerConfig, memory: MemoryEstimate, device: Device
) -> Iterator[str]:
    """Yield ways to save memory on weights, gradients, optimiser moments and reference weights."""
    settings = config.policy.model
    if memory.share:
        yield f"lower {_vllm_memory_setting(config)}"
        if config.policy.kind == "vllm" and device.is_gpu and memory.sleeping:
            yield "let vLLM sleep during updates (policy.vllm.sleep)"
    if device.is_gpu and not settings.lora_rank and _has_full_moments(learner):
        imitates = isinstance(learner, RestConfig)
        key = "learner.imitation.optimizer" if imitates else "learner.optimizer"
        yield f"keep AdamW's moments in 8 bits or in main memory ({key})"
    if not settings.lora_rank:
        yield "train an adapter (policy.model.lora_rank)"
    if not computes_in_half(config, device) and (settings.lora_rank or memory.reference):
        yield "compute in bf16 (policy.model.dtype)"
    if memory.reference:
        yield "leave out the reference (learner.kl_coef = 0)"
    if memory.average:
        yield "leave out the average (learner.average = 0)"
    yield "choose a smaller model (policy.model.path)"


def _has_full_moments(learner: LearnerConfig) -> bool:
    return update_settings_of(learner).optimizer == "adamw"


def _vllm_memory_setting(config: RunConfig) -> str:
    share = config.policy.vllm.kv_cache_gib is None
    return f"policy.vllm.{'gpu_memory_utilization' if share else 'kv_cache_gib'}"


def _join_ways(ways: Iterable[str]) -> str:
    *first, last = ways
    return f"{', '.join(first)}, or {last}" if first else last
