"""Rollouts: functions that run the episodes of training steps.

In lockstep mode, all episodes of a step finish before any learning. In a stream, some episodes
continue while the learner trains on finished episodes. The stream is not part of a checkpoint. The
session records which episodes are running; after its state is loaded, their tickets are handed out
first, and groups keep the episodes already reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from coevo_gym.core.seams import Agent, ClosedStep, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.guiding import Guiding
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.episode import AnswerCounts, Lost, Outcome, all_lost_error, episode_of
from coevo_gym.episodes.runner import episode_seed, run_rollout
from coevo_gym.episodes.stream import EpisodeStream
from coevo_gym.trainers.protocols import (
    GroupFilter,
    Learner,
    LoopConfig,
    LoopState,
    Metrics,
)
from coevo_gym.trainers.token_advantages import has_learning_signal


@dataclass(frozen=True)
class RolloutParts:
    """The components of a training loop that its rollouts use.

    The learner provides the policy version and selects useful groups. The cost of episodes and of
    their guidance is added to the loop's state.
    """

    config: LoopConfig
    session: CurriculumSession
    agent: Agent
    envs: EnvPool
    state: LoopState
    learner: Learner
    guiding: Guiding
    seed: int  # for the envs
    group_filter: GroupFilter | None = None


class Gathered(NamedTuple):
    """The groups of one step: all recorded groups, and the groups to learn from."""

    recorded: ClosedStep
    kept: list[Group]
    metrics: Metrics  # counts of recorded, kept and dropped groups


class Collected(NamedTuple):
    """Groups whose episodes have run, and counts of a language model's answers for each episode.

    A group is incomplete if one of its episodes was lost too often.
    """

    groups: list[Group]
    answers: list[AnswerCounts]


def groups_with_signal(groups: Sequence[Group], learner: Learner) -> list[Group]:
    """Return the groups that the learner can learn from.

    A group teaches something if its episodes differ in success, or if some of the learner's
    advantages without notes are not 0.
    """

    def differs(group: Group) -> bool:  # lost episodes are ignored
        return len({t.success for t in group.trajectories if not t.end_reason.is_lost}) > 1

    judged = zip(groups, learner.advantages(groups), strict=True)
    return [group for group, values in judged if differs(group) or has_learning_signal(values)]


def success_rate_of(groups: Iterable[Group]) -> float:
    """Return the share of episodes that solved their task, or 0 if there are no episodes."""
    solved = [float(t.success) for group in groups for t in group.trajectories]
    return sum(solved) / len(solved) if solved else 0.0


def answer_metrics(answers: Sequence[AnswerCounts]) -> Metrics:
    """Return the shares of a language model's answers that had no action or were cut off."""
    total = sum(counts.total for counts in answers)
    if not total:
        return {}
    return {
        "empty_answers": sum(counts.empty for counts in answers) / total,
        "cut_answers": sum(counts.cut for counts in answers) / total,
    }


def run_step_episodes(parts: RolloutParts) -> Gathered:
    """Run the episodes of one loop step, and let the curriculum record them as one batch.

    With ``max_resamples`` (dynamic sampling, DAPO, arXiv 2503.14476), a group that teaches nothing
    is set aside and replaced with another group. This repeats until there are ``groups_per_step``
    groups to learn from, or ``max_resamples`` extra draws have been made. A group filter draws
    whole batches instead, and decides which groups to learn from. Groups set aside are recorded and
    counted against the budget like all other groups.

    Raises:
        EnvBackendError: if all episodes failed.
    """
    config, session = parts.config, parts.session
    size = config.groups_per_step
    selection: list[Group] = []
    answers: list[AnswerCounts] = []
    draws = 0
    study_only = config.is_study_only(parts.state)
    resamples = 0 if study_only else config.max_resamples
    group_filter = None if study_only else parts.group_filter

    def draw_groups(n: int) -> list[Group]:
        nonlocal draws
        session.open_step(n)
        collection = run_tickets(parts)
        answers.extend(collection.answers)
        draws += 1
        return [group for group in collection.groups if group.is_whole]

    try:
        if group_filter is not None:
            selection = list(group_filter.select(size, lambda: draw_groups(size)))
        else:
            while draws == 0 or (draws <= resamples and len(selection) < size):
                whole = draw_groups(size - len(selection))
                selection += groups_with_signal(whole, parts.learner) if resamples else whole
    finally:
        recorded = session.close_step()
    groups = recorded.groups
    n_whole = sum(group.is_whole for group in groups)
    metrics = {"broken_groups": float(len(groups) - n_whole), **answer_metrics(answers)}
    if resamples or group_filter is not None:
        metrics |= {
            "resamples": float(draws - 1),
            "groups_set_aside": float(n_whole - len(selection)),
            "success_before_filter": success_rate_of(groups),
        }
    return Gathered(recorded, selection, metrics)


