"""The shop as one self-contained HTML page for human users."""

from __future__ import annotations

from functools import lru_cache
from math import isnan
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from coevo_gym.envs.webshop.engine import pages
from coevo_gym.envs.webshop.engine.pages import Page
from coevo_gym.envs.webshop.engine.shop_session import Session


def render_html(session: Session) -> str:
    """Render a session's current page as HTML.

    The page does not load images, scripts, fonts or other external files. Each clickable item is
    a button of one form whose field ``action`` contains the action, and the search bar is the field
    ``search``, so that a server can process them. Without a server, the page is read-only.
    All shop texts are escaped. The session is not changed.
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
        listed=pages.products_on_page(session.results, session.number)
        if page is Page.RESULTS
        else (),
        buttons=[t for t, target in session.targets().items() if target.kind == "button"],
        product=product,
        options=product.options if product and behind else (),
        chosen=dict(session.options),
        clicks=session.click_actions(),
        parts=_score_parts(session),
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


def _score_parts(session: Session) -> list[tuple[str, str]]:
    """Return the labelled parts of the score, or [] before a purchase."""
    score = session.score
    if score is None:
        return []
    shares = [("Kind", score.r_type), ("Attributes", score.r_att), ("Options", score.r_option)]
    rows = [(name, "none asked" if isnan(part) else f"{part:.2f}") for name, part in shares]
    return [*rows, ("Price", "within the cap" if score.r_price else "above the cap")]
