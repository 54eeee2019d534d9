"""The steps of a training or evaluation episode, prepared for display."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jinja2 import TemplateError
from pydantic import Field

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.task import FrozenDict, thaw
from coevo_gym.core.trajectory import UNKNOWN_VERSION, EvalTrajectory, Step, Trajectory, View
from coevo_gym.core.transcript import Transcript
from coevo_gym.runs.config.run_sections import PolicySettings
from coevo_gym.runs.policies import prompt_of
from coevo_gym.store.sampled import ChoicesMade, Sampled, TokensSampled
from coevo_gym.view.rows import Shape, truncate
from coevo_gym.view.shop import ShopPage, parse_shop_page


class ChoiceView(Shape):
    """One of the candidate actions from which a policy chose.

    Attributes:
        text: the action.
        probability: probability of the action, in [0, 1], under the sampling policy; null if not
            stored.
    """

    text: str
    probability: float | None = None


class TokenView(Shape):
    r"""A token that the policy sampled, for display in the viewer.

    Attributes:
        text: text that the token adds to the answer. A character that spans several tokens is shown
            as ``\ufffd``. Null if the run does not store token texts.
        id: id of the token.
        logprob: log-probability under the sampling policy.
    """

    text: str | None
    id: int
    logprob: float


class TextPage(Shape):
    """An observation displayed as text, for envs without a page layout of their own.

    Attributes:
        kind: always ``text``.
        format: display format of the observation: ``plain``, ``json`` (results of calls) or
            ``code`` (output of a program).
        action: display format of the action: ``plain``, ``calls`` (one call per line) or ``code``
            (Python).
        admissible: actions known to be possible; empty if not stored.
    """

    kind: Literal["text"] = "text"
    format: Literal["plain", "json", "code"] = "plain"
    action: Literal["plain", "calls", "code"] = "plain"
    admissible: tuple[str, ...] = ()


BehindPage = ShopPage | TextPage


class MessageView(Shape):
    """A message that a language model was sent.

    Attributes:
        role: role of its sender, such as ``user``.
        text: its exact text.
    """

    role: str
    text: str


class StepView(Shape):
    """One step of an episode: the observation and the action.

    Attributes:
        number: step number, from 1.
        turn: number of the user's turn, from 1; null if the benchmark has no turns.
        observation: the exact text that the policy received.
        raw: the env's own text if an interface replaced it, else null.
        told: the exact text added to a language model's prompt before this answer, including chat
            template markers; null if not stored. The first step includes the system text.
        messages: the messages in the prompt that were not in the previous step's prompt or answer;
            if the prompt does not extend these, all its messages. Empty if not stored.
        n_messages: number of messages in the prompt; 0 if not stored.
        prompt_tokens: number of tokens in the prompt; null if unknown.
        completion_tokens: number of tokens in the answer; null if unknown.
        answer_s: wall time of the answer in seconds; null if not stored.
        env_s: wall time of the env step in seconds; null if not stored.
        page: the parsed page of the observation.
        said: the policy's full answer if it is longer than the action, else "".
        action: the action sent to the env.
        calls: names of the engine operations that ran.
        error_kind: why the action had no effect, or "".
        reward: reward of this step.
        terminated: true if the task ended.
        truncated: true if the episode was truncated.
        choices: candidate actions; null if not stored or the policy does not choose from a list.
        taken: index of the chosen candidate; null if there are no candidates.
        tokens: sampled tokens; null if not stored or the policy samples no tokens.
        policy_version: version of the weights that acted; null if not stored.
        advantage: advantage used for learning; null if not stored.
        extras: the benchmark's own JSON about this step.
        cut: true if a text of the step was too long and was truncated.
    """

    number: int
    turn: int | None = None
    observation: str
    raw: str | None = None
    told: str | None = None
    messages: tuple[MessageView, ...] = ()
    n_messages: int = 0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    answer_s: float | None = None
    env_s: float | None = None
    page: BehindPage
    said: str = ""
    action: str
    calls: tuple[str, ...] = ()
    error_kind: str = ""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    choices: tuple[ChoiceView, ...] | None = None
    taken: int | None = None
    tokens: tuple[TokenView, ...] | None = None
    policy_version: int | None = None
    advantage: float | None = None
    extras: dict[str, Any] = Field(default_factory=dict)
    cut: bool = False


_FORMATS: Mapping[str, dict[str, Any]] = {
    "bfcl": {"format": "json", "action": "calls"},
    "appworld": {"format": "code", "action": "code"},
}
"""Display formats, keyed by benchmark; other benchmarks are displayed as plain text."""


def parse_page(
    benchmark: str, observation: str, extras: Mapping[str, Any], choices: Sequence[str] = ()
) -> BehindPage:
    """Parse an observation into a page that the viewer can display.

    Args:
        benchmark: name of the benchmark.
        observation: the env's own text.
        extras: the benchmark's JSON about the step before the observation; {} at the start.
        choices: known possible actions.
    """
    if benchmark == "webshop":
        return parse_shop_page(observation, extras, choices)
    return TextPage(admissible=tuple(choices), **_FORMATS.get(benchmark, {}))


MAX_CHARACTERS = 200_000
"""Maximum length of a step's text; longer texts are truncated, and the step is marked."""


