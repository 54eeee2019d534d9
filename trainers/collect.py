"""From tickets to groups: the episodes of one step of the loop, and what is learned from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coevo_gym.core.errors import EnvBackendError, ModelError
from coevo_gym.core.seams import Agent, ClosedStep, Ticket
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import rollout
from coevo_gym.trainers.parts import Learner, LoopConfig, LoopState, Metrics, teaches


class Gathered(NamedTuple):
    """The groups of one step.

    Attributes:
        recorded: all that the curriculum recorded, and the signals it read.
        kept: those to learn from.
        metrics: how many of which.
    """

    recorded: ClosedStep
    kept: list[Group]
    metrics: Metrics


def gather(
    config: LoopConfig,
    session: CurriculumSession,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    learner: Learner,
) -> Gathered:
    """Run the episodes of one step of the loop, and have the curriculum record them as one batch.

    With ``max_resamples`` (dynamic sampling, DAPO, arXiv 2503.14476) a group that teaches nothing
    is set aside, and another is run in its place, until there are ``groups_per_step`` to learn from
    or so many times more have been drawn. A group teaches if some of its episodes solved the task
    and some did not, or if the learner's advantages are not all 0 before anything is noted about
    them. What is set aside is recorded and paid for like all others.

    Raises:
        EnvBackendError: if no episode could be finished.
    """
    kept: list[Group] = []
    draws, resamples = 0, 0 if _studies(config, state) else config.max_resamples
    try:
        while draws == 0 or (draws <= resamples and len(kept) < config.groups_per_step):
            session.open_step(config.groups_per_step - len(kept))
            version, seed = learner.version, config.seed
            found = collect(session, agent, envs, state, policy_version=version, seed=seed)
            whole = [group for group in found if group.whole]
            if resamples:
                judged = zip(whole, learner.advantages(whole), strict=True)
                whole = [group for group, values in judged if _differs(group) or teaches(values)]
            kept += whole
            draws += 1
    finally:
        recorded = session.close_step()
    groups = recorded.groups
    n_whole = sum(group.whole for group in groups)
    metrics = {"broken_groups": float(len(groups) - n_whole)}
    if resamples:
        solved = [float(t.success) for group in groups for t in group.trajectories]
        metrics |= {
            "resamples": float(draws - 1),
            "groups_set_aside": float(n_whole - len(kept)),
            "success_before_filter": sum(solved) / len(solved) if solved else 0.0,
        }
    return Gathered(recorded, kept, metrics)


def learn(config: LoopConfig, state: LoopState, learner: Learner, kept: Sequence[Group]) -> Metrics:
    """Learn from the groups of a step, unless it is one that only studies."""
    if _studies(config, state):
        solved = [float(t.success) for group in kept for t in group.trajectories]
        return {"success": sum(solved) / max(1, len(solved))}
    if hasattr(learner, "spent"):
        learner.spent = config.spent(state)
    return learner.update(kept, learner.advantages(kept))


def _differs(group: Group) -> bool:
    """Whether some episodes solved the task and some did not; lost ones say nothing."""
    return len({t.success for t in group.trajectories if not t.end_reason.lost}) > 1


def _studies(config: LoopConfig, state: LoopState) -> bool:
    """Whether nothing is learned in the step that is due."""
    return state.step < config.study_only_steps


def collect(
    session: CurriculumSession,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    *,
    policy_version: int,
    seed: int,
) -> list[Group]:
    """Run all tickets that are ready; episodes lost to an engine are run again, until given up.

    Args:
        session: gives them out.
        agent: who acts.
        envs: where.
        state: what the episodes cost is added here.
        policy_version: version of the policy behind ``agent``.
        seed: seed of the episodes' envs.

    Returns:
        The groups that closed; one that is not whole had a place that was lost too often.

    Raises:
        EnvBackendError: if no episode could be finished.
    """
    groups: list[Group] = []
    finished = 0
    while n_ready := session.n_ready:
        taken = [session.take(policy_version=policy_version) for _ in range(n_ready)]
        tickets = [ticket for ticket in taken if isinstance(ticket, Ticket)]
        result = rollout(tickets, agent, envs, policy_version=policy_version, seed=seed)
        state.env_steps += result.env_steps
        for index, (ticket, trajectory) in enumerate(
            zip(tickets, result.trajectories, strict=True)
        ):
            if trajectory is None:
                group = session.give_back(ticket.id, result.lost[index].reason)
            else:
                group = session.report(ticket.id, trajectory)
                finished += 1
            groups += [group] if group else []
        if not finished:
            fault = result.lost[0].error
            kind = ModelError if isinstance(fault, ModelError) else EnvBackendError
            raise kind(
                f"All {len(tickets)} episodes were lost, the first because: {fault}"
            ) from fault
    state.episodes += finished
    return groups
