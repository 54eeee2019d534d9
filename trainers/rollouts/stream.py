"""From tickets to groups as a stream: episodes go on while the learner learns from others.

Nothing of it is part of a checkpoint. The session knows which episodes are out, and where its state
is loaded their tickets are the first to be taken again; groups keep the episodes that have arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coevo_gym.core.seams import Agent, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.guiding.guiding import Guiding
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.episodes.episode import Lost, Outcome, episode_of
from coevo_gym.episodes.pool import EnvPool
from coevo_gym.episodes.runner import episode_seed
from coevo_gym.episodes.stream import EpisodeStream
from coevo_gym.trainers.parts import Learner, LoopConfig, LoopState, Metrics
from coevo_gym.trainers.rollouts.lock_step import Gathered, all_lost, success_of, teaching


class GroupStream:
    """Runs a session's episodes each at its own pace, over as many steps of the loop as there are.

    A step takes the groups that close until it has ``groups_per_step`` to learn from. Episodes that
    are under way then stay where they are, and go on with the weights that come next: each decision
    knows the version that sampled it, so that a group may span several. One that spans more than
    ``max_staleness`` is recorded and not learned from, and another is waited for.

    Beside the groups that a step still wants, at most ``max_staleness * groups_per_step`` are open:
    were they to close in the order that they began in, none would be too stale (the bound of AReaL,
    arXiv 2505.24298). So with 0 a step runs its own groups only, all of one version, and ends when
    the last of them has closed. Tasks are drawn a step's worth at a time, as late as there is room
    for them.

    It has to be closed.

    Args:
        config: how many groups, how stale, and the seed of the episodes' envs.
        session: gives out tasks and records groups.
        agent: who acts.
        envs: where.
        state: what episodes cost is added here.
        learner: says which version of the policy acts, and what teaches it anything.
        guiding: what goes with each episode; it stays what it was when the episode began.
    """

    def __init__(
        self,
        config: LoopConfig,
        session: CurriculumSession,
        agent: Agent,
        envs: EnvPool,
        state: LoopState,
        learner: Learner,
        guiding: Guiding,
    ) -> None:
        self._config, self._session, self._state, self._learner = config, session, state, learner
        self._guiding = guiding
        self._stream = EpisodeStream[Trajectory](envs, agent)
        self._out: dict[int, Ticket] = {}
        self._n_begun = 0

    def gather(self) -> Gathered:
        """Let episodes run until there are enough groups for a step, and have those recorded.

        With ``max_resamples`` a group that teaches nothing is set aside and another takes its
        place, until ``groups_per_step * (1 + max_resamples)`` have closed. It is recorded and paid
        for like all others.

        Raises:
            EnvBackendError: if as many groups as a step has are broken and no episode is finished.
        """
        version, busy_s = self._learner.version, self._stream.busy_s
        resamples = 0 if self._config.only_studies(self._state) else self._config.max_resamples
        step = _Step(self._config, self._learner, resamples)
        try:
            self._draw(step)
            while step.n_wanted > 0:
                self._fill(step)
                outcome = self._stream.next()
                if outcome is None:  # whoever shares the session has the rest of the groups
                    break
                group = self._take_in(outcome, step)
                if group is not None:
                    step.add(replace(group, policy_version=version))
                    step.check()
        finally:
            recorded = self._session.close_step(policy_version=version)
        kept = [group for group in recorded.groups if group.id in step.kept]
        metrics = step.metrics(recorded.groups, kept) | {
            "under_way": float(self._stream.n_live),
            "busy_s": self._stream.busy_s - busy_s,
        }
        return Gathered(recorded, kept, metrics)

    def close(self) -> int:
        """End the episodes under way; their places are the next to be taken. Twice is fine.

        Returns:
            Env steps that they had taken, which nobody has counted.
        """
        self._stream.close()
        for ticket in self._out.values():
            self._session.give_back(ticket.id, EndReason.ABANDONED, lost=False)
        env_steps = self._stream.env_steps if self._out else 0
        self._out.clear()
        return env_steps

    def _draw(self, step: _Step) -> bool:
        """Draw the tasks of more groups, as far as there may be more; whether there may."""
        ahead = self._config.max_staleness * self._config.groups_per_step
        n_open = self._session.n_open - step.n_closed
        most = min(ahead + step.n_wanted - n_open, self._config.groups_per_step)
        if most > 0:
            self._session.open_step(most)
        return most > 0

    def _fill(self, step: _Step) -> None:
        """Begin episodes while there is room."""
        config, version = self._config, self._learner.version
        while self._stream.has_room and (self._session.n_ready or self._draw(step)):
            ticket = self._session.take(policy_version=version)
            if not isinstance(ticket, Ticket):
                return
            self._out[self._n_begun] = ticket
            (guidance,) = self._guiding.guide([ticket])
            seed = episode_seed(config.seed, ticket.id)
            self._stream.begin(self._n_begun, episode_of(ticket, seed, version, guidance))
            self._n_begun += 1

    def _take_in(self, outcome: Outcome[Trajectory], step: _Step) -> Group | None:
        """Hand in what came of an episode; the group that it closes."""
        ticket = self._out.pop(outcome.index)
        self._state.env_steps += outcome.env_steps
        if isinstance(outcome, Lost):
            step.lost.append(outcome)
            return self._session.give_back(ticket.id, outcome.reason)
        step.n_finished += 1
        self._state.episodes += 1
        return self._session.report(ticket.id, outcome.record)


@dataclass
class _Step:
    """The groups that have closed in a step so far.

    Attributes:
        config: how many are wanted, and how stale they may be.
        learner: says what teaches it anything.
        resamples: how many times as many more may be set aside.
        kept: ids of those that are learned from.
        n_closed: all that have closed.
        n_stale: those too stale to be learned from.
        n_set_aside: those that teach nothing.
        n_finished: episodes that came to an end.
        lost: those that did not.
    """

    config: LoopConfig
    learner: Learner
    resamples: int
    kept: set[str] = field(default_factory=set)
    n_closed: int = 0
    n_stale: int = 0
    n_set_aside: int = 0
    n_finished: int = 0
    lost: list[Lost] = field(default_factory=list)

    @property
    def n_wanted(self) -> int:
        """How many more it takes at most, until there are enough or enough have been tried.

        What is too stale was begun for an earlier step, and takes no place of this one.
        """
        size, tried = self.config.groups_per_step, self.n_closed - self.n_stale
        return min(size - len(self.kept), size * (1 + self.resamples) - tried)

    def add(self, group: Group) -> None:
        """Take in a group that has closed."""
        self.n_closed += 1
        if not group.whole:
            return
        if not group.comparable:
            self.n_stale += 1
        elif self.resamples and not teaching([group], self.learner):
            self.n_set_aside += 1
        else:
            self.kept.add(group.id)

    def check(self) -> None:
        """Refuse to go on where nothing can be finished any more."""
        if not self.n_finished and self.n_closed >= self.config.groups_per_step:
            first = self.lost[0].error
            raise all_lost(len(self.lost), first) from first

    def metrics(self, recorded: tuple[Group, ...], kept: list[Group]) -> Metrics:
        """How many of which."""
        found = {
            "broken_groups": float(sum(not group.whole for group in recorded)),
            "stale_groups": float(self.n_stale),
            "staleness": sum(group.staleness for group in kept) / len(kept) if kept else 0.0,
        }
        if self.resamples:
            found |= {
                "groups_set_aside": float(self.n_set_aside),
                "success_before_filter": success_of(recorded),
            }
        return found
