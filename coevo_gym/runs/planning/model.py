"""The plan for a language model: memory and disk space, as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coevo_gym.agents.lm.language_model import SLOW_BF16
from coevo_gym.agents.lm.model_shape import shape_of
from coevo_gym.agents.lm.stored_models import end_tokens
from coevo_gym.core.arithmetic import cpu_has_bf16
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.planning.device import Device
from coevo_gym.runs.planning.memory import (
    UNKNOWN_CONTEXT,
    checkpoint_bytes,
    computes_in_half,
    describe_shortfall,
    format_bytes,
    memory_by_arm,
    simultaneous_episodes,
    update_settings_of,
)


@dataclass(frozen=True)
class ModelPlan:
    """Upper bounds on the memory, in bytes, for training a model on one device.

    Attributes:
        device: the device for training and sampling.
        parameters: number of weights.
        trained: number of trained weights.
        weights: bytes of the weights, including the sampler's copy.
        sampler: bytes of the sampler's copy; 0 if sampling uses the learner's weights.
        blocked: maximum bytes of a CPU's copy of the weights, which exists while sampling.
        training: bytes of gradients, the optimiser's state, the reference and averaged weights.
        reference: bytes of the reference alone; 0 with an adapter.
        activations: approximate bytes of forward and backward pass of one microbatch.
        context: bytes of the key-value cache of one full context.
        cache: bytes left for key-value caches, in vLLM's share or in the device's memory.
        prefixes: maximum bytes of the caches that store past conversations; 0 with vLLM.
        share: total bytes of vLLM; None if transformers samples.
        peaks: peak bytes by phase: ``sampling``, ``update``, ``warm-up`` if there is one, and
            ``checkpoint`` on a CPU.
        least: bytes of an update without activations.
        shortfall: reason why the model may not fit the device, with advice; "" if it fits.
        start: bytes of the initial trained weights, which all arms share.
        checkpoint: bytes of an arm's checkpoint: trained weights and optimiser state.
        disk: maximum bytes of all checkpoints of the run, including one being written.
        host: bytes of main memory while a checkpoint is written or read, with everything that is
            offloaded.
        offloaded: bytes of main memory for offloaded moments and the weights of a sleeping vLLM.
        sleeps: True if vLLM frees its share during updates.
    """

    device: Device
    parameters: int
    trained: int
    weights: int
    sampler: int
    blocked: int
    training: int
    reference: int
    activations: int
    context: int
    cache: int
    prefixes: int
    share: int | None
    peaks: Mapping[str, int]
    least: int
    shortfall: str
    start: int
    checkpoint: int
    disk: int
    host: int
    offloaded: int
    sleeps: bool


def plan_model(config: RunConfig, device: Device) -> ModelPlan | None:
    """Estimate the memory that a run's language model needs, or return None if it is unknown.

    If arms differ, the plan is for the arm that needs the most memory.
    """
    shape = shape_of(config.policy.model.path)
    if shape is None:
        return None
    by_arm = memory_by_arm(config, shape, device)
    memory, learner = max(by_arm, key=lambda arm: max(arm[0].peaks.values()))
    start, checkpoint = (
        4 * memory.trained,
        checkpoint_bytes(memory.trained, update_settings_of(learner)),
    )
    return ModelPlan(
        device=device,
        parameters=shape.n_parameters,
        trained=memory.trained,
        weights=memory.weights,
        sampler=memory.sampler,
        blocked=memory.blocked,
        training=memory.training,
        reference=memory.reference,
        activations=memory.activations,
        context=memory.context,
        cache=memory.cache_bytes(device),
        prefixes=memory.prefixes,
        share=memory.share,
        peaks=memory.peaks,
        least=memory.least,
        shortfall=describe_shortfall(config, memory, learner, device),
        start=start,
        checkpoint=checkpoint,
        disk=start + (len(config.arms) * config.store.keep_checkpoints + 1) * checkpoint,
        host=start + checkpoint + memory.host,
        offloaded=memory.host,
        sleeps=bool(memory.share) and not memory.sleeping,
    )


def model_rows(model: ModelPlan, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the plan as (name, amount) pairs, with the amounts as text."""
    device = model.device
    note = f" ({device.note})" if device.note else ""
    size = format_bytes(device.memory)
    several = f"{device.count} × {device.name}, {size} of memory each{note}"
    yield "device", several if device.count > 1 else f"{device.name}, {size} of memory{note}"
    if not device.is_gpu:
        yield from _precision_advice(config, device)
    yield (
        "parameters",
        f"{format_count(model.parameters)}, {format_count(model.trained)} of them trained",
    )
    if ends := end_tokens(config.policy.model.path):
        yield "tokens that end an answer", f"the template's end of turn, {', '.join(ends)}"
    copied = f", including a {format_bytes(model.sampler)} copy for sampling" * bool(model.sampler)
    blocked = f", and {format_bytes(model.blocked)} for a copy while sampling" * bool(model.blocked)
    yield "memory for weights", f"{format_bytes(model.weights)}{copied}{blocked}"
    reference = "no reference"
    if model.reference:
        precision = "bf16" if computes_in_half(config, device) else "fp32"
        reference = f"including the {format_bytes(model.reference)} reference in {precision}"
    elif config.policy.model.lora_rank:
        reference = "no reference, because the adapter can be disabled instead"
    yield (
        "memory for gradients, optimiser and reference",
        f"{format_bytes(model.training)}, {reference}",
    )
    yield "memory for activations", f"at most about {format_bytes(model.activations)}"
    yield from _cache_rows(model, config)
    peaks = ", ".join(f"{phase} {format_bytes(size)}" for phase, size in model.peaks.items())
    asleep = "; vLLM sleeps during updates" * model.sleeps
    yield "peak memory by phase", f"{peaks}; {format_bytes(device.reserve)} are reserved{asleep}"
    if model.least > device.memory:
        yield "warning: does not fit", model.shortfall
    elif model.shortfall:
        yield "warning: may not fit", model.shortfall
    yield (
        "disk for checkpoints",
        f"at most {format_bytes(model.disk)}: {format_bytes(model.start)} for the shared start, "
        f"{len(config.arms)} arm{'s' * (len(config.arms) > 1)} x "
        f"{config.store.keep_checkpoints} checkpoints "
        f"of {format_bytes(model.checkpoint)}, and one that is being written",
    )
    if device.is_gpu:
        offloaded = f", {format_bytes(model.offloaded)} of it for offloaded moments and weights"
        yield (
            "host memory for checkpoints",
            f"{format_bytes(model.host)}{offloaded * bool(model.offloaded)}, besides envs and "
            "libraries",
        )


