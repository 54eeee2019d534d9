"""The shop as a person sees it: one self-contained HTML page."""

from __future__ import annotations

from functools import lru_cache
from math import isnan
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from coevo_gym.envs.webshop.engine import pages
from coevo_gym.envs.webshop.engine.pages import Page
from coevo_gym.envs.webshop.engine.product import Product
from coevo_gym.envs.webshop.engine.session import Session


class _Choice(NamedTuple):
    """One value of an option, and whether it is chosen."""

    value: str
    chosen: bool


def render_html(session: Session) -> str:
    """Show a session's page for a person.

    The page needs nothing from elsewhere: no images, scripts, fonts or links. Each clickable
    thing is a button of one form whose field ``action`` holds the action, and the search bar is
    the field ``search``, so that a server may take them; without one the page is only to look at.

    Args:
        session: a session after ``reset``; it is not changed.

    Returns:
        A whole HTML document, with every text of the shop escaped.
    """
    page, product = session.page, session.product
    behind = page in pages.SUB_PAGES or page is Page.ITEM
    html = _template().render(
        catalogue=session.catalogue.name,
        instruction=session.instruction,
        page=page.value,
        query=session.query,
        number=session.number,
        found=len(session.results),
        listed=pages.page_of(session.results, session.number) if page is Page.RESULTS else (),
        buttons=[t for t, target in session.targets().items() if target.kind == "button"],
        product=product,
        options=_options(product, session) if product and behind else (),
        chosen=dict(session.options),
        parts=_parts(session),
        reward=session.score.reward if session.score else None,
    )
    return html.encode("utf-8", "replace").decode()


@lru_cache(maxsize=1)
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("shop.html")


def _options(product: Product, session: Session) -> list[tuple[str, list[_Choice]]]:
    chosen = session.options
    return [
        (name, [_Choice(value, chosen.get(name) == value) for value in values])
        for name, values in product.options
    ]


def _parts(session: Session) -> list[tuple[str, str]]:
    """Name the parts of the score; () before a purchase."""
    score = session.score
    if score is None:
        return []
    shares = [("Kind", score.r_type), ("Attributes", score.r_att), ("Options", score.r_option)]
    shown = [(name, "none asked" if isnan(part) else f"{part:.2f}") for name, part in shares]
    return [*shown, ("Price", "within the cap" if score.r_price else "above the cap")]
