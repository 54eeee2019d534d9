"""WebShop's own tasks: the goals of a catalogue, split by product."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, overload

from coevo_gym.core.benchmark import PanelEntry
from coevo_gym.core.errors import BenchmarkNotInstalled, DataError, TaskError
from coevo_gym.core.evolution import Draft
from coevo_gym.core.panel import hash_content
from coevo_gym.core.task import (
    NATIVE_SPLITS,
    NothingAsked,
    Split,
    Task,
    first_non_train,
    fold_strings,
)
from coevo_gym.core.task_file import describe_tasks
from coevo_gym.envs.tags import asks_nothing, tags_from
from coevo_gym.envs.webshop.builtin import builtin_goals, builtin_items
from coevo_gym.envs.webshop.choices import search_queries
from coevo_gym.envs.webshop.engine.catalogue import Catalogue
from coevo_gym.envs.webshop.engine.goals import ShoppingGoal, human_goals, synthetic_goals
from coevo_gym.envs.webshop.engine.pages import PAGE_SIZE, Page
from coevo_gym.envs.webshop.engine.product import Product
from coevo_gym.envs.webshop.engine.reward import score_purchase
from coevo_gym.envs.webshop.engine.shop_session import Session
from coevo_gym.envs.webshop.official import load_official_catalogue
from coevo_gym.envs.webshop.world import WebShopVerifier, WebShopWorld
from coevo_gym.provision import data_folder

BUILTIN = "builtin"
OFFICIAL_TEST = "official_test"
UNSOLVABLE = "unsolvable"
SUBSETS = ("synthetic", "human", OFFICIAL_TEST, UNSOLVABLE, BUILTIN)
TEST_GOALS = range(500)
"""Indices of the goals in the original WebShop's test split.

Its products also occur in the original's training goals, so use it only to compare with published
results.
"""
OFFICIAL_PRODUCTS = 1_000
"""Number of products in the original WebShop's smallest catalogue."""
_DIGITS = 16
"""Number of digits of a catalogue's digest that a task stores."""


def split_of(asin: str) -> Split:
    """Return a product's split (60% train, 20% val, 20% test), based on a hash of its ASIN."""
    place = int(hashlib.sha256(asin.encode()).hexdigest(), 16) % 10
    return Split.TRAIN if place < 6 else Split.VAL if place < 8 else Split.TEST


def side_of(task: Task) -> Split:
    """Determine a task's split from its scenario and content, ignoring its ``split`` field.

    The split depends on the task's scenario and on the product in its goal. A goal of the
    original's test split is always test.

    Raises:
        BenchmarkNotInstalled: if the task's shop is not installed.
        DataError: if the installed shop differs from the shop that the task was created from.
        TaskError: if the shop does not have the product.
    """
    world, wanted = task.world, task.verifier
    assert isinstance(world, WebShopWorld)
    catalogue = open_catalogue(world)
    if isinstance(wanted, NothingAsked):
        return split_of(task.scenario)
    assert isinstance(wanted, WebShopVerifier)
    product_of(wanted, catalogue)
    side = Split.TEST if _is_reserved(catalogue, wanted, task.instruction) else Split.TRAIN
    return first_non_train(split_of(task.scenario), split_of(wanted.asin), side)


def scenarios_of(task: Task) -> tuple[str, ...]:
    """Return the ASIN of the product in a task's goal, or () without a goal."""
    return (task.verifier.asin,) if isinstance(task.verifier, WebShopVerifier) else ()


def product_of(wanted: WebShopVerifier, catalogue: Catalogue) -> Product:
    """Return the product that a task was made from.

    Raises:
        TaskError: if the shop does not have the product.
    """
    try:
        return catalogue[wanted.asin]
    except KeyError:
        raise TaskError(f"its shop has no product {wanted.asin!r}") from None


@lru_cache(maxsize=1)
def builtin_catalogue() -> Catalogue:
    """Return the built-in catalogue, which needs no installation."""
    return Catalogue.from_items(BUILTIN, *builtin_items())


def active_catalogue() -> Catalogue:
    """Return the official catalogue if it is installed, otherwise the built-in catalogue."""
    folder = data_folder("webshop")
    return builtin_catalogue() if folder is None else load_official_catalogue(folder)


