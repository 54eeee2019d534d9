"""The plan for a run: steps, episodes, tokens and memory, estimated before it starts.

Counts are exact where the settings determine them, and upper bounds elsewhere. The running time is
not estimated, because no such estimate has been compared with measured runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from coevo_gym.core.registry import METHODS
from coevo_gym.core.setting_sections import flatten
from coevo_gym.envs.base import env_class_of
from coevo_gym.methods.published import differences_from_paper, paper_covers
from coevo_gym.runs.config import ArmConfig, RunConfig, arm_configs, unapproved_code
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.panels.panel_files import find_panel
from coevo_gym.runs.planning.device import H200, Device
from coevo_gym.runs.planning.memory import UNKNOWN_CONTEXT
from coevo_gym.runs.planning.model import ModelPlan, model_rows, plan_model
from coevo_gym.trainers.settings import CLIPS_NEVER_ACT, GRPOConfig, RestConfig, UpdateConfig


@dataclass(frozen=True)
class RunPlan:
    """Planned steps, episodes and tokens per arm (the maximum over all arms if they differ).

    Attributes:
        steps: learner steps; None if training is limited by env steps.
        groups_per_step: tasks per step.
        group_size: episodes per task.
        max_env_steps: maximum number of env steps in training episodes.
        initial_tasks: tasks to find before the first step; 0 if all arms train on native tasks.
        rounds: evolution rounds whose tasks are trained on; None if limited by env steps.
        evaluations: evaluations of the policy; None if limited by env steps.
        evaluation_tasks: tasks per evaluation.
        evaluation_samples: episodes per task in an evaluation.
        max_sampled_tokens: maximum tokens sampled in training, including ``max_study_tokens``; None
            for a policy without tokens.
        max_study_tokens: maximum tokens that studies sample from the policy.
        max_learned_tokens: maximum tokens read in one pass over the batches of all updates, if no
            episode is longer than one context, or no step where each is a chat of its own; None
            without tokens, or if limited by env steps.
        model: needs of the language model; None for other policies and unknown models.
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
    max_study_tokens: int
    max_learned_tokens: int | None
    model: ModelPlan | None

    @property
    def rollouts_per_step(self) -> int:
        """The number of episodes per step."""
        return self.groups_per_step * self.group_size

    @property
    def rollouts(self) -> int | None:
        """The number of training episodes, or None if training is limited by env steps."""
        return None if self.steps is None else self.steps * self.rollouts_per_step


def plan_run(config: RunConfig, device: Device = H200) -> RunPlan:
    """Plan one arm of a run.

    ``device`` trains the policy if it is a language model.
    """
    loop, steps = config.loop, config.loop.max_steps
    arms = arm_configs(config).values()
    per_step = loop.groups_per_step * config.rollout.group_size
    limit = math.inf if loop.max_env_steps is None else loop.max_env_steps
    played = math.inf if steps is None else steps * per_step * max_steps_per_episode(config)
    env_steps, episodes = int(min(limit, played)), None if steps is None else steps * per_step
    study_tokens = _max_study_tokens(config, env_steps)
    sampled, learned = (
        _max_sampled_tokens(config, env_steps, episodes),
        _max_learned_tokens(config, env_steps, episodes),
    )
    if sampled is not None:
        sampled += study_tokens
    lm = config.policy.kind in LANGUAGE_MODELS
    return RunPlan(
        steps=steps,
        groups_per_step=loop.groups_per_step,
        group_size=config.rollout.group_size,
        max_env_steps=env_steps,
        initial_tasks=max(n_initial_tasks(config, arm) for arm in arms),
        rounds=None if steps is None else max(max_rounds(config, arm) for arm in arms),
        evaluations=None if steps is None else _count_evaluations(config, steps),
        evaluation_tasks=_n_evaluation_tasks(config),
        evaluation_samples=config.evaluation.samples,
        max_sampled_tokens=sampled,
        max_study_tokens=study_tokens,
        max_learned_tokens=learned,
        model=plan_model(config, device) if lm else None,
    )


def _n_evaluation_tasks(config: RunConfig) -> int:
    """Return the maximum number of tasks per evaluation."""
    panel = config.evaluation.panel
    return config.evaluation.n_tasks if panel is None else len(find_panel(panel).tasks)