def _cache_rows(model: ModelPlan, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the rows about key-value caches and about the episodes that fit into them."""
    if model.share == 0:
        yield "left for key-value caches", "those of the vLLM servers are not in this plan"
        chosen = config.rollout.max_envs
        limit = "limited by the benchmark's engine; rollout.max_envs sets a number"
        yield "simultaneous episodes", limit if chosen is None else f"{chosen:,} (rollout.max_envs)"
        return
    tokens = config.policy.model.max_context or UNKNOWN_CONTEXT
    contexts = f"{model.cache // model.context} full contexts of {tokens:,} tokens"
    past = f"; up to {format_bytes(model.prefixes)} for past conversations" * bool(model.prefixes)
    yield "left for key-value caches", f"{format_bytes(model.cache)}, enough for {contexts}{past}"
    yield (
        "simultaneous episodes",
        _episodes_text(config, simultaneous_episodes(config, model.device) or 1),
    )


def _episodes_text(config: RunConfig, fitting: int | None) -> str:
    """Describe how many episodes run at a time, given how many fit into the key-value caches."""
    chosen = config.rollout.max_envs
    assert fitting is not None  # the model's shape is known
    if chosen is None:
        return (
            f"at most {fitting:,}, with contexts that are half full on average; fewer if the "
            "benchmark's engine has a lower limit"
        )
    if chosen <= fitting:
        return f"{chosen:,} (rollout.max_envs)"
    return (
        f"{chosen:,} (rollout.max_envs); the key-value caches have room for {fitting:,} "
        "conversations with half of the context, so others are processed again in each turn"
    )


def _precision_advice(config: RunConfig, device: Device) -> Iterator[tuple[str, str]]:
    """Yield advice if this machine's CPU would be faster with another precision (fp32 or bf16)."""
    half = computes_in_half(config, device)
    if half and not cpu_has_bf16():
        yield "warning: slow precision", SLOW_BF16
    elif cpu_has_bf16() and not half:
        yield "precision", "fp32; with policy.model.dtype=bfloat16, this CPU takes half the time"


def format_count(n: int) -> str:
    """Format a large number, such as ``4.02 billion`` or ``135 million``."""
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.0f} million"
