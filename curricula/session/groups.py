"""Groups: K episodes of one task under one policy version, and who may run them.

A trainer opens a step, takes its tickets, runs their episodes, and hands the trajectories in, in
any order and from any thread; then it closes the step. Nothing else in the project knows how
episodes become groups.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from coevo_gym.core.errors import ConfigError, SplitLeakError, TaskError
from coevo_gym.core.seams import ClosedStep, Curriculum, Ticket
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.pool.pool import require_train
from coevo_gym.curricula.session.open_group import OpenGroup, Place
from coevo_gym.envs.checks import is_positive_int

logger = logging.getLogger(__name__)


class GroupLedger:
    """Issues tickets, K for each task the curriculum chooses, and collects their episodes.

    A learner's step is opened and closed: its tasks are drawn at once, and its groups are recorded
    as one batch, so that what happens under one version of the policy is not compared with itself.
    Without steps, tasks are drawn one at a time and each group is recorded as it closes.

    A ticket that is given back is issued again, before any new one. After ``max_reissues`` more
    attempts its group is broken: places not begun are dropped, episodes under way may still be
    finished, and with the last of them the group closes with fewer than K. All methods may be
    called from any thread; the curriculum is only ever called by one at a time.

    Args:
        curriculum: asked for tasks, and told of the groups that have closed.
        group_size: K, episodes a group.
        seed: seed of the generator that the curriculum draws tasks with.
        max_reissues: how often one place of a group is tried again.

    Raises:
        ConfigError: if ``group_size`` is below 1.

    Example:
        >>> from coevo_gym import tasks
        >>> from coevo_gym.curricula.methods.coevolve import CoEvolve
        >>> ledger = GroupLedger(CoEvolve(tasks=tasks("webshop", "train")[:9]), group_size=2)
        >>> ledger.open_step(3)
        >>> tickets = [ledger.issue() for _ in range(ledger.n_ready)]
        >>> len(tickets), len({ticket.task.id for ticket in tickets})
        (6, 3)
    """

    def __init__(
        self,
        curriculum: Curriculum,
        *,
        group_size: int = 8,
        seed: int | np.random.SeedSequence = 0,
        max_reissues: int = 3,
    ) -> None:
        if not is_positive_int(group_size):
            raise ConfigError(f"group_size must be a positive int, actual: {group_size!r}")
        self.curriculum = curriculum
        self.group_size = group_size
        self.max_reissues = max_reissues
        self._rng: Generator = np.random.default_rng(seed)
        self._lock = threading.Lock()
        self._groups: dict[str, OpenGroup] = {}
        self._out: dict[str, Ticket] = {}
        self._returned: deque[tuple[str, int]] = deque()
        self._n_groups = 0
        self._in_step = False

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither finished nor given back, oldest first."""
        with self._lock:
            return tuple(self._out.values())

    @property
    def n_ready(self) -> int:
        """Tickets that can be issued before the curriculum is asked for another task."""
        with self._lock:
            return len(self._returned) + sum(g.n_unbegun for g in self._groups.values())

    def open_step(self, n_groups: int) -> None:
        """Draw the tasks of a learner's step, all at once, or more tasks for the open step.

        Args:
            n_groups: groups to begin. Their tasks are distinct as far as the curriculum's ``next``
                makes them so; a step that is extended may meet a task again.

        Raises:
            ConfigError: if ``n_groups`` is below 1, or the curriculum does not give that many.
            SplitLeakError: if it gives a task that is not a training task; no group is begun then.
        """
        if n_groups < 1:
            raise ConfigError(f"A step needs a positive number of groups, actual: {n_groups}")
        with self._lock:
            self._draw(n_groups, in_step=True)
            self._in_step = True

    def close_step(self) -> ClosedStep:
        """Record the groups that have closed as one batch, in the order of their numbers.

        A group that is still open closes with a later step. Where no step is open, nothing
        happens.

        Returns:
            The groups, and the signals that they fired.
        """
        with self._lock:
            if not self._in_step:
                return ClosedStep((), ())
            closed = tuple(group.close() for group in self._groups.values() if group.over)
            signals = tuple(self.curriculum.record(closed)) if closed else ()
            for group in closed:
                del self._groups[group.id]
            self._in_step = False
            return ClosedStep(closed, signals)

    def issue(self, *, policy_version: int = 0) -> Ticket:
        """The right to run one more episode.

        Args:
            policy_version: version of the policy that is about to act.

        Raises:
            ConfigError: if the curriculum has no task to give.
            TaskError: if all tickets of the open step are issued.
            SplitLeakError: if it gives one that is not a training task.
        """
        with self._lock:
            group, index = self._next_place()
            place = group.places[index]
            attempt = f"#{place.issued}" if place.issued else ""
            place.issued += 1
            group.out.add(index)
            id = f"{group.id}/{index}{attempt}"
            ticket = Ticket(id, group.task, group.id, index, policy_version)
            self._out[id] = ticket
            return ticket

    def finish(self, ticket: Ticket, trajectory: Trajectory) -> Group | None:
        """Hand in an episode.

        Returns:
            The group, if this episode closes it. It is whole unless places of it were lost
            (``Group.whole``). The curriculum has recorded it by then, or will at the end of a step.

        Raises:
            TaskError: if the ticket is unknown, finished or given back, if the trajectory is of
                another task or group, or if its end says nothing about the agent.
            SplitLeakError: if it is not a training trajectory.
        """
        if not isinstance(trajectory, Trajectory):
            raise SplitLeakError(
                f"A group takes training trajectories, actual: {type(trajectory).__name__}. "
                "Evaluation episodes are never recorded."
            )
        with self._lock:
            group = self._group_of(ticket)
            _check_fit(group, ticket, trajectory)
            self._take_in(group, ticket)
            if not trajectory.group_id:  # a trainer of somebody else's need not know of groups
                trajectory = replace(trajectory, group_id=group.id)
            group.places[ticket.index].trajectory = trajectory
            return self._close_if_over(group)

    def give_back(self, ticket: Ticket, reason: EndReason) -> Group | None:
        """Return a ticket whose episode will not be finished; it is no failure of the agent.

        Args:
            ticket: the ticket.
            reason: why, such as ``EndReason.WORKER_LOST`` or ``EndReason.ABANDONED``.

        Returns:
            The group, broken, if this closes it.

        Raises:
            TaskError: if the ticket is unknown, finished or given back already.
        """
        with self._lock:
            group = self._group_of(ticket)
            self._take_in(group, ticket)
            place = group.places[ticket.index]
            place.lost += 1
            if place.lost > self.max_reissues:
                logger.warning(
                    "group=%s task=%s place=%d reason=%s: lost %d times, the group is broken",
                    group.id,
                    group.task.name,
                    ticket.index,
                    reason,
                    place.lost,
                )
                group.broken = True
                self._returned = deque(p for p in self._returned if p[0] != group.id)
            elif not group.broken:
                self._returned.append((group.id, ticket.index))
            return self._close_if_over(group)

    def state_dict(self) -> dict[str, Any]:
        """All groups not yet recorded as JSON, with the episodes that have arrived.

        The episodes under way are not part of it: where it is loaded, their tickets are issued
        again (under new ids) before any other, so the same stream of work continues.
        """
        with self._lock:
            waiting = [(t.group_id, t.index) for t in self._out.values()]
            return {
                "group_size": self.group_size,
                "n_groups": self._n_groups,
                "rng": self._rng.bit_generator.state,
                "in_step": self._in_step,
                "groups": [group.to_json() for group in self._groups.values()],
                "returned": [list(place) for place in (*waiting, *self._returned)],
            }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void.

        A state that was saved before there were steps is read, too: none was open in it.

        Raises:
            ConfigError: if it was saved with another group size.
        """
        if state["group_size"] != self.group_size:
            raise ConfigError(
                f"The saved groups have {state['group_size']} episodes each, but this ledger was "
                f"made with group_size={self.group_size}. Use the saved size."
            )
        with self._lock:
            groups = [OpenGroup.from_json(data) for data in state["groups"]]
            self._groups = {group.id: group for group in groups}
            self._returned = deque((id, index) for id, index in state["returned"])
            self._out = {}
            self._n_groups = state["n_groups"]
            self._in_step = state.get("in_step", False)
            self._rng.bit_generator.state = state["rng"]

    # All below runs under the lock.

    def _next_place(self) -> tuple[OpenGroup, int]:
        """A place that was given back, the next of a group already drawn, or a new group's."""
        if self._returned:
            id, index = self._returned.popleft()
            return self._groups[id], index
        group = next((group for group in self._groups.values() if group.n_unbegun), None)
        if group is None:
            if self._in_step:
                raise TaskError(
                    "All tickets of the open step are issued. Call open_step(n) for more groups, "
                    "or close_step() when their episodes are finished."
                )
            (group,) = self._draw(1, in_step=False)
        group.n_begun += 1
        return group, group.n_begun - 1

    def _draw(self, n_groups: int, *, in_step: bool) -> list[OpenGroup]:
        """Begin groups of the next tasks, all or none."""
        tasks = [
            require_train(task, "practise") for task in self.curriculum.next(n_groups, self._rng)
        ]
        if len(tasks) != n_groups:
            raise ConfigError(
                f"The curriculum was asked for {n_groups} tasks and gave {len(tasks)}: its next(n) "
                "must return n."
            )
        numbers = range(self._n_groups, self._n_groups + n_groups)
        groups = [
            OpenGroup(f"group-{number}", task, [Place() for _ in range(self.group_size)], in_step)
            for number, task in zip(numbers, tasks, strict=True)
        ]
        self._groups |= {group.id: group for group in groups}
        self._n_groups += n_groups
        return groups

    def _group_of(self, ticket: Ticket) -> OpenGroup:
        if self._out.get(ticket.id) != ticket:
            raise TaskError(
                f"Ticket {ticket.id} is not outstanding: it was never issued here, or has been "
                "finished or given back already."
            )
        return self._groups[ticket.group_id]

    def _take_in(self, group: OpenGroup, ticket: Ticket) -> None:
        del self._out[ticket.id]
        group.out.remove(ticket.index)

    def _close_if_over(self, group: OpenGroup) -> Group | None:
        if not group.over:
            return None
        closed = group.close()
        if not (self._in_step or group.in_step):
            del self._groups[group.id]
            self.curriculum.record([closed])
        return closed