class Behind(NamedTuple):
    """Data about an episode that the episode's record does not contain.

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


def step_views(
    episode: Trajectory | EvalTrajectory, behind: Behind
) -> tuple[tuple[StepView, ...], BehindPage]:
    """Return an episode's steps, and its last observation as a page."""
    views, extras = [], dict[str, Any]()
    turns, prompts = _turns_of(episode, behind.benchmark), _messages_by_step(episode.transcript)
    for place, step in enumerate(episode.steps):
        sampled = _item_or_none(behind.sampled, place)
        choices = sampled.choices if isinstance(sampled, ChoicesMade) else ()
        page = parse_page(behind.benchmark, step.observation, extras, choices)
        chat = prompts.get(place, {}) | _token_counts(episode.transcript, place, sampled)
        view = _step_view(place, step, sampled, page, behind)
        views.append(view.model_copy(update={"turn": turns[place], **chat}))
        extras = dict(thaw(step.extras))
    last = parse_page(behind.benchmark, episode.last_observation, extras)
    return tuple(views), last


def _step_view(
    place: int, step: Step, sampled: Sampled | None, page: BehindPage, behind: Behind
) -> StepView:
    texts = [step.shown, step.observation, step.said, step.action]
    observation, raw, answer, action = (truncate(text, MAX_CHARACTERS) for text in texts)
    advantages = behind.advantages
    each = advantages if isinstance(advantages, Sequence) else None
    version = sampled.policy_version if sampled else UNKNOWN_VERSION
    return StepView(
        number=place + 1,
        observation=observation,
        raw=raw if step.observation != step.shown else None,
        told=sampled.told if isinstance(sampled, TokensSampled) else None,
        page=page,
        said=answer,
        action=action,
        calls=step.calls,
        error_kind=step.error_kind,
        reward=step.reward,
        terminated=step.terminated,
        truncated=step.truncated,
        answer_s=step.answer_s,
        env_s=step.env_s,
        choices=_choice_views(sampled) if isinstance(sampled, ChoicesMade) else None,
        taken=sampled.taken if isinstance(sampled, ChoicesMade) else None,
        tokens=_token_views(sampled, behind.texts) if isinstance(sampled, TokensSampled) else None,
        policy_version=None if version == UNKNOWN_VERSION else version,
        advantage=_item_or_none(each, place) if each is not None else _float_or_none(advantages),
        extras={} if behind.hidden else thaw(step.extras),
        cut=any(len(text) > MAX_CHARACTERS for text in texts),
    )


def _turns_of(episode: Trajectory | EvalTrajectory, benchmark: str) -> list[int | None]:
    """Return the number of the user's turn in which each step was taken."""
    after = [step.extras.get(f"{benchmark}.turn") for step in episode.steps]
    before = [0, *after][: len(after)]
    return [
        1 + turn if isinstance(turn, int) and isinstance(later, int) else None
        for turn, later in zip(before, after, strict=True)
    ]


