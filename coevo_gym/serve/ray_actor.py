"""A curriculum session in a named Ray actor, shared by all workers in a cluster.

    session = start_session(make_session, name="shop")      # once, in the driver
    session = RaySession("shop")                            # in any worker of the cluster
    env = EvolvingTaskSampler(gym.make("CoEvolve-WebShop-v0"), session=session)

The actor stays on the node that starts it, so losing another node does not affect the curriculum.
With leases, the tickets of lost workers are reissued to other workers.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, cast

from coevo_gym.core.arithmetic import arithmetic_environment
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.curricula.session.remote_session import RemoteSession
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.provision import install_hint

NAME = "coevo-session"
_CALLS_AT_ONCE = 64  # an evolution round occupies one call while it runs
_started: dict[str, Any] = {}  # Ray stops an actor that has no references


class RaySession(RemoteSession):
    """A client that forwards each call to a session in a named Ray actor.

    It can be pickled, and created in any process in the cluster.

    Args:
        name: name of the actor.
        namespace: namespace of the actor; None for the namespace of this process.

    Raises:
        ImportError: if Ray is not installed.
        ValueError: if the actor does not exist.
    """

    def __init__(self, name: str = NAME, namespace: str | None = None) -> None:
        self._ray = _import_ray("ray")
        self.name, self.namespace = name, namespace
        self._actor = self._ray.get_actor(name, namespace=namespace)
        self.lease_s = cast("float | None", self._read_attribute("lease_s"))

    def __reduce__(self) -> tuple[Any, ...]:
        return RaySession, (self.name, self.namespace)

    def _call_method(self, method: str, *arguments: Any) -> Any:
        return self._ray.get(self._actor.call.remote(method, *arguments))

    def _read_attribute(self, attribute: str) -> Any:
        return self._ray.get(self._actor.read.remote(attribute))


class SessionActor:
    """The class of the Ray actor that owns a session.

    Args:
        make: function that creates the session; called in the actor.
    """

    def __init__(self, make: Callable[[], CurriculumSession]) -> None:
        self._session = make()

    def call(self, method: str, *arguments: Any) -> Any:
        """Call the session's method with the given name."""
        return getattr(self._session, method)(*arguments)

    def read(self, attribute: str) -> Any:
        """Read an attribute of the session."""
        return getattr(self._session, attribute)


def start_session(make: Callable[[], CurriculumSession], name: str = NAME) -> RaySession:
    """Start a session as a named actor on this node; Ray must be initialised.

    The actor runs until :func:`stop_session` is called or this process ends. If this process has
    portable arithmetic, so does the actor.

    Args:
        make: function that creates the session in the actor. If workers may be lost, the session
            needs ``lease_s`` and ``clock=time.monotonic``.
        name: name of the actor.

    Raises:
        ImportError: if Ray is not installed.
        ValueError: if an actor with this name exists.
    """
    ray = _import_ray("ray")
    placing = _import_ray("ray.util.scheduling_strategies")
    here = placing.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    actor = ray.remote(SessionActor).options(
        name=name,
        num_cpus=0,
        max_concurrency=_CALLS_AT_ONCE,
        scheduling_strategy=here,
        runtime_env={"env_vars": arithmetic_environment()},
    )
    _started[name] = actor.remote(make)
    return RaySession(name)


def connect_session(place: str) -> TaskSession:
    """Connect to a shared session.

    Args:
        place: address of a `coevo serve` server, such as ``"http://127.0.0.1:8765"``, or name of a
            Ray actor.
    """
    return HTTPSession(place) if "://" in place else RaySession(place)


def stop_session(name: str = NAME) -> None:
    """Stop a session's actor."""
    ray = _import_ray("ray")
    ray.kill(ray.get_actor(name))
    _started.pop(name, None)


def _import_ray(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ImportError as error:
        advice = install_hint("rllib")
        raise ImportError(
            f"Ray is not installed here ({error}). {advice}, or run `coevo install rllib` and use "
            "the Python interpreter from the environment it creates."
        ) from error
