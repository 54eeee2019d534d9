"""The Role-Agent method, based on GiGPO.

Without predictions and weights, it is identical to ``gigpo`` on the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Memory, Study
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.coevolve import make_static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.methods.role_agent.failure_modes import QUESTIONS, FailureModes, SimilarFailures
from coevo_gym.methods.role_agent.failures import (
    CAPACITY,
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
    """Settings for Role-Agent's predictions and for drawing tasks by failure mode."""

    native: bool = True
    """Train on all native training tasks, as in the paper, instead of the initial tasks."""
    predictor: Literal["auto", "separate", "inline", "empirical", "off"] = "auto"
    """Method of predicting the observations after a step. ``separate``: the policy predicts them in
    a chat that continues after its action and is not trained on. ``inline``: the policy predicts
    them in a tag in its answer, which is trained on. ``empirical``: without a model, use the
    observations that most often followed that action in that state. ``off``: make no predictions.
    ``auto`` is ``separate`` for a language model and ``empirical`` for the tiny policy."""
    predict: Predicted = "rewarded"
    """Trajectories to make predictions for: only ``rewarded`` trajectories, or ``all`` to measure
    the correlation between foresight and success."""
    horizon_share: float = Field(default=0.05, gt=0, le=1)
    """Number of observations to predict per step, as a share of the maximum steps per episode."""
    prediction_tokens: int | None = Field(default=None, ge=1)
    """(separate) Maximum tokens per predicted observation; by default, the benchmark's own limit,
    which suffices for nearly all of its observations."""
    likeness: Measure = "lcs"
    """Measure of similarity between predictions and observations."""
    gamma: float = Field(default=0.95, ge=0, le=1)
    """Discount per step for the outcome and for predictions further ahead."""
    modes: Literal["rule", "model"] = "rule"
    """Source of a failed episode's failure modes: rules over the recorded steps, or the language
    model in the section ``analyst``, falling back to the rules without a usable answer."""
    questions: int = Field(default=QUESTIONS, ge=1)
    """(model) Maximum number of failed episodes per step to ask the model about, taking turns
    between tasks; the rules find the modes of all other episodes. The default covers the paper's
    batches."""
    retrieve: bool = False
    """(model) Also ask the model which earlier failed tasks would show a step's failure modes;
    these tasks are drawn more often, as if they had shown the modes."""
    retrieve_modes: int = Field(default=12, ge=1)
    """(retrieve) Maximum number of failure modes per step to ask about, the most common ones first.
    No benchmark has more than 12."""
    candidates: int = Field(default=256, ge=1)
    """(retrieve) Maximum number of tasks to choose from, the latest ones first; fewer if their
    texts exceed 24,000 characters."""
    capacity: int = Field(default=CAPACITY, ge=1)
    """Maximum number of tasks to remember for each failure mode, and of tasks with lessons. The
    paper's runs train on at most 2,400 tasks."""
    weight: float = Field(default=1.0, ge=0)
    """Additional sampling weight of a task that has shown all failure modes; with 0,
    ``curriculum.selector`` draws the tasks instead."""
    half_life_steps: float = Field(default=20.0, gt=0)
    """Number of learner steps after which a failure counts half."""

    @model_validator(mode="after")
    def _check_retrieve(self) -> Self:
        if self.retrieve and self.modes == "rule":
            raise ValueError(
                "retrieve = true requires model-written lessons: set modes = 'model' or "
                "retrieve = false"
            )
        return self

    @property
    def questions_per_step(self) -> Mapping[str, int]:
        """Return the maximum number of queries per step for each kind of note."""
        counts = {FAILURE_MODE: self.questions} if self.modes == "model" else {}
        return {**counts, SIMILAR_FAILURE: self.retrieve_modes} if self.retrieve else counts

    def max_extra_tokens_per_step(self, max_steps: int, observation_tokens: int) -> int:
        """Return the maximum number of tokens generated to predict a step; see ``MethodSpec``."""
        if self.predictor not in ("auto", "separate"):
            return 0
        each = self.prediction_tokens or observation_tokens
        return horizon(self.horizon_share, max_steps) * each


@method(
    "role_agent",
    curriculum={"growth": {"kind": "none"}},
    learner={"kind": "pg", "advantage": "gigpo", "loss_mean": "trajectory"},
)
def role_agent(settings: RoleAgentSettings, kit: Kit) -> Method:
    """Reward accurate predictions and draw tasks by failure mode (arXiv 2606.10917)."""
    estimator = _require_estimator(kit.learner)
    failures = FailureMemory(half_life_steps=settings.half_life_steps, capacity=settings.capacity)
    analyst = kit.analyst if settings.modes == "model" else None
    modes = FailureModes(kit.benchmark, analyst, most=settings.questions)
    studies: list[Study] = [modes]
    if settings.retrieve:
        studies.append(
            SimilarFailures(
                modes,
                failures,
                kit.analyst,
                most=settings.retrieve_modes,
                candidates=settings.candidates,
            )
        )
    memories: dict[str, Memory] = {"failures": failures}
    if (predictor := _make_predictor(settings, kit)) is not None:
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
        make_static(kit, native=settings.native, selector=selector),
        credit=Credit(replace(estimator, worth=ForesightWorth(settings.gamma))),
        coach=InlineCoach(predictor.horizon) if isinstance(predictor, InlinePredictor) else None,
        studies=tuple(studies),
        memories=memories,
    )


def _require_estimator(learner: object) -> StateGrouped:
    """Return the learner's advantage estimator, or raise an error if it is unsuitable."""
    if isinstance(learner, GRPOConfig) and learner.state_rewards == "at_the_end":
        estimator = credit_of(learner).estimator
        if isinstance(estimator, StateGrouped):
            return estimator
    raise ConfigError(
        "role_agent scales each step's discounted outcome by a foresight bonus and compares steps "
        "by state, so it requires learner.kind = 'pg', learner.advantage = 'gigpo' and "
        "learner.state_rewards = 'at_the_end' (the method's defaults)."
    )


def _make_predictor(settings: RoleAgentSettings, kit: Kit) -> Predictor | None:
    """Create the predictor, or return None if predictions are disabled."""
    kind, ahead = settings.predictor, horizon(settings.horizon_share, kit.max_steps)
    if kind == "auto":
        kind = "separate" if kit.language_model else "empirical"
    if kind == "off":
        return None
    if kind == "empirical":
        return EmpiricalPredictor(ahead)
    if kind == "inline" and kit.answer_form != "action":
        raise ConfigError(
            "method.predictor = 'inline' requires answers with the action in an <action> tag, but "
            f"this policy's answers on {kit.benchmark.name} have no such tag. Set method.predictor "
            "= 'auto', or choose a prompt whose header sets answer = \"action\"."
        )
    if kind == "inline":
        return InlinePredictor(ahead)
    if not kit.language_model:
        raise ConfigError(
            "method.predictor = 'separate' needs a policy that generates text, but the tiny policy "
            "only scores actions. Set method.predictor = 'empirical', or train a language model."
        )
    return PolicyPredictor(
        kit.policy,
        ahead,
        max_tokens=settings.prediction_tokens or kit.observation_tokens,
        seed=kit.seed("foresight"),
    )
