"""Role-Agent, assembled: GiGPO with returns that foresight multiplies, on tasks by failure mode.

Without predictions and weights, it equals ``gigpo`` on the same tasks, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Memory, Study
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.coevolve import static_tasks
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.methods.role_agent.failure_modes import MOST_MODES, FailureModes, SimilarFailures
from coevo_gym.methods.role_agent.failures import (
    FAILURE_MODE,
    SIMILAR_FAILURE,
    ByFailureMode,
    FailureMemory,
)
from coevo_gym.methods.role_agent.foresight import ForesightWorth, horizon
from coevo_gym.methods.role_agent.predictors import (
    EmpiricalPredictor,
    InlineCoach,
    InlinePredictor,
    PolicyPredictor,
    Predictor,
)
from coevo_gym.methods.role_agent.study import Foresight, ForesightRecord, Predicted
from coevo_gym.trainers.credit import Credit, StateGrouped, credit_of
from coevo_gym.trainers.settings import GRPOConfig
from coevo_gym.trainers.similarity import Measure


class RoleAgentSettings(FrozenModel):
    """Settings for predictions, and for drawing tasks by failures."""

    native: bool = True
    """Practise all native training tasks, as the paper does, in place of the first tasks."""
    predictor: Literal["auto", "separate", "inline", "empirical", "off"] = "auto"
    """The predictor of the observations that follow a step: the policy itself, in a chat that
    continues after its action and is not trained on (``separate``), or in a tag in the answer that
    holds its action, which is trained on (``inline``); without a model, the observations that most
    often followed that action in that state (``empirical``); or nothing (``off``). ``auto`` is
    ``separate`` for a language model and ``empirical`` for the tiny policy."""
    predict: Predicted = "rewarded"
    """Trajectories to predict: only those with a reward, or ``all``, for the correlation of
    foresight with success."""
    horizon_share: float = Field(default=0.05, gt=0, le=1)
    """Number of observations to predict at each step, as a share of the maximum steps of an
    episode."""
    likeness: Measure = "lcs"
    """The measure of similarity between a prediction and an observation."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount of the outcome from one step to the one before, and of predictions further ahead."""
    modes: Literal["rule", "model"] = "rule"
    """The source of a failed episode's mode: rules over the recorded steps, or the language model
    of the section ``analyst``, with the rules where it has no usable answer."""
    questions: int = Field(default=32, ge=1)
    """(model) Maximum failed episodes per step to ask the model about, one of each task first; the
    rules name the mode of all others."""
    retrieve: bool = False
    """(model) Also ask the model which earlier failed tasks would show a step's most common modes;
    these tasks are drawn more often, as if they had shown the modes."""
    weight: float = Field(default=1.0, ge=0)
    """Additional weight of a task with all failure modes when tasks are drawn; 0 leaves the drawing
    to ``curriculum.selector``."""
    half_life_steps: float = Field(default=20.0, gt=0)
    """Steps of the learner after which a failure counts half."""

    @model_validator(mode="after")
    def _lessons_are_of_models(self) -> Self:
        if self.retrieve and self.modes == "rule":
            raise ValueError(
                "retrieve = true compares lessons, and only a model writes them: set modes = "
                "'model', or leave retrieve off"
            )
        return self

    @property
    def questions_per_step(self) -> Mapping[str, int]:
        """Return the most questions of each study per step; see ``MethodSpec``."""
        found = {FAILURE_MODE: self.questions} if self.modes == "model" else {}
        return {**found, SIMILAR_FAILURE: MOST_MODES} if self.retrieve else found


@method(
    "role_agent",
    curriculum={"growth": {"kind": "none"}},
    learner={"kind": "pg", "advantage": "gigpo", "loss_mean": "trajectory"},
)
def role_agent(settings: RoleAgentSettings, kit: Kit) -> Method:
    """Multiply step rewards by foresight, and draw tasks by failure mode (arXiv 2606.10917)."""
    estimator = _estimator(kit.learner)
    failures = FailureMemory(half_life_steps=settings.half_life_steps)
    analyst = kit.analyst if settings.modes == "model" else None
    modes = FailureModes(kit.benchmark, analyst, most=settings.questions)
    studies: list[Study] = [modes]
    if settings.retrieve:
        studies.append(SimilarFailures(modes, failures, kit.analyst))
    memories: dict[str, Memory] = {"failures": failures}
    if (predictor := _predictor(settings, kit)) is not None:
        study = Foresight(
            predictor,
            gamma=settings.gamma,
            measure=settings.likeness,
            outcome=estimator.outcome,
            predict=settings.predict,
        )
        studies.append(study)
        memories["foresight"] = ForesightRecord()
        if isinstance(predictor, EmpiricalPredictor):
            memories["transitions"] = predictor
    selector = ByFailureMode(failures, weight=settings.weight) if settings.weight else None
    return replace(
        static_tasks(kit, native=settings.native, selector=selector),
        credit=Credit(replace(estimator, worth=ForesightWorth(settings.gamma))),
        coach=InlineCoach(predictor.horizon) if isinstance(predictor, InlinePredictor) else None,
        studies=tuple(studies),
        memories=memories,
    )


def _estimator(learner: object) -> StateGrouped:
    """Return the estimator of the learner's settings, whose returns foresight multiplies."""
    if isinstance(learner, GRPOConfig) and learner.state_rewards == "at_the_end":
        estimator = credit_of(learner).estimator
        if isinstance(estimator, StateGrouped):
            return estimator
    raise ConfigError(
        "role_agent multiplies the discounted outcome of each step and compares steps by their "
        "states. Leave learner.kind = 'pg', learner.advantage = 'gigpo' and "
        "learner.state_rewards = 'at_the_end'."
    )


def _predictor(settings: RoleAgentSettings, kit: Kit) -> Predictor | None:
    """Return the predictor; None if nothing is predicted."""
    kind, ahead = settings.predictor, horizon(settings.horizon_share, kit.max_steps)
    if kind == "auto":
        kind = "separate" if kit.language_model else "empirical"
    if kind == "off":
        return None
    if kind == "empirical":
        return EmpiricalPredictor(ahead)
    if kind == "inline" and kit.answer_form != "action":
        raise ConfigError(
            "method.predictor = 'inline' needs answers in which an <action> tag holds the action, "
            f"and those of this policy on {kit.benchmark.name} have none. Set method.predictor = "
            "'auto', or choose a prompt whose header says answer = \"action\"."
        )
    if kind == "inline":
        return InlinePredictor(ahead)
    if not kit.language_model:
        raise ConfigError(
            "method.predictor = 'separate' asks the policy for texts, and the tiny policy only "
            "scores actions. Set method.predictor = 'empirical', or train a language model."
        )
    return PolicyPredictor(kit.policy, ahead, seed=kit.seed("foresight"))
