"""Settings of the explorer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.core.task import FrozenModel


class ExplorerConfig(FrozenModel):
    """The explorer, which goes back into the environment in a round."""

    kind: Literal["scripted", "model", "noisy"] = "scripted"
    """``scripted`` repeats part of the agent's way and goes on at random. A ``model`` studies the
    agent's way, tries things out, and proposes tasks. ``noisy``, for experiments, brings native
    training tasks, some of them broken, and no gate looks at them."""
    broken: float = Field(default=0.4, ge=0, le=1)
    """Share of its tasks that no episode can solve; of ``noisy`` only."""
    easy: float = Field(default=0.0, ge=0, le=1)
    """(noisy) Share of the first tasks that the initial policy already solves, picked by success in
    8 tries. None of them is broken."""
    walks: int = Field(default=2, ge=1)
    """Walks per context. The scripted explorer makes one walk of half the length when it has a
    target."""
    max_steps: int = Field(default=18, ge=1)
    """Most steps of a walk; also what ``noisy`` is charged for a task."""
    concurrency: int = Field(default=8, ge=1)
    """(model) Contexts that are explored at once."""
    temperature: float = Field(default=0.7, ge=0)
    """(model) What its logits are divided by; 0 is greedy. Walks without guidance, as for the first
    tasks, always take 1."""
    max_answer_tokens: int = Field(default=2048, ge=1)
    """(model) Most tokens of a summary, and of an answer with proposals."""
