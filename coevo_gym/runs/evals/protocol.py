"""The protocol of an evaluation: all settings that determine how its tasks are played."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.panel import EvalProtocol
from coevo_gym.core.setting_sections import flatten
from coevo_gym.envs.base import env_class_of
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.manifest import prompt_id
from coevo_gym.store.secrets import redact_secrets

_OF_A_MACHINE = {"compile_layers", "device", "gradient_checkpointing", "pack_tokens"}
_OF_AN_ENDPOINT = {"model", "base_url", "send_temperature"}


def behaviour_settings(config: RunConfig) -> dict[str, Any]:
    """Return the settings that affect a policy's behaviour, but not its speed."""
    policy = config.policy
    if policy.kind == "tiny":
        return {"tiny": policy.tiny.model_dump(mode="json")}
    chat = {"chat": policy.chat.model_dump(mode="json", exclude={"temperature"})}
    if policy.kind == "openai":
        asked = policy.endpoint.model_dump(mode="json", include=_OF_AN_ENDPOINT)
        return {**chat, "endpoint": asked}
    return {**chat, "language_model": policy.model.model_dump(mode="json", exclude=_OF_A_MACHINE)}


def make_protocol(
    config: RunConfig,
    *,
    max_steps: int,
    samples: int,
    temperature: float | None,
    has_model: bool,
    env: Mapping[str, Any],
) -> EvalProtocol:
    """Return the protocol of an evaluation.

    It has the prompt and the chat settings of a language model, but neither the model nor its
    weights, because these are what is evaluated.

    Args:
        config: settings of the policy and the benchmark.
        max_steps: maximum number of env steps per episode.
        samples: episodes per task.
        temperature: sampling temperature; None if no model is sampled.
        has_model: True if a model plays; False for a baseline.
        env: other arguments of the env.
    """
    env_id = get_benchmark(config.benchmark.name).env_id
    apart = env_class_of(config.benchmark.name).task_arguments | {"max_steps"}
    parts: dict[str, Any] = {
        "env": env_id,
        "success": f"info['success'] of {env_id}",
        "max_steps": max_steps,
        "samples": samples,
        "seed": config.seed,
        "env_arguments": {name: env[name] for name in env if name not in apart},
    }
    if temperature is not None:
        parts["temperature"] = temperature
    if has_model:
        parts["prompt"] = prompt_id(config)
    settings = behaviour_settings(config) if has_model else {}
    if "chat" in settings:
        parts["chat"] = settings["chat"]
    if "endpoint" in settings:
        parts["send_temperature"] = settings["endpoint"]["send_temperature"]
    return EvalProtocol(parts=redact_secrets(dict(flatten(parts))))
