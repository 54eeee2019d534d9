"""CoEvolve (arXiv 2604.15840), and the controls that differ from it in where a round explores."""

from __future__ import annotations

from coevo_gym.curricula.methods.coevolve import CoEvolve
from coevo_gym.methods.kit import Kit
from coevo_gym.methods.method import Method, method


@method("coevolve", curriculum={"evolve": "guided"})
def coevolve(kit: Kit) -> Method:
    """A pool that grows where the agent is weak (arXiv 2604.15840)."""
    return Method(
        curriculum=CoEvolve(kit.curriculum),
        evolver=kit.evolver(kit.explorer()),
        first_round=kit.first_round(kit.curriculum.initial_size),
        learner=kit.learner,
    )


static = coevolve.preset("static", "The first tasks, for ever.", curriculum={"evolve": "off"})
random_append = coevolve.preset(
    "random_append",
    "Rounds explore anywhere in the training scenarios.",
    curriculum={"evolve": "random"},
)
signal_blind = coevolve.preset(
    "signal_blind",
    "Rounds explore around practised tasks, whatever happened on them.",
    curriculum={"evolve": "blind"},
)
