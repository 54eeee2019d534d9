"""Policies and their agents, made from settings or from a name such as ``transformers:smollm2``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from coevo_gym.agents.chat.agent import ChatAgent
from coevo_gym.agents.choice import ChoiceAgent
from coevo_gym.config import PolicySettings
from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Agent, Policy, Sampling
from coevo_gym.core.trajectory import Decision, View
from coevo_gym.prompts import PromptTemplate, load_prompt

if TYPE_CHECKING:
    from coevo_gym.trainers.grpo import Learnable


class PolicyAgent(Agent, Protocol):
    """Who acts with a policy, in training and in evaluation, and demonstrates to it."""

    def greedy(self) -> Agent:
        """The same agent without randomness."""
        ...

    def demonstrate(self, view: View, action: str) -> Decision | None:
        """The decision that leads to an action; None if no decision of this agent does."""
        ...


def make_learnable(settings: PolicySettings, *, seed: int) -> Learnable:
    """A policy that can be trained.

    Raises:
        ConfigError: if this kind cannot.
    """
    if settings.kind == "openai":
        raise ConfigError(
            "policy.kind = 'openai' is an endpoint: it can be evaluated (`coevo eval`), not "
            "trained. Choose tiny, transformers or vllm."
        )
    return cast("Learnable", make_policy(settings, seed=seed))


def make_policy(settings: PolicySettings, *, seed: int) -> Policy:
    """A policy, as its settings say."""
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
        case "openai":
            from coevo_gym.agents.endpoint.openai_policy import OpenAIPolicy

            return OpenAIPolicy(settings.endpoint)


def make_agent(
    settings: PolicySettings,
    policy: Policy,
    benchmark: Benchmark,
    *,
    temperature: float | None = None,
) -> PolicyAgent:
    """Who acts with a policy: it chooses among the benchmark's choices, or talks.

    Args:
        settings: of the policy.
        policy: who is asked.
        benchmark: what is acted in.
        temperature: what logits are divided by; None for what the settings say.
    """
    prompt = prompt_of(settings, benchmark.name)
    if prompt is None:
        sampling = None if temperature is None else Sampling(temperature)
        return ChoiceAgent(policy, benchmark.choices, sampling)
    chat = settings.chat
    if temperature is not None:
        chat = chat.model_copy(update={"temperature": temperature})
    return ChatAgent(policy, prompt, chat)


def prompt_of(settings: PolicySettings, benchmark: str) -> PromptTemplate | None:
    """The words in which a policy is told about a benchmark; None if it needs none."""
    if settings.kind == "tiny":
        return None
    return load_prompt(Path(settings.prompt) if settings.prompt else benchmark)


def model_setting(name: str) -> list[str] | None:
    """What a name such as ``transformers:smollm2`` stands for, as ``--set`` takes it.

    Returns:
        ``"section.key=value"`` each; None if it is not a name of that kind.
    """
    kind, colon, model = name.partition(":")
    if not colon or kind not in _MODEL_KEYS:
        return None
    if not model:
        raise ConfigError(f"{name!r} names no model. For example: --policy {kind}:smollm2")
    return [f"policy.kind={kind}", f"{_MODEL_KEYS[kind]}={model}"]


_MODEL_KEYS = {
    "transformers": "policy.model.path",
    "vllm": "policy.model.path",
    "openai": "policy.endpoint.model",
}
