"""Whatever a page says, there is something to choose, and a task can be tagged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Split
from coevo_gym.core.trajectory import PastStep
from coevo_gym.testing.fixtures import make_env
from tests.fuzz.documents import texts
from tests.fuzz.grammars import GRAMMARS

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")


PAGES = (
    '<tool_response>\n{"a": [1, "b", {"c": null}]}\n</tool_response>',
    '[{"song_id": 3, "title": "Low Tide"}, {"song_id": 4, "title": {"a": []}}]',
    "Instruction: [SEP] Find me a red mug, and price lower than 40.00 dollars [SEP] Search",
    "You are in the middle of a room. Looking quickly around you, you see a desk 1.",
)


@pytest.mark.parametrize("name", GRAMMARS)
def test_any_page_yields_choices_and_tags(name: str, engine: Callable[[str], None]) -> None:
    engine(name)
    ask_for_views(name, 60)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", GRAMMARS)
def test_ten_thousand_pages_yield_choices_and_tags(
    name: str, engine: Callable[[str], None]
) -> None:
    engine(name)
    ask_for_views(name, 10_000)


def ask_for_views(name: str, n: int) -> None:
    """Ask for choices and tags where pages, words and actions are somebody else's."""
    benchmark = get_benchmark(name)
    task = benchmark.tasks(Split.TRAIN)[0]
    env = make_env(name, task)
    view = env.view
    env.close()
    actions = texts(*task.solution)

    @settings(max_examples=n, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(texts(*PAGES), actions), max_size=3), texts(*PAGES), texts(*PAGES))
    def ask(past: list[tuple[str, str]], page: str, words: str) -> None:
        history = tuple(PastStep(clean(seen), clean(done), info=view.info) for seen, done in past)
        asked = replace(view, observation=clean(page), instruction=clean(words), history=history)
        choices = benchmark.choices(asked)
        assert all(isinstance(choice, str) for choice in choices)
        tags = benchmark.tags(task.model_copy(update={"instruction": clean(words), "name": ""}))
        assert all(isinstance(tag, str) for tag in tags)

    ask()


def clean(text: str) -> str:
    """As an env shows it: without half characters, and not without end."""
    return text[:100_000].encode("utf-8", "replace").decode()
