"""What a run will do, worked out from its settings before anything is started.

Counts are exact where the settings fix them and upper bounds elsewhere. Hours are what one GPU
would need at the stated shares of its peaks: an estimate from first principles, not a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import gymnasium as gym
from gymnasium.envs.registration import load_env_creator

from coevo_gym.agents.lm.model_shape import ModelShape, shape_of
from coevo_gym.config import ArmConfig, RunConfig, arm_configs, rate_warnings
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.envs.base import TaskEnv
from coevo_gym.methods.published import published
from coevo_gym.trainers.settings import CLIPS_NEVER_ACT, GRPOConfig, UpdateConfig

GIB = 2**30
UNKNOWN_CONTEXT = 8192
"""Tokens of a context, for the estimates, where the settings leave them to the model."""
RESERVE = 6 * GIB
"""For what is not counted: CUDA itself, its graphs, workspaces, logits, gaps. A guess."""


class Accelerator(NamedTuple):
    """A card, and what of its peaks a run is expected to reach.

    Attributes:
        name: for people.
        flops: bf16 matrix operations per second.
        bandwidth: bytes of memory read per second.
        memory: bytes.
        trained: expected share of ``flops`` in training.
        decoded: expected share of ``bandwidth`` in sampling.
    """

    name: str
    flops: float
    bandwidth: float
    memory: float
    trained: float = 0.4
    decoded: float = 0.5


H200 = Accelerator("H200", flops=788e12, bandwidth=4.3e12, memory=139 * GIB)


@dataclass(frozen=True)
class ModelPlan:
    """What a language model needs; bytes, and seconds at most.

    Attributes:
        parameters: weights, all of them.
        trained: weights that are trained.
        weights: bytes of the weights, the sampler's copy included.
        training: bytes of gradients, the optimiser's state, averaged weights and, without adapters,
            the reference.
        activations: bytes that forward and backward pass of one microbatch hold, about.
        context: bytes of the key-value cache of one full context.
        cache: bytes for key-value caches; of vLLM what its share leaves, and not more.
        shortfall: why it does not fit the card, and what to change; "" if it fits.
        start: bytes of what all arms start from: the weights that are trained.
        checkpoint: bytes of a checkpoint of an arm: these weights and the optimiser's state.
        disk: bytes of all checkpoints of the run at the most, one of them being written.
        host: bytes of the host's memory while one is written or read, the start's included.
        sampling_s: seconds of sampling.
        learning_s: seconds of updates, old and reference log-probabilities included.
    """

    parameters: int
    trained: int
    weights: int
    training: int
    activations: int
    context: int
    cache: int
    shortfall: str
    start: int
    checkpoint: int
    disk: int
    host: int
    sampling_s: float
    learning_s: float


@dataclass(frozen=True)
class Plan:
    """What one arm of a run will do; the one that does most, where arms differ.

    Attributes:
        steps: steps of the learner; None where env steps are the limit.
        groups_per_step: tasks in a step.
        group_size: episodes of a task.
        max_env_steps: most env steps of training episodes.
        initial_tasks: tasks to find before the first step; 0 if all arms practise native ones.
        rounds: rounds of evolution that something trains on; None where env steps are the limit.
        evaluations: evaluations of the policy; likewise.
        evaluation_tasks: tasks in each.
        evaluation_samples: episodes of each of these tasks.
        max_sampled_tokens: most tokens to sample in training; None for a policy without tokens.
        model: what the language model needs; None for another policy, or an unknown model.
    """

    steps: int | None
    groups_per_step: int
    group_size: int
    max_env_steps: int
    initial_tasks: int
    rounds: int | None
    evaluations: int | None
    evaluation_tasks: int
    evaluation_samples: int
    max_sampled_tokens: int | None
    model: ModelPlan | None

    @property
    def rollouts_per_step(self) -> int:
        """Episodes in a step."""
        return self.groups_per_step * self.group_size

    @property
    def rollouts(self) -> int | None:
        """Training episodes in all."""
        return None if self.steps is None else self.steps * self.rollouts_per_step


def plan(config: RunConfig, card: Accelerator = H200) -> Plan:
    """Work out what one arm of a run will do.

    Args:
        config: the run's settings.
        card: what its hours are estimated for.
    """
    loop, steps = config.loop, config.loop.max_steps
    arms = arm_configs(config).values()
    per_step = loop.groups_per_step * config.rollout.group_size
    limit = math.inf if loop.max_env_steps is None else loop.max_env_steps
    played = math.inf if steps is None else steps * per_step * max_steps(config)
    sampled = _sampled_tokens(config, per_step)
    return Plan(
        steps=steps,
        groups_per_step=loop.groups_per_step,
        group_size=config.rollout.group_size,
        max_env_steps=int(min(limit, played)),
        initial_tasks=max(map(_initial_tasks, arms)),
        rounds=None if steps is None else max(most_rounds(config, arm) for arm in arms),
        evaluations=None if steps is None else _evaluations(config, steps),
        evaluation_tasks=config.evaluation.n_tasks,
        evaluation_samples=config.evaluation.samples,
        max_sampled_tokens=sampled,
        model=_model_plan(config, sampled, card),
    )


def max_steps(config: RunConfig) -> int:
    """Most steps of an episode."""
    if config.benchmark.max_steps is not None:
        return config.benchmark.max_steps
    spec = next(spec for spec in benchmark_specs() if spec.name == config.benchmark.name)
    entry_point = cast(str, gym.spec(spec.env_id).entry_point)
    return cast(type[TaskEnv], load_env_creator(entry_point)).default_max_steps


def most_rounds(config: RunConfig, arm: ArmConfig) -> int:
    """Rounds of an arm after its first task set, if signals make every one of them worth it.

    Where env steps are the limit, as if each training episode took a single one.
    """
    if arm.curriculum.evolve == "off":
        return 0
    loop, every = config.loop, arm.curriculum.evolve_every_groups
    if loop.max_steps is None:
        return (loop.max_env_steps or 0) // config.rollout.group_size // every
    last = loop.max_steps if loop.evolve_at_last_step else loop.max_steps - 1
    return last // max(math.ceil(every / loop.groups_per_step), loop.evolve_every_steps, 1)


def _initial_tasks(arm: ArmConfig) -> int:
    """Tasks to find; none for a method with a setting ``native`` that is on."""
    return 0 if getattr(arm.settings, "native", False) else arm.curriculum.initial_size


def _evaluations(config: RunConfig, steps: int) -> int:
    every, late = config.loop.evaluate_every_steps, config.loop.evaluate_from
    between = range(every, steps, every) if every else ()
    return 2 + sum(step / steps >= late for step in between)


def _sampled_tokens(config: RunConfig, per_step: int) -> int | None:
    if config.policy.kind == "tiny" or config.loop.max_steps is None:
        return None
    chat = config.policy.chat
    episode = max_steps(config) * chat.max_answer_tokens
    if chat.max_episode_tokens is not None:
        episode = min(episode, chat.max_episode_tokens)
    return config.loop.max_steps * per_step * episode


def _model_plan(config: RunConfig, sampled: int | None, card: Accelerator) -> ModelPlan | None:
    shape = None if config.policy.kind == "tiny" else shape_of(config.policy.model.path)
    if shape is None or sampled is None or config.loop.max_steps is None:
        return None
    memory = _memory(config, shape, card)
    # In fp32: the weights that are trained, twice that for the moments of AdamW, and their average.
    averaged = bool(_updates(config).average)
    start, checkpoint = 4 * memory.trained, (16 if averaged else 12) * memory.trained
    context = config.policy.model.max_context or UNKNOWN_CONTEXT
    per_step = config.loop.groups_per_step * config.rollout.group_size
    room = max(1, memory.cache // memory.context)
    alive = min(config.rollout.max_envs or per_step, per_step, room)
    return ModelPlan(
        parameters=shape.n_parameters,
        trained=memory.trained,
        weights=memory.own + memory.sampler,
        training=memory.training,
        activations=memory.activations,
        context=memory.context,
        cache=memory.cache,
        shortfall=_shortfall(config, memory, card),
        start=start,
        checkpoint=checkpoint,
        disk=start + (len(config.arms) * config.store.keep_checkpoints + 1) * checkpoint,
        host=start + checkpoint,
        sampling_s=_sampling_s(shape, sampled, alive, memory.context, card),
        learning_s=_learning_s(config, shape, config.loop.max_steps * per_step * context, card),
    )


class _Memory(NamedTuple):
    """Bytes on the card.

    Attributes:
        trained: weights that are trained; a number of them, not bytes.
        own: the learner's weights.
        sampler: the sampler's copy of them.
        share: what vLLM takes in all; None if transformers samples.
        cache: what of it, or of what the others leave, is for caches.
    """

    trained: int
    own: int
    sampler: int
    training: int
    activations: int
    context: int
    share: int | None
    cache: int

    @property
    def learner(self) -> int:
        """What the learner takes."""
        return self.own + self.training + self.activations


def _memory(config: RunConfig, shape: ModelShape, card: Accelerator) -> _Memory:
    settings, vllm, n = config.policy.model, config.policy.vllm, shape.n_parameters
    adapter, half = settings.lora_rank > 0, settings.dtype == "auto"
    width = 2 if half else 4
    trained = shape.lora_parameters(settings.lora_rank) if adapter else n
    # Adapters: a bf16 base and fp32 adapters. Full: fp32 weights and a bf16 copy to sample from.
    own = width * n + 4 * trained if adapter else 4 * n
    copied = config.policy.kind == "vllm" or (half and not adapter)
    sampler = width * n if copied else 0
    training = 12 * trained + (0 if adapter or not _updates(config).kl_coef else 4 * n)
    # The average, and beside it the weights under training while it is evaluated.
    training += 8 * trained if _updates(config).average else 0
    activations = _activations(config, shape, trained)
    context = width * (settings.max_context or UNKNOWN_CONTEXT) * shape.kv_values_per_token
    share = None
    cache = int(card.memory - RESERVE) - own - sampler - training - activations
    if config.policy.kind == "vllm":
        share = int(vllm.gpu_memory_utilization * card.memory)
        if vllm.kv_cache_gib is not None:
            share = sampler + int(vllm.kv_cache_gib * GIB)
        cache = min(cache, share - sampler)
    return _Memory(trained, own, sampler, training, activations, context, share, max(0, cache))


def _activations(config: RunConfig, shape: ModelShape, trained: int) -> int:
    """What one microbatch holds: the inputs of all layers, or all that they keep.

    With checkpointing the most is there when the forward pass ends, bf16 copies of what is trained
    included, or while a layer is computed again with its gradients, whichever is more.
    """
    settings = config.policy.model
    half = settings.dtype == "auto"
    tokens = max(_updates(config).microbatch_tokens, settings.max_context or UNKNOWN_CONTEXT)
    kept = tokens * shape.kept_per_token * (1 if half else 2)
    casts = 2 * trained if half else 0
    if not settings.gradient_checkpointing:
        return shape.layers * kept + casts
    stream = 2 if half and settings.lora_rank else 4
    return shape.layers * tokens * shape.hidden * stream + max(casts, 2 * kept)


def _shortfall(config: RunConfig, memory: _Memory, card: Accelerator) -> str:
    settings, share = config.policy.model, memory.share
    vllm = "policy.vllm.kv_cache_gib"
    if config.policy.vllm.kv_cache_gib is None:
        vllm = "policy.vllm.gpu_memory_utilization"
    if share is not None and share < memory.sampler + memory.context:
        return (
            f"vLLM's share is {_gib(share)}, its weights are {_gib(memory.sampler)} and one "
            f"context is {_gib(memory.context)}. Raise {vllm}."
        )
    sampling = memory.sampler + memory.context if share is None else share
    needed = memory.learner + sampling + RESERVE
    if needed <= card.memory:
        return ""
    ways = ["policy.model.max_context", "or learner.microbatch_tokens"]
    ways = ways if share is None else [vllm, *ways]
    if not settings.gradient_checkpointing:
        ways.append("set policy.model.gradient_checkpointing")
    if not settings.lora_rank:
        ways.append("or train an adapter with policy.model.lora_rank")
    return (
        f"{_gib(memory.learner)} for the learner, {_gib(sampling)} for the sampler and "
        f"{_gib(RESERVE)} to spare are {_gib(needed - card.memory)} too much. "
        f"Lower {', '.join(ways)}."
    )


def _gib(size: float) -> str:
    return f"{size / GIB:.0f} GiB" if size >= GIB or not size else f"{size / 2**20:.0f} MiB"


def _sampling_s(
    shape: ModelShape, sampled: int, alive: int, per_context: int, card: Accelerator
) -> float:
    """Each step of decoding reads the weights once, and half a full cache of each episode."""
    read = 2.0 * shape.n_parameters + alive * per_context / 2
    return sampled / alive * read / (card.bandwidth * card.decoded)


def _learning_s(config: RunConfig, shape: ModelShape, tokens: int, card: Accelerator) -> float:
    """Six operations a weight and token, two more for each pass without gradients."""
    learner = _updates(config)
    passes = 6 * learner.epochs + 2 * bool(learner.kl_coef)
    passes += 2 * (learner.epochs * learner.minibatches > 1)
    return tokens * passes * shape.n_active / (card.flops * card.trained)


def _updates(config: RunConfig) -> UpdateConfig:
    """How the weights are changed; of an imitation at most, as if all of it were accepted."""
    learner = config.learner
    if isinstance(learner, UpdateConfig):
        return learner
    settings = learner.imitation
    return UpdateConfig(
        epochs=settings.max_epochs * len(learner.thresholds),
        minibatches=2,
        microbatch_tokens=settings.batch_tokens,
        kl_coef=0.0,
    )


def rows(config: RunConfig, planned: Plan, card: Accelerator = H200) -> Iterator[tuple[str, str]]:
    """The plan in words: what, and how much."""
    yield "arms, one after the other", ", ".join(config.arms)
    if planned.initial_tasks:
        yield "initial tasks, explored without guidance", f"{planned.initial_tasks}"
    else:
        yield "initial tasks", "all native training tasks"
    if planned.steps is None:
        yield (
            "training",
            f"until {planned.max_env_steps:,} env steps are spent, exploration counted",
        )
    else:
        yield "steps of the learner", f"{planned.steps}"
        yield (
            "episodes a step",
            f"{planned.groups_per_step} tasks x {planned.group_size} = {planned.rollouts_per_step}",
        )
        yield "episodes", f"{planned.rollouts:,}"
        yield "env steps", f"at most {planned.max_env_steps:,}, exploration not counted"
        yield "rounds of evolution", f"at most {planned.rounds}" if planned.rounds else "none"
        each = planned.evaluation_samples
        episodes = f" x {each} episodes" if each > 1 else ""
        yield (
            "evaluations",
            f"{planned.evaluations} x {planned.evaluation_tasks} tasks{episodes} at most",
        )
    if planned.max_sampled_tokens is not None:
        yield "sampled tokens", f"at most {planned.max_sampled_tokens:,}"
    said = None
    if config.policy.kind in ("transformers", "vllm"):
        methods = [arm.method for arm in arm_configs(config).values()]
        said = published(config.benchmark.name, config.policy.model.path, methods)
    if said is not None:
        yield "published", said
    if isinstance(config.learner, GRPOConfig) and config.learner.clips_never_act:
        yield "warning: nothing is ever clipped", CLIPS_NEVER_ACT
    for warning in rate_warnings(config):
        yield "warning: learning rate", warning
    path = config.policy.model.path
    if planned.model is not None:
        yield from _model_rows(planned.model, config, card)
    elif config.policy.kind != "tiny" and shape_of(path) is not None:
        yield "model", f"set loop.max_steps to see what {path} needs"
    elif config.policy.kind != "tiny":
        yield "model", f"{path} is not here, and its shape is not known"


def _model_rows(
    model: ModelPlan, config: RunConfig, card: Accelerator
) -> Iterator[tuple[str, str]]:
    yield "weights", f"{model.parameters / 1e9:.2f} B, {model.trained / 1e9:.2f} B of them trained"
    yield "memory of weights, the sampler's included", _gib(model.weights)
    yield "memory of training", _gib(model.training)
    yield "memory of activations, about", _gib(model.activations)
    contexts = model.cache // model.context
    yield f"left for caches on one {card.name}", f"{_gib(model.cache)}, {contexts} full contexts"
    if model.shortfall:
        yield f"warning: does not fit one {card.name}", model.shortfall
    yield (
        "disk for checkpoints",
        f"at most {_gib(model.disk)}: {_gib(model.start)} for what all arms start from, "
        f"{len(config.arms)} arms x {config.store.keep_checkpoints} of {_gib(model.checkpoint)}, "
        "one more while it is written",
    )
    yield "host memory for checkpoints", f"{_gib(model.host)}, beside that of envs and libraries"
    yield (
        "sampling",
        f"at most {model.sampling_s / 3600:.0f} h an arm, at {card.decoded:.0%} of the memory rate",
    )
    yield (
        "updates",
        f"at most {model.learning_s / 3600:.0f} h an arm, at {card.trained:.0%} of the bf16 rate",
    )
