"""The pages of the shop: their text, byte for byte the original's, and what can be clicked.

The original renders HTML, parses it and joins the visible texts with `` [SEP] ``. Three things
follow from that and hold here too: a text is stripped; a text of plain blanks stays as an empty
part, unless it holds a line break; an empty text leaves no part at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Literal, NamedTuple

from coevo_gym.envs.webshop.engine.product import Product

PAGE_SIZE = 10
"""Products on one page of results."""

BACK_TO_SEARCH, NEXT, PREVIOUS, BUY, SEARCH = (
    "Back to Search",
    "Next >",
    "< Prev",
    "Buy Now",
    "Search",
)
_BLANKS = " \n\t\f\r"
_SEPARATOR = " [SEP] "


class Page(StrEnum):
    """Where a shopper stands."""

    SEARCH = "search"
    RESULTS = "results"
    ITEM = "item"
    DESCRIPTION = "description"
    FEATURES = "features"
    REVIEWS = "reviews"
    ATTRIBUTES = "attributes"
    DONE = "done"


SUB_PAGES = (Page.DESCRIPTION, Page.FEATURES, Page.REVIEWS, Page.ATTRIBUTES)
"""Pages behind an item; the last has no button and opens only through an option of its name."""

_ITEM_BUTTONS = ("Description", "Features", "Reviews", BUY)


class Target(NamedTuple):
    """A clickable thing: a button, a product (name is its asin) or an option (its name)."""

    kind: Literal["button", "product", "option"]
    name: str


def _join(texts: Iterable[str]) -> str:
    """Join the texts of a page the way a parser would show them."""
    shown = (text for text in texts if text.strip(_BLANKS) or (text and "\n" not in text))
    return _SEPARATOR.join(text.strip() for text in shown)


def page_of(products: Sequence[Product], number: int) -> Sequence[Product]:
    """Return the products on one page of results; none beyond the last page."""
    return products[(number - 1) * PAGE_SIZE : number * PAGE_SIZE]


def search_text(instruction: str) -> str:
    """Show the first page."""
    return _join(["WebShop", "Instruction:", instruction, SEARCH])


def results_text(instruction: str, products: Sequence[Product], number: int) -> str:
    """Show a page of results.

    Args:
        instruction: what the shopper was told.
        products: everything found, not only this page.
        number: page number from 1.
    """
    count = f"Page {number} (Total results: {len(products)})"
    listed = [text for p in page_of(products, number) for text in (p.asin, p.title, p.price_tag)]
    buttons = [PREVIOUS, NEXT] if number > 1 else [NEXT]
    return _join(["Instruction:", instruction, BACK_TO_SEARCH, count, *buttons, *listed])


def item_text(instruction: str, product: Product) -> str:
    """Show a product; chosen options leave no trace in the text."""
    options = [text for name, values in product.options for text in (name, *values)]
    about = [product.title, f"Price: {product.price_tag}", "Rating: N.A.", *_ITEM_BUTTONS]
    return _join([*_behind_item(instruction), *options, *about])


def sub_text(instruction: str, product: Product, page: Page) -> str:
    """Show a page behind an item."""
    if page is Page.DESCRIPTION:
        texts = [product.description]
    elif page is Page.FEATURES:
        texts = [f" {bullet}" for bullet in product.bullets]
    elif page is Page.REVIEWS:
        texts = []  # the original runs without its reviews
    else:
        texts = [f" {attribute}" for attribute in product.attributes]
        texts += [product.category, product.query, product.product_category]
    return _join([*_behind_item(instruction), *texts])


def done_text(asin: str, options: Mapping[str, str], reward: float | None = None) -> str:
    """Show the receipt. The blanks in it ("None", no goal) are the original's.

    Args:
        asin: the product.
        options: what was chosen.
        reward: the score; None where nothing was asked for, and so nothing is said of it.
    """
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category"]
    receipt = [
        *("Thank you for shopping with us!", "Your code:", "None"),
        *("(Paste it in your MTurk interface.)", "Purchased"),
        *("asin", asin, "options", _options_json(options), "attrs", "None"),
        *("category", "None", "query", "None", "product category", "None"),
    ]
    if reward is None:
        return _join(receipt)
    receipt += [
        *("Target", *target, "product category", "query", "Goal", "None"),
        *("Reward", "Your score (min 0.0, max 1.0)", str(reward), "Reward Details", "None"),
    ]
    return _join(receipt)


def _options_json(options: Mapping[str, str]) -> str:
    """Write JSON that is safe inside HTML, as a template engine does."""
    text = json.dumps(options, sort_keys=True)
    for char in "<>&'":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _behind_item(instruction: str) -> list[str]:
    return ["Instruction:", instruction, BACK_TO_SEARCH, PREVIOUS]


def search_targets() -> dict[str, Target]:
    """List what the first page offers: a button that does nothing without words."""
    return _buttons(SEARCH)


def results_targets(products: Sequence[Product], number: int) -> dict[str, Target]:
    """List what a page of results offers, in order."""
    names = [PREVIOUS, NEXT] if number > 1 else [NEXT]
    shown = page_of(products, number)
    found = {product.asin.lower(): Target("product", product.asin) for product in shown}
    return _buttons(BACK_TO_SEARCH, *names) | found


def item_targets(product: Product) -> dict[str, Target]:
    """List what an item offers: buttons, then option values.

    Equal values of two options are one target, which sets the later option.
    """
    targets = _buttons(BACK_TO_SEARCH, PREVIOUS, *_ITEM_BUTTONS)
    for name, values in product.options:
        targets |= dict.fromkeys(values, Target("option", name))
    return targets


def sub_targets() -> dict[str, Target]:
    """List what a page behind an item offers."""
    return _buttons(BACK_TO_SEARCH, PREVIOUS)


def _buttons(*names: str) -> dict[str, Target]:
    return {name.lower(): Target("button", name) for name in names}
