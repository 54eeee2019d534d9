"""WebShop pages for play by hand, with the action behind each element."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from coevo_gym.core.trajectory import View
from coevo_gym.view import shop
from coevo_gym.view.shop import clicked, read_page

BUTTONS = {
    "back to search": "Back to Search",
    "next >": "Next >",
    "< prev": "< Prev",
    "description": "Description",
    "features": "Features",
    "reviews": "Reviews",
    "buy now": "Buy Now",
}
"""Names of the shop's buttons, by the text to click."""


class Thing(NamedTuple):
    """A clickable element.

    Attributes:
        label: display name.
        action: the action that clicks the element.
        chosen: True if the element is already chosen.
    """

    label: str
    action: str
    chosen: bool = False


class PlayProduct(NamedTuple):
    """A product in a list of results.

    Attributes:
        asin: code of the product.
        title: name of the product.
        price: displayed price.
        action: the action that opens the product.
    """

    asin: str
    title: str
    price: str
    action: str


class PlayOption(NamedTuple):
    """An option of a product.

    Attributes:
        name: name of the option, such as ``color``.
        values: possible values.
    """

    name: str
    values: tuple[Thing, ...]


class PlayShopPage(NamedTuple):
    """A page of the shop.

    Attributes:
        kind: ``search``, ``results``, ``item``, the name of a product subpage, or ``done``.
        buttons: its buttons, in the order of the page.
        number: number of a page of results, from 1; 0 for other pages.
        found: total number of results; 0 for other pages.
        listed: the products of a page of results.
        title: name of the current product, or "".
        price: displayed price of the product, or "".
        asin: code of the product, or "".
        options: options of the product.
        chosen: chosen values by option, also on product subpages.
        texts: texts of a page of text.
    """

    kind: str
    buttons: tuple[Thing, ...]
    number: int = 0
    found: int = 0
    listed: tuple[PlayProduct, ...] = ()
    title: str = ""
    price: str = ""
    asin: str = ""
    options: tuple[PlayOption, ...] = ()
    chosen: tuple[tuple[str, str], ...] = ()
    texts: tuple[str, ...] = ()


def read_shop(view: View) -> PlayShopPage | None:
    """Return the page of a view; None if not every clickable element is found on the page.

    Example:
        >>> from coevo_gym.testing import make_env
        >>> env = make_env("webshop")
        >>> _ = env.step("search[dress]")
        >>> page = read_shop(env.view)
        >>> page.kind, len(page.listed), page.buttons[0].label
        ('results', 10, 'Back to Search')
    """
    if not view.info.get("webshop.page"):
        return None
    actions = clicked(view.info.get("admissible", ()))
    page = read_page(view.observation, view.info, tuple(actions.values()))
    found = PlayShopPage(
        page.kind,
        buttons=tuple(Thing(BUTTONS[text], actions[text]) for text in actions if text in BUTTONS),
        number=page.number or 0,
        found=page.found or 0,
        listed=tuple(
            PlayProduct(*product, action)
            for product in page.products
            if (action := actions.get(product.asin.lower()))
        ),
        title=page.title,
        price=page.price,
        asin=page.asin,
        options=tuple(_option(option, actions) for option in page.options),
        chosen=tuple(page.chosen.items()),
        texts=page.texts,
    )
    values = (value.action for option in found.options for value in option.values)
    listed = (item.action for item in found.listed)
    there = {*(button.action for button in found.buttons), *listed, *values}
    return found if there == set(actions.values()) else None


def _option(option: shop.Option, actions: Mapping[str, str]) -> PlayOption:
    return PlayOption(
        option.name,
        tuple(
            Thing(value, actions[value.lower()], chosen=value == option.chosen)
            for value in option.values
            if value.lower() in actions
        ),
    )