def run_tickets(parts: RolloutParts) -> Collected:
    """Run an episode for every available ticket.

    Episodes lost to a fault are retried up to the session's limit.

    Raises:
        EnvBackendError: if all episodes failed.
    """
    session, version = parts.session, parts.learner.version
    groups: list[Group] = []
    answers: list[AnswerCounts] = []
    finished = 0
    while n_ready := session.n_ready_tickets:
        items = [session.take(policy_version=version) for _ in range(n_ready)]
        tickets = [ticket for ticket in items if isinstance(ticket, Ticket)]
        if not tickets:  # other clients of the session have taken them in the meantime
            break
        result = run_rollout(
            tickets,
            parts.agent,
            parts.envs,
            policy_version=version,
            seed=parts.seed,
            guidance=parts.guiding.guide(tickets),
        )
        parts.state.env_steps += result.env_steps
        answers += result.answer_counts
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
            raise all_lost_error(len(tickets), fault) from fault
    parts.state.episodes += finished
    return Collected(groups, answers)


class GroupStream:
    """A stream of episodes, each of which may span several steps of the training loop.

    A step collects closed groups until it has ``groups_per_step`` groups to learn from. Running
    episodes then continue with the next weights. Each decision records the version that sampled it,
    so a group may span several versions. A group that spans more than ``max_staleness`` versions is
    recorded but not learned from, and the step waits for another group.

    In addition to the groups that a step still needs, at most ``max_staleness * groups_per_step``
    groups are open. If groups closed in the order they started, none would be too stale (the bound
    of AReaL, arXiv 2505.24298). With 0, a step runs only its own groups, all from one version, and
    ends when the last of them closes. Tasks are drawn one step's worth at a time, as late as
    possible.

    An episode's guidance is fixed when the episode starts. Call :meth:`close` when done.
    """

    def __init__(self, parts: RolloutParts) -> None:
        self._parts, self._config, self._session = parts, parts.config, parts.session
        self._stream = EpisodeStream[Trajectory](parts.envs, parts.agent)
        self._out: dict[int, Ticket] = {}
        self._n_begun = 0

    def run_step_episodes(self) -> Gathered:
        """Run episodes until there are enough groups for a step, and record the groups.

        With ``max_resamples``, a group that teaches nothing is set aside and replaced, until
        ``groups_per_step * (1 + max_resamples)`` groups have closed. Groups set aside are recorded
        and counted against the budget like all other groups.

        Raises:
            EnvBackendError: if ``groups_per_step`` groups fail and no episode has finished.
        """
        version, busy_s = self._parts.learner.version, self._stream.busy_s
        resamples = (
            0 if self._config.is_study_only(self._parts.state) else self._config.max_resamples
        )
        step = _Step(self._config, self._parts.learner, resamples)
        try:
            self._draw_tasks(step)
            while step.n_wanted > 0:
                self._start_episodes(step)
                outcome = self._stream.next()
                if outcome is None:  # other users of the session run the remaining groups
                    break
                group = self._report_outcome(outcome, step)
                if group is not None:
                    step.add_group(replace(group, policy_version=version))
                    step.raise_if_all_lost()
        finally:
            recorded = self._session.close_step(policy_version=version)
        groups = [group for group in recorded.groups if group.id in step.kept]
        metrics = step.metrics(recorded.groups, groups) | {
            "under_way": float(self._stream.n_live),
            "busy_s": self._stream.busy_s - busy_s,
        }
        return Gathered(recorded, groups, metrics)

    def abandon_episodes(self) -> int:
        """Stop the running episodes. The session issues their tickets again. Safe to call twice.

        Returns:
            Number of env steps that these episodes had taken, which the loop has not counted.
        """
        self._stream.close()
        for ticket in self._out.values():
            self._session.give_back(ticket.id, EndReason.ABANDONED, lost=False)
        env_steps = self._stream.live_env_steps if self._out else 0
        self._out.clear()
        return env_steps

    def _draw_tasks(self, step: _Step) -> bool:
        """Draw tasks for more groups if the limit allows it; return True if tasks were drawn."""
        ahead = self._config.max_staleness * self._config.groups_per_step
        n_open = self._session.n_open_groups - step.n_closed
        most = min(ahead + step.n_wanted - n_open, self._config.groups_per_step)
        if most > 0:
            self._session.open_step(most)
        return most > 0

    def _start_episodes(self, step: _Step) -> None:
        """Start episodes while envs are free and tickets are available."""
        version = self._parts.learner.version
        while self._stream.has_room and (self._session.n_ready_tickets or self._draw_tasks(step)):
            ticket = self._session.take(policy_version=version)
            if not isinstance(ticket, Ticket):
                return
            self._out[self._n_begun] = ticket
            (guidance,) = self._parts.guiding.guide([ticket])
            seed = episode_seed(self._parts.seed, ticket.id)
            self._stream.begin(self._n_begun, episode_of(ticket, seed, version, guidance))
            self._n_begun += 1

    def _report_outcome(self, outcome: Outcome[Trajectory], step: _Step) -> Group | None:
        """Report an episode's outcome and return the group that it closes, if any."""
        ticket = self._out.pop(outcome.index)
        self._parts.state.env_steps += outcome.env_steps
        if isinstance(outcome, Lost):
            step.lost.append(outcome)
            return self._session.give_back(ticket.id, outcome.reason)
        step.n_finished += 1
        step.answers += [outcome.answer_counts] if outcome.usage.calls else []
        self._parts.state.episodes += 1
        return self._session.report(ticket.id, outcome.record)


