"""AgentEvolver, assembled: GRPO with experiences that guide rollouts and labels that judge steps.

Each part can be switched off. Without both parts the method is GRPO on the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal, Self

from pydantic import Field, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import Study
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.agentevolver.coach import REFINE, ExperienceCoach
from coevo_gym.methods.agentevolver.credit import (
    ATTRIBUTION,
    ATTRIBUTION_BY_MODEL,
    AttributionCredit,
    Scheme,
)
from coevo_gym.methods.agentevolver.experience import EXPERIENCE, MAX_QUESTIONS
from coevo_gym.methods.agentevolver.model_attribution import ModelAttribution, Skip
from coevo_gym.methods.agentevolver.model_experiences import ModelExperiences
from coevo_gym.methods.agentevolver.pool import ExperiencePool
from coevo_gym.methods.agentevolver.replays import MAX_REPLAYS
from coevo_gym.methods.agentevolver.rules import RuleExperiences
from coevo_gym.methods.agentevolver.study import Attribution, AttributionRecord
from coevo_gym.methods.agentevolver.use import ExperienceUse
from coevo_gym.methods.coevolve import StaticSettings, static
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method
from coevo_gym.trainers.credit import Credit, GroupRelative, credit_of
from coevo_gym.trainers.settings import GRPOConfig


class AgentEvolverSettings(FrozenModel):
    """Switches of the parts, and settings for experiences and for labels."""

    native: bool = True
    """Practise all native training tasks, in place of the first tasks."""
    navigating: bool = True
    """Tell some rollouts of each group the lessons of earlier ones, and omit these lessons from the
    training texts. The pool is built in the first ``loop.study_only_steps`` steps, in which no
    lessons are told."""
    attributing: bool = True
    """Judge steps by labels and outcomes; otherwise the learner's settings decide."""
    guided_share: float = Field(default=0.5, ge=0, le=1)
    """(navigating) Share of a group's rollouts that are told experiences, rounded down. With 1,
    there is no rollout to compare with, and utilities never change."""
    experiences: int = Field(default=5, ge=1)
    """(navigating) Maximum number of experiences per rollout."""
    least_cosine: float = Field(default=0.3, ge=-1, le=1)
    """(navigating) Minimum similarity of an instruction to the tasks that an experience is for."""
    experiences_by: Literal["rule", "model"] = "rule"
    """(navigating) The author of experiences: a rule over solved tasks, or the language model of
    the section ``analyst``, as in the paper."""
    check: bool = False
    """(experiences by a model) Also ask the model for a verdict on each new experience, and refuse
    those that it does not confirm."""
    refine: bool = False
    """(navigating) Let the model of the section ``analyst`` choose among the experiences that are
    found for a task, and write them anew for it."""
    capacity: int = Field(default=1000, ge=1)
    """(navigating) Maximum number of experiences in the pool."""
    update_every: int = Field(default=0, ge=0)
    """(navigating) Steps between additions to the pool once it is built; 0 for never."""
    alpha: float = Field(default=0.1, ge=0)
    """(attributing) Weight of labels against the outcome."""
    length_norm: bool = False
    """(attributing) Divide labels by the square root of an episode's steps, so that they do not
    outweigh the outcome of a long one."""
    attribution: bool = True
    """(attributing) Use labels; without them the outcome reaches all steps."""
    outcome: bool = True
    """(attributing) Use outcomes; without them only labels count."""
    scheme: Scheme = "decoupled"
    """(attributing) Mix labels and outcomes, each standardised by itself (``decoupled``), or let
    labels share out the outcome's sign (``allocation``), which ignores the weights above."""
    attribution_by: Literal["replay", "model", "both"] = "replay"
    """(attributing) The source of labels: replays without single steps, as on benchmarks whose
    replays are cheap, or the language model of the section ``analyst``, as in the paper. With
    ``both``, the labels of replays count, and those of the model are compared with them."""
    skip: Skip = "nothing"
    """(attribution by a model) Groups that the model is not asked about: ``flat`` ones are those
    whose episodes all have the same outcome."""
    questions: int = Field(default=MAX_QUESTIONS, ge=1)
    """Maximum questions per step of the learner for labels, and for each other use of the
    model."""
    hindsight: bool = False
    """(attribution by replays) Also label as bad the searches that were not needed."""
    max_replays: int = Field(default=MAX_REPLAYS, ge=0)
    """Maximum replays per step for labels, and again for experiences; the groups that may need most
    replays are skipped. On AppWorld a replay takes seconds."""

    @property
    def labels(self) -> bool:
        """Return True if steps are labelled."""
        return self.attributing and (self.attribution or self.scheme == "allocation")

    @property
    def questions_per_step(self) -> Mapping[str, int]:
        """Return the most questions of each study per step; see ``MethodSpec``."""
        kinds = {"model": ATTRIBUTION, "both": ATTRIBUTION_BY_MODEL}
        found: dict[str, int] = {}
        if self.navigating and self.experiences_by == "model":
            found[EXPERIENCE] = self.questions * (2 if self.check else 1)
        if self.navigating and self.refine:
            found[REFINE] = self.questions
        if self.labels and self.attribution_by in kinds:
            found[kinds[self.attribution_by]] = self.questions
        return found

    @model_validator(mode="after")
    def _verdicts_are_on_texts_of_models(self) -> Self:
        if self.check and self.experiences_by == "rule":
            raise ValueError(
                "check = true asks for verdicts on experiences that a model wrote: set "
                "experiences_by = 'model', or leave check off"
            )
        return self


