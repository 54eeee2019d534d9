"""Pages of WebShop taken apart: all that can be clicked is found again, on any page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coevo_gym import tasks
from coevo_gym.core.trajectory import View
from coevo_gym.testing import make_env
from coevo_gym.view.shop import SEPARATOR, ShopPage, click_actions, parse_shop_page


def page_of(view: View) -> ShopPage:
    return parse_shop_page(view.observation, view.info, view.info["admissible"])


def clickable(page: ShopPage) -> set[str]:
    """The texts of what can be clicked."""
    values = (value for option in page.options for value in option.values)
    texts = [*(item.asin for item in page.products), *values, *page.buttons]
    return {text.lower() for text in texts}


@pytest.mark.parametrize("seed", range(5))
def test_parsed_pages_of_a_walk_contain_every_allowed_click(seed: int) -> None:
    walk(seed)


@pytest.mark.slow
def test_parsed_pages_of_the_official_shop_contain_every_allowed_click(official_data: Path) -> None:
    for seed in range(200):
        walk(seed)


def walk(seed: int) -> None:
    rng = np.random.default_rng(seed)
    env = make_env("webshop", split="val")
    env.reset(seed=seed)
    words = env.instruction.split()
    kinds = set()
    for _ in range(14):
        view = env.view
        page = page_of(view)
        kinds.add(page.page)
        offered = click_actions(view.info["admissible"])
        assert clickable(page) == {*offered} | ({"search"} if page.page == "search" else set())
        likely = sorted({*offered.values()} - {"click[buy now]", "click[back to search]"})
        search = page.page == "search" or not likely
        asked = " ".join(rng.choice(words, 3))
        env.step(f"search[{asked}]" if search else str(rng.choice(likely)))
    env.close()
    assert {"search", "results"} <= kinds


def test_a_parsed_page_contains_what_an_agent_reads() -> None:
    task = tasks("webshop", "train")[0]
    env = make_env("webshop")
    env.reset(options={"task": task})
    for action in task.solution[:-1]:
        env.step(action)
        page = page_of(env.view)
        parts = env.view.observation.split(SEPARATOR)
        for item in page.products:
            assert {item.asin, item.title, item.price} <= set(parts)
        if page.page == "item":
            assert page.title in parts
            assert f"Price: {page.price}" in parts
    assert page.page == "item"
    chosen = {option.chosen for option in page.options if option.chosen}
    assert chosen == set(page.chosen.values())
    assert chosen
    env.step("click[description]")
    assert page_of(env.view).chosen == page.chosen
    env.step("click[< prev]")
    env.step(task.solution[-1])
    assert page_of(env.view).page == "done"
    env.close()


def test_a_product_without_a_title_is_parsed() -> None:
    parts = ("Instruction:", "Buy.", "Back to Search", "Page 1 (Total results: 3)", "Next >")
    entries = ("B000000001", "One", "$1.0", "B000000002", "$2.0 to $3.0", "B000000003", "X", "$4.0")
    products = parse_shop_page(SEPARATOR.join(parts + entries), {}).products
    assert [(product.asin[-1], product.title) for product in products] == [
        ("1", "One"),
        ("2", ""),
        ("3", "X"),
    ]
    assert products[1].price == "$2.0 to $3.0"
