"""The plan for a language model: memory, disk space and hours, as numbers and as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coevo_gym.agents.lm.model_shape import ModelShape, shape_of
from coevo_gym.core.waiting import duration
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.planning.device import Device
from coevo_gym.runs.planning.memory import (
    UNKNOWN_CONTEXT,
    MemoryEstimate,
    checkpoint_bytes,
    computes_in_half,
    gib,
    memory_by_arm,
    shortfall,
    updates_of,
)
from coevo_gym.trainers.settings import LearnerConfig

TRAINED, DECODED = 0.3, 0.5
"""Expected shares of a GPU's peak rates: of operations in training, and of memory reads in
sampling. Training a 1.5B model on an H200 reached 25% to 37% with compiled layers."""


@dataclass(frozen=True)
class ModelPlan:
    """Upper bounds on the memory (bytes) and time (seconds) for training a model on one device.

    Attributes:
        device: the device for training and sampling.
        parameters: number of weights.
        trained: number of trained weights.
        weights: bytes of the weights, including the sampler's copy.
        sampler: bytes of the sampler's copy; 0 if sampling uses the learner's weights.
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
        host: bytes of main memory while a checkpoint is written or read.
        sampling_s: seconds of sampling; None if unknown.
        learning_s: seconds of updates, including old and reference log-probabilities; None if
            unknown.
    """

    device: Device
    parameters: int
    trained: int
    weights: int
    sampler: int
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
    sampling_s: float | None
    learning_s: float | None


def plan_model(
    config: RunConfig, device: Device, sampled: int | None, learned: int | None
) -> ModelPlan | None:
    """Estimate the resources that a run's language model needs, or return None if it is unknown.

    If arms differ, the plan is for the arm that needs the most memory.

    Args:
        config: settings of the run.
        device: the training device.
        sampled: maximum number of tokens that an arm samples in training; None if unknown.
        learned: an arm's maximum tokens in one pass over all updates; None if unknown.
    """
    shape = shape_of(config.policy.model.path)
    if shape is None:
        return None
    by_arm = memory_by_arm(config, shape, device)
    memory, learner = max(by_arm, key=lambda arm: max(arm[0].peaks.values()))
    start, checkpoint = 4 * memory.trained, checkpoint_bytes(memory.trained, updates_of(learner))
    return ModelPlan(
        device=device,
        parameters=shape.n_parameters,
        trained=memory.trained,
        weights=memory.weights,
        sampler=memory.sampler,
        training=memory.training,
        reference=memory.reference,
        activations=memory.activations,
        context=memory.context,
        cache=memory.cache(device),
        prefixes=memory.prefixes,
        share=memory.share,
        peaks=memory.peaks,
        least=memory.least,
        shortfall=shortfall(config, memory, learner, device),
        start=start,
        checkpoint=checkpoint,
        disk=start + (len(config.arms) * config.store.keep_checkpoints + 1) * checkpoint,
        host=start + checkpoint,
        sampling_s=_sampling_s(config, shape, memory, sampled, device),
        learning_s=_learning_s(learner, shape, learned, device),
    )


def _sampling_s(
    config: RunConfig,
    shape: ModelShape,
    memory: MemoryEstimate,
    sampled: int | None,
    device: Device,
) -> float | None:
    """Estimate the sampling time. Each decoding step reads the weights and half the caches."""
    if sampled is None or device.bandwidth is None:
        return None
    per_step = config.loop.groups_per_step * config.rollout.group_size
    room = max(1, memory.cache(device) // memory.context)
    alive = min(config.rollout.max_envs or per_step, per_step, room)
    read = 2.0 * shape.n_parameters + alive * memory.context / 2
    return sampled / alive * read / (device.bandwidth * DECODED)


def _learning_s(
    learner: LearnerConfig, shape: ModelShape, learned: int | None, device: Device
) -> float | None:
    """Estimate the update time. A pass has 6 operations per weight and token (forward only: 2)."""
    if learned is None or device.flops is None:
        return None
    update = updates_of(learner)
    passes = 6 * update.epochs + 2 * bool(update.kl_coef)
    passes += 2 * (update.epochs * update.minibatches > 1)
    return learned * passes * shape.n_active / (device.flops * TRAINED)


def model_rows(model: ModelPlan, config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the plan as (name, amount) pairs, with the amounts as text."""
    device = model.device
    note = f" ({device.note})" if device.note else ""
    yield "device", f"{device.name}, {gib(device.memory)} of memory{note}"
    yield "parameters", f"{_count(model.parameters)}, {_count(model.trained)} of them trained"
    copied = f", including a {gib(model.sampler)} copy for sampling" * bool(model.sampler)
    yield "memory for weights", f"{gib(model.weights)}{copied}"
    reference = "no reference"
    if model.reference:
        precision = "bf16" if computes_in_half(config, device) else "fp32"
        reference = f"including the {gib(model.reference)} reference in {precision}"
    elif config.policy.model.lora_rank:
        reference = "no reference, because the adapter can be disabled instead"
    yield "memory for gradients, optimiser and reference", f"{gib(model.training)}, {reference}"
    yield "memory for activations", f"at most about {gib(model.activations)}"
    tokens = config.policy.model.max_context or UNKNOWN_CONTEXT
    contexts = f"{model.cache // model.context} full contexts of {tokens:,} tokens"
    past = f"; up to {gib(model.prefixes)} for past conversations" * bool(model.prefixes)
    yield "left for key-value caches", f"{gib(model.cache)}, enough for {contexts}{past}"
    peaks = ", ".join(f"{phase} {gib(size)}" for phase, size in model.peaks.items())
    yield "peak memory by phase", f"{peaks}; {gib(device.reserve)} are reserved"
    if model.least > device.memory:
        yield "warning: does not fit", model.shortfall
    elif model.shortfall:
        yield "warning: may not fit", model.shortfall
    yield (
        "disk for checkpoints",
        f"at most {gib(model.disk)}: {gib(model.start)} for the shared start, "
        f"{len(config.arms)} arms x {config.store.keep_checkpoints} checkpoints "
        f"of {gib(model.checkpoint)}, and one that is being written",
    )
    if device.is_gpu:
        yield "host memory for checkpoints", f"{gib(model.host)}, besides envs and libraries"
    if model.sampling_s is not None:
        yield (
            "sampling",
            f"at most {duration(model.sampling_s)} per arm, at {DECODED:.0%} of the peak memory "
            "bandwidth",
        )
    if model.learning_s is not None:
        yield (
            "updates",
            f"at most {duration(model.learning_s)} per arm, at {TRAINED:.0%} of the peak bf16 rate",
        )
    if not device.is_gpu:
        yield "hours", "no estimate for a CPU"
    elif device.flops is None:
        yield "hours", f"no estimate: the peak rates of the {device.name} are not known"
    elif model.learning_s is None:
        yield "hours of updates", "set loop.max_steps for an estimate"


def _count(n: int) -> str:
    return f"{n / 1e9:.2f} billion" if n >= 1e9 else f"{n / 1e6:.0f} million"
