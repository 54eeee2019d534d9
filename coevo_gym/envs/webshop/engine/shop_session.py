"""Shopping sessions: a small state machine over an immutable catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from coevo_gym.envs.webshop.engine import pages
from coevo_gym.envs.webshop.engine.catalogue import Catalogue
from coevo_gym.envs.webshop.engine.pages import Page, Target
from coevo_gym.envs.webshop.engine.product import Product
from coevo_gym.envs.webshop.engine.reward import Score

ErrorKind = Literal["", "unparsable", "unknown_action", "empty_search", "not_clickable", "finished"]

_QUOTED = 60


class StepResult(NamedTuple):
    """The result of an action.

    Attributes:
        observation: text of the page after the action.
        valid: True if the action was possible; otherwise the page is unchanged.
        error_kind: a word for the reason why the action was not possible, or "".
        reason: the reason as a sentence, or "".
        done: True if the shopper has bought a product.
    """

    observation: str
    valid: bool = True
    error_kind: ErrorKind = ""
    reason: str = ""
    done: bool = False


class ShopAction(NamedTuple):
    """An action, split into verb and argument. A malformed action has the argument None."""

    verb: str
    argument: str | None


def parse_action(text: str) -> ShopAction:
    """Parse an action of the form ``verb[argument]`` as the original WebShop does.

    Only the first line counts. The argument is the text between the last opening and the last
    closing bracket, in lower case; any text after it is ignored.

    Example:
        >>> parse_action("click[Buy Now] please")
        ShopAction(verb='click', argument='buy now')
        >>> parse_action("buy now")
        ShopAction(verb='buy now', argument=None)
    """
    line = text.partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 1))
    if start < 0:
        return ShopAction(text, None)
    return ShopAction(line[:start], line[start + 1 : end].lower())


class Session:
    """A shopper's session: the current page, instruction, search, product and options.

    The goal is unknown here: the judge scores the purchase (``judge.py``), and the last page shows
    that score. All large data is stored in the catalogue, so each of thousands of sessions takes
    only a few hundred bytes. The same catalogue, instruction and actions always give the same
    texts.

    Example:
        >>> session = Session(catalogue)                      # doctest: +SKIP
        >>> text = session.reset("Find me a red mug")         # doctest: +SKIP
        >>> session.step("search[red mug]").valid             # doctest: +SKIP
        True

    Attributes:
        instruction: the shopper's instruction, "" before the first reset.
        score: the judge's score of the purchase, None before the judgement.
    """

    __slots__ = (
        "_begun",
        "_chosen",
        "catalogue",
        "instruction",
        "number",
        "page",
        "product",
        "query",
        "score",
    )

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.instruction = ""
        self._begun = False
        self.page = Page.SEARCH
        self.query: str | None = None
        self.number = 1
        self.product: Product | None = None
        self.score: Score | None = None
        self._chosen: dict[str, str] = {}

    @property
    def options(self) -> Mapping[str, str]:
        """The selected option values, keyed by option name, in the order of selection."""
        return MappingProxyType(self._chosen)

    @property
    def results(self) -> tuple[Product, ...]:
        """All results of the last search, best first, or () before a search."""
        return () if self.query is None else self.catalogue.search(self.query)

    def reset(self, instruction: str) -> str:
        """Restart the session with an instruction, and return the text of the first page."""
        self.instruction, self._begun = instruction, True
        self._reset_to_search()
        return self.observation()

    def step(self, action: str) -> StepResult:
        """Execute a ``search[words]`` or ``click[thing]`` action. Invalid actions do nothing."""
        if self.page is Page.DONE or not self._begun:
            return self._refuse("finished", "The session is over: nothing more can be done.")
        verb, argument = parse_action(action)
        if argument is None:
            return self._refuse_malformed(action)
        if verb == "search":
            self._open_results(argument, 1)
            return self._current_result()
        if verb != "click":
            reason = f"Unknown action {verb[:_QUOTED]!r}: use search[words] or click[thing]."
            return self._refuse("unknown_action", reason)
        target = self.targets().get(argument)
        if target is None or argument == "search":
            reason = f"Nothing called {argument[:_QUOTED]!r} can be clicked on this page."
            return self._refuse("not_clickable", reason)
        self._click(argument, target)
        return self._current_result()

    def observation(self) -> str:
        """Return the text of the current page. Return "" for a purchase that is not judged yet."""
        if self.page is Page.SEARCH:
            return pages.search_page_text(self.instruction)
        if self.page is Page.RESULTS:
            return pages.results_page_text(self.instruction, self.results, self.number)
        product = self._require_product()
        if self.page is Page.ITEM:
            return pages.item_page_text(self.instruction, product)
        if self.page is not Page.DONE:
            return pages.subpage_text(self.instruction, product, self.page)
        if self.score is None:
            return ""
        return pages.receipt_text(product.asin, self._chosen, self.score.reward)

    def targets(self) -> dict[str, Target]:
        """Return the page's clickable items by their click text, in the original WebShop's order.

        The first page lists ``search`` as the original does, although clicking it does nothing.
        """
        if self.page is Page.SEARCH:
            return pages.button_targets(pages.SEARCH)
        if self.page is Page.RESULTS:
            return pages.results_targets(self.results, self.number)
        if self.page is Page.ITEM:
            return pages.item_targets(self._require_product())
        return (
            {}
            if self.page is Page.DONE
            else pages.button_targets(pages.BACK_TO_SEARCH, pages.PREVIOUS)
        )

    def click_actions(self) -> tuple[str, ...]:
        """Return the actions that click an item of the page, in the order of :meth:`targets`.

        As in the original, some items cannot be clicked: ``search``, and texts that
        :func:`parse_action` reads differently, such as "", "8 [wide]" or a text of two lines.
        """
        actions = {text: f"click[{text}]" for text in self.targets() if text != "search"}
        return tuple(a for text, a in actions.items() if parse_action(a).argument == text)

    def _require_product(self) -> Product:
        if self.product is None:
            raise RuntimeError(f"No product is open on page {self.page}. Restart with reset().")
        return self.product

    def _click(self, text: str, target: Target) -> None:
        """Click an item on the current page.

        As in the original, an option named like a button acts as the button.
        """
        handlers: dict[str, Callable[[], None]] = {
            "buy now": self._buy,
            "back to search": self._reset_to_search,
        }
        if text in handlers:
            handlers[text]()
        elif self.page is Page.RESULTS and text in ("next >", "< prev"):
            self._open_results(self.query or "", self.number + (1 if text == "next >" else -1))
        elif text == "< prev" and self.page is Page.ITEM:
            self._open_results(self.query or "", self.number)
        elif text in pages.SUB_PAGES:
            self.page = Page(text)
        else:
            self.page = Page.ITEM
            if target.kind == "product":
                self.product = self.catalogue[target.name]
            elif target.kind == "option":
                self._chosen[target.name] = text

    def _reset_to_search(self) -> None:
        self.page, self.query, self.number = Page.SEARCH, None, 1
        self.product, self.score, self._chosen = None, None, {}

    def _open_results(self, query: str, number: int) -> None:
        self._reset_to_search()
        self.page, self.query, self.number = Page.RESULTS, query, number

    def _buy(self) -> None:
        self._require_product()  # raises if there is no current product
        self.page = Page.DONE

    def _current_result(self) -> StepResult:
        return StepResult(self.observation(), done=self.page is Page.DONE)

    def _refuse(self, kind: ErrorKind, reason: str) -> StepResult:
        return StepResult(self.observation(), False, kind, reason, self.page is Page.DONE)

    def _refuse_malformed(self, action: str) -> StepResult:
        if action.strip().lower() in ("search[]", "search"):
            return self._refuse("empty_search", "A search needs words: search[words].")
        quote = action[:_QUOTED]
        return self._refuse(
            "unparsable", f"{quote!r} is not of the form search[...] or click[...]."
        )
