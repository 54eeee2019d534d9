"""Policies and their agents, created from settings or names such as ``transformers:smollm2``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from coevo_gym.agents.chat.agent import ChatAgent
from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notations import NOTATIONS
from coevo_gym.core.seams import Agent, Policy, Sampling
from coevo_gym.core.trajectory import Decision, View
from coevo_gym.prompts import PromptTemplate, load_prompt
from coevo_gym.runs.config import key_permission
from coevo_gym.runs.config.run_sections import PolicySettings
from coevo_gym.store.approvals import require_approval

if TYPE_CHECKING:
    from coevo_gym.trainers.grpo import LearnablePolicy


class PolicyAgent(Agent, Protocol):
    """An agent that follows a policy and can convert reference actions into decisions."""

    def greedy(self) -> Agent:
        """Return a deterministic version of this agent."""
        ...

    def decision_for(self, view: View, action: str) -> Decision | None:
        """Return the decision that leads to the given action, or None if no decision does."""
        ...


def make_learnable(settings: PolicySettings, *, seed: int) -> LearnablePolicy:
    """Create a trainable policy.

    Raises:
        ConfigError: if this kind of policy cannot be trained.
    """
    if settings.kind == "openai":
        raise ConfigError(
            "policy.kind = 'openai' selects an API endpoint, which can be evaluated (`coevo eval`) "
            "but not trained. Choose tiny, transformers, vllm or vllm_server."
        )
    return cast("LearnablePolicy", make_policy(settings, seed=seed))


def make_policy(settings: PolicySettings, *, seed: int) -> Policy:
    """Create a policy from its settings.

    Raises:
        ConfigError: if a file or a run asks to send a key to an endpoint, and the user has not
            approved this, or if the answer style does not suit this kind of policy.
    """
    style = settings.chat.style
    if style in NOTATIONS and (style == "openai") != (settings.kind == "openai"):
        raise ConfigError(
            f"policy.chat.style = {style!r} does not suit policy.kind = {settings.kind!r}. Set "
            "'openai' for an endpoint, or the notation of the model's chat template for a model on "
            "this machine."
        )
    match settings.kind:
        case "tiny":
            from coevo_gym.agents.tiny.policy import TinyPolicy

            return TinyPolicy(settings.tiny, seed=seed)
        case "transformers":
            from coevo_gym.agents.lm.transformers_policy import TransformersPolicy

            return TransformersPolicy(settings.model, thinking=settings.chat.thinking, seed=seed)
        case "vllm":
            from coevo_gym.agents.lm.vllm_policy import VLLMPolicy

            return VLLMPolicy(
                settings.model, settings.vllm, thinking=settings.chat.thinking, seed=seed
            )
        case "vllm_server":
            from coevo_gym.agents.lm.vllm_server import VLLMServerPolicy

            return VLLMServerPolicy(
                settings.model,
                settings.servers,
                settings.vllm,
                thinking=settings.chat.thinking,
                seed=seed,
            )
        case "openai":
            from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy

            if (permission := key_permission(settings.endpoint)) is not None:
                require_approval(permission)
            return OpenAIPolicy(settings.endpoint)


def make_agent(
    settings: PolicySettings,
    policy: Policy,
    benchmark: Benchmark,
    *,
    temperature: float | None = None,
) -> PolicyAgent:
    """Create a policy's agent. It either chats or chooses among candidate actions.

    ``temperature`` defaults to the one in the settings.
    """
    prompt = prompt_of(settings, benchmark.name)
    if prompt is None:
        sampling = Sampling() if temperature is None else Sampling(temperature)
        return ChoiceAgent(policy, benchmark.choices, sampling)
    chat = settings.chat
    if temperature is not None:
        chat = chat.model_copy(update={"temperature": temperature})
    return ChatAgent(policy, prompt, chat)


def prompt_of(settings: PolicySettings, benchmark: str) -> PromptTemplate | None:
    """Return a policy's prompt for a benchmark, or None if the policy uses no prompt."""
    if settings.kind == "tiny":
        return None
    return load_prompt(Path(settings.prompt) if settings.prompt else benchmark)


def model_settings(name: str) -> list[str] | None:
    """Return the settings that a name such as ``transformers:smollm2`` stands for.

    Returns:
        Settings as for ``--set``, ``"section.key=value"``; None for other names.
    """
    kind, colon, model = name.partition(":")
    if not colon or kind not in MODEL_KINDS:
        return None
    if not model:
        raise ConfigError(f"{name!r} has no model name. Add one, such as --policy {kind}:smollm2")
    return [f"policy.kind={kind}", f"{MODEL_KINDS[kind]}={model}"]


MODEL_KINDS = {
    "transformers": "policy.model.path",
    "vllm": "policy.model.path",
    "vllm_server": "policy.model.path",
    "openai": "policy.endpoint.model",
}
"""The key of the model's name in settings, by the kind of policy."""
