"""Settings that are derived from other settings unless the user sets them.

- ``arithmetic`` is portable for the tiny policy, and native for language models, because portable
  arithmetic would make them several times slower.
- A language model (``policy.kind`` ``transformers``, ``vllm`` or ``vllm_server``) is trained with
  smaller learning rates than the tiny policy: its rates would destroy a language model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from coevo_gym.agents.lm.model_shape import shape_of
from coevo_gym.core.arithmetic import Kind
from coevo_gym.core.errors import ModelError
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import FrozenModel
from coevo_gym.runs.config.run_sections import PolicySettings, WarmupSettings
from coevo_gym.trainers.settings import (
    RestConfig,
    UnloadedSettings,
    UpdateConfig,
    is_own_learner,
)

LANGUAGE_MODELS = ("transformers", "vllm", "vllm_server")
"""Kinds of policies that are trainable language models."""
_IMITATION = {"lr": 5e-5, "max_epochs": 2, "batch_decisions": 8, "max_grad_norm": 1.0}
_BATCH_TOKENS = 2_048  # SmolLM2-135M keeps about 2 MB per token for its backward pass in fp32
_LR, _LORA_LR = 1e-6, 1e-5
_TOO_HIGH, _LORA_TOO_HIGH = 1e-4, 1e-3
_MAX_TINY = 10_000_000  # weights of a model that is trained from scratch rather than tuned


def fill_in_derived(tree: Mapping[str, Any], policy: Any) -> dict[str, Any]:
    """Fill in the derived settings that a settings tree leaves unset.

    Only the given sections are completed. They and the policy may be mappings or models.
    """
    settings = dict(tree)
    defaults = _policy_defaults(policy, settings.get("learner"))
    for name in defaults.keys() & settings.keys():
        settings[name] = _fill_in_section(settings[name], defaults[name])
    return settings


def derived_settings(policy: PolicySettings, learner: FrozenModel) -> dict[str, tuple[Any, str]]:
    """Return a run's derived settings, each with the setting that determines it."""
    of_policy = flatten(_policy_defaults(policy, learner))
    return {
        "arithmetic": (default_arithmetic(policy.kind), "policy.kind"),
        **{key: (value, "policy.kind") for key, value in of_policy},
    }


def default_arithmetic(policy_kind: object) -> Kind:
    """Return the default arithmetic for a kind of policy."""
    return "portable" if policy_kind == "tiny" else "native"


def learning_rate_warnings(
    policy: PolicySettings, warmup: WarmupSettings, learner: FrozenModel
) -> Iterator[str]:
    """Yield a warning for each learning rate that is too high for a pretrained language model."""
    if policy.kind not in LANGUAGE_MODELS or _is_too_small_for_pretraining(policy.model.path):
        return
    adapter = policy.model.lora_rank > 0
    limit, trained = (
        (_LORA_TOO_HIGH, "an adapter is") if adapter else (_TOO_HIGH, "all weights are")
    )
    rates = {"learner.lr": (getattr(learner, "lr", 0.0), _LORA_LR if adapter else _LR)}
    if warmup.n_tasks or warmup.demonstrations:
        rates["warmup.lr"] = (warmup.lr, _IMITATION["lr"])
    for key, (rate, usual) in rates.items():
        if rate >= limit:
            yield (
                f"{key} = {rate:g} is a rate for the tiny policy, and is likely to destroy a "
                f"language model if {trained} trained. Leave it unset to use {usual:g}, or set it "
                f"below {limit:g}."
            )


def _is_too_small_for_pretraining(path: str) -> bool:
    """Return True if the model is installed and too small to be pretrained."""
    try:
        shape = shape_of(path)
    except ModelError:  # reported when the model is loaded
        return False
    return shape is not None and shape.n_parameters < _MAX_TINY


def _policy_defaults(policy: Any, learner: Any) -> dict[str, Any]:
    """Return a policy's defaults for the ``warmup`` and ``learner`` sections."""
    if not isinstance(policy, PolicySettings):
        try:
            policy = PolicySettings.model_validate(policy)
        except ValidationError:  # the section itself reports this
            return {}
    if policy.kind not in LANGUAGE_MODELS:
        return {}
    imitation: dict[str, Any] = dict(_IMITATION)
    if policy.model.device != "cuda":
        imitation["batch_tokens"] = _BATCH_TOKENS
    model = _settings_class_of(learner)
    if issubclass(model, RestConfig):
        return {"warmup": imitation, "learner": {"imitation": imitation}}
    if not issubclass(model, UpdateConfig):
        return {"warmup": imitation}
    lr = _LORA_LR if policy.model.lora_rank else _LR
    return {"warmup": imitation, "learner": {"lr": lr, "epochs": 1}}


def _settings_class_of(learner: Any) -> type:
    """Return the class of learner settings. Built-in settings may also be a mapping."""
    if not isinstance(learner, Mapping):
        return UpdateConfig if learner is None else type(learner)
    kind = str(learner.get("kind", "pg"))
    if kind == "rest":
        return RestConfig
    return UnloadedSettings if is_own_learner(kind) else UpdateConfig


def _fill_in_section(section: Any, defaults: Mapping[str, Any]) -> Any:
    """Fill in defaults for unset values of a section (a mapping or a pydantic model)."""
    if isinstance(section, Mapping):
        current: Mapping[str, Any] = section
    elif isinstance(section, BaseModel):
        current = {name: getattr(section, name) for name in section.model_fields_set}
    else:
        return section  # the reader of the section reports this
    missing = {name: value for name, value in defaults.items() if name not in current}
    for name, value in defaults.items():
        if isinstance(value, Mapping):
            inner = getattr(section, name) if isinstance(section, BaseModel) else current.get(name)
            missing[name] = _fill_in_section({} if inner is None else inner, value)
    if isinstance(section, BaseModel):
        return section.model_copy(update=missing)
    return {**section, **missing}
