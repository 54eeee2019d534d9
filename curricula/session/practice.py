"""Functions that run rollouts for a remote session in dedicated processes."""

from __future__ import annotations

from collections.abc import Callable

from coevo_gym.core.seams import Agent, Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.session.calls import TaskSession
from coevo_gym.curricula.session.stream import TaskStream
from coevo_gym.episodes.episode import Finished, TrainingEpisode
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import Mode, Runner


def practise(
    session: TaskSession,
    agent: Agent,
    envs: EnvPool,
    *,
    episodes: int,
    policy_version: Callable[[], int] = lambda: 0,
    mode: Mode = "lock_step",
) -> int:
    """Run episodes for a session, ``envs.max_envs`` at a time.

    The session runs due rounds while other workers continue. Leases are renewed whenever an episode
    ends, so a lease should last longer than an episode.

    Args:
        session: supplies tasks and records episodes.
        agent: the agent that acts.
        envs: envs with the training split.
        episodes: number of episodes to run, including failed episodes.
        policy_version: returns the current policy version.
        mode: see :class:`~coevo_gym.episodes.runner.Runner`.

    Returns:
        Number of reported episodes; all others failed and were given back.
    """
    stream, runner, reported = TaskStream(session, "inline"), Runner(envs, mode), 0
    for begun in range(0, episodes, envs.max_envs):
        tickets = [stream.take() for _ in range(min(envs.max_envs, episodes - begun))]
        out = dict(enumerate(tickets))
        version = policy_version()
        try:
            for outcome in runner.run([_episode(t, stream, version) for t in tickets], agent):
                ticket = out.pop(outcome.index)
                if isinstance(outcome, Finished):
                    session.report(ticket.id, outcome.record)
                    reported += 1
                else:
                    session.give_back(ticket.id, outcome.reason)
                stream.renew(list(out.values()))
        finally:
            for ticket in out.values():
                session.give_back(ticket.id, EndReason.ABANDONED)
    return reported


def _episode(ticket: Ticket, stream: TaskStream, version: int) -> TrainingEpisode:
    return TrainingEpisode(ticket.task, stream.seed_of(ticket), ticket.group_id, version)
