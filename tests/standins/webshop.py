"""A stand-in for a model on WebShop: it buys things, and then asks for what it has bought."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from numpy.random import Generator

from coevo_gym.core.evolution import Exchange, Proposal
from coevo_gym.core.trajectory import View

_PRICE = re.compile(r"Price: \$(\d+(?:\.\d+)?)")
_BUTTONS = frozenset(
    f"click[{name}]"
    for name in (
        "back to search",
        "< prev",
        "next >",
        "description",
        "features",
        "reviews",
        "buy now",
    )
)
_WORDS = ("soft warm cotton", "steel kitchen", "black leather", "for the garden", "blue", "office")


def buy(view: View, rng: Generator) -> str:
    """Search for something, open what is found, choose its options, and buy it."""
    possible = view.info["admissible"]
    if not view.history or view.info["webshop.page"] == "search":
        return f"search[{_WORDS[int(rng.integers(len(_WORDS)))]}]"
    chosen = {turn.action for turn in view.history}
    new = [action for action in possible if action not in _BUTTONS | chosen]
    if "click[buy now]" in possible and (not new or rng.random() < 0.4):
        return "click[buy now]"
    return new[int(rng.integers(len(new)))] if new else "click[back to search]"


def propose(walk: Sequence[Exchange]) -> Iterator[Proposal]:
    """A wish for what was bought: its title, what was chosen, and a price above its own."""
    worked = [exchange for exchange in walk if not exchange.error_kind]
    if not worked or worked[-1].action != "click[buy now]":
        return
    page = worked[-2].observation
    title = page.rpartition(" [SEP] Price:")[0].rpartition(" [SEP] ")[2]
    options = [e.action.removeprefix("click[").rstrip("]") for e in worked[2:-1]]
    price = _PRICE.search(page)
    instruction = ", ".join([f"I want {title}".lower(), *options])
    if price:
        instruction += f", for less than {float(price[1]) + 20:.0f} dollars"
    yield Proposal(
        description=instruction,
        turns=(instruction,),
        actions=tuple(e.action for e in worked),
        confidence=0.75,
    )
