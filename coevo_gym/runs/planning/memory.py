"""Memory of a language model on its training device, in total and by phase."""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.agents.lm.model_shape import ModelShape
from coevo_gym.runs.config import RunConfig, arm_configs
from coevo_gym.runs.planning.device import GIB, Device
from coevo_gym.trainers.settings import LearnerConfig, UpdateConfig

UNKNOWN_CONTEXT = 8192
"""Context length in tokens for estimates, if the settings leave it to the model."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory of a language model while one arm trains it.

    All values except ``trained`` are bytes. Weights, gradients, moments, reference and average are
    exact except for norms and biases; activations are an estimate.

    Attributes:
        trained: number of trained weights.
        learner: weights of the learner, including the model below an adapter.
        sampler: copy of the weights for sampling; 0 if the learner's are used.
        gradients: gradients of an update, in fp32.
        moments: AdamW's two moments, in fp32.
        reference: the frozen reference; 0 with an adapter, which is disabled instead.
        average: the moving average of the weights, in fp32.
        activations: upper bound for forward and backward pass of one microbatch.
        imitation: upper bound for one pass of the warm-up; 0 without a warm-up.
        context: key-value cache of one full context.
        share: total memory of vLLM; None if transformers samples.
        prefixes: upper bound for keys and values of past conversations; 0 with vLLM.
        kept: on a CPU, the initial weights of all arms, which the run holds in memory.
        checkpoint: on a CPU, a checkpoint during its writing.
    """

    trained: int
    learner: int
    sampler: int
    gradients: int
    moments: int
    reference: int
    average: int
    activations: int
    imitation: int
    context: int
    share: int | None
    prefixes: int
    kept: int
    checkpoint: int

    @property
    def weights(self) -> int:
        """Return the bytes of the weights of learner and sampler."""
        return self.learner + self.sampler

    @property
    def training(self) -> int:
        """Return the bytes that training adds to the weights, without activations."""
        return self.gradients + self.moments + self.reference + self.average

    @property
    def least(self) -> int:
        """Return the bytes of an update without activations."""
        return self._weights_and_share + self.training + self.kept

    @property
    def peaks(self) -> dict[str, int]:
        """Return the peak bytes of each phase.

        Sampling and updates do not add up: sampling drops the gradients, and an update first
        empties the cache of past conversations. The sampler's copy and vLLM's share stay.
        """
        lasting = self.moments + self.reference + self.average
        # During the evaluation of the average, a copy of the trained weights is kept.
        caches = self.average + (self.prefixes + self.context if self.share is None else 0)
        peaks = {
            "sampling": self._weights_and_share + lasting + caches + self.kept,
            "update": self.least + self.activations,
        }
        if self.imitation:
            share = self.share or 0
            own = self.learner + self.gradients + self.moments + self.kept
            peaks["warm-up"] = own + share + self.imitation
        if self.checkpoint:
            peaks["checkpoint"] = self.least + self.checkpoint
        return peaks

    @property
    def _weights_and_share(self) -> int:
        return self.weights if self.share is None else self.learner + self.share

    def cache(self, device: Device) -> int:
        """Return the bytes for key-value caches: those in vLLM's share, or the remaining memory."""
        if self.share is not None:
            return max(0, self.share - self.sampler)
        others = self.peaks["sampling"] - self.prefixes - self.context
        return max(0, device.memory - device.reserve - others)


def memory_by_arm(
    config: RunConfig, shape: ModelShape, device: Device
) -> list[tuple[MemoryEstimate, LearnerConfig]]:
    """Return the memory of each arm of a run, with the settings of its learner."""
    learners = [arm.learner for arm in arm_configs(config).values()]
    return [(_memory_of(config, learner, shape, device), learner) for learner in learners]


def _memory_of(
    config: RunConfig, learner: LearnerConfig, shape: ModelShape, device: Device
) -> MemoryEstimate:
    settings, update = config.policy.model, updates_of(learner)
    adapter, half = settings.lora_rank > 0, computes_in_half(config, device)
    n, width = shape.n_parameters, 2 if half else 4
    trained = shape.lora_parameters(settings.lora_rank) if adapter else n
    # An adapter is fp32, on weights in the precision of the passes; weights that are trained
    # themselves are fp32, and then bf16 takes a copy to sample with.
    copied = config.policy.kind == "vllm" or (half and not adapter)
    sampler = width * n if copied else 0
    context = settings.max_context or UNKNOWN_CONTEXT
    average = 4 * trained if update.average else 0
    share = _share_of_vllm(config, sampler, device)
    return MemoryEstimate(
        trained=trained,
        learner=width * n + 4 * trained if adapter else 4 * n,
        sampler=sampler,
        gradients=4 * trained,
        moments=8 * trained,
        reference=0 if adapter or not update.kl_coef else width * n,
        average=average,
        activations=_activations(
            config, shape, trained, max(update.microbatch_tokens, context), half=half
        ),
        imitation=_activations(config, shape, trained, _imitated(config, context), half=half),
        context=width * context * shape.kv_values_per_token,
        share=share,
        prefixes=int(settings.prefix_cache_gib * GIB) if share is None else 0,
        kept=0 if device.is_gpu else 4 * trained,
        checkpoint=0 if device.is_gpu else checkpoint_bytes(trained, update),
    )


def checkpoint_bytes(trained: int, update: UpdateConfig) -> int:
    """Return the bytes of a checkpoint: weights, moments and average, in fp32."""
    return (16 if update.average else 12) * trained


def computes_in_half(config: RunConfig, device: Device) -> bool:
    """Return whether a run computes in bf16, see ``policy.model.dtype``."""
    dtype = config.policy.model.dtype
    return dtype == "bfloat16" or (dtype == "auto" and device.is_gpu)


def updates_of(learner: LearnerConfig) -> UpdateConfig:
    """Return the kind of updates of a learner, for imitation as if all samples were accepted."""
    if isinstance(learner, UpdateConfig):
        return learner
    settings = learner.imitation
    return UpdateConfig(
        epochs=settings.max_epochs * len(learner.thresholds),
        minibatches=2,
        microbatch_tokens=settings.batch_tokens,
        kl_coef=0.0,
    )


def _share_of_vllm(config: RunConfig, sampler: int, device: Device) -> int | None:
    if config.policy.kind != "vllm":
        return None
    settings = config.policy.vllm
    if settings.kv_cache_gib is not None:
        return sampler + int(settings.kv_cache_gib * GIB)
    return int(settings.gpu_memory_utilization * device.memory)


def _imitated(config: RunConfig, context: int) -> int:
    """Return the most tokens in one pass of the warm-up; 0 without a warm-up."""
    warmup = config.warmup
    if not warmup.n_tasks and warmup.demonstrations is None:
        return 0
    return min(warmup.batch_tokens, warmup.batch_decisions * context)


def _activations(
    config: RunConfig, shape: ModelShape, trained: int, tokens: int, *, half: bool
) -> int:
    """Return the bytes of one pass: the inputs of all layers, or all stored activations.

    With checkpointing, the peak is at the end of the forward pass, including bf16 copies of trained
    weights, or while a layer is recomputed with its gradients, whichever is larger.
    """
    if not tokens:
        return 0
    settings = config.policy.model
    kept = tokens * shape.kept_per_token * (1 if half else 2)
    casts = 2 * trained if half else 0
    if not settings.gradient_checkpointing:
        return shape.layers * kept + casts
    stream = 2 if half and settings.lora_rank else 4
    return shape.layers * tokens * shape.hidden * stream + max(casts, 2 * kept)
