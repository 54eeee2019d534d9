"""A stand-in for a model on ALFWorld: it carries things about, and then asks for that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from numpy.random import Generator

from coevo_gym.core.evolution import Exchange, Proposal
from coevo_gym.core.trajectory import View

_TAKE = re.compile(r"take (?P<thing>\w+) \d+ from (?P<place>\w+) \d+")
_MOVE = re.compile(r"move (?P<thing>\w+) \d+ to (?P<place>\w+) \d+")
_CHANGE = re.compile(r"(?P<verb>clean|heat|cool) (?P<thing>\w+) \d+ with \w+ \d+")
_USE = re.compile(r"use (?P<lamp>\w+lamp) \d+")
_STATES = {"clean": "clean", "heat": "hot", "cool": "cold"}


def carry(view: View, rng: Generator) -> str:
    """Take what there is, change it where that is possible, and put it down somewhere else."""
    possible = view.info["admissible"]
    done = [turn.action for turn in view.history]
    came_from = next((m["place"] for a in reversed(done) if (m := _TAKE.fullmatch(a))), "")

    def of(*verbs: str) -> list[str]:
        actions = [action for action in possible if action.startswith(verbs)]
        return [action for action in actions if action not in done]

    elsewhere = [m[0] for m in map(_MOVE.fullmatch, of("move")) if m and m["place"] != came_from]
    for options in (of("clean", "heat", "cool"), elsewhere, of("use"), of("take"), of("open")):
        if options and rng.random() < 0.8:
            return options[int(rng.integers(len(options)))]
    ways = of("go to") or list(possible)
    return ways[int(rng.integers(len(ways)))]


def propose(walk: Sequence[Exchange]) -> Iterator[Proposal]:
    """A wish for each thing that was put down or held under a lamp, with all that led there."""
    actions, state, in_hand = list[str](), "", ""
    for exchange in walk:
        action = exchange.action
        if exchange.error_kind or exchange.observation == "Nothing happens.":
            continue
        actions.append(action)
        if take := _TAKE.fullmatch(action):
            in_hand, state = take["thing"], ""
        elif change := _CHANGE.fullmatch(action):
            state = _STATES[change["verb"]]
        elif move := _MOVE.fullmatch(action):
            thing = " ".join(filter(None, (state, move["thing"])))
            yield _proposal(f"Please put a {thing} in the {move['place']}.", actions)
            in_hand = ""
        elif in_hand and (use := _USE.fullmatch(action)):
            yield _proposal(f"Look at the {in_hand} under the {use['lamp']}!", actions)


def _proposal(instruction: str, actions: Sequence[str]) -> Proposal:
    return Proposal(
        description=instruction, turns=(instruction,), actions=tuple(actions), confidence=0.8
    )
