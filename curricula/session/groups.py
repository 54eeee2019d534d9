"""Groups: K episodes of one task that are judged against each other.

How episodes become groups is known here alone: by tickets (the ledger of a session), or from the
batch of a trainer that repeats its prompts itself.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from coevo_gym.core.errors import CoevoError, ConfigError, SplitLeakError, TaskError
from coevo_gym.core.seams import ClosedStep, Curriculum, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.pool.pool import require_practised
from coevo_gym.curricula.session.open_group import OpenGroup, Place
from coevo_gym.curricula.session.saved import SavedLedger
from coevo_gym.envs.checks import is_positive_int

logger = logging.getLogger(__name__)


class GroupLedger:
    """The books of a session: issues tickets, K for each task, and collects their episodes.

    It is for one thread; :class:`~coevo_gym.curricula.session.session.CurriculumSession` is what
    trainers use.

    A learner's step is opened and closed: its tasks are drawn at once, and its groups are recorded
    as one batch, so that what happens under one version of the policy is not compared with itself.
    Without steps, tasks are drawn one at a time and each group is recorded as it closes.

    A ticket that is given back is issued again, before any new one. After ``max_reissues`` more
    attempts its group is broken: places not begun are dropped, episodes under way may still be
    finished, and with the last of them the group closes with fewer than K.

    A slot's group is for the K copies that a trainer sends under one name, each of which takes its
    ticket once. So its lost places are not issued again: the group is broken at once, and closes
    when the other copies have ended.

    Args:
        curriculum: asked for tasks, and told of the groups that have closed.
        group_size: K, episodes a group.
        seed: seed of the generator that the curriculum draws tasks with.
        max_reissues: how often one place of a group is tried again.
        max_staleness: most versions of the policy that the episodes of a group may be apart, or
            behind, and still be comparable.

    Raises:
        ConfigError: if ``group_size`` is below 1, or ``max_staleness`` below 0.

    Example:
        >>> from coevo_gym import tasks
        >>> from coevo_gym.methods.coevolve import CoEvolve
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
        max_staleness: int = 0,
    ) -> None:
        if not is_positive_int(group_size):
            raise ConfigError(f"group_size must be a positive int, actual: {group_size!r}")
        if max_staleness != 0 and not is_positive_int(max_staleness):
            raise ConfigError(
                f"max_staleness must be 0 or a positive int, actual: {max_staleness!r}"
            )
        self.curriculum = curriculum
        self.group_size = group_size
        self.max_reissues = max_reissues
        self.max_staleness = max_staleness
        self._rng: Generator = np.random.default_rng(seed)
        self._groups: dict[str, OpenGroup] = {}
        self._out: dict[str, Ticket] = {}
        self._returned: deque[tuple[str, int]] = deque()
        self._n_groups = 0
        self._in_step = False
        self._version = 0

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither finished nor given back, oldest first."""
        return tuple(self._out.values())

    @property
    def n_ready(self) -> int:
        """Tickets without a slot that can be issued before the curriculum is asked for a task."""
        unbegun = sum(g.n_unbegun for g in self._groups.values() if g.slot is None)
        return len(self._returned) + unbegun

    @property
    def spent(self) -> bool:
        """Whether no ticket is left of the groups that were drawn, those of slots included."""
        return not self._returned and not any(g.n_unbegun for g in self._groups.values())

    @property
    def n_open(self) -> int:
        """Groups that are drawn and not recorded."""
        return len(self._groups)

    @property
    def in_step(self) -> bool:
        """Whether a learner's step is open."""
        return self._in_step

    @property
    def all_over(self) -> bool:
        """Whether no group waits for an episode."""
        return all(group.over for group in self._groups.values())

    def ticket(self, id: str) -> Ticket | None:
        """The outstanding ticket of this id, if there is one."""
        return self._out.get(id)

    def can_issue(self, slot: str | None = None) -> bool:
        """Whether :meth:`issue` needs no task from the curriculum."""
        if slot is None:
            return bool(self._returned) or self._first_unbegun() is not None
        return self._group_of_slot(slot) is not None

    def open_step(self, n_groups: int) -> None:
        """Draw the tasks of a learner's step, all at once, or more tasks for the open step.

        Args:
            n_groups: groups to begin. Their tasks are distinct as far as the curriculum's ``next``
                makes them so; a step that is extended may meet a task again.

        Raises:
            ConfigError: if ``n_groups`` is below 1, or the curriculum does not give that many.
            SplitLeakError, TaskError: if it gives a task that nobody may practise.

        After any of these errors nothing has changed.
        """
        if n_groups < 1:
            raise ConfigError(f"A step needs a positive number of groups, actual: {n_groups}")
        self._draw(n_groups, in_step=True)
        self._in_step = True

    def close_step(self, *, policy_version: int = 0) -> ClosedStep:
        """Record the groups that have closed as one batch; see that of the session."""
        if not self._in_step:
            return ClosedStep((), ())
        self._version = max(self._version, policy_version)
        closed = tuple(self._closed(g) for g in self._groups.values() if g.over)
        signals = tuple(self.curriculum.record(closed)) if closed else ()
        for group in closed:
            del self._groups[group.id]
        self._in_step = False
        return ClosedStep(closed, signals)

    def issue(self, *, policy_version: int = 0, slot: str | None = None) -> Ticket:
        """The right to run one more episode.

        Args:
            policy_version: version of the policy that is about to act.
            slot: tickets of one slot share a group, K in a row; None takes from any other.

        Raises:
            ConfigError: if the curriculum has no task to give.
            TaskError: if all tickets of the open step are issued.
            SplitLeakError: if it gives one that is not a training task.
        """
        group, index = self._next_place() if slot is None else self._next_of_slot(slot)
        place = group.places[index]
        attempt = f"#{place.issued}" if place.issued else ""
        place.issued += 1
        group.out.add(index)
        id = f"{group.id}/{index}{attempt}"
        ticket = Ticket(id, group.task, group.id, index, policy_version)
        self._out[id] = ticket
        self._version = max(self._version, policy_version)
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
        group = self._group_of(ticket)
        group.check_fit(ticket, trajectory)
        self._take_in(group, ticket)
        if not trajectory.group_id:  # a trainer of somebody else's need not know of groups
            trajectory = replace(trajectory, group_id=group.id)
        group.places[ticket.index].trajectory = trajectory
        self._version = max(self._version, *trajectory.policy_versions)
        return self._close_if_over(group)

    def give_back(self, ticket: Ticket, reason: EndReason, *, lost: bool = True) -> Group | None:
        """Return a ticket whose episode will not be finished; it is no failure of the agent.

        Args:
            ticket: the ticket.
            reason: why, such as ``EndReason.WORKER_LOST`` or ``EndReason.ABANDONED``.
            lost: whether it counts as one of the losses that break a group in the end.

        Returns:
            The group, broken, if this closes it.

        Raises:
            TaskError: if the ticket is unknown, finished or given back already.
        """
        group = self._group_of(ticket)
        self._take_in(group, ticket)
        place = group.places[ticket.index]
        place.lost += lost
        if group.slot is not None or place.lost > self.max_reissues:
            logger.warning(
                "group=%s task=%s place=%d slot=%s reason=%s: lost %d times, the group is broken",
                group.id,
                group.task.name,
                ticket.index,
                group.slot,
                reason,
                place.lost,
            )
            group.broken = True
            self._returned = deque(p for p in self._returned if p[0] != group.id)
        elif not group.broken:
            self._returned.append((group.id, ticket.index))
        return self._close_if_over(group)

    def release(self, slot: str) -> Group | None:
        """Keep nothing more for a slot whose other copies do not come.

        Returns:
            Its group, broken, if this closes it.
        """
        kept = next((g for g in self._groups.values() if g.slot == slot and g.n_unbegun), None)
        if kept is None:
            return None
        kept.drop_unbegun()
        return self._close_if_over(kept)

    def state_dict(self, *, tickets: bool = False) -> dict[str, Any]:
        """All groups not yet recorded as JSON, with the episodes that have arrived.

        Args:
            tickets: whether tickets that are out stay out where it is loaded. Otherwise their
                places are issued again (under new ids) before any other, so the same stream of
                work continues. Those of a slot are lost.
        """
        out = self._out.values()
        waiting = [] if tickets else [(t.group_id, t.index) for t in out]
        kept = [[t.id, t.group_id, t.index, t.policy_version] for t in out]
        return {
            **({"out": kept} if tickets else {}),
            "group_size": self.group_size,
            "n_groups": self._n_groups,
            "rng": self._rng.bit_generator.state,
            "in_step": self._in_step,
            "policy_version": self._version,
            "groups": [group.to_json() for group in self._groups.values()],
            "returned": [list(place) for place in (*waiting, *self._returned)],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void, unless they are part of it.

        Load the curriculum's own state first: a slot's group of which all copies had ended or were
        under way closes here. States of older versions are read, too: they know no steps and slots.

        Raises:
            ConfigError: if it was saved with another group size, or does not fit together.
            SplitLeakError, TaskError: if a group's task may not be practised; nothing is loaded.
            ValueError: if a value is of another type.
        """
        saved = SavedLedger.model_validate(state)
        if saved.group_size != self.group_size:
            raise ConfigError(
                f"The saved groups have {saved.group_size} episodes each, but this session was "
                f"made with group_size={self.group_size}. Use the saved size."
            )
        self._groups = saved.open_groups()
        self._returned, self._out = deque(), {}
        self._n_groups, self._in_step = saved.n_groups, saved.in_step
        self._version = saved.policy_version
        self._rng.bit_generator.state = saved.rng
        for id, group_id, index, version in saved.out:
            group = self._groups[group_id]
            self._out[id] = Ticket(id, group.task, group_id, index, version)
            group.out.add(index)
        for id, index in saved.returned:
            if self._groups[id].slot is None:
                self._returned.append((id, index))
            else:
                self._groups[id].broken = True
        for group in list(self._groups.values()):
            if group.slot is not None:
                self._close_if_over(group)

    @property
    def slots(self) -> tuple[str, ...]:
        """Slots that places are kept for."""
        groups = self._groups.values()
        return tuple(g.slot for g in groups if g.slot is not None and g.n_unbegun)

    def _next_place(self) -> tuple[OpenGroup, int]:
        """A place that was given back, the next of a group already drawn, or a new group's."""
        if self._returned:
            id, index = self._returned.popleft()
            return self._groups[id], index
        return self._begin_place(self._first_unbegun())

    def _first_unbegun(self) -> OpenGroup | None:
        """The first group with places that anybody may take."""
        groups = self._groups.values()
        return next((g for g in groups if g.slot is None and g.n_unbegun), None)

    def _next_of_slot(self, slot: str) -> tuple[OpenGroup, int]:
        """The next place of the group that is kept for a slot, or is from now on."""
        group, index = self._begin_place(self._group_of_slot(slot))
        group.slot = slot
        return group, index

    def _group_of_slot(self, slot: str) -> OpenGroup | None:
        """The group with places for a slot; else one that was drawn and nobody has begun."""
        groups = self._groups.values()
        mine = (g for g in groups if g.slot == slot and g.n_unbegun)
        untouched = (g for g in groups if g.slot is None and not g.n_begun)
        return next(mine, None) or next(untouched, None)

    def _begin_place(self, group: OpenGroup | None) -> tuple[OpenGroup, int]:
        """The next place of a group, None for one of a new task."""
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
        """Begin groups of the next tasks, all or none; if refused, the generator is as before."""
        before = self._rng.bit_generator.state
        try:
            tasks = [
                require_practised(task, "practise")
                for task in self.curriculum.next(n_groups, self._rng)
            ]
            if len(tasks) != n_groups:
                raise ConfigError(
                    f"The curriculum was asked for {n_groups} tasks and gave {len(tasks)}: its "
                    "next(n) must return n."
                )
        except CoevoError:
            self._rng.bit_generator.state = before
            raise
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

    def _closed(self, group: OpenGroup) -> Group:
        return group.close(self._version, self.max_staleness)

    def _close_if_over(self, group: OpenGroup) -> Group | None:
        if not group.over:
            return None
        closed = self._closed(group)
        if not (self._in_step or group.in_step):
            del self._groups[group.id]
            self.curriculum.record([closed])
        return closed