def group_trajectories(
    trajectories: Sequence[Trajectory], tasks: Iterable[Task], *, group_size: int
) -> list[Group]:
    """Groups of a batch from a trainer that repeats prompts itself (TRL, verl).

    Trajectories belong together if they share their task and ``group_id``; without group ids, each
    run of ``group_size`` trajectories of a task is a group. Episodes whose end says nothing about
    the agent (``EndReason.lost``) are left out, and leave their group broken.

    Args:
        trajectories: one batch, in any order.
        tasks: where their tasks are found, such as the pool.
        group_size: K, how many trajectories a whole group has.

    Returns:
        Groups in the order of their first trajectory.

    Raises:
        TaskError: if a trajectory's task is not among ``tasks``.
        SplitLeakError: if one is not a training trajectory or its task not a training task.
    """
    wanted = {trajectory.task_id for trajectory in trajectories}
    found = {task.id: require_train(task, "practise") for task in tasks if task.id in wanted}
    members: dict[tuple[str, str], list[Trajectory]] = {}
    counts: dict[tuple[str, str], int] = {}
    for trajectory in trajectories:
        if not isinstance(trajectory, Trajectory):
            raise SplitLeakError(f"{type(trajectory).__name__} is not a training trajectory.")
        if trajectory.task_id not in found:
            raise TaskError(f"Task {trajectory.task_id!r} of a trajectory is not among the tasks.")
        key = (trajectory.task_id, trajectory.group_id)
        counts[key] = seen = counts.get(key, -1) + 1
        id = trajectory.group_id or f"{trajectory.task_id[:12]}.{seen // group_size}"
        group = members.setdefault((trajectory.task_id, id), [])
        if not trajectory.end_reason.lost:
            group.append(trajectory)
    return [
        Group(id, found[task_id], group_size, tuple(group))
        for (task_id, id), group in members.items()
    ]


def _check_fit(group: OpenGroup, ticket: Ticket, trajectory: Trajectory) -> None:
    if trajectory.task_id != group.task.id:
        raise TaskError(
            f"Ticket {ticket.id} is for task {group.task.name}, but the trajectory is of task "
            f"{trajectory.task_id}."
        )
    if trajectory.group_id not in ("", group.id):
        raise TaskError(
            f"Ticket {ticket.id} belongs to {group.id}, but the trajectory says "
            f"{trajectory.group_id!r}."
        )
    if trajectory.end_reason.lost:
        raise TaskError(
            f"An episode that ended {str(trajectory.end_reason)!r} says nothing about the agent. "
            "Use give_back() instead of finish()."
        )
