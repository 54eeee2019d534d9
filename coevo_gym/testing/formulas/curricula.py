"""Formulas of curricula: signals, selectors, contexts to explore, and task set metrics."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import numpy as np

from coevo_gym.core.spend import Prices, allow
from coevo_gym.curricula.gates.similarity import similarity_bins
from coevo_gym.curricula.gates.solve import solve_band
from coevo_gym.curricula.growth.choice import farthest_first, quota
from coevo_gym.curricula.growth.contexts import share_out
from coevo_gym.curricula.growth.evidence import evidence_cut
from coevo_gym.curricula.metrics import energy_distance, self_similarity
from coevo_gym.curricula.selectors.adarft import nearest_to, next_target
from coevo_gym.curricula.selectors.learnable import learnability
from coevo_gym.curricula.selectors.plr import replay_probabilities
from coevo_gym.curricula.selectors.progress import Averages, moved, progress_nearby
from coevo_gym.curricula.selectors.stages import stage_members
from coevo_gym.curricula.signals import Pattern, forgetting, rare
from coevo_gym.testing.formulas.check import Formula, Inputs
from coevo_gym.trainers.segments import Snapshot, merged


def _forgetting(v: Inputs) -> Any:
    return forgetting(deque(v["history"], maxlen=v["W"]), v["s_now"])


def _rare(v: Inputs) -> Any:
    counts: dict[Pattern, int] = {(name,): count for name, count in v["counts"].items()}
    limits = {name: v[name] for name in ("theta", "n_min", "min_support")}
    return rare(counts, (v["pattern"],), **limits)


def _share_out(v: Inputs) -> Any:
    turns = Counter(share_out(v["pending"], v["n"]))
    return {kind: turns[kind] for kind in v["pending"]}


def _stages(v: Inputs) -> Any:
    settings = {name: v[name] for name in ("stages", "progress", "cumulative")}
    return stage_members(v["rates"], **settings).tolist()


def _target(v: Inputs) -> Any:
    settings = {name: v[name] for name in ("alpha", "beta", "eta")}
    return next_target(v["target"], v["reward"], **settings)


def _replay(v: Inputs) -> Any:
    found = replay_probabilities(v["scores"], v["last"], v["now"], beta=v["beta"], rho=v["rho"])
    return found.tolist()


def _averages(v: Inputs) -> Any:
    averages: Averages | None = None
    for outcome in v["outcomes"]:
        averages = moved(averages, outcome, fast=v["fast"], slow=v["slow"])
    return averages._asdict() if averages else None


def _learnability(v: Inputs) -> Any:
    successes, visits = np.array(v["successes_visits"]).T
    return learnability(successes, visits).tolist()


def _quota(v: Inputs) -> Any:
    found = quota(v["n"], v["share"], guided=v["guided"], coverage=v["coverage"])
    return found._asdict()


def _merged(v: Inputs) -> Any:
    snapshots = (Snapshot(tuple(ids), tuple(sampled)) for ids, sampled in v["snapshots"])
    return [list(map(list, snapshot)) for snapshot in merged(snapshots)]


def _allow(v: Inputs) -> Any:
    left = {name: v[name] for name in ("calls", "tokens", "usd")}
    return allow(v["requests"], **left, prices=Prices(v["usd_prompt"], v["usd_completion"]))


def _bins(v: Inputs) -> Any:
    return similarity_bins(v["similarity"], v["n_mixed"])._asdict()


def _band(v: Inputs) -> Any:
    return solve_band(v["tries"], v["solved"], low=v["low"], high=v["high"])


CURRICULA: Mapping[str, Formula] = {
    "budget.allow": _allow,
    "coevolve.forgetting": _forgetting,
    "coevolve.rare": _rare,
    "coevolve.share_out": _share_out,
    "coevolve.evidence_cut": lambda v: evidence_cut(v["sizes"], v["cap"]),
    "coevolve.sr": lambda v: self_similarity(v["Y"], v["k"]),
    "coevolve.ed": lambda v: energy_distance(v["X"], v["Y"], v["estimator"])._asdict(),
    "coevolve.similarity_bins": _bins,
    "coevolve.solve_band": _band,
    "curriculum.stages": _stages,
    "adarft.target": _target,
    "adarft.batch": lambda v: nearest_to(v["difficulty"], v["target"], v["n"]).tolist(),
    "plr": _replay,
    "select.farthest_first": lambda v: farthest_first(v["X"], v["covered"], v["k"]),
    "select.quota": _quota,
    "select.learnability": _learnability,
    "select.ema": _averages,
    "select.progress_nearby": lambda v: progress_nearby(v["context"], v["X"], v["fast"], v["slow"]),
    "context.merge": _merged,
}


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
