"""Guidance: what an explorer is told beyond what the env shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from coevo_gym.core.evolution import Context, ContextBrief
from coevo_gym.core.spaces import spaced
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Cue
from coevo_gym.curricula.growth.evidence import evidence_cut
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.prompts.cue import CuePrompt, load_cue

MAX_CHARS = 1_500
"""Most characters of an action in a list."""
LISTED_CHARS = 12_000
"""Most characters of a list of actions."""
EARLIER_CHARS = 4_000
"""Most characters of the list of an earlier walk's actions."""


MIN_SAME = 2
"""Fewest lines that are left out where two attempts part."""


class Guide:
    """Turns why a context is explored, and what is known about it, into cues.

    Args:
        prompt: name of the prompt file.
        target: name of the one for contexts with a target; read when the first of them comes.
        n_actions: actions that an explorer has in a walk, at least 1.
        tasks: what makes a task valid in the env, in words; "" if nobody says.
        told: more inputs, for a file that declares them; names that a guide fills in are its own.

    Raises:
        ConfigError: if there is no such file.
    """

    def __init__(
        self,
        prompt: str,
        target: str,
        *,
        n_actions: int,
        tasks: str = "",
        told: Mapping[str, Any] = FrozenDict(),
    ) -> None:
        self.prompt = load_cue(prompt)
        self._target, self._told = target, told
        self._room = {"n_actions": n_actions, "done_by": max(1, n_actions - 2), "tasks": tasks}

    @cached_property
    def target(self) -> CuePrompt:
        """The words for contexts with a target."""
        return load_cue(self._target)

    def __call__(
        self,
        context: Context,
        brief: ContextBrief | None,
        earlier: Sequence[Sequence[str]] = (),
    ) -> tuple[Cue, ...]:
        """Return what an explorer of a context is told.

        Args:
            context: where it begins.
            brief: what a study of the context's rollout says; None without one.
            earlier: the actions of each walk that has begun there before.
        """
        told = {
            **self._room,
            "known": context.known,
            "earlier": [listed(actions, cap=EARLIER_CHARS) for actions in earlier],
        }
        if context.target:
            prompt, told = self.target, {**told, "target": _named(context.target)}
        else:
            prompt = self.prompt
            told |= {
                "kind": context.kind,
                "brief": None if brief is None else brief.model_dump(mode="json"),
                "success": context.success,
                "attempt": listed(context.actions, context.contrast),
                "contrast": contrasting(context.actions, context.contrast),
                "near": _named(context.near),
            }
        told = {**prompt.declared(self._told), **told}
        return (Cue(prompt.write(told), place="system", id=prompt.label),)


def _named(tags: Sequence[str]) -> list[dict[str, str]]:
    return [{"kind": spaced(kind_of_tag(tag)), "value": value_of_tag(tag)} for tag in tags]


def listed(
    actions: Sequence[str], other: Sequence[str] = (), *, first: int = 0, cap: int = LISTED_CHARS
) -> list[dict[str, Any]]:
    r"""Actions with their numbers from 1, each as it is up to :data:`MAX_CHARS` characters.

    Args:
        actions: what was done.
        other: what was done in another attempt. Of the action at which the two part, the lines
            that are the same in both are left out.
        first: place of the first action that is listed.
        cap: most characters in all; the ones that do not fit are left out.

    Example:
        >>> listed(["a = 1\nb = 2\nc = 3"], ["a = 1\nb = 2\nc = 4"])
        [{'number': 1, 'text': '… (2 lines that are the same in both)\nc = 3'}]
    """
    apart = parting(actions, other) if other else -1
    texts = []
    for place, action in enumerate(actions):
        if place == apart and place < len(other):
            action = _from_the_difference(action, other[place])
        texts.append(action if len(action) <= MAX_CHARS else f"{action[:MAX_CHARS]}…")
    kept = evidence_cut([len(text) for text in texts[first:]], cap)
    return [{"number": first + place + 1, "text": texts[first + place]} for place in kept]


def contrasting(actions: Sequence[str], contrast: Sequence[str]) -> list[dict[str, Any]]:
    """List an attempt that ended the other way, from where it parts from the first one."""
    return listed(contrast, actions, first=parting(actions, contrast)) if contrast else []


def parting(actions: Sequence[str], other: Sequence[str]) -> int:
    """Return how many first actions are the same in two attempts."""
    pairs = enumerate(zip(actions, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(actions), len(other)))


def _from_the_difference(action: str, other: str) -> str:
    """An action of several lines, without the first ones that another one has, too."""
    lines, others = action.splitlines(), other.splitlines()
    same = parting(lines, others)
    if same < MIN_SAME:
        return action
    rest = "\n".join(lines[same:]) or "(nothing follows)"
    return f"… ({same} lines that are the same in both)\n{rest}"
