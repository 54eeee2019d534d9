"""Storage for a policy's sampled choices and tokens, and for the advantages used in training.

The data is for inspection only and never read back into training, so numbers are rounded. Lists of
choices and prompts are stored once, like other long texts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import (
    ChoiceDecision,
    EvalTrajectory,
    TokenDecision,
    Trajectory,
)

DIGITS = 4
"""Number of decimal places in stored log-probabilities."""

Spell = Callable[[Sequence[int]], str]
"""Function that decodes token ids to text, including special tokens."""
Keep = Callable[[str], Any]
"""Function that stores a string and returns a JSON reference to it."""


class ChoicesMade(NamedTuple):
    """A stored choice that a policy made among candidate actions.

    Attributes:
        choices: the candidates.
        taken: index of the chosen candidate.
        logprobs: log-probability of each candidate, or only of the chosen candidate if the others
            are unknown.
        policy_version: version of the weights that made the choice.
    """

    choices: tuple[str, ...]
    taken: int
    logprobs: tuple[float, ...]
    policy_version: int


class TokensSampled(NamedTuple):
    """The tokens that a policy sampled for an answer.

    Attributes:
        ids: token ids.
        logprobs: log-probability of each token at sampling.
        told: text added to the prompt before the tokens, including chat template markers; None if
            it could not be decoded.
        policy_version: version of the weights that sampled the tokens.
        prompt_ids: token ids of the whole prompt; None if an older version stored the tokens.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    told: str | None
    policy_version: int
    prompt_ids: tuple[int, ...] | None = None


Sampled = ChoicesMade | TokensSampled
SAMPLED = "sampled"
"""Key of the decisions in an evaluation episode's stored JSON."""


def sampled_to_json(
    trajectory: Trajectory | EvalTrajectory, keep: Keep, spell: Spell | None
) -> list[Any] | None:
    """Convert a trajectory's decisions to JSON. Return None if no step has a decision.

    ``keep`` stores long texts, and ``spell`` decodes tokens, if it is available.
    """
    rows: list[Any] = []
    before: tuple[int, ...] = ()
    for step in trajectory.steps:
        decision = step.decision
        if isinstance(decision, ChoiceDecision):
            rows.append(_choice_to_json(decision, keep))
        elif isinstance(decision, TokenDecision):
            prompt = _new_prompt_text(decision, before, spell)
            shared = _count_shared(before, decision.prompt_ids)
            rows.append(
                {
                    "shared": shared,
                    "prompt": decision.prompt_ids[shared:],
                    "ids": decision.ids,
                    "logprobs": _round_values(decision.logprobs),
                    "told": None if prompt is None else keep(prompt),
                    "version": decision.policy_version,
                }
            )
            before = decision.prompt_ids + decision.ids
        else:
            rows.append(None)
    return rows if any(rows) else None


def sampled_from_json(steps: Sequence[Any], text: Callable[[Any], str]) -> list[Sampled | None]:
    """Convert the result of :func:`sampled_to_json` back to decisions.

    ``text`` returns the text for a JSON reference.
    """
    decisions = list[Sampled | None]()
    before: tuple[int, ...] | None = ()
    for step in steps:
        if step is None:
            decisions.append(None)
        elif "choices" in step:
            choices = tuple(json.loads(text(step["choices"])))
            numbers = tuple(step["logprobs"])
            decisions.append(ChoicesMade(choices, step["taken"], numbers, step["version"]))
        else:
            prompt_ids = None
            if before is not None and "prompt" in step:
                prompt_ids = before[: step["shared"]] + tuple(step["prompt"])
            ids, prompt = tuple(step["ids"]), step["told"]
            before = None if prompt_ids is None else prompt_ids + ids
            prompt = None if prompt is None else text(prompt)
            decisions.append(
                TokensSampled(ids, tuple(step["logprobs"]), prompt, step["version"], prompt_ids)
            )
    return decisions


def sampled_ids(trajectory: Trajectory) -> set[int]:
    """Return the ids of all tokens sampled in an episode."""
    decisions = (step.decision for step in trajectory.steps)
    return {id for one in decisions if isinstance(one, TokenDecision) for id in one.ids}


def mean_and_json_of_advantages(advantage: Advantage) -> tuple[float, str]:
    """Return the mean advantage and the advantages as JSON: one number, or one per step."""
    if not isinstance(advantage, Sequence):
        return float(advantage), json.dumps(round(advantage, DIGITS))
    steps = [fmean(one) if isinstance(one, Sequence) else float(one) for one in advantage]
    mean = fmean(steps) if steps else 0.0
    return mean, json.dumps([round(one, DIGITS) for one in steps])


def replace_surrogates(text: str) -> str:
    """Replace each lone surrogate with a question mark, because UTF-8 cannot encode surrogates."""
    return text.encode("utf-8", "replace").decode()


def _choice_to_json(decision: ChoiceDecision, keep: Keep) -> Mapping[str, Any]:
    return {
        "choices": keep(json.dumps(decision.choices)),
        "taken": decision.index,
        "logprobs": _round_values(decision.logprobs or (decision.logprob,)),
        "version": decision.policy_version,
    }


def _new_prompt_text(
    decision: TokenDecision, before: tuple[int, ...], spell: Spell | None
) -> str | None:
    """Return the part of a prompt that follows the previous prompt and answer."""
    if spell is None:
        return None
    goes_on = decision.prompt_ids[: len(before)] == before
    prompt = spell(decision.prompt_ids[len(before) :] if goes_on else decision.prompt_ids)
    return replace_surrogates(prompt)


def _count_shared(before: Sequence[int], prompt: Sequence[int]) -> int:
    """Return the number of leading tokens that a prompt shares with the tokens before it."""
    pairs = zip(before, prompt, strict=False)
    shortest = min(len(before), len(prompt))
    return next((place for place, (a, b) in enumerate(pairs) if a != b), shortest)


def _round_values(values: Sequence[float]) -> list[float]:
    return [round(value, DIGITS) for value in values]