@dataclass
class _Step:
    """The groups closed so far in a step."""

    config: LoopConfig
    learner: Learner
    resamples: int  # maximum number of resampling rounds
    kept: set[str] = field(default_factory=set)  # ids of groups to learn from
    n_closed: int = 0
    n_stale: int = 0  # closed groups too stale to learn from
    n_set_aside: int = 0  # closed groups without a learning signal
    n_finished: int = 0  # episodes
    lost: list[Lost] = field(default_factory=list)
    answers: list[AnswerCounts] = field(default_factory=list)

    @property
    def n_wanted(self) -> int:
        """Upper bound on the number of groups that the step still needs.

        Stale groups do not count as tried, because they were started for an earlier step.
        """
        size, tried = self.config.groups_per_step, self.n_closed - self.n_stale
        return min(size - len(self.kept), size * (1 + self.resamples) - tried)

    def add_group(self, group: Group) -> None:
        """Add a closed group to the counts."""
        self.n_closed += 1
        if not group.is_whole:
            return
        if not group.is_comparable:
            self.n_stale += 1
        elif self.resamples and not groups_with_signal([group], self.learner):
            self.n_set_aside += 1
        else:
            self.kept.add(group.id)

    def raise_if_all_lost(self) -> None:
        """Raise an error if a step's groups have closed but none of their episodes finished."""
        if not self.n_finished and self.n_closed >= self.config.groups_per_step:
            first = self.lost[0].error
            raise all_lost_error(len(self.lost), first) from first

    def metrics(self, recorded: tuple[Group, ...], groups: list[Group]) -> Metrics:
        """Return metrics for the step's groups, such as the number of stale groups."""
        numbers = {
            "broken_groups": float(sum(not group.is_whole for group in recorded)),
            "stale_groups": float(self.n_stale),
            "staleness": sum(group.staleness for group in groups) / len(groups) if groups else 0.0,
            **answer_metrics(self.answers),
        }
        if self.resamples:
            numbers |= {
                "groups_set_aside": float(self.n_set_aside),
                "success_before_filter": success_rate_of(recorded),
            }
        return numbers
