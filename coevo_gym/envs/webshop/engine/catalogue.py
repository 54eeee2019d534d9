"""The catalogue of a shop's products, loaded once and shared by all sessions in a process."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import cached_property, lru_cache
from typing import Any
from weakref import WeakValueDictionary

from coevo_gym.core.errors import DataError
from coevo_gym.envs.webshop.engine.product import Product, read_product
from coevo_gym.envs.webshop.engine.search import SearchIndex

MAX_RESULTS = 50
"""Maximum number of products that a search returns."""

_MAX_ASIN = 10
_CACHED_SEARCHES = 2_048
_MAX_CACHED_QUERY = 500


class Catalogue:
    """An immutable collection of a shop's products, shared by all sessions in a process.

    A pickle leaves out the caches. Unpickling returns the existing object if the process already
    has this catalogue.

    Attributes:
        name: short name, part of task names.
        products: the products in file order, with distinct ASINs and drawn prices.
        seed: seed of the drawn prices and, in ``goals.py``, of the price caps.
        digest: SHA-256 of the content, which excludes the name.
    """

    def __init__(self, name: str, products: Iterable[Product], *, seed: int = 0) -> None:
        self.name = name
        self.seed = seed
        self.products = tuple(products)
        self._by_asin = {product.asin: product for product in self.products}
        if len(self._by_asin) != len(self.products):
            raise DataError(f"catalogue {name!r}: two products share an ASIN. Remove one of them.")

    @classmethod
    def from_items(
        cls,
        name: str,
        items: Sequence[Mapping[str, Any]],
        attributes: Mapping[str, Mapping[str, Any]],
        *,
        human: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        title_nouns: Mapping[str, Sequence[str]] | None = None,
        prices: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> Catalogue:
        """Build a catalogue from the original WebShop's raw JSON.

        Items without a usable asin, and items with a repeated asin, are skipped as in the original.

        Args:
            name: short name of the catalogue.
            items: raw products, as in ``items_shuffle_1000.json``.
            attributes: ASIN to attributes and instruction, as in ``items_ins_v2_1000.json``.
            human: ASIN to human-written instructions, as in ``items_human_ins.json``.
            title_nouns: ASIN to the tagged nouns of the title; other titles are split without a
                tagger.
            prices: ASIN to price, which replaces the drawn price.
            seed: seed for drawing the price of each product with a price range, like the original's
                ``random.seed(seed)``.

        Raises:
            DataError: if an item is malformed; the message names the item.
        """
        nouns, human = title_nouns or {}, human or {}
        products: dict[str, Product] = {}
        for position, item in enumerate(items):
            asin = item.get("asin") if isinstance(item, Mapping) else None
            if not isinstance(asin, str):
                raise DataError(f"catalogue {name}: item {position} has no ASIN: {repr(item)[:60]}")
            if asin == "nan" or len(asin) > _MAX_ASIN or asin in products:
                continue
            products[asin] = read_product(
                item, attributes.get(asin, {}), human.get(asin, ()), nouns=nouns.get(asin)
            )
        by_asin = draw_prices(products.values(), original_rng(seed)) | dict(prices or {})
        return cls(name, (replace(p, price=by_asin[p.asin]) for p in products.values()), seed=seed)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the content as hex digits."""
        sha = hashlib.sha256(str(self.seed).encode())
        for product in self.products:
            sha.update(json.dumps(astuple(product)).encode())
        return sha.hexdigest()

    @cached_property
    def index(self) -> SearchIndex:
        """The search index, built on first use."""
        return SearchIndex((product.asin, product.indexed_text) for product in self.products)

    def search(self, query: str) -> tuple[Product, ...]:
        """Return up to 50 matching products, best match first."""
        return (
            self._search_index(query)
            if len(query) > _MAX_CACHED_QUERY
            else self._cached_search(query)
        )

    @cached_property
    def _cached_search(self) -> Callable[[str], tuple[Product, ...]]:
        return lru_cache(maxsize=_CACHED_SEARCHES)(self._search_index)

    def _search_index(self, query: str) -> tuple[Product, ...]:
        return tuple(self._by_asin[asin] for asin in self.index.search(query, MAX_RESULTS))

    def __getitem__(self, asin: str) -> Product:
        """Return the product with this ASIN."""
        return self._by_asin[asin]

    def __contains__(self, asin: object) -> bool:
        """Return True if the shop has a product with this ASIN."""
        return asin in self._by_asin

    def __iter__(self) -> Iterator[Product]:
        """Iterate over the products in file order."""
        return iter(self.products)

    def __len__(self) -> int:
        """Return the number of products."""
        return len(self.products)

    def __repr__(self) -> str:
        """Return a short description with the catalogue's name and size."""
        return f"Catalogue({self.name!r}, {len(self)} products)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the products without the caches."""
        return _unpickle_catalogue, (self.name, self.products, self.seed, self.digest)

    def __deepcopy__(self, memo: object) -> Catalogue:
        """Return the catalogue itself, because it is immutable."""
        return self


_restored: WeakValueDictionary[tuple[str, str], Catalogue] = WeakValueDictionary()


def _unpickle_catalogue(
    name: str, products: tuple[Product, ...], seed: int, digest: str
) -> Catalogue:
    """Unpickle a catalogue, reusing a catalogue that the process has already loaded."""
    known = _restored.get((name, digest))
    if known is None:
        known = Catalogue(name, products, seed=seed)
        known.__dict__["digest"] = digest
        _restored[name, digest] = known
    return known


def original_rng(seed: int) -> random.Random:
    """Return a random number generator with the same draws as the original WebShop's."""
    return random.Random(seed)  # noqa: S311 - same draws as the original; not for secrets


def draw_prices(products: Iterable[Product], rng: random.Random) -> dict[str, float]:
    """Return each product's price. A price range is replaced by a draw, in catalogue order."""
    return {
        product.asin: rng.uniform(*product.prices) if len(product.prices) > 1 else product.prices[0]
        for product in products
    }
