"""Formulas of credit assignment and of the learners."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from types import SimpleNamespace
from typing import Any

from coevo_gym.core.stats import at_k, efficiency, paired, point_biserial, sign_test
from coevo_gym.episodes.trials import repeated, repeats, solved_by
from coevo_gym.testing.formulas.check import Formula, Inputs
from coevo_gym.trainers.advantages import (
    relative_to_group,
    relative_to_group_and_state,
    relative_to_others,
    returns,
    token_estimate,
    turn_estimate,
)
from coevo_gym.trainers.similarity import group_states, likeness


def _gigpo(v: Inputs) -> Any:
    states, rewards = ([one[key] for one in v["trajs"]] for key in ("states", "rewards"))
    return relative_to_group_and_state(
        [sum(one) for one in rewards],
        states,
        [returns(one, v["gamma"]) for one in rewards],
        state_weight=v["w"],
        normalise_std=v["std"],
    )


def _turn_gae(v: Inputs) -> Any:
    # Each decision has one value, at its first position; other positions are not read.
    values = chain.from_iterable(
        [value] + [float("nan")] * (n - 1)
        for value, n in zip(v["values"], v["lengths"], strict=True)
    )
    found = turn_estimate(v["rewards"], v["lengths"], [*values], gamma=v["gamma"], lam=v["lam"])
    spread = zip(found.advantage, v["lengths"], strict=True)
    return {
        "A": found.advantage,
        "returns": [one for one, there in zip(found.targets, found.valued, strict=True) if there],
        "tokens": [value for value, n in spread for _ in range(n)],
    }


def _token_gae(v: Inputs) -> Any:
    found = token_estimate(v["rewards"], v["lengths"], v["values"], gamma=v["gamma"], lam=v["lam"])
    return {"A": [*chain.from_iterable(found.advantage)], "returns": found.targets}  # type: ignore[arg-type]


def _value_loss(v: Inputs) -> Any:
    from coevo_gym.trainers.ppo import value_loss

    values, old, targets = (_doubles(v[name]) for name in ("v", "old", "returns"))
    return value_loss(values, old, targets, _doubles(v["mask"]).bool(), clip=v["clip"]).item()


def _whitened(v: Inputs) -> Any:
    from coevo_gym.trainers.ppo import whitened

    mask = _doubles(v["mask"]).bool()
    found = _doubles(v["A"]).masked_fill(~mask, 0.0)
    found[mask] = whitened(found[mask])
    return found.tolist()


def _explained(v: Inputs) -> Any:
    from coevo_gym.trainers.ppo import explained_variance

    return explained_variance(v["v"], v["returns"])


def _kept(v: Inputs) -> Any:
    from coevo_gym.trainers.rest import kept

    return [kept(v["scores"], threshold) for threshold in v["thresholds"]]


def _group_states(v: Inputs) -> Any:
    found = group_states(v["texts"], threshold=v["threshold"], measure=v["similarity"])
    return found.numbers


def _doubles(values: Any) -> Any:
    import torch

    return torch.tensor(values, dtype=torch.float64)


LEARNING: Mapping[str, Formula] = {
    "grpo": lambda v: relative_to_group(v["R"]),
    "rloo": lambda v: relative_to_others(v["R"]),
    "gigpo.advantages": _gigpo,
    "ppo.turn_gae": _turn_gae,
    "ppo.token_gae": _token_gae,
    "ppo.value_loss": _value_loss,
    "ppo.whiten": _whitened,
    "ppo.explained": _explained,
    "rest.kept": _kept,
    "role.group_states": _group_states,
    "role.likeness": lambda v: [likeness(a, b, v["similarity"]) for a, b in v["pairs"]],
}


def _paired(v: Inputs) -> Any:
    found = paired(v["ours"], v["baseline"])._asdict()
    return {name: found[name] for name in ("mean", "sd", "wins", "ties")}


STATISTICS: Mapping[str, Formula] = {
    "stats.paired": _paired,
    "stats.sign_test": lambda v: sign_test(v["differences"]),
    "stats.at_k": lambda v: at_k(v["outcomes"], v["k"])._asdict(),
    "stats.efficiency": lambda v: efficiency(v["curve"], v["baseline"], share=v["share"])._asdict(),
    "stats.point_biserial": lambda v: point_biserial(v["values"], v["outcomes"]),
}


def _trials(v: Inputs) -> Any:
    outcomes = list[tuple[str, int, bool]]()

    def play(trial: int, waiting: Any, told: Any) -> list[bool]:
        solved = [bool(v["tasks"][task.id][trial]) for task in waiting]
        both = zip(waiting, solved, strict=True)
        outcomes.extend((task.id, trial, success) for task, success in both)
        return [not success for success in solved]

    tasks: Any = [SimpleNamespace(id=place) for place in range(len(v["tasks"]))]
    told = repeated(tasks, play, lambda trial, task: f"{trial}", n=v["n"], keep=v["keep"])
    counts = [len(told[task.id]) for task in tasks]
    return {"rates": list(solved_by(outcomes, v["n"])), "reflections": counts}


def _cut(v: Inputs) -> Any:
    n = len(v["actions"])
    return next((i for i in range(n) if repeats(v["actions"][:i])), n)


TRIALS: Mapping[str, Formula] = {"reflexion.trials": _trials, "reflexion.cut": _cut}
