"""WebShop pages for human players, with the action behind each element."""

from __future__ import annotations

from collections.abc import Mapping

from coevo_gym.core.trajectory import View
from coevo_gym.view.rows import Shape
from coevo_gym.view.shop import ShopItem, ShopOption, ShopPage, clicked, read_page

BUTTONS = {
    "back to search": "Back to Search",
    "next >": "Next >",
    "< prev": "< Prev",
    "description": "Description",
    "features": "Features",
    "reviews": "Reviews",
    "buy now": "Buy Now",
}
"""Names of the shop's buttons, keyed by the text to click."""


class Thing(Shape):
    """A clickable element.

    Attributes:
        label: display name.
        action: the action that clicks the element.
        chosen: True if the element is already chosen.
    """

    label: str
    action: str
    chosen: bool = False


class PlayProduct(ShopItem):
    """A product in a list of results, with the action that opens the product's page."""

    action: str


class PlayOption(Shape):
    """An option of a product, with its possible values."""

    name: str
    values: tuple[Thing, ...]


class PlayShopPage(ShopPage):
    """A page of the shop, with the action of every clickable element.

    Attributes:
        things: the buttons of the page, in order.
        listed: the products on a page of results.
        choices: options of the product.
    """

    things: tuple[Thing, ...]
    listed: tuple[PlayProduct, ...]
    choices: tuple[PlayOption, ...]

    @property
    def actions(self) -> list[str]:
        """Return the actions for all products, option values and buttons on the page."""
        values = [value.action for option in self.choices for value in option.values]
        listed = [item.action for item in self.listed]
        return [*listed, *values, *(thing.action for thing in self.things)]


def read_shop(view: View) -> PlayShopPage | None:
    """Parse a page of the shop. Return None if a clickable element was not found on the page.

    Example:
        >>> from coevo_gym.testing import make_env
        >>> env = make_env("webshop")
        >>> _ = env.step("search[dress]")
        >>> page = read_shop(env.view)
        >>> page.page, len(page.listed), page.things[0].label
        ('results', 10, 'Back to Search')
    """
    if not view.info.get("webshop.page"):
        return None
    actions = clicked(view.info.get("admissible", ()))
    page = read_page(view.observation, view.info, tuple(actions.values()))
    found = PlayShopPage(
        **dict(page),
        things=tuple(
            Thing(label=BUTTONS[text], action=actions[text]) for text in actions if text in BUTTONS
        ),
        listed=tuple(
            PlayProduct(**dict(product), action=action)
            for product in page.products
            if (action := actions.get(product.asin.lower()))
        ),
        choices=tuple(_option(option, actions) for option in page.options),
    )
    return found if {*found.actions} == {*actions.values()} else None


def _option(option: ShopOption, actions: Mapping[str, str]) -> PlayOption:
    values = (
        Thing(label=value, action=actions[value.lower()], chosen=value == option.chosen)
        for value in option.values
        if value.lower() in actions
    )
    return PlayOption(name=option.name, values=tuple(values))
