"""Structured pages parsed from observations; never from HTML."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coevo_gym.web.shop import read_page
from coevo_gym.web.view.shapes.trajectories import (
    BehindPage,
    ShopItem,
    ShopOption,
    ShopPage,
    TextPage,
)

Extras = Mapping[str, Any]


def page_behind(
    benchmark: str, observation: str, extras: Extras, choices: Sequence[str] = ()
) -> BehindPage:
    """Return the parsed page of an observation.

    Args:
        benchmark: name of the benchmark.
        observation: the env's own text.
        extras: the benchmark's JSON about the step before the observation; {} at the start.
        choices: possible actions, as far as they are known.
    """
    return _PAGES.get(benchmark, _plain)(observation, extras, choices)


def _plain(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(admissible=tuple(choices))


def _calls(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(format="json", action="calls", admissible=tuple(choices))


def _code(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(format="code", action="code", admissible=tuple(choices))


def _shop(observation: str, extras: Extras, choices: Sequence[str]) -> ShopPage:
    page = read_page(observation, extras, choices)
    return ShopPage(
        page=page.kind,
        instruction=page.instruction,
        buttons=page.buttons,
        number=page.number,
        found=page.found,
        products=tuple(ShopItem(**product._asdict()) for product in page.products),
        title=page.title,
        price=page.price,
        asin=page.asin,
        options=tuple(ShopOption(**option._asdict()) for option in page.options),
        texts=page.texts,
    )


_PAGES: Mapping[str, Callable[[str, Extras, Sequence[str]], BehindPage]] = {
    "webshop": _shop,
    "bfcl": _calls,
    "appworld": _code,
}
"""Page parsers by benchmark; observations of all other benchmarks are shown as plain text."""