def open_catalogue(world: WebShopWorld) -> Catalogue:
    """Return the catalogue that a task uses.

    Raises:
        BenchmarkNotInstalled: if its data is not installed.
        DataError: if the installed data differs from the data that the task was created from.
    """
    if world.catalogue == BUILTIN:
        catalogue = builtin_catalogue()
    else:
        folder = data_folder("webshop")
        if folder is None:
            raise BenchmarkNotInstalled(
                f"The WebShop catalogue {world.catalogue!r} is not installed. Run `coevo install "
                "webshop --from DIR`, or set COEVO_WEBSHOP_DATA to a folder with its files."
            )
        catalogue = load_official_catalogue(folder)
    if catalogue.digest[:_DIGITS] != world.digest:
        raise DataError(
            f"The installed WebShop catalogue {catalogue.name!r} ({catalogue.digest[:_DIGITS]}) is "
            f"not the catalogue that the task was created from: {world.catalogue!r} "
            f"({world.digest}). Install the same data, or choose tasks created from the installed "
            "catalogue."
        )
    return catalogue


def world_of(catalogue: Catalogue) -> WebShopWorld:
    """Return the world that all tasks of a catalogue share."""
    return WebShopWorld(catalogue=catalogue.name, digest=catalogue.digest[:_DIGITS])


def reference_actions(goal: ShoppingGoal, catalogue: Catalogue) -> tuple[str, ...]:
    """Return the actions for buying exactly the requested product.

    The search is the first query derived from the instruction that lists the product on the first
    page of results, or else the product's title.
    """

    def is_found(query: str) -> bool:
        return any(p.asin == goal.asin for p in catalogue.search(query)[:PAGE_SIZE])

    query = next(filter(is_found, search_queries(goal.instruction)), goal.product.title.lower())
    return (f"search[{query}]", f"click[{goal.asin.lower()}]", *_purchase_actions(goal))


def _purchase_actions(goal: ShoppingGoal) -> tuple[str, ...]:
    """Return the actions on a product's page that choose the wanted options and buy the product."""
    asked = dict(goal.options)
    if "" in asked:  # a human-written goal names values only
        names = {value: name for name, values in goal.product.options for value in values}
        asked = {names[value]: value for _, value in goal.options if value in names}
    return tuple(f"click[{text}]" for text in (*asked.values(), "buy now"))


class NativeTasks(Sequence[Task]):
    """A sequence that creates each task from a catalogue goal when the task is accessed.

    Immutable. A pickle contains the name and hash of the catalogue, but not its products; the
    process that unpickles it opens its own catalogue.
    """

    def __init__(self, catalogue: Catalogue, numbers: Sequence[int]) -> None:
        self._catalogue = catalogue
        self._numbers = tuple(numbers)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        """Return the task at an index, or a slice of the sequence."""
        if isinstance(index, slice):
            return NativeTasks(self._catalogue, self._numbers[index])
        return _create_task(self._catalogue, self._numbers[index])

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._numbers)

    def __repr__(self) -> str:
        return describe_tasks(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NativeTasks) and self._content == other._content

    def __hash__(self) -> int:
        return hash(self._content)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle_tasks, self._content

    def __deepcopy__(self, memo: object) -> NativeTasks:
        return self

    def without_solutions(self) -> Iterator[Task]:
        """Yield the tasks without solutions, which saves the searches for reference actions."""
        for number in self._numbers:
            yield _make_task(self._catalogue, number)

    @property
    def _content(self) -> tuple[WebShopWorld, tuple[int, ...]]:
        return world_of(self._catalogue), self._numbers


def _unpickle_tasks(world: WebShopWorld, numbers: tuple[int, ...]) -> NativeTasks:
    """Unpickle tasks, using the catalogue of this process."""
    return NativeTasks(open_catalogue(world), numbers)


def native_tasks(split: Split, subset: str | None = None) -> Sequence[Task]:
    """Return WebShop's own tasks in a split. For subsets, see :data:`SUBSETS`.

    Raises:
        TaskError: if the subset is unknown, or has no tasks in this split.
    """
    if subset is not None and subset not in SUBSETS:
        raise TaskError(f"WebShop has no subset {subset!r}. Choose one of: {', '.join(SUBSETS)}.")
    catalogue = builtin_catalogue() if subset == BUILTIN else active_catalogue()
    tasks = _select_tasks(catalogue, split, None if subset == BUILTIN else subset)
    if not tasks:
        raise TaskError(
            f"The WebShop catalogue {catalogue.name!r} has no {split} tasks in subset {subset!r}. "
            + _explain_empty(catalogue, subset)
        )
    return tasks


