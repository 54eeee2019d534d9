"""Rewards that a judge model assigns to rollouts of evolved tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from operator import not_
from statistics import fmean
from typing import Any, Literal

from pydantic import BaseModel

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.inquiry import Analyst, Answer, Inquiry
from coevo_gym.core.notes import Findings, Note, Notes
from coevo_gym.core.seams import Advantage, Estimator
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.explore.summarise import rollout_inputs
from coevo_gym.curricula.growth.evidence import EVIDENCE_CHARS
from coevo_gym.methods.agentevolver.credit import AttributionCredit
from coevo_gym.methods.agentevolver.experience import MAX_QUESTIONS
from coevo_gym.methods.agentevolver.replays import select_affordable
from coevo_gym.methods.method import StepRecord
from coevo_gym.trainers.credit import GroupRelative, LeaveOneOut, StateGrouped

JUDGE = "judge"
"""The kind of note that contains a judge's rewards."""
JUDGED, NO_VERDICT = "judged", "no_verdict"
"""Labels of a judge's notes: the note's value is the reward, or there is no reward."""
PROMPT = "agentevolver/score"
_MAX_CHARS = 2_000
"""Maximum number of characters per reference action and per reason in a note."""
_ACHIEVED = 0.6
"""The minimum reward for a rollout that achieved its task."""
_LOOP_CAP = 20
"""The maximum score of an agent that was caught in a loop."""


class ScoreAnswer(BaseModel):
    """A judge's assessment of a rollout.

    Attributes:
        reason: the judge's reason, in one or two sentences.
        relevant: True if the actions are related to the request.
        looped: True if the agent was caught in a loop.
        achieved: True if the request is fulfilled at the end.
        score: score from 0 to 100; None if the judge did not give a score.
    """

    reason: str = ""
    relevant: bool
    looped: bool
    achieved: bool
    score: float | None = None


def score_to_reward(
    score: float | None, *, relevant: bool, looped: bool, achieved: bool
) -> float | None:
    """Convert a judge's answer to a reward.

    Args:
        score: score from 0 to 100; None if the judge did not give a score.
        relevant: True if the trajectory is relevant to the task.
        looped: True if the agent was caught in a loop, which limits the score to 20.
        achieved: True if the task was achieved, which requires a score of at least 60.

    Returns:
        The reward in [0, 1]; None if the score is missing, unclear (40 to 60) or contradictory.

    Source: the judge in AgentEvolver's published code.
    """
    if not relevant:
        return 0.0
    if score is None or not 0 <= score <= 100 or 40 < score < 60 or achieved != (score >= 60):
        return None
    return min(score, _LOOP_CAP if looped else score) / 100


@dataclass(frozen=True)
class JudgeStudy:
    """A study that asks a model to score each rollout of an evolved task.

    Each such rollout that was not lost gets a note. If the note's label is ``judged``, its value is
    the reward, in [0, 1]. If the label is ``no_verdict``, there is no reward, because the model
    gave no usable answer, contradicted itself, or was not asked. Native tasks keep their verifiers.

    Attributes:
        benchmark: provides all texts that a task shows to the agent.
        analyst: returns the model to query.
        reference: True to show the judge the actions that are known to solve the task.
        most: maximum model queries per learner step; the largest groups beyond it are not judged.

    Source: the judge in AgentEvolver's published code; the limit is ours.
    """

    kind = JUDGE

    benchmark: Benchmark
    analyst: Callable[[], Analyst]
    reference: bool = True
    most: int = MAX_QUESTIONS

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Judge the rollouts of evolved tasks; see :class:`~coevo_gym.core.seams.Study`."""
        rollouts = [
            [(group, i, t) for i, t in enumerate(group.trajectories) if not t.end_reason.is_lost]
            for group in filter(needs_judge, groups)
        ]
        fits = select_affordable([len(each) for each in rollouts], self.most)
        asked = [one for each in compress(rollouts, fits) for one in each]
        left_out = [one for each in compress(rollouts, map(not_, fits)) for one in each]
        notes = [
            _make_note(*each, None, "The limit of questions was reached.") for each in left_out
        ]
        if not asked:
            return Findings(tuple(notes))
        analyst = self.analyst()
        with analyst.study_scope(self.kind, groups) as spent:
            answers = analyst.advisor.ask(
                [self._make_inquiry(group, rollout, analyst) for group, _, rollout in asked]
            )
            usage = spent()
        judged = [
            _make_note(*each, *_reward_and_reason(answer))
            for each, answer in zip(asked, answers, strict=True)
        ]
        return Findings((*judged, *notes), usage)

    def _make_inquiry(
        self, group: Group, rollout: Trajectory, analyst: Analyst
    ) -> Inquiry[ScoreAnswer]:
        task = group.task
        reference = task.solution if self.reference else ()

        def inputs(cap: int) -> Mapping[str, Any]:
            return {
                "request": self.benchmark.evidence(task).said,
                "reference": [clean_text(action, _MAX_CHARS) for action in reference],
                **rollout_inputs(_remove_observation_after_end(rollout), cap),
            }

        return Inquiry(
            prompt=PROMPT,
            schema=ScoreAnswer,
            inputs=inputs(EVIDENCE_CHARS),
            purpose=self.kind,
            sampling=analyst.sampling,
            shorten=lambda: inputs(EVIDENCE_CHARS // 2),
        )


def _remove_observation_after_end(rollout: Trajectory) -> Trajectory:
    """Return a rollout without the env's last response, which may contain a grade."""
    ended = bool(rollout.steps) and rollout.steps[-1].terminated
    return replace(rollout, last_observation="") if ended else rollout


