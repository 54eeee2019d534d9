"""From tickets to groups: the episodes of one step of the loop."""

from __future__ import annotations

from coevo_gym.errors import EnvBackendError
from coevo_gym.seams import Agent
from coevo_gym.trainers.parts import Ledger, LoopState
from coevo_gym.trainers.rollout import EnvPool, rollout
from coevo_gym.trajectory import EndReason, Group


def collect(
    n_episodes: int,
    ledger: Ledger,
    agent: Agent,
    envs: EnvPool,
    state: LoopState,
    *,
    policy_version: int,
    seed: int,
) -> list[Group]:
    """Run episodes until ``n_episodes`` are finished; those lost to an engine are run again.

    Args:
        n_episodes: tickets to take.
        ledger: issues them, and records groups as they close.
        agent: who acts.
        envs: where.
        state: what the episodes cost is added here.
        policy_version: version of the policy behind ``agent``.
        seed: seed of the episodes' envs.

    Returns:
        The groups that closed.

    Raises:
        EnvBackendError: if every episode of an attempt was lost.
    """
    groups: list[Group] = []
    missing = n_episodes
    while missing:
        tickets = [ledger.issue(policy_version=policy_version) for _ in range(missing)]
        result = rollout(tickets, agent, envs, policy_version=policy_version, seed=seed)
        state.env_steps += result.env_steps
        for ticket, trajectory in zip(tickets, result.trajectories, strict=True):
            if trajectory is None:
                ledger.give_back(ticket, EndReason.WORKER_LOST)
                continue
            state.episodes += 1
            group = ledger.finish(ticket, trajectory)
            groups += [group] if group else []
        if len(result.faults) == len(tickets):
            raise EnvBackendError("Every episode was lost.") from result.faults[0]
        missing = len(result.faults)
    return groups
