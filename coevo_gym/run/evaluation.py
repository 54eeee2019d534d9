"""Evaluation of what a run has saved, and of models as they are."""

from __future__ import annotations

import json
from collections.abc import Sequence

from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy
from coevo_gym.config import RunConfig, Sets, load_config
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Agent
from coevo_gym.run.assembly import Assembly, one_thread
from coevo_gym.run.env_arguments import read_arguments
from coevo_gym.run.manifest import read_manifest
from coevo_gym.run.policies import make_policy, model_setting
from coevo_gym.run.progress import Progress
from coevo_gym.run.table import RANDOM, SCRIPTED, WARMUP, TableRow, table_row
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.folder import RunFolder


def evaluate_policy(
    folder: RunFolder, policy: str | None, split: str, progress: Progress | None = None
) -> TableRow:
    """Evaluate a policy on the run's number of tasks of a split.

    Args:
        folder: the run.
        policy: an arm, ``warm-up``, ``random`` or ``scripted`` (plays the references); None for
            the last arm.
        split: ``train``, ``val`` or ``test``.
        progress: what a person sees, if one looks on.

    Raises:
        ConfigError: if the run has no such policy.
    """
    _, config = read_manifest(folder)
    assembly, name = Assembly(config), policy or config.arms[-1]
    agent: Agent | None
    if name in (RANDOM, SCRIPTED):
        agent, env_steps = assembly.random_agent() if name == RANDOM else None, 0
    else:
        agent, env_steps = _saved_agent(folder, assembly, config, name)
    if progress is not None:
        progress.phase(name, total=len(assembly.tasks_to_evaluate(split)))
    with one_thread(config):
        found = assembly.evaluate(agent, split, progress.update if progress else None)
    return table_row(name, found.metrics(), env_steps)


def evaluate_model(
    benchmark: str,
    policy: str | None,
    split: str,
    progress: Progress,
    *,
    sets: Sets = (),
    env: Sequence[str] = (),
) -> TableRow:
    """Evaluate a language model, or a baseline, on a benchmark's tasks, without a run.

    Args:
        benchmark: name of the benchmark.
        policy: ``transformers:MODEL``, ``vllm:MODEL`` or ``openai:MODEL``; ``random`` or
            ``scripted``.
        split: ``train``, ``val`` or ``test``.
        progress: what a person sees.
        sets: more settings, see :func:`~coevo_gym.config.load_config`.
        env: more arguments of the benchmark's env, ``"name=value"`` each.

    Raises:
        ConfigError: if there is no such policy.
    """
    named = model_setting(policy or "")
    if policy is None or (named is None and policy not in (RANDOM, SCRIPTED)):
        raise ConfigError(
            f"Which policy is to be evaluated on {benchmark}? Pass --policy transformers:MODEL, "
            f"vllm:MODEL, openai:MODEL, {RANDOM} or {SCRIPTED}; actual: {policy!r}."
        )
    config = load_config({"benchmark": benchmark}, sets=sets).config
    if named is not None:
        config = load_config(config, sets=named, environ={}).config
    if config.benchmark.name != benchmark:
        raise ConfigError(
            f"--set says benchmark={config.benchmark.name}, but {benchmark} is to be evaluated. "
            f"Run `coevo eval {config.benchmark.name}` instead."
        )
    assembly = Assembly(config)
    assembly = Assembly(config, read_arguments(assembly.env_class, env))
    progress.phase(policy, total=len(assembly.tasks_to_evaluate(split)))
    agent: Agent | None = assembly.random_agent() if policy == RANDOM else None
    model = None
    if named is not None:
        model = make_policy(assembly.config.policy, seed=assembly.seed("policy"))
        agent = assembly.agent(model).greedy()
    try:
        found = assembly.evaluate(agent, split, progress.update)
    finally:
        if isinstance(model, OpenAIPolicy):
            progress.say(str(model.usage))
            model.close()
    if found.faults:
        progress.say(f"{found.faults} episodes were lost to a fault and are in no number.")
    return table_row(policy, found.metrics(), 0)


def _saved_agent(
    folder: RunFolder, assembly: Assembly, config: RunConfig, name: str
) -> tuple[Agent, int]:
    """The greedy agent of the latest checkpoint of an arm or the warm-up, and its env steps."""
    if name not in (WARMUP, *config.arms):
        known = ", ".join((*config.arms, WARMUP, RANDOM, SCRIPTED))
        raise ConfigError(f"{config.name} has no policy {name!r}. Choose one of: {known}.")
    saved = Checkpoints(folder.checkpoints / name).latest()
    if saved is None:
        raise ConfigError(
            f"{config.name} has no checkpoint of {name} yet. Train it with "
            f"`coevo resume {config.name}`."
        )
    policy = assembly.policy
    policy.load_state_dict(saved.state["policy"])
    if name == WARMUP:
        env_steps = int(saved.state["env_steps"])
    else:
        env_steps = int(json.loads(saved.state["loop"])["state"]["env_steps"])
    return assembly.agent(policy).greedy(), env_steps
