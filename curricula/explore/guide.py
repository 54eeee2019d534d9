"""Prompts and starting points for explorers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.evolution import Context, ContextBrief
from coevo_gym.core.spaces import name_to_words
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Cue, View
from coevo_gym.curricula.growth.evidence import choose_exchanges
from coevo_gym.curricula.signals import UNGUIDED
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.prompts.template import CuePrompt, load_cue

PREFERENCE = 4.0
"""Factor by which each target word in a choice increases the choice's probability."""
MAX_WORDS = 2
"""Maximum number of target words counted per choice, as long choices contain many by chance."""
_WORD = re.compile(r"[^\W\d_]{3,}")


def hides_request(context: Context) -> bool:
    """Return True if a context hides the request of its task from explorers."""
    return bool(context.target) or context.kind == UNGUIDED


def task_to_explore(benchmark: Benchmark, context: Context) -> Task:
    """Return the task to explore; for a context with a target, without its goal if possible."""
    if context.target and hasattr(benchmark, "open"):
        task: Task = benchmark.open(context.task)
        return task
    return context.task


class Aim:
    """A weighting that favours choices that mention the exploration target.

    It sees the same choices as a policy whose instruction mentions the target, and nothing more.

    Args:
        choices: returns the actions available in a view, such as ``benchmark.choices``.

    Example:
        >>> aim = Aim(lambda view: ("go to desk 1", "take mug 1"), ("object:mug",))
        >>> aim.weights(("go to desk 1", "take mug 1")).tolist()
        [1.0, 4.0]
    """

    def __init__(self, choices: Callable[[View], Sequence[str]], target: Sequence[str]) -> None:
        self._choices = choices
        values = [value_of_tag(tag) for tag in target]
        self.request = ", ".join(values)
        self.words = frozenset(word for value in values for word in _words(value))

    def choices(self, view: View) -> Sequence[str]:
        """Return the actions available in a view."""
        return self._choices(replace(view, instruction=self.request))

    def weights(self, choices: Sequence[str]) -> np.ndarray:
        """Return the relative probability of each choice."""
        overlaps = [len(self.words & _words(choice)) for choice in choices]
        return PREFERENCE ** np.minimum(overlaps, MAX_WORDS)

    def draw(self, choices: Sequence[str], rng: Generator) -> str:
        """Draw one of the choices according to their weights."""
        weights = self.weights(choices)
        return choices[int(rng.choice(len(choices), p=weights / weights.sum()))]


def _words(text: str) -> frozenset[str]:
    """Return the lowercase words in a string, with camel-case names split."""
    return frozenset(_WORD.findall(f"{text} {name_to_words(text)}".lower()))


MAX_CHARS = 1_500
"""Maximum length of an action in a list, in characters."""
LISTED_CHARS = 12_000
"""Maximum length of a list of actions, in characters."""
EARLIER_CHARS = 4_000
"""Maximum length of the list of an earlier walk's actions, in characters."""


MIN_SAME = 2
"""Minimum number of shared leading lines to omit where two attempts diverge."""


class Guide:
    """A guide that writes explorers' cues, based on the agent's weaknesses and the known tasks.

    Args:
        prompt: name of the prompt file.
        target: name of the prompt file for contexts with a target, which is loaded on first use.
        n_actions: maximum number of actions per walk, at least 1.
        tasks: text that explains which tasks are valid in the env; "" if the benchmark has none.
        inputs: more inputs for the prompt files; they cannot replace the guide's own inputs. Each
            file gets the inputs that it declares.

    Raises:
        ConfigError: if the prompt file does not exist.
    """

    def __init__(
        self,
        prompt: str,
        target: str,
        *,
        n_actions: int,
        tasks: str = "",
        inputs: Mapping[str, Any] = FrozenDict(),
    ) -> None:
        self.prompt = load_cue(prompt)
        self._target, self._told = target, inputs
        self._room = {"n_actions": n_actions, "done_by": max(1, n_actions - 2), "tasks": tasks}

    @cached_property
    def target_prompt(self) -> CuePrompt:
        """The prompt for contexts with a target."""
        return load_cue(self._target)

    def __call__(
        self,
        context: Context,
        brief: ContextBrief | None,
        earlier: Sequence[Sequence[str]] = (),
    ) -> tuple[Cue, ...]:
        """Return the cues for an agent that explores a context.

        Args:
            context: the context to explore from.
            brief: a model's analysis of the context's rollout; None without one.
            earlier: the actions of each earlier walk from this context.
        """
        own = {
            **self._room,
            "known": context.known,
            "earlier": [list_actions(actions, cap=EARLIER_CHARS) for actions in earlier],
        }
        if context.target:
            prompt, own = self.target_prompt, {**own, "target": _split_tags(context.target)}
        else:
            prompt = self.prompt
            own |= {
                "kind": context.kind,
                "brief": None if brief is None else brief.model_dump(mode="json"),
                "success": context.success,
                "attempt": list_actions(context.actions, context.contrast),
                "contrast": list_contrast(context.actions, context.contrast),
                "near": _split_tags(context.near),
            }
        inputs = prompt.declared_inputs({**self._told, **own})
        return (Cue(prompt.render_cue(inputs), place="system", id=prompt.label),)


def _split_tags(tags: Sequence[str]) -> list[dict[str, str]]:
    return [{"kind": name_to_words(kind_of_tag(tag)), "value": value_of_tag(tag)} for tag in tags]


def list_actions(
    actions: Sequence[str], other: Sequence[str] = (), *, first: int = 0, cap: int = LISTED_CHARS
) -> list[dict[str, Any]]:
    r"""List actions, numbered from 1 and truncated to :data:`MAX_CHARS` characters each.

    Args:
        actions: the actions.
        other: the actions of another attempt. In the action where the two attempts diverge, leading
            lines that both share are omitted.
        first: index of the first action to list.
        cap: maximum number of characters in total; actions that do not fit are omitted.

    Example:
        >>> list_actions(["a = 1\nb = 2\nc = 3"], ["a = 1\nb = 2\nc = 4"])
        [{'number': 1, 'text': '… (2 lines that are the same in both)\nc = 3'}]
    """
    apart = common_prefix_length(actions, other) if other else -1
    texts = []
    for place, action in enumerate(actions):
        if place == apart and place < len(other):
            action = _drop_shared_lines(action, other[place])
        texts.append(action if len(action) <= MAX_CHARS else f"{action[:MAX_CHARS]}…")
    places = choose_exchanges([len(text) for text in texts[first:]], cap)
    return [{"number": first + place + 1, "text": texts[first + place]} for place in places]


def list_contrast(actions: Sequence[str], contrast: Sequence[str]) -> list[dict[str, Any]]:
    """List the other attempt's actions from the point where the two attempts diverge."""
    if not contrast:
        return []
    return list_actions(contrast, actions, first=common_prefix_length(actions, contrast))


def common_prefix_length(actions: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of leading actions that two attempts share."""
    pairs = enumerate(zip(actions, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(actions), len(other)))


def _drop_shared_lines(action: str, other: str) -> str:
    """Return a multi-line action without the leading lines that it shares with another action."""
    lines, others = action.splitlines(), other.splitlines()
    same = common_prefix_length(lines, others)
    if same < MIN_SAME:
        return action
    rest = "\n".join(lines[same:]) or "(nothing follows)"
    return f"… ({same} lines that are the same in both)\n{rest}"