def needs_judge(group: Group) -> bool:
    """Return True if a judge model, not a verifier, rewards a group's rollouts."""
    return group.task.origin == "evolved"


def _reward_and_reason(answer: Answer[ScoreAnswer]) -> tuple[float | None, str]:
    """Convert an answer to a reward and a reason. The reward is None without a verdict."""
    judgement = answer.value
    if judgement is None:
        return None, answer.problem
    reward = score_to_reward(
        judgement.score,
        relevant=judgement.relevant,
        looped=judgement.looped,
        achieved=judgement.achieved,
    )
    return reward, judgement.reason


def _make_note(
    group: Group, index: int, rollout: Trajectory, reward: float | None, reason: str
) -> Note:
    return Note(
        kind=JUDGE,
        task_id=group.task.id,
        group_id=group.id,
        index=index,
        label=NO_VERDICT if reward is None else JUDGED,
        value=0.0 if reward is None else reward,
        evidence=FrozenDict(reason=clean_text(reason, _MAX_CHARS), verified=rollout.success),
        source="model",
    )


@dataclass(frozen=True)
class JudgedReward:
    """An estimator that takes the rewards for evolved tasks from a judge's notes.

    A rollout without a verdict is treated as lost: its advantage is 0, and means exclude it.

    Attributes:
        estimator: computes advantages from scores.
        native: the reward for native tasks.
    """

    estimator: Estimator
    native: Literal["success", "score"] = "success"

    def __call__(self, groups: Sequence[Group], notes: Notes) -> list[list[Advantage]]:
        """Return the advantages, using the judge's rewards for evolved tasks."""
        return self.estimator([self._replace_scores(group, notes) for group in groups], notes)

    def _replace_scores(self, group: Group, notes: Notes) -> Group:
        """Return a copy of a group with rewards in place of the trajectories' scores."""
        rewarded = (
            self._score_or_mark_lost(trajectory, notes.of(JUDGE, group.id, index))
            if needs_judge(group)
            else replace(trajectory, score=float(getattr(trajectory, self.native)))
            for index, trajectory in enumerate(group.trajectories)
        )
        return replace(group, trajectories=tuple(rewarded))

    def _score_or_mark_lost(self, trajectory: Trajectory, notes: Sequence[Note]) -> Trajectory:
        """Return a trajectory scored by the judge, or marked as lost if there is no verdict."""
        if trajectory.end_reason.is_lost:
            return trajectory
        for note in notes:
            if note.label == JUDGED:
                return replace(trajectory, score=note.value)
        return replace(trajectory, end_reason=EndReason.MODEL_LOST)


def use_judge_rewards(estimator: Estimator) -> JudgedReward:
    """Wrap an estimator so that it uses a judge's rewards for evolved tasks.

    Raises:
        ConfigError: if the estimator has no outcome to replace.
    """
    if isinstance(estimator, AttributionCredit):
        outcome = estimator.reward
        return JudgedReward(replace(estimator, reward=replace(outcome, of="score")), outcome.of)
    if isinstance(estimator, (GroupRelative, LeaveOneOut, StateGrouped)):
        outcome = estimator.outcome
        return JudgedReward(replace(estimator, outcome=replace(outcome, of="score")), outcome.of)
    raise ConfigError(
        f"method.reward = 'judge' does not work with {type(estimator).__name__}. Set "
        "method.reward = 'verifier'."
    )


class JudgeRecord(StepRecord):
    """A component that reports metrics for the judge's verdicts in the latest learner step.

    ``judged`` is the share of evolved tasks' rollouts that have a verdict. Among these, ``reward``
    is the mean reward, and ``agreement`` is the share in which the judge and the verifier agree on
    whether the task was achieved.
    """

    def measure(self, notes: Notes) -> dict[str, float]:
        """Return metrics for the judge's rewards in a step, or {} if there are no evolved tasks."""
        own_notes = [note for note in notes if note.kind == JUDGE]
        judged = [note for note in own_notes if note.label == JUDGED]
        metrics = {"judged": len(judged) / len(own_notes)} if own_notes else {}
        if judged:
            metrics["reward"] = fmean(note.value for note in judged)
            metrics["agreement"] = fmean(
                (note.value >= _ACHIEVED) == note.evidence["verified"] for note in judged
            )
        return metrics