@method(
    "agentevolver",
    curriculum={"growth": {"kind": "none"}},
    learner={
        "kind": "pg",
        "minibatches": 4,
        "old_logprobs": "recomputed",
        "clip_high_cued": 0.6,
    },
    loop={"study_only_steps": 4},
)
def agentevolver(settings: AgentEvolverSettings, kit: Kit) -> Method:
    """Guide half of the rollouts by experiences, and judge steps by labels (arXiv 2511.10395)."""
    found = static(StaticSettings(native=settings.native), kit)
    if settings.navigating:
        found = _navigating(found, settings, kit)
    return _attributing(found, settings, kit) if settings.attributing else found


def _navigating(found: Method, settings: AgentEvolverSettings, kit: Kit) -> Method:
    learner, built = kit.learner, kit.study_only_steps
    recomputes = isinstance(learner, GRPOConfig) and learner.old_logprobs == "recomputed"
    if kit.language_model and not recomputes:
        raise ConfigError(
            "method.navigating cuts experiences out of the training texts, so the learner must "
            "recompute log-probabilities. Leave learner.kind = 'pg' and learner.old_logprobs = "
            "'recomputed'."
        )
    pool = ExperiencePool(kit.embedder(), capacity=settings.capacity)

    def due() -> bool:
        since, every = pool.steps - built, settings.update_every
        return since < 0 or (every > 0 and since % every == 0)

    study: Study
    if settings.experiences_by == "rule":
        study = RuleExperiences(kit.benchmark, due, max_replays=settings.max_replays)
    else:
        study = ModelExperiences(
            kit.benchmark, due, kit.analyst, check=settings.check, most=settings.questions
        )
    coach = ExperienceCoach(
        pool,
        group_size=kit.group_size,
        share=settings.guided_share,
        k=settings.experiences,
        least=settings.least_cosine,
        build_steps=built,
        analyst=kit.analyst if settings.refine else None,
        most=settings.questions,
    )
    return replace(
        found,
        coach=coach,
        studies=(*found.studies, ExperienceUse(coach.spent), study),
        memories={**found.memories, "experiences": pool},
    )


def _attributing(found: Method, settings: AgentEvolverSettings, kit: Kit) -> Method:
    estimator = credit_of(kit.learner).estimator if isinstance(kit.learner, GRPOConfig) else None
    if not isinstance(estimator, GroupRelative) or not estimator.normalise_std:
        raise ConfigError(
            "method.attributing judges steps by labels and by the outcomes of their group, both "
            "divided by their deviations. Leave learner.kind = 'pg', learner.advantage = 'grpo' "
            "and learner.normalise_std = true, or set method.attributing = false."
        )
    credit = AttributionCredit(
        estimator.outcome,
        alpha=settings.alpha,
        length_norm=settings.length_norm,
        attribution=settings.attribution,
        outcome=settings.outcome,
        scheme=settings.scheme,
    )
    found = replace(found, credit=Credit(credit))
    if not settings.labels:
        return found
    studies: list[Study] = []
    if settings.attribution_by != "model":
        studies.append(
            Attribution(
                kit.benchmark,
                outcome=estimator.outcome,
                hindsight=settings.hindsight,
                max_replays=settings.max_replays,
            )
        )
    if settings.attribution_by != "replay":
        studies.append(
            ModelAttribution(
                kit.analyst,
                outcome=estimator.outcome,
                skip=settings.skip,
                most=settings.questions,
                kind=ATTRIBUTION if settings.attribution_by == "model" else ATTRIBUTION_BY_MODEL,
            )
        )
    memories = {**found.memories, "attribution": AttributionRecord(credit)}
    return replace(found, studies=(*found.studies, *studies), memories=memories)
