"""Tasks for exploring the shop, and task drafts made from a model's proposals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from coevo_gym.core.errors import BuildError
from coevo_gym.core.evolution import Context, Draft, Proposal, Walk
from coevo_gym.core.task import Split, Task
from coevo_gym.envs.proposals import actions_of, make_draft, make_open_task, single_request_of
from coevo_gym.envs.webshop.engine.catalogue import Catalogue
from coevo_gym.envs.webshop.engine.shop_session import ShopAction, parse_action
from coevo_gym.envs.webshop.tasks import open_catalogue, side_of
from coevo_gym.envs.webshop.world import WebShopWorld

NOTHING_ASKED = "Look around in the shop, and try out how things are bought."
_BUY = ShopAction("click", "buy now")


def open_task(task: Task) -> Task:
    """Return a copy of a task without its request, for exploring the shop."""
    return make_open_task(task, side_of(task), NOTHING_ASKED)


def draft(proposal: Proposal, context: Context) -> Draft:
    """Create a draft from a proposal's request and the purchased product.

    Raises:
        BuildError: if the request is empty, or the actions do not end with a purchase.
    """
    world = context.task.world
    assert isinstance(world, WebShopWorld)
    request, actions = single_request_of(proposal), actions_of(proposal)
    asin = _purchased_asin(actions, open_catalogue(world))
    return make_draft(context, scenario=asin, instruction=request, world=world, solution=actions)


def restrictions(
    task: Task, walks: Sequence[Walk], split_of: Callable[[str], Split]
) -> tuple[str, ...]:
    """Return a rule that names the training products among the opened products."""
    assert isinstance(task.world, WebShopWorld)
    asins = _asins_by_click(open_catalogue(task.world))
    actions = (parse_action(exchange.action) for walk in walks for exchange in walk.exchanges)
    clicked = (thing for verb, thing in actions if verb == "click" and thing in asins)
    opened = [asins[thing] for thing in dict.fromkeys(clicked)]
    if not opened:
        return ()
    allowed = [asin for asin in opened if split_of(asin) is Split.TRAIN]
    if not allowed:
        return ("None of the products that were opened may be asked for: all are reserved.",)
    names = ", ".join(allowed)
    rest = "" if len(allowed) == len(opened) else " The others are reserved."
    return (f"Of the products that were opened, these may be asked for: {names}.{rest}",)


def _purchased_asin(actions: Sequence[str], catalogue: Catalogue) -> str:
    """Return the ASIN of the last product opened before the purchase."""
    *clicks, last = map(parse_action, actions)
    if last != _BUY:
        raise BuildError("the last action is not click[buy now]")
    asins = _asins_by_click(catalogue)
    for verb, thing in reversed(clicks):
        if verb == "click" and thing in asins:
            return asins[thing]
    raise BuildError("no action opens a product page before the purchase")


@lru_cache(maxsize=4)
def _asins_by_click(catalogue: Catalogue) -> Mapping[str | None, str]:
    """Map each product's click text to its ASIN."""
    return {product.asin.lower(): product.asin for product in catalogue}
