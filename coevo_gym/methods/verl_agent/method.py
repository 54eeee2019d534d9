"""The verl-agent method: GRPO or GiGPO with its own rewards and step statistics."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import Field

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods import ANSWER_FORMS
from coevo_gym.methods.coevolve import make_static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.methods.verl_agent.credit import INVALID_PENALTY, Statistics, StepSamples
from coevo_gym.methods.verl_agent.group_filter import DifferentRewards
from coevo_gym.trainers.credit import Credit, Similar, States, exact_states
from coevo_gym.trainers.settings import GRPOConfig, LearnerConfig

SIMILAR_FROM = 0.95
"""Similarity from which two observations are the same state."""


class VerlAgentSettings(FrozenModel):
    """Settings for the verl-agent method."""

    native: bool = True
    """Train on all native training tasks, as in the recipe, instead of the initial tasks."""
    statistics: Statistics = "steps"
    """Units of the mean and standard deviation of a group's scores: each step is one sample
    (``steps``, as in the recipe), or each episode is (``episodes``). With ``episodes``, a group
    whose episodes earned the same reward has advantages of 0."""
    invalid_penalty: float = Field(default=INVALID_PENALTY, ge=0)
    """Penalty for a step whose answer lacks a tag or has Chinese characters. An episode that solves
    its task earns 10."""
    filter_groups: bool = False
    """Learn only from groups whose episodes earned different rewards (DAPO): draw whole batches
    until ``loop.groups_per_step`` such groups have arrived, and keep any surplus."""
    max_batches: int = Field(default=10, ge=1)
    """Maximum number of batches per learner step if ``filter_groups`` is true. The last batch is
    kept unfiltered."""


@method("verl_agent", curriculum={"growth": {"kind": "none"}}, learner={"kind": "pg"})
def verl_agent(settings: VerlAgentSettings, kit: Kit) -> Method:
    """Treat each step as a sample, and penalise invalid answers (arXiv 2505.10978)."""
    if kit.language_model and settings.invalid_penalty and kit.answer_form not in ANSWER_FORMS:
        raise ConfigError(
            "verl_agent penalises answers without thought and action tags, which the prompt does "
            "not ask for. Set policy.prompt = 'verl_agent/alfworld' or 'verl_agent/webshop' with "
            "policy.chat.history = 'prompt', or set method.invalid_penalty = 0."
        )
    credit = Credit(_make_estimator(settings, kit.learner))
    return replace(
        make_static(kit, native=settings.native),
        credit=credit,
        group_filter=DifferentRewards(settings.max_batches) if settings.filter_groups else None,
    )


def _make_estimator(settings: VerlAgentSettings, learner: LearnerConfig) -> StepSamples:
    """Create the estimator from the method's and the learner's settings.

    Raises:
        ConfigError: if the recipe does not use a learner setting.
    """
    if not isinstance(learner, GRPOConfig):
        raise ConfigError(
            f"verl_agent compares the rollouts of a group, but a learner of kind {learner.kind!r} "
            "does not. Set learner.kind = 'pg'."
        )
    wanted = {
        "advantage": ("grpo", "gigpo"),
        "outcome": ("success",),
        "state_rewards": ("at_the_end",),
        "overlong": ("keep", "mask"),
    }
    for name, values in wanted.items():
        if (value := getattr(learner, name)) not in values:
            choices = " or ".join(map(repr, values))
            raise ConfigError(
                f"verl_agent has its own rewards and statistics, which learner.{name} = {value!r} "
                f"does not change. Set learner.{name} = {choices}."
            )
    return StepSamples(
        states=_states_of(learner) if learner.advantage == "gigpo" else None,
        statistics=settings.statistics,
        penalty=settings.invalid_penalty,
        gamma=learner.state_gamma,
        outcome_weight=learner.outcome_weight,
        state_weight=learner.state_weight,
        normalise_std=learner.normalise_std,
    )


def _states_of(learner: GRPOConfig) -> States:
    if learner.states == "exact":
        return exact_states
    # Similar merges observations above its threshold, the recipe from its own on.
    return Similar(math.nextafter(SIMILAR_FROM, 0.0), learner.state_likeness)