def _messages_by_step(transcript: Transcript | None) -> dict[int, dict[str, Any]]:
    """Return the fields about the messages that were sent at each step with a model call."""
    if transcript is None:
        return {}
    fields = {}
    for part in transcript.parts():
        for step, new in enumerate(part.chats, start=part.first):
            messages = (transcript.messages[place] for place in new)
            views = (
                MessageView(role=role, text=truncate(text, MAX_CHARACTERS))
                for role, text in messages
            )
            fields[step] = {"messages": tuple(views), "n_messages": len(transcript.prompts[step])}
    return fields


def _token_counts(
    transcript: Transcript | None, place: int, sampled: Sampled | None
) -> dict[str, int]:
    """Return the token counts of a step, as reported by the model or from the sampled tokens."""
    prompt, completion = transcript.tokens[place] if transcript is not None else (0, 0)
    if not completion and isinstance(sampled, TokensSampled):
        prompt, completion = len(sampled.prompt_ids or ()), len(sampled.ids)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion}
    return {name: count for name, count in counts.items() if count}


def _choice_views(decision: ChoicesMade) -> tuple[ChoiceView, ...]:
    if len(decision.logprobs) == len(decision.choices):
        known = dict(enumerate(decision.logprobs))
    else:
        known = {decision.taken: decision.logprobs[0]} if decision.logprobs else {}
    return tuple(
        ChoiceView(text=text, probability=math.exp(known[place]) if place in known else None)
        for place, text in enumerate(decision.choices)
    )


def _token_views(sampled: TokensSampled, texts: Mapping[int, str]) -> tuple[TokenView, ...]:
    return tuple(
        TokenView(text=texts.get(id), id=id, logprob=logprob)
        for id, logprob in zip(sampled.ids, sampled.logprobs, strict=True)
    )


def _float_or_none(advantages: float | Sequence[float] | None) -> float | None:
    return float(advantages) if isinstance(advantages, (int, float)) else None


def _item_or_none(values: Sequence[Any] | None, place: int) -> Any:
    return values[place] if values is not None and place < len(values) else None


def tools_of(episode: Trajectory | EvalTrajectory) -> tuple[str, ...]:
    """Return a line for each function that an episode's model could call.

    A line such as ``move(path: string, force?: boolean): Move a file.`` contains the function's
    name, its parameters and its description; a question mark denotes an optional parameter.
    """
    lists = episode.transcript.tools if episode.transcript is not None else ()
    try:
        functions = [tool["function"] for text in lists for tool in json.loads(text)]
        return tuple(dict.fromkeys(map(_signature, functions)))
    except (ValueError, KeyError, TypeError, AttributeError):
        return lists  # another form of tools


def _signature(function: Mapping[str, Any]) -> str:
    schema = function.get("parameters") or {}
    required = schema.get("required") or ()
    parameters = ", ".join(
        f"{name}{'' if name in required else '?'}: {one.get('type', 'any')}"
        for name, one in (schema.get("properties") or {}).items()
    )
    return f"{function['name']}({parameters}): {function.get('description', '')}".removesuffix(": ")


def system_text(
    policy: PolicySettings,
    benchmark: str,
    about: Mapping[str, Any],
    episode: Trajectory | EvalTrajectory,
    instruction: str,
) -> str | None:
    """Return an episode's system prompt, or None if it is not known for certain.

    The stored prompt is returned as it was sent. Without one, it is made from the prompt file.

    Args:
        policy: settings of the policy.
        benchmark: name of the benchmark.
        about: the run's manifest or the evaluation's config, which contains the prompt file's
            hash.
        episode: the episode.
        instruction: the task's instruction.
    """
    if episode.transcript is not None:
        messages = next((prompt for prompt in episode.transcript.prompts if prompt), ())
        role, text = episode.transcript.messages[messages[0]] if messages else ("", "")
        return text if role == "system" else None
    try:
        prompt = prompt_of(policy, benchmark)
        known = about.get("prompt") or {}
        if prompt is None or known.get("hash") != prompt.hash or not episode.steps:
            return None
        first = episode.steps[0]
        view = View(instruction, first.shown, FrozenDict(first.extras))
        return (
            prompt.system_text(view, thinking=policy.chat.thinking, style=policy.chat.style) or None
        )
    except (CoevoError, TemplateError, OSError, ValueError, KeyError, AttributeError):
        return None  # the prompt file is missing or needs data that was not stored