def max_steps_per_episode(config: RunConfig) -> int:
    """Return the maximum number of steps per episode."""
    return config.benchmark.max_steps or env_class_of(config.benchmark.name).default_max_steps


def max_rounds(config: RunConfig, arm: ArmConfig) -> int:
    """Return the maximum number of rounds that an arm can run after its initial tasks are found.

    The maximum assumes that signals make every round due. If training is limited by env steps, it
    also assumes that each training episode takes one step.
    """
    loop, growth = config.loop, arm.curriculum.growth
    if growth.kind == "none":
        return 0
    every = growth.every_groups
    if loop.max_steps is None:
        return (loop.max_env_steps or 0) // config.rollout.group_size // every
    last = loop.max_steps if loop.evolve_at_last_step else loop.max_steps - 1
    return last // max(math.ceil(every / loop.groups_per_step), loop.evolve_every_steps, 1)


def max_learner_steps(config: RunConfig) -> int:
    """Return the maximum number of learner steps.

    If training is limited by env steps, each training episode is assumed to take one step.
    """
    loop, limits = config.loop, list[int]()
    if loop.max_steps is not None:
        limits.append(loop.max_steps)
    if loop.max_env_steps is not None:
        per_step = loop.groups_per_step * config.rollout.group_size
        limits.append(math.ceil(loop.max_env_steps / per_step))
    return min(limits)


def settings_of(config: RunConfig, arm: ArmConfig) -> dict[str, Any]:
    """Return the settings of an arm and its run as JSON, with dotted keys."""
    own = arm.model_dump(mode="json", exclude={"name", "method", "settings"})
    return dict(
        flatten({**config.to_json(), **own, "method": arm.settings.model_dump(mode="json")})
    )


def arm_specific_rows(config: RunConfig) -> dict[str, list[tuple[str, Any, str]]]:
    """Return (key, value, origin) of the settings in which each arm differs from the run.

    All settings of an arm's method are included, with the origin ``default`` where it applies.
    """
    run = dict(flatten(config.to_json()))
    by_arm = {}
    for name, arm in arm_configs(config).items():
        own = config.arm[name].set if name in config.arm else {}
        is_loaded = arm.method in METHODS.names()
        sets = METHODS.load(arm.method).sets if is_loaded else {}
        origins = dict.fromkeys(sets, f"method {arm.method}")
        origins |= dict.fromkeys(own, f"arm.{name}.set")
        by_arm[name] = [
            (key, value, origins.get(key, "default"))
            for key, value in settings_of(config, arm).items()
            if key.startswith("method.") or key not in run or run[key] != value
        ]
    return by_arm


