"""From tickets to groups in lock step: all episodes of a step end before anything is learned."""

from __future__ import annotations

from coevo_gym.core.seams import Agent, Ticket
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import rollout
from coevo_gym.trainers.parts import Learner, LoopConfig, LoopState
from coevo_gym.trainers.rollouts.gathered import (
    Gathered,
    all_lost,
    studies,
    success_of,
    teaching,
)


def gather(
    config: LoopConfig,
    session: CurriculumSession,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    learner: Learner,
    guiding: Guiding,
) -> Gathered:
    """Run the episodes of one step of the loop, and have the curriculum record them as one batch.

    With ``max_resamples`` (dynamic sampling, DAPO, arXiv 2503.14476) a group that teaches nothing
    is set aside, and another is run in its place, until there are ``groups_per_step`` to learn from
    or so many times more have been drawn. What is set aside is recorded and paid for like all
    others.

    Raises:
        EnvBackendError: if no episode could be finished.
    """
    kept: list[Group] = []
    draws, resamples = 0, 0 if studies(config, state) else config.max_resamples
    try:
        while draws == 0 or (draws <= resamples and len(kept) < config.groups_per_step):
            session.open_step(config.groups_per_step - len(kept))
            version, seed = learner.version, config.seed
            found = collect(
                session, agent, envs, state, policy_version=version, seed=seed, guiding=guiding
            )
            whole = [group for group in found if group.whole]
            kept += teaching(whole, learner) if resamples else whole
            draws += 1
    finally:
        recorded = session.close_step()
    groups = recorded.groups
    n_whole = sum(group.whole for group in groups)
    metrics = {"broken_groups": float(len(groups) - n_whole)}
    if resamples:
        metrics |= {
            "resamples": float(draws - 1),
            "groups_set_aside": float(n_whole - len(kept)),
            "success_before_filter": success_of(groups),
        }
    return Gathered(recorded, kept, metrics)


def collect(
    session: CurriculumSession,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    *,
    policy_version: int,
    seed: int,
    guiding: Guiding,
) -> list[Group]:
    """Run all tickets that are ready; episodes lost to an engine are run again, until given up.

    Args:
        session: gives them out.
        agent: who acts.
        envs: where.
        state: what the episodes cost is added here.
        policy_version: version of the policy behind ``agent``.
        seed: seed of the episodes' envs.
        guiding: what goes with each episode.

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
        result = rollout(
            tickets,
            agent,
            envs,
            policy_version=policy_version,
            seed=seed,
            guidance=guiding.guide(tickets),
        )
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
            raise all_lost(len(tickets), fault) from fault
    state.episodes += finished
    return groups
