"""Formulas that methods bring along: named here, and found where they are when one is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from coevo_gym.testing.formulas.check import Formula, Inputs

_PLACES = {
    "coevo_gym.methods.seal.formulas:SEAL": (
        "seal.turn_label",
        "seal.trajectory_weight",
        "seal.transform",
        "seal.dynamic",
        "seal.evolve",
        "seal.schema_note",
        "seal.position",
        "seal.task_target",
    ),
    "coevo_gym.methods.role_agent.formulas:ROLE": (
        "role.horizon",
        "role.foresight",
        "role.advantages",
        "role.mode_counts",
        "role.mode_weights",
        "role.rule_modes",
        "role.empirical",
    ),
    "coevo_gym.methods.agentevolver.formulas:AGENTEVOLVER": (
        "adca",
        "adca.allocation",
        "adca.sign_trap",
        "attribution.elimination",
        "exp.retrieve",
        "exp.admit",
        "exp.utility",
        "exp.places",
        "exp.selective_boost",
        "question.window",
        "question.mixture",
        "question.judge_score",
    ),
}
"""``"module:mapping"`` and the names in it. A method stands above this room, so it is a string."""


def _lent(place: str, name: str) -> Formula:
    def formula(v: Inputs) -> Any:
        module, _, mapping = place.partition(":")
        return getattr(import_module(module), mapping)[name](v)

    return formula


METHODS: Mapping[str, Formula] = {
    name: _lent(place, name) for place, names in _PLACES.items() for name in names
}
