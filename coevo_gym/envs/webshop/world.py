"""Data models for a task's shop and for the requirements that a purchase must meet."""

from __future__ import annotations

from pydantic import Field

from coevo_gym.core.task import Verifier, World
from coevo_gym.envs.webshop.engine.goals import NO_CAP


class WebShopWorld(World):
    """The shop in which a task takes place.

    Attributes:
        catalogue: name of the catalogue.
        digest: first 16 digits of the catalogue's content hash.
    """

    catalogue: str
    digest: str


class WebShopVerifier(Verifier):
    """The requirements that a purchase is judged against.

    Attributes:
        asin: the product that the task was made from.
        attributes: properties that the purchase should have.
        options: wanted (name, value) pairs.
        price_cap: highest acceptable price in dollars.
    """

    asin: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] = ()
    price_cap: float = Field(default=NO_CAP, gt=0)
