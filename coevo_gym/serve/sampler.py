"""An env whose tasks come as tickets from a session that others practise, too."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any, Protocol, cast

import gymnasium as gym

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.curricula.session.stream import require_reason, require_train_env
from coevo_gym.envs.base import TaskEnv

logger = logging.getLogger(__name__)

POLL_S = 0.5


class Tickets(Protocol):
    """Where tickets come from: a session of this process, or of a server or an actor."""

    lease_s: float

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """The right to run one more episode, or why there is none yet."""
        ...

    def report(self, ticket_id: str, trajectory: Trajectory) -> object:
        """Hand in an episode."""
        ...

    def give_back(self, ticket_id: str, reason: EndReason) -> object:
        """Return a ticket whose episode will not be finished."""
        ...

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew; whether it is still out."""
        ...

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode."""
        ...


class TicketSampler(gym.Wrapper[Any, Any, Any, Any]):
    """Begins the episode of a ticket at each ``reset``, and reports it at its end.

    Many of them, in any threads, processes and machines, may practise one session. Success is the
    env's own outcome, whatever reward wrappers make of it. As with ``EvolvingTaskSampler``, a
    ``reset`` after at least one step means that somebody outside ended the episode: it is graded as
    it stands and reported. One before any step, :meth:`abandon` and :meth:`close` give the ticket
    back, and so does a fault of the engine.

    ``reset(options={"slot": …, "policy_version": …})`` says which row of a trainer this is a copy
    of, and which version of the policy is about to act. ``"task"`` or ``"task_id"`` runs that task
    unreported.

    Args:
        env: an env of coevo_gym on its training split, wrapped or not.
        tickets: where its tickets come from.
        patience_s: longest wait for a ticket, while the first tasks are still looked for.
        stop: ends such a wait when it is set.

    Raises:
        SplitLeakError: if the env is not on the training split.
        ConfigError: if it is not one of ours.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        tickets: Tickets,
        *,
        patience_s: float = 3600.0,
        stop: threading.Event | None = None,
    ) -> None:
        super().__init__(env)
        require_train_env(env.unwrapped)
        self.tickets, self.patience_s = tickets, patience_s
        self.ticket: Ticket | None = None
        self._stop = threading.Event() if stop is None else stop

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin the episode of the next ticket.

        Args:
            seed: of the env; None for the ticket's own.
            options: see the class; others are the env's.

        Raises:
            EnvBackendError: if there is no ticket in time, or the engine fails. The ticket is
                given back then.
        """
        self._settle()
        options = dict(options or {})
        slot, version = options.pop("slot", None), options.pop("policy_version", 0)
        if options.keys() & {"task", "task_id"}:
            return self.env.reset(seed=seed, options=options)
        ticket = self._take(slot, version)
        seed = self.tickets.seed_of(ticket) if seed is None else seed
        try:
            begun = self.env.reset(seed=seed, options={**options, "task": ticket.task})
        except BaseException:
            self.tickets.give_back(ticket.id, EndReason.WORKER_LOST)
            raise
        self.ticket = ticket
        return begun

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step the env; the end of an episode is reported.

        Raises:
            EnvBackendError: if the engine fails. The ticket is given back then.
        """
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
            if terminated or truncated:
                info = self._bare.end_from_outside(info)
        except EnvBackendError:
            self._report()
            raise
        if terminated or truncated:
            self._report()
        return observation, reward, terminated, truncated, info

    def cut(self, reason: EndReason) -> None:
        """End the running episode here, because its agent cannot go on; it is graded, reported.

        Raises:
            ConfigError: if ``reason`` says nothing about the agent.
            ResetNeeded: if no episode is running.
            EnvBackendError: if the engine fails. The ticket is given back then.
        """
        require_reason(reason)
        try:
            self._bare.cut(reason)
        except EnvBackendError:
            self._report()
            raise
        self._report()

    def renew(self) -> bool:
        """Begin the lease of the running episode anew; whether anybody waits for it."""
        return self.ticket is not None and self.tickets.renew(self.ticket.id)

    def abandon(self, reason: EndReason = EndReason.ABANDONED) -> None:
        """Give the running episode back: it is run again, and counts as nothing."""
        if self.ticket is not None:
            abandoned, self.ticket = self.ticket, None
            self.tickets.give_back(abandoned.id, reason)

    def close(self) -> None:
        """Give the running episode back and close the env; twice is fine."""
        self.abandon()
        super().close()

    def _take(self, slot: str | None, version: int) -> Ticket:
        request = uuid.uuid4().hex
        waited, why = 0.0, ""
        while waited <= self.patience_s and not self._stop.is_set():
            found = self.tickets.take(policy_version=version, slot=slot, request=request)
            if isinstance(found, Ticket):
                return found
            why = found.reason
            self._stop.wait(POLL_S)
            waited += POLL_S
        raise EnvBackendError(f"There is no episode to begin after {waited:.0f} s. {why}")

    def _settle(self) -> None:
        """Take in the episode that a reset is about to end."""
        if self.ticket is None:
            return
        if self._bare.info["step"] == 0 and not self._bare.info["end_reason"]:
            self.abandon()
            return
        try:
            self._bare.end_from_outside(self._bare.info)
        except EnvBackendError as error:
            logger.warning("episode lost ticket=%s error=%s", self.ticket.id, error)
        self._report()

    def _report(self) -> None:
        """Report the episode that has ended, or give it back if it was lost."""
        if self.ticket is None:
            return
        ended, self.ticket = self.ticket, None
        reason = EndReason(self._bare.info["end_reason"])
        if reason.lost:
            self.tickets.give_back(ended.id, reason)
            return
        trajectory = self._bare.trajectory(
            group_id=ended.group_id, policy_version=ended.policy_version
        )
        self.tickets.report(ended.id, trajectory)

    @property
    def _bare(self) -> TaskEnv:
        return cast(TaskEnv, self.unwrapped)
