"""Lock-step rollouts: all episodes of a step finish before any learning."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from coevo_gym.core.errors import EnvBackendError, ModelError
from coevo_gym.core.seams import Agent, ClosedStep, Ticket
from coevo_gym.core.trajectory import Group
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.episode import Fault
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import rollout
from coevo_gym.trainers.protocols import Learner, LoopConfig, LoopState, Metrics
from coevo_gym.trainers.token_advantages import teaches


class Gathered(NamedTuple):
    """The groups of one step.

    Attributes:
        recorded: all groups that the curriculum recorded, and the signals it computed.
        kept: groups to learn from.
        metrics: counts of recorded, kept and dropped groups.
    """

    recorded: ClosedStep
    kept: list[Group]
    metrics: Metrics


def teaching(groups: Sequence[Group], learner: Learner) -> list[Group]:
    """Return the groups that teach anything.

    A group teaches if its episodes differ in success, or if some of the learner's advantages
    without notes are not 0.
    """

    def differs(group: Group) -> bool:  # lost episodes are ignored
        return len({t.success for t in group.trajectories if not t.end_reason.lost}) > 1

    judged = zip(groups, learner.advantages(groups), strict=True)
    return [group for group, values in judged if differs(group) or teaches(values)]


def success_of(groups: Iterable[Group]) -> float:
    """Return the share of episodes that solved their task; 0 without episodes."""
    solved = [float(t.success) for group in groups for t in group.trajectories]
    return sum(solved) / len(solved) if solved else 0.0


def gather(
    config: LoopConfig,
    session: CurriculumSession,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    learner: Learner,
    guiding: Guiding,
) -> Gathered:
    """Run the episodes of one loop step and let the curriculum record them as one batch.

    With ``max_resamples`` (dynamic sampling, DAPO, arXiv 2503.14476), a group that teaches nothing
    is set aside and replaced by another group. This repeats until there are ``groups_per_step``
    groups to learn from, or ``max_resamples`` extra draws have been made. Groups set aside are
    recorded and counted against the budget like all others.

    Raises:
        EnvBackendError: if no episode could be finished.
    """
    kept: list[Group] = []
    draws, resamples = 0, 0 if config.only_studies(state) else config.max_resamples
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
    """Run all ready tickets; episodes lost to a fault are retried up to the session's limit.

    Args:
        session: session that hands out the tickets.
        agent: agent that acts.
        envs: pool of envs to run in.
        state: loop state to add the episodes' cost to.
        policy_version: version of the policy behind ``agent``.
        seed: seed for the episodes' envs.
        guiding: source of the guidance for each episode.

    Returns:
        The closed groups. A group is incomplete if one of its episodes was lost too often.

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


def all_lost(n_episodes: int, first: Fault) -> EnvBackendError | ModelError:
    """Create the error to raise when no episode can be finished any more."""
    kind = ModelError if isinstance(first, ModelError) else EnvBackendError
    return kind(f"All {n_episodes} episodes were lost, the first because: {first}")
