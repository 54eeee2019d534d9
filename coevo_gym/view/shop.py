"""A parser that reads WebShop pages from agents' text observations instead of HTML.

Therefore, pages can be displayed even if the shop's catalogue is not installed. Details that the
text does not contain are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field

from coevo_gym.view.rows import Shape

SEPARATOR = " [SEP] "
_COUNTED = re.compile(r"Page (\d{1,9}) \(Total results: (\d{1,9})\)")
_BUTTONS = frozenset({"Back to Search", "< Prev", "Next >", "Search"})
_BEHIND_ITEM = ("Description", "Features", "Reviews", "Buy Now")
_CLICK = re.compile(r"click\[(.*)\]\s*\Z", re.DOTALL)
_PRICE = "Price: "
_ASIN = re.compile(r"[0-9A-Z]{10}")


class ShopItem(Shape):
    """A product in a list of results, with its code, its name and its displayed price."""

    asin: str
    title: str
    price: str


class ShopOption(Shape):
    """An option of a product, with its values and the chosen value."""

    name: str
    values: tuple[str, ...]
    chosen: str = ""


class ShopPage(Shape):
    """A parsed WebShop page; fields that cannot be parsed are empty.

    Attributes:
        kind: always ``shop``.
        page: ``search``, ``results``, ``item``, ``description``, ``features``, ``reviews``,
            ``attributes`` or ``done``.
        instruction: the shopper's instruction.
        buttons: texts of the buttons, as shown on the page.
        number: number of a page of results, from 1.
        found: total number of results.
        products: products on a page of results.
        title: product name, on a product page.
        price: displayed price, on a product page.
        asin: product code, on a product page.
        options: product options, on a product page.
        chosen: chosen values by option, also on product subpages.
        texts: texts of a product subpage or of the receipt, in order.
    """

    kind: Literal["shop"] = "shop"
    page: str
    instruction: str = ""
    buttons: tuple[str, ...] = ()
    number: int | None = None
    found: int | None = None
    products: tuple[ShopItem, ...] = ()
    title: str = ""
    price: str = ""
    asin: str = ""
    options: tuple[ShopOption, ...] = ()
    chosen: dict[str, str] = Field(default_factory=dict)
    texts: tuple[str, ...] = ()


def parse_shop_page(
    observation: str, extras: Mapping[str, Any], choices: Collection[str] = ()
) -> ShopPage:
    """Parse an observation as a shop page.

    Args:
        observation: the shop's text.
        extras: the benchmark's JSON about the step before the observation; {} at the start.
        choices: known possible actions, which distinguish option names from option values
            reliably.

    Example:
        >>> from coevo_gym.testing import make_env
        >>> env = make_env("webshop")
        >>> _ = env.step("search[dress]")
        >>> page = parse_shop_page(env.view.observation, env.view.info)
        >>> page.page, len(page.products), page.buttons[0]
        ('results', 10, 'Back to Search')
    """
    parts = observation.split(SEPARATOR)
    page = str(extras.get("webshop.page") or _guess_page_type(parts))
    known: dict[str, Any] = {
        "page": page,
        "instruction": _text_after(parts, "Instruction:"),
        "asin": str(extras.get("webshop.asin") or ""),
        "chosen": _chosen_options(extras),
    }
    if page == "search":
        return ShopPage(**known, buttons=("Search",))
    if page == "done":
        known["asin"] = known["asin"] or _text_after(parts, "asin")
        return ShopPage(**known, texts=tuple(parts))
    rest, buttons = _split_buttons(parts[2:])
    if page == "results":
        return ShopPage(**known, **_parse_results(rest, buttons))
    if page == "item":
        return ShopPage(
            **known, **_parse_item(rest, buttons, known["chosen"], click_actions(choices))
        )
    return ShopPage(**known, buttons=buttons, texts=tuple(rest))


def click_actions(choices: Collection[str]) -> dict[str, str]:
    """Map the lower-case text of each clickable element to its click action."""
    pairs = ((choice, _CLICK.match(choice)) for choice in choices)
    return {match[1].lower(): choice for choice, match in pairs if match}


def _parse_results(rest: Sequence[str], buttons: tuple[str, ...]) -> dict[str, Any]:
    """Parse a results page into its page number, result count, buttons and products."""
    if not (rest and (match := _COUNTED.fullmatch(rest[0]))):
        return {"buttons": buttons, "products": tuple(_parse_products(rest))}
    rest, more = _split_buttons(rest[1:])
    return {
        "buttons": tuple(dict.fromkeys((*buttons, *more))),
        "number": int(match[1]),
        "found": int(match[2]),
        "products": tuple(_parse_products(rest)),
    }


def _parse_products(parts: Sequence[str]) -> Iterator[ShopItem]:
    """Yield the products on a results page.

    The text between a code and a price is the name, which may be empty.
    """
    pieces: list[str] = []
    for part in parts:
        if pieces or _ASIN.fullmatch(part):
            pieces.append(part)
        if len(pieces) > 1 and part.startswith("$"):
            yield ShopItem(asin=pieces[0], title=SEPARATOR.join(pieces[1:-1]), price=part)
            pieces = []


def _parse_item(
    rest: Sequence[str],
    buttons: tuple[str, ...],
    chosen: Mapping[str, str],
    clickable: Collection[str],
) -> dict[str, Any]:
    """Parse a product page: a row of option names and values, then the title, price and buttons."""
    prices = (i for i, part in enumerate(rest) if part.startswith(_PRICE))
    place = next(prices, len(rest))
    options: list[tuple[str, list[str]]] = []
    for part in rest[: max(0, place - 1)]:
        is_value = part.lower() in clickable if clickable else part not in chosen
        if is_value and options:
            options[-1][1].append(part)
        else:
            options.append((part, []))
    return {
        "buttons": (*buttons, *(name for name in _BEHIND_ITEM if name in rest[place:])),
        "title": rest[place - 1] if place else "",
        "price": rest[place].removeprefix(_PRICE) if place < len(rest) else "",
        "options": tuple(
            ShopOption(name=name, values=tuple(values), chosen=chosen.get(name, ""))
            for name, values in options
        ),
    }


def _split_buttons(parts: Sequence[str]) -> tuple[Sequence[str], tuple[str, ...]]:
    """Separate the buttons at the start of a shop page from the rest. Return the rest first."""
    count = next((i for i, part in enumerate(parts) if part not in _BUTTONS), len(parts))
    return parts[count:], tuple(parts[:count])


def _chosen_options(extras: Mapping[str, Any]) -> dict[str, str]:
    try:
        options = json.loads(extras.get("webshop.options") or "{}")
    except (ValueError, TypeError):
        return {}
    return (
        {name: str(value) for name, value in options.items()} if isinstance(options, dict) else {}
    )


def _guess_page_type(parts: Sequence[str]) -> str:
    """Guess the type of a shop page from its text. Used if no type was recorded."""
    if parts[0] == "WebShop":
        return "search"
    if parts[0].startswith("Thank you"):
        return "done"
    if any(_COUNTED.fullmatch(part) for part in parts[:5]):
        return "results"
    return "item" if "Buy Now" in parts else "description"


def _text_after(parts: Sequence[str], label: str) -> str:
    """Return the text that follows a label, or "" if the label is missing."""
    return next((b for a, b in pairwise(parts) if a == label), "")