def _explain_empty(catalogue: Catalogue, subset: str | None) -> str:
    """Explain why a split of a subset can be empty."""
    if subset == OFFICIAL_TEST and _is_official(catalogue):
        return "That subset belongs to the test split."
    if subset == OFFICIAL_TEST:
        return (
            "That subset belongs to the original's data, which has at least "
            f"{OFFICIAL_PRODUCTS:,} products."
        )
    counts = ", ".join(
        f"{len(_select_tasks(catalogue, part, None))} {part}" for part in NATIVE_SPLITS
    )
    return (
        f"It has {len(catalogue)} products and {len(_numbered_goals(catalogue))} goals. A hash of "
        f"the product's ASIN decides a goal's split: {counts}, and "
        f"{len(_unsolvable_indices(catalogue))} in the subset {UNSOLVABLE!r}, because their own "
        "product cannot score 1."
    )


def _is_official(catalogue: Catalogue) -> bool:
    """Return True if a catalogue is large enough to be official data, which has a test split."""
    return catalogue.name != BUILTIN and len(catalogue) >= OFFICIAL_PRODUCTS


@lru_cache(maxsize=32)
def _select_tasks(catalogue: Catalogue, split: Split, subset: str | None) -> Sequence[Task]:
    goals = _numbered_goals(catalogue)
    unsolvable = _unsolvable_indices(catalogue)
    numbers = [
        place
        for place, entry in enumerate(goals)
        if (subset == OFFICIAL_TEST or (place in unsolvable) is (subset == UNSOLVABLE))
        and _belongs_to(catalogue, entry, split, subset)
    ]
    return NativeTasks(catalogue, numbers)


@lru_cache(maxsize=4)
def _numbered_goals(catalogue: Catalogue) -> tuple[tuple[ShoppingGoal, int], ...]:
    """Return all goals in a catalogue, each with its index among goals of the same kind."""
    if catalogue.name == BUILTIN:
        kinds: list[tuple[ShoppingGoal, ...]] = [builtin_goals(catalogue)]
    else:
        kinds = [synthetic_goals(catalogue), human_goals(catalogue)]
    return tuple((goal, number) for goals in kinds for number, goal in enumerate(goals))


@lru_cache(maxsize=4)
def _unsolvable_indices(catalogue: Catalogue) -> frozenset[int]:
    """Return the indices of the goals that buying the requested product does not fulfil."""
    goals = enumerate(_numbered_goals(catalogue))
    return frozenset(place for place, (goal, _) in goals if not _is_solvable(goal, catalogue))


def _is_solvable(goal: ShoppingGoal, catalogue: Catalogue) -> bool:
    """Return True if the goal's own product, with the wanted options chosen, scores 1.

    A goal is unsolvable if two wanted options share a value, because only one of them can be
    chosen; if a value cannot be clicked or acts as a button; or because of its colour (see
    ``reward.py``).
    """
    session = Session(catalogue)
    session.reset("")
    session.page, session.product = Page.ITEM, goal.product
    possible = all(session.step(action).valid for action in _purchase_actions(goal))
    return (
        possible
        and score_purchase(goal, goal.product, session.options, goal.product.price).reward == 1
    )


@lru_cache(maxsize=4)
def _reserved_keys(catalogue: Catalogue) -> frozenset[tuple[object, ...]]:
    """Return the keys that identify the goals in the original WebShop's test split."""
    if not _is_official(catalogue):
        return frozenset()
    return frozenset(
        key
        for goal, number in _numbered_goals(catalogue)
        if number in TEST_GOALS
        for key in _goal_keys(goal, goal.instruction)
    )


def _is_reserved(
    catalogue: Catalogue, wanted: ShoppingGoal | WebShopVerifier, instruction: str
) -> bool:
    """Return True if a goal is in the original WebShop's test split or copied from it."""
    reserved = _reserved_keys(catalogue)
    return bool(reserved) and not reserved.isdisjoint(_goal_keys(wanted, instruction))


def _goal_keys(
    wanted: ShoppingGoal | WebShopVerifier, instruction: str
) -> Iterator[tuple[object, ...]]:
    """Yield a goal's two keys: (product, instruction) and (product, requirements).

    The instruction alone is not a key, because a training goal can have the same instruction as a
    test goal for another product.
    """
    yield wanted.asin, fold_strings(instruction)
    attributes = frozenset(fold_strings(wanted.attributes))
    values = frozenset(fold_strings(value) for _, value in wanted.options)
    yield wanted.asin, attributes, values, wanted.price_cap