def _differences_from_paper(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that differ from those of CoEvolve's paper."""
    arms, benchmark = arm_configs(config).values(), config.benchmark.name
    methods = [arm.method for arm in arms]
    if config.policy.kind not in LANGUAGE_MODELS or not paper_covers(
        benchmark, config.policy.model.path, methods
    ):
        return
    differ: dict[str, str] = {}
    for arm in arms:
        differ |= differences_from_paper(benchmark, settings_of(config, arm))
    if differ:
        text = "; ".join(f"{key}: {values}" for key, values in differ.items())
        yield "settings that differ from the paper's", text


UNPLANNED = "the plan assumes the memory of a learner of kind 'pg' with default settings"


def unplanned_learners(arms: Iterable[ArmConfig]) -> list[str]:
    """Return the kinds of learners whose updates cannot be planned from their settings."""
    planned = (UpdateConfig, RestConfig)
    kinds = (arm.learner.kind for arm in arms if not isinstance(arm.learner, planned))
    return [*dict.fromkeys(kinds)]


def n_initial_tasks(config: RunConfig, arm: ArmConfig) -> int:
    """Return the number of initial tasks to find, or 0 if the benchmark's own tasks are used."""
    if config.benchmark.rows.file:  # all arms start with all rows
        return 0
    native = getattr(arm.settings, "native", False)
    return arm.curriculum.initial_size if arm.finds_own_tasks or not native else 0


def _count_evaluations(config: RunConfig, steps: int) -> int:
    every, late = config.loop.evaluate_every_steps, config.loop.evaluate_from
    between = range(every, steps, every) if every else ()
    return 2 + sum(step / steps >= late for step in between)


def _max_sampled_tokens(config: RunConfig, env_steps: int, episodes: int | None) -> int | None:
    if config.policy.kind == "tiny":
        return None
    chat = config.policy.chat
    most = [env_steps * chat.max_answer_tokens]
    if episodes is not None and chat.max_episode_tokens is not None:
        most.append(episodes * chat.max_episode_tokens)
    if episodes is not None and chat.history == "causal" and config.policy.model.max_context:
        most.append(episodes * config.policy.model.max_context)  # sampled tokens stay in it
    of_memory = env_steps * chat.max_answer_tokens if chat.memory == "model" else 0
    return min(most) + of_memory


def _max_study_tokens(config: RunConfig, env_steps: int) -> int:
    """Return the maximum number of tokens that an arm's studies sample from a language model."""
    if config.policy.kind not in LANGUAGE_MODELS:
        return 0
    sizes = max_steps_per_episode(config), env_class_of(config.benchmark.name).observation_tokens
    return env_steps * max(
        arm.max_extra_tokens_per_step(*sizes) for arm in arm_configs(config).values()
    )


def _max_learned_tokens(config: RunConfig, env_steps: int, episodes: int | None) -> int | None:
    if config.policy.kind == "tiny" or episodes is None:
        return None
    chats = env_steps if _is_chat_per_step(config) else episodes
    return chats * (config.policy.model.max_context or UNKNOWN_CONTEXT)


def _is_chat_per_step(config: RunConfig) -> bool:
    """Return True if each step is a chat of its own, which does not continue the one before."""
    return config.policy.chat.history in ("window", "recent", "prompt")


def plan_rows(config: RunConfig, planned: RunPlan) -> Iterator[tuple[str, str]]:
    """Yield the plan as (name, amount) pairs, with the amounts as text."""
    yield "arms, in order", ", ".join(config.arms)
    if origins := unapproved_code(config):
        yield (
            "methods or learners",
            f"those in {', '.join(origins)} are not loaded, and the plan lacks their settings",
        )
    for kind in unplanned_learners(arm_configs(config).values()):
        yield "learner", f"{kind} is user-defined: {UNPLANNED}"
    if planned.initial_tasks:
        yield "initial tasks, from unguided exploration", f"{planned.initial_tasks}"
    else:
        yield "initial tasks", "all native training tasks"
    if planned.steps is None:
        yield (
            "training",
            f"until {planned.max_env_steps:,} env steps, including exploration",
        )
    else:
        yield "learner steps", f"{planned.steps}"
        yield (
            "episodes per step",
            f"{planned.groups_per_step} tasks x {planned.group_size} = {planned.rollouts_per_step}",
        )
        yield "training episodes", f"{planned.rollouts:,}"
        yield "env steps", f"at most {planned.max_env_steps:,}, excluding exploration"
        yield "evolution rounds", f"at most {planned.rounds}" if planned.rounds else "none"
        each = planned.evaluation_samples
        episodes = f" x {each} episodes" if each > 1 else ""
        yield (
            "evaluations",
            f"at most {planned.evaluations} x {planned.evaluation_tasks} tasks{episodes}",
        )
    if config.evaluation.final:
        names = ", ".join(config.evaluation.final)
        yield "final evaluations", f"each arm and the warm-up, once on {names}"
    if planned.max_sampled_tokens is not None:
        studies = planned.max_study_tokens
        part = f", of which {studies:,} in studies" if studies else ""
        yield "sampled tokens", f"at most {planned.max_sampled_tokens:,}{part}"
    if planned.max_learned_tokens is not None:
        yield (
            "tokens processed in updates",
            f"at most {planned.max_learned_tokens:,} per epoch, if each "
            f"{'step' if _is_chat_per_step(config) else 'episode'} fills one context",
        )
    yield from _differences_from_paper(config)
    if isinstance(config.learner, GRPOConfig) and config.learner.clips_never_act:
        yield "warning: clipping has no effect", CLIPS_NEVER_ACT
    for warning in config.warnings():
        yield "warning: learning rate", warning
    if planned.model is not None:
        yield from model_rows(planned.model, config)
    elif config.policy.kind in LANGUAGE_MODELS:
        path = config.policy.model.path
        yield "model", f"no estimate: {path} is not on this machine, and its shape is not known"
    if config.policy.kind in LANGUAGE_MODELS:
        yield "hours", "not known: no estimate has been compared with measured runs"
