"""Guidance: what an explorer is told beyond what the env shows."""

from __future__ import annotations

from functools import cached_property

from coevo_gym.core.evolution import Context, ContextBrief
from coevo_gym.core.spaces import spaced
from coevo_gym.core.trajectory import Cue
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.prompts.cue import CuePrompt, load_cue

MAX_LISTED = 30
MAX_CHARS = 300


class Guide:
    """Turns why a context is explored, and what is known about it, into cues.

    Args:
        prompt: name of the prompt file.
        target: name of the one for contexts with a target; read when the first of them comes.

    Raises:
        ConfigError: if there is no such file.
    """

    def __init__(self, prompt: str, target: str) -> None:
        self.prompt = load_cue(prompt)
        self._target = target

    @cached_property
    def target(self) -> CuePrompt:
        """The words for contexts with a target."""
        return load_cue(self._target)

    def __call__(self, context: Context, brief: ContextBrief | None) -> tuple[Cue, ...]:
        """What is told to whoever explores a context."""
        if context.target:
            named = [
                {"kind": spaced(kind_of_tag(tag)), "value": value_of_tag(tag)}
                for tag in context.target
            ]
            told = self.target.write({"target": named})
            return (Cue(told, place="system", id=self.target.label),)
        text = self.prompt.write(
            {
                "kind": context.kind,
                "brief": None if brief is None else brief.model_dump(mode="json"),
                "success": context.success,
                "actions": _listed(context.actions),
                "contrast": _listed(context.contrast),
            }
        )
        return (Cue(text, place="system", id=self.prompt.label),)


def _listed(actions: tuple[str, ...]) -> list[str]:
    """Actions one line each, long ones cut."""
    lines = [" ".join(action.split()) for action in actions[:MAX_LISTED]]
    return [line if len(line) <= MAX_CHARS else f"{line[:MAX_CHARS]}…" for line in lines]
