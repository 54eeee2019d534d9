"""WebShop as a Gymnasium env."""

from __future__ import annotations

import functools
import json
import math
from dataclasses import replace
from typing import Any, ClassVar

from numpy.random import Generator

from coevo_gym.core.task import FrozenDict, NothingAsked, Verifier, World
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.frame import PRIVATE_INFO, Frame, Grade
from coevo_gym.envs.vector import TaskVectorEnv
from coevo_gym.envs.webshop.engine.goals import Goal
from coevo_gym.envs.webshop.engine.html import render_html
from coevo_gym.envs.webshop.engine.pages import SUB_PAGES, Page, done_text
from coevo_gym.envs.webshop.engine.session import Session, StepResult, parse_action
from coevo_gym.envs.webshop.judge import goal_of, judge
from coevo_gym.envs.webshop.tasks import open_catalogue
from coevo_gym.envs.webshop.world import WebShopWorld

_SYMBOLS = {"product": "item", "option": "option"}


class WebShopEnv(TaskEnv):
    """Find and buy the product that an instruction describes.

    The engine is our own and equals the original (princeton-nlp/WebShop) in its ``text`` pages,
    its search (BM25 as in Lucene) and its score.

    Observation:
        The page as text, its parts joined by `` [SEP] ``, the instruction first.

    Action:
        ``search[words]`` or ``click[thing]``, where thing is a button, a product's asin or an
        option value of the page, in any case. Anything else leaves the page unchanged, and
        ``info["error_kind"]`` and ``info["webshop.reason"]`` say why. The original's hidden query
        shortcuts (``<r>`` and the like) are ordinary words here.

    Reward:
        In [0, 1], at the end. ``reward_mode="success"``: 1.0 for a purchase whose score is 1.
        ``reward_mode="original"``: the original's score. ``info["score"]`` is always the latter.

    Starting state:
        The search page. ``reset`` picks a task of the split, or takes one by ``options``.

    Episode end:
        Terminated by ``click[buy now]``; truncated after ``max_steps`` (default 15), with score 0.

    Options:
        ``{"task": Task}`` or ``{"task_id": id or name}``.

    Info keys:
        Those of every env (:class:`coevo_gym.envs.frame.Info`), and ``webshop.page``,
        ``webshop.reason``, ``webshop.asin`` (product at hand), ``webshop.options`` (chosen so
        far, JSON text), ``webshop.price`` (what the product at hand is judged by, where its page
        may show a range only; -1.0 for none; in no view), and at the end the score's parts
        ``webshop.r_type``, ``r_att``, ``r_option``, ``r_price`` (-1.0 where there is nothing to
        say).

    Splits and versions:
        By product (a hash of its asin): 60 % train, 20 % val, 20 % test. Subsets: ``synthetic``,
        ``human`` (official data only), ``official_test`` (the original's 500 test goals,
        evaluation only), ``builtin`` (the built-in catalogue, also with official data at hand).
        v0: first version.

    Installation:
        Nothing is needed for the built-in shop. ``coevo install webshop --from DIR`` takes in the
        official data, which its users fetch themselves.

    Differences from the original:
        The hidden query shortcuts are gone; nothing can be searched after the purchase; a query
        counts its first 1,024 distinct words, where Lucene refuses longer ones; a query that
        holds the name of a page does not confuse the shop. Everything else is kept, oddities
        included: ``click[search]`` does nothing, empty result pages follow the last one, and
        458 of the official 6,910 synthetic goals can never score 1.0, because the original
        compares a wanted colour option unreduced with a bought one reduced to its colour word.
        With the official data, title nouns come from a ``title_nouns*.json`` beside it if there
        is one (then the score is exact); otherwise they are cut without a language model, which
        changes the score of some purchases.

    Arguments:
        See :class:`coevo_gym.envs.base.TaskEnv`. ``render_mode`` is ``"ansi"`` or ``"html"``.

    Citation:
        Yao et al., WebShop: Towards Scalable Real-World Web Interaction with Grounded Language
        Agents, NeurIPS 2022.
    """

    metadata = {"render_modes": ["ansi", "html"], "render_fps": 4}  # noqa: RUF012
    benchmark = "webshop"
    reward_modes = ("success", "original")
    extra_info: ClassVar = FrozenDict(
        {
            "webshop.page": "",
            "webshop.reason": "",
            "webshop.asin": "",
            "webshop.options": "{}",
            "webshop.price": -1.0,
            "webshop.r_type": -1.0,
            "webshop.r_att": -1.0,
            "webshop.r_option": -1.0,
            "webshop.r_price": -1.0,
        }
    )
    private_info: ClassVar = PRIVATE_INFO | {"webshop.price"}

    def _begin(self, world: World, instruction: str, rng: Generator) -> Frame:
        assert isinstance(world, WebShopWorld)
        self._session = Session(open_catalogue(world))
        self._goal: Goal | None = None
        return self._frame_of(StepResult(self._session.reset(instruction)), ())

    def _act(self, action: str) -> Frame:
        symbol = symbol_of(self._session, action)
        result = self._session.step(action)
        return self._frame_of(result, (symbol,) if result.valid else ())

    def _review(self, verifier: Verifier, frame: Frame) -> Frame:
        """The last page shows the score, if anything was asked for."""
        if isinstance(verifier, NothingAsked):
            product = self._session.product
            if not frame.done or product is None:
                return frame
            return replace(frame, observation=done_text(product.asin, dict(self._session.options)))
        if self._goal is None:
            self._goal = goal_of(verifier, self._session.catalogue)
        judge(self._session, self._goal)
        return replace(frame, observation=self._session.observation()) if frame.done else frame

    def _grade(self, verifier: Verifier) -> Grade:
        score = self._session.score
        if score is None:
            return Grade(0.0, False)
        parts = {
            f"webshop.{name}": -1.0 if math.isnan(value) else float(value)
            for name, value in (
                ("r_type", score.r_type),
                ("r_att", score.r_att),
                ("r_option", score.r_option),
                ("r_price", score.r_price),
            )
        }
        return Grade(score.reward, score.reward == 1.0, parts, parts)

    def _draw(self) -> str:
        """The state as one self-contained page (``html``)."""
        return render_html(self._session)

    def _frame_of(self, result: StepResult, calls: tuple[str, ...]) -> Frame:
        session = self._session
        extras: dict[str, Any] = {
            "webshop.page": str(session.page),
            "webshop.reason": result.reason,
            "webshop.options": json.dumps(dict(session.options), ensure_ascii=False),
        }
        if session.product is not None:
            extras["webshop.asin"] = session.product.asin
            extras["webshop.price"] = session.product.price
        return Frame(
            observation=result.observation,
            done=result.done,
            valid=result.valid,
            error_kind=result.error_kind,
            admissible=admissible(session),
            calls=calls,
            extras=FrozenDict(extras),
        )


def admissible(session: Session) -> tuple[str, ...]:
    """Every click that does something on the page; a search needs words of the agent's own."""
    return tuple(f"click[{text}]" for text in session.targets() if text != "search")


def symbol_of(session: Session, action: str) -> str:
    """What kind of step an action is on the current page: search, page, item, option, …."""
    verb, argument = parse_action(action)
    if verb == "search" or argument is None:
        return "search"
    if argument == "buy now" and session.page is Page.ITEM:
        return "buy"
    if argument in SUB_PAGES:
        return "subpage"
    target = session.targets().get(argument)
    return _SYMBOLS.get(target.kind, "page") if target else "page"


make_vec = functools.partial(TaskVectorEnv, "CoEvolve-WebShop-v0")
