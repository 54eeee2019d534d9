"""Settings of the explorer."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from coevo_gym.core.task import FrozenModel


class ExplorerConfig(FrozenModel):
    """The explorer, which revisits the env in each round."""

    kind: Literal["scripted", "model", "noisy"] = "scripted"
    """``scripted`` repeats part of the agent's path and continues with random actions. ``model``
    studies the agent's path, tries things out, and proposes tasks. ``noisy`` is for experiments: it
    supplies native training tasks, a share of them broken, without any gates."""
    broken: float = Field(default=0.4, ge=0, le=1)
    """(noisy) Share of its tasks that no episode can solve."""
    easy: float = Field(default=0.0, ge=0, le=1)
    """(noisy) Share of the first tasks that the initial policy already solves, picked by success in
    8 tries. None of them is broken."""
    walks: int = Field(default=2, ge=1)
    """Walks per context. The scripted explorer makes one walk of half the length when it has a
    target."""
    max_steps: int = Field(default=18, ge=1)
    """Maximum steps per walk. ``noisy`` is charged this many steps per task."""
    concurrency: int = Field(default=8, ge=1)
    """(model) Number of contexts explored at once."""
    temperature: float = Field(default=0.7, ge=0)
    """(model) Sampling temperature; 0 is greedy. Walks without guidance, as for the first tasks,
    always use 1."""
    max_answer_tokens: int = Field(default=2048, ge=1)
    """(model) Maximum tokens per summary and per answer with proposals."""
