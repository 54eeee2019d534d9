"""CoEvolve (arXiv 2604.15840), with its baselines and controls.

The pool starts from unguided exploration. While the agent trains on its tasks, forgetting, boundary
and rare signals are detected in the rollouts. After a fixed number of groups, these signals become
the contexts of an evolution round, whose proven tasks join the pool. The paper's baselines and
controls use the same parts with another kind of growth.

``coevolve_rbc`` draws tasks of suitable difficulty: the selector ``band`` skips tasks that are
mastered, out of reach or used up. A round is due when the pool has too few tasks to learn from, and
looks for kinds of tasks that are rare in the pool. Its settings are for groups of 8.
"""

from __future__ import annotations

from coevo_gym.core.seams import Selector
from coevo_gym.core.task import FrozenModel
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method


@method("coevolve", curriculum={"growth": {"kind": "signals"}})
def coevolve(kit: Kit) -> Method:
    """Grow the pool where the agent is weak (arXiv 2604.15840)."""
    return Method.of(kit, kit.curriculum.make(kit.first_tasks, native=kit.starts))


class StaticSettings(FrozenModel):
    """Settings for methods that train on a fixed set of tasks."""

    native: bool = False
    """Train on all native training tasks instead of the initial tasks."""


@method("static", curriculum={"growth": {"kind": "none"}})
def static(settings: StaticSettings, kit: Kit) -> Method:
    """Train on the initial tasks for the whole run."""
    return make_static(kit, native=settings.native)


def make_static(kit: Kit, *, native: bool, selector: Selector | None = None) -> Method:
    """Create a method that trains on the same tasks for the whole run.

    Args:
        kit: the parts and settings.
        native: True for all native training tasks, False for the initial tasks.
        selector: draws the tasks; None for the selector in the settings.
    """
    tasks = kit.native_tasks if native else kit.first_tasks
    curriculum = kit.curriculum.make(tasks, native=kit.starts, selector=selector)
    return Method.of(kit, curriculum, **({"first_round": None} if native else {}))


random_append = coevolve.preset(
    "random_append",
    "Explore anywhere in the training scenarios.",
    curriculum={"growth": {"kind": "anywhere"}},
)
signal_blind = coevolve.preset(
    "signal_blind",
    "Explore around trained tasks, regardless of their outcomes.",
    curriculum={"growth": {"kind": "blind"}},
)

static_band = static.preset(
    "static_band",
    "Train on the initial tasks, but skip tasks that always or never succeed.",
    curriculum={"selector": {"kind": "band", "cap": None}},
)
shuffled = random_append.preset(
    "shuffled",
    "Control for the value of outcomes: like coevolve_rbc, but with shuffled outcomes.",
    curriculum={
        "growth": {"when": "reserve"},
        "selector": {"kind": "band", "shuffled": True},
    },
)
coevolve_rbc = coevolve.preset(
    "coevolve_rbc",
    "Choose tasks and start rounds by outcomes, and look for kinds of tasks that are rare.",
    curriculum={
        "growth": {"kind": "coverage", "when": "reserve"},
        "selector": {"kind": "band"},
    },
)
