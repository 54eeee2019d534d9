"""The steps of a training or evaluation episode, prepared for display."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from coevo_gym.core.task import thaw
from coevo_gym.core.trajectory import UNKNOWN_VERSION, EvalTrajectory, Step, Trajectory
from coevo_gym.store.sampled import ChoicesMade, Sampled, TokensSampled
from coevo_gym.view.shapes.trajectories import (
    BehindPage,
    ChoiceView,
    ShopItem,
    ShopOption,
    ShopPage,
    StepView,
    TextPage,
    TokenView,
)
from coevo_gym.view.shop import read_page

Extras = Mapping[str, Any]


def page_behind(
    benchmark: str, observation: str, extras: Extras, choices: Sequence[str] = ()
) -> BehindPage:
    """Return the parsed page of an observation.

    Args:
        benchmark: name of the benchmark.
        observation: the env's own text.
        extras: the benchmark's JSON about the step before the observation; {} at the start.
        choices: possible actions, as far as they are known.
    """
    return _PAGES.get(benchmark, _plain)(observation, extras, choices)


def _plain(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(admissible=tuple(choices))


def _calls(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(format="json", action="calls", admissible=tuple(choices))


def _code(observation: str, extras: Extras, choices: Sequence[str]) -> TextPage:
    return TextPage(format="code", action="code", admissible=tuple(choices))


def _shop(observation: str, extras: Extras, choices: Sequence[str]) -> ShopPage:
    page = read_page(observation, extras, choices)
    return ShopPage(
        page=page.kind,
        instruction=page.instruction,
        buttons=page.buttons,
        number=page.number,
        found=page.found,
        products=tuple(ShopItem(**product._asdict()) for product in page.products),
        title=page.title,
        price=page.price,
        asin=page.asin,
        options=tuple(ShopOption(**option._asdict()) for option in page.options),
        texts=page.texts,
    )


_PAGES: Mapping[str, Callable[[str, Extras, Sequence[str]], BehindPage]] = {
    "webshop": _shop,
    "bfcl": _calls,
    "appworld": _code,
}
"""Page parsers by benchmark; observations of all other benchmarks are shown as plain text."""


MOST_CHARACTERS = 200_000
"""Maximum length of a step's text; longer texts are cut, and the step is marked."""


class Behind(NamedTuple):
    """Data about an episode beyond its own record.

    Attributes:
        benchmark: name of the benchmark.
        sampled: choices or samples of each step; None if not stored.
        advantages: advantages used for learning; None if not stored.
        texts: texts of the sampled tokens.
        hidden: True to omit the benchmark's own JSON about each step, as for evaluations.
    """

    benchmark: str
    sampled: Sequence[Sampled | None] | None
    advantages: float | Sequence[float] | None
    texts: Mapping[int, str]
    hidden: bool


def steps_of(
    episode: Trajectory | EvalTrajectory, behind: Behind
) -> tuple[tuple[StepView, ...], BehindPage]:
    """Return the steps, and the page of the last observation."""
    views, extras = [], dict[str, Any]()
    for place, step in enumerate(episode.steps):
        sampled = _at(behind.sampled, place)
        choices = sampled.choices if isinstance(sampled, ChoicesMade) else ()
        page = page_behind(behind.benchmark, step.observation, extras, choices)
        views.append(_view(place, step, sampled, page, behind))
        extras = dict(thaw(step.extras))
    last = page_behind(behind.benchmark, episode.last_observation, extras)
    return tuple(views), last


def _view(
    place: int, step: Step, sampled: Sampled | None, page: BehindPage, behind: Behind
) -> StepView:
    texts = [step.shown, step.observation, step.said, step.action]
    shown, raw, said, action = (_bounded(text) for text in texts)
    advantages = behind.advantages
    each = advantages if isinstance(advantages, Sequence) else None
    version = sampled.policy_version if sampled else UNKNOWN_VERSION
    return StepView(
        number=place + 1,
        observation=shown,
        raw=raw if step.observation != step.shown else None,
        told=sampled.told if isinstance(sampled, TokensSampled) else None,
        page=page,
        said=said,
        action=action,
        calls=step.calls,
        error_kind=step.error_kind,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        choices=_choices(sampled) if isinstance(sampled, ChoicesMade) else None,
        taken=sampled.taken if isinstance(sampled, ChoicesMade) else None,
        tokens=_tokens(sampled, behind.texts) if isinstance(sampled, TokensSampled) else None,
        policy_version=None if version == UNKNOWN_VERSION else version,
        advantage=_at(each, place) if each is not None else _whole(advantages),
        extras={} if behind.hidden else thaw(step.extras),
        cut=any(len(text) > MOST_CHARACTERS for text in texts),
    )


def _choices(made: ChoicesMade) -> tuple[ChoiceView, ...]:
    if len(made.logprobs) == len(made.choices):
        known = dict(enumerate(made.logprobs))
    else:
        known = {made.taken: made.logprobs[0]} if made.logprobs else {}
    return tuple(
        ChoiceView(text=text, probability=math.exp(known[place]) if place in known else None)
        for place, text in enumerate(made.choices)
    )


def _tokens(sampled: TokensSampled, texts: Mapping[int, str]) -> tuple[TokenView, ...]:
    return tuple(
        TokenView(text=texts.get(id), id=id, logprob=logprob)
        for id, logprob in zip(sampled.ids, sampled.logprobs, strict=True)
    )


def _whole(advantages: float | Sequence[float] | None) -> float | None:
    return float(advantages) if isinstance(advantages, (int, float)) else None


def _at(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values is not None and place < len(values) else None


def _bounded(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"