def _goal_split(catalogue: Catalogue, goal: ShoppingGoal) -> Split:
    """Return a goal's split. Goals in the original WebShop's test split are always test."""
    is_reserved = _is_reserved(catalogue, goal, goal.instruction)
    return Split.TEST if is_reserved else split_of(goal.asin)


def _belongs_to(
    catalogue: Catalogue, entry: tuple[ShoppingGoal, int], split: Split, subset: str | None
) -> bool:
    goal, number = entry
    if subset == OFFICIAL_TEST:
        return split is Split.TEST and _is_official(catalogue) and number in TEST_GOALS
    if subset not in (None, UNSOLVABLE) and goal.kind != subset:
        return False
    by_product = split_of(goal.asin)
    return by_product is split and _goal_split(catalogue, goal) is split


@lru_cache(maxsize=20_000)
def _create_task(catalogue: Catalogue, place: int) -> Task:
    goal, _ = _numbered_goals(catalogue)[place]
    return _make_task(catalogue, place, reference_actions(goal, catalogue))


def _make_task(catalogue: Catalogue, place: int, solution: tuple[str, ...] = ()) -> Task:
    goal, number = _numbered_goals(catalogue)[place]
    return Task(
        benchmark="webshop",
        name=f"webshop/{catalogue.name}/{goal.kind}/{number}",
        split=_goal_split(catalogue, goal),
        subset=goal.kind,
        scenario=goal.asin,
        instruction=goal.instruction,
        world=world_of(catalogue),
        verifier=WebShopVerifier(
            asin=goal.asin,
            attributes=goal.attributes,
            options=goal.options,
            price_cap=goal.price_cap,
        ),
        solution=solution,
    )


def panel_entry(task: Task) -> PanelEntry:
    """Return a goal's panel entry: keys that identify it in other code bases, and its content.

    The place is the product, and the goal's position among the original's goals of its kind
    (``synthetic`` or ``human``, the subset). The content is written as in the original's goals,
    except for the price limit, which is a text with two decimals.
    """
    verifier = task.verifier
    assert isinstance(verifier, WebShopVerifier)
    number = int(task.name.rpartition("/")[2])
    names = [name for name, _ in verifier.options]
    options: Any = dict(verifier.options)
    if "" in names:  # human-written goals name values only
        options = [value for _, value in verifier.options]
    parts = {
        "attributes": verifier.attributes,
        "instruction": task.instruction,
        "options": options,
        "price_limit": f"{verifier.price_cap:.2f}",
    }
    return PanelEntry({"asin": verifier.asin, "goal": number, "subset": task.subset}, parts)


def data_versions(task: Task) -> dict[str, str]:
    """Return the catalogue's name, and hashes of its products and of the nouns in their titles.

    Raises:
        BenchmarkNotInstalled: if the task's shop is not installed.
        DataError: if the installed shop differs from the shop that the task was created from.
    """
    assert isinstance(task.world, WebShopWorld)
    return _data_versions(open_catalogue(task.world))


@lru_cache(maxsize=4)
def _data_versions(catalogue: Catalogue) -> dict[str, str]:
    bare = Catalogue(catalogue.name, (replace(p, nouns=()) for p in catalogue), seed=catalogue.seed)
    nouns = [[product.asin, *product.nouns] for product in catalogue]
    return {
        "catalogue": catalogue.name,
        "products": bare.digest,
        "title nouns": hash_content(nouns),
    }


def contains_phrase(text: str, phrase: str) -> bool:
    """Return True if the text contains the phrase as whole words."""
    phrase = phrase.strip().lower()
    return bool(phrase) and re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def tags_of(task: Task | Draft) -> tuple[str, ...]:
    """Return the ``category:``, ``family:`` and ``option:`` tags of a task or task draft.

    A family consists of all products under the same search words. There is one ``option:`` tag for
    each product option that has a value in the instruction.

    Raises:
        BenchmarkNotInstalled: if the task's shop is not installed.
        DataError: if the installed shop differs from the shop that the task was created from.
    """
    assert isinstance(task.world, WebShopWorld)
    catalogue = open_catalogue(task.world)
    if task.scenario not in catalogue:
        return ()
    product = catalogue[task.scenario]
    pairs = [("category", product.category), ("family", product.query)]
    if not asks_nothing(task):
        text = task.instruction.lower()
        pairs += [
            ("option", name)
            for name, values in product.options
            if any(contains_phrase(text, value) for value in values)
        ]
    return tags_from(pairs)
