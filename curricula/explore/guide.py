"""Guidance: what an explorer is told beyond what the env shows."""

from __future__ import annotations

from coevo_gym.core.evolution import Context, ContextBrief
from coevo_gym.core.trajectory import Cue
from coevo_gym.prompts.cue import load_cue

MAX_LISTED = 30
MAX_CHARS = 300


class Guide:
    """Turns why a context is explored, and what is known about it, into cues.

    Args:
        prompt: name of the prompt file.

    Raises:
        ConfigError: if there is no such file.
    """

    def __init__(self, prompt: str) -> None:
        self.prompt = load_cue(prompt)

    def __call__(self, context: Context, brief: ContextBrief | None) -> tuple[Cue, ...]:
        """What is told to whoever explores a context."""
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
