"""A curriculum session as a named Ray actor: one for all workers of a cluster.

    session = start_session(make_session, name="shop")      # once, in the driver
    session = RaySession("shop")                            # in any worker of the cluster
    env = EvolvingTaskSampler(gym.make("CoEvolve-WebShop-v0"), session=session)

The actor stays on the node it is started from, so a node that is lost takes none of the curriculum
with it: with leases, the tickets of its workers are given to others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from coevo_gym.core.evolution import RoundResult
from coevo_gym.core.seams import Later, Ticket
from coevo_gym.core.trajectory import EndReason, Group, Trajectory
from coevo_gym.curricula.session.session import CurriculumSession
from coevo_gym.provision import extra_advice

NAME = "coevo-session"
_CALLS_AT_ONCE = 64  # a round of evolution takes one for as long as it runs
_started: dict[str, Any] = {}  # Ray ends an actor that nobody holds


class RaySession:
    """Passes each call on to a session in a named actor; :class:`SessionFace` says which.

    It may be pickled, and made in any process of the cluster.

    Args:
        name: the actor's.
        namespace: the actor's; None for that of this process.

    Raises:
        ImportError: if Ray is not installed.
        ValueError: if there is no such actor.
    """

    def __init__(self, name: str = NAME, namespace: str | None = None) -> None:
        self._ray = _imported("ray")
        self.name, self.namespace = name, namespace
        self._actor = self._ray.get_actor(name, namespace=namespace)
        self.lease_s = cast("float | None", self._read("lease_s"))

    @property
    def evolving(self) -> bool:
        """Whether a round is being run, or waits to be applied."""
        return cast(bool, self._read("evolving"))

    @property
    def counts(self) -> dict[str, int]:
        """How many tickets were taken, and what became of them."""
        return cast("dict[str, int]", self._read("counts"))

    @property
    def outstanding(self) -> tuple[Ticket, ...]:
        """Tickets that are neither reported nor given back, oldest first."""
        return cast("tuple[Ticket, ...]", self._read("outstanding"))

    def metrics(self) -> dict[str, float]:
        """The curriculum's numbers."""
        return cast("dict[str, float]", self._call("metrics"))

    def seed_of(self, ticket: Ticket) -> int:
        """An env seed for a ticket's episode."""
        return cast(int, self._call("seed_of", ticket))

    def take(
        self, *, policy_version: int = 0, slot: str | None = None, request: str | None = None
    ) -> Ticket | Later:
        """The right to run one more episode."""
        return cast(
            "Ticket | Later",
            self._call("take", policy_version=policy_version, slot=slot, request=request),
        )

    def report(self, ticket_id: str, trajectory: Trajectory) -> Group | None:
        """Hand in an episode; the group, if this closes it."""
        return cast("Group | None", self._call("report", ticket_id, trajectory))

    def give_back(self, ticket_id: str, reason: EndReason) -> Group | None:
        """Return a ticket whose episode will not be finished; the group, if this closes it."""
        return cast("Group | None", self._call("give_back", ticket_id, reason))

    def renew(self, ticket_id: str) -> bool:
        """Begin a ticket's lease anew; whether it is still out."""
        return cast(bool, self._call("renew", ticket_id))

    def close_spent_step(self) -> None:
        """Close a step that opened by itself if no ticket of it is left."""
        self._call("close_spent_step")

    def evolve(self) -> RoundResult | None:
        """Run the round that is due, or wait for the one under way; None if there is none."""
        return cast("RoundResult | None", self._call("evolve"))

    def state_dict(self) -> dict[str, Any]:
        """All that the stream depends on, as JSON."""
        return cast("dict[str, Any]", self._call("state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; tickets issued before are void."""
        self._call("load_state_dict", dict(state))

    def __reduce__(self) -> tuple[Any, ...]:
        return RaySession, (self.name, self.namespace)

    def _call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return self._ray.get(self._actor.call.remote(method, *arguments, **named))

    def _read(self, attribute: str) -> Any:
        return self._ray.get(self._actor.read.remote(attribute))


class SessionActor:
    """What runs in the actor.

    Args:
        make: makes the session; called there.
    """

    def __init__(self, make: Callable[[], CurriculumSession]) -> None:
        self._session = make()

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the session."""
        return getattr(self._session, method)(*arguments, **named)

    def read(self, attribute: str) -> Any:
        """Read an attribute of the session."""
        return getattr(self._session, attribute)


def start_session(make: Callable[[], CurriculumSession], name: str = NAME) -> RaySession:
    """Start a session as a named actor on this node; Ray has to be initialised.

    It ends with :func:`stop_session`, or with this process.

    Args:
        make: makes the session, in the actor. Workers that may be lost need one with
            ``lease_s`` and ``clock=time.monotonic``.
        name: what others find it by.

    Raises:
        ImportError: if Ray is not installed.
        ValueError: if there is an actor of this name.
    """
    ray = _imported("ray")
    placing = _imported("ray.util.scheduling_strategies")
    here = placing.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    actor = ray.remote(SessionActor).options(
        name=name,
        num_cpus=0,
        max_concurrency=_CALLS_AT_ONCE,
        scheduling_strategy=here,
    )
    _started[name] = actor.remote(make)
    return RaySession(name)


def stop_session(name: str = NAME) -> None:
    """End a session's actor."""
    ray = _imported("ray")
    ray.kill(ray.get_actor(name))
    _started.pop(name, None)


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"Ray is not installed here ({error}). {extra_advice('rllib')}, or run `coevo install "
            "rllib` and use the Python of the environment that it makes."
        ) from error
