"""Settings for the gates that check new tasks."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from pydantic import Field, field_validator, model_validator

from coevo_gym.core.task import FrozenModel

OPTIONAL = frozenset(
    {
        "near_duplicate",
        "confidence",
        "lexical",
        "replay",
        "prefix",
        "empty_agent",
        "solve",
        "judge",
    }
)
"""Gates that an ablation may turn off. All other gates are required."""

_NEEDED = {
    "parse": "unreadable proposals could not be judged",
    "draft": "there would be nothing to build",
    "schema": "a draft could have the world of another benchmark",
    "split_leak": "validation or test tasks could be trained on",
    "build": "there would be no task and no verifier",
    "length": "trivial tasks would be accepted, and references would keep unnecessary steps",
    "duplicate": "one task could be trained on as if it were two",
    "substance": "tasks that give their answer away, or have no goal, would be accepted",
}
_ELSEWHERE = {
    "hold": "it applies the rules in gates.hold; remove them instead",
    "paper": "it is used only with gates.accept = 'paper'",
}


def describe_off_problem(off: Collection[str]) -> str | None:
    """Return an error message if any gate in ``off`` cannot be turned off, otherwise None."""
    wrong = sorted(set(off) - OPTIONAL)
    if not wrong:
        return None
    name = wrong[0]
    choice = f"Optional gates: {', '.join(sorted(OPTIONAL))}."
    if name in _NEEDED:
        return f"The gate {name!r} cannot be turned off: without it, {_NEEDED[name]}. {choice}"
    if name in _ELSEWHERE:
        return f"The gate {name!r} cannot be turned off: {_ELSEWHERE[name]}. {choice}"
    return f"Unknown gate {name!r}. {choice}"


class SolveConfig(FrozenModel):
    """Settings for trial episodes: a model tries each new task before the task is accepted.

    The verifier derived from the reference solution judges trial episodes, and their env steps are
    counted like all other env steps.
    """

    on: bool = False
    """Try new tasks before they are accepted."""
    solver: Literal["policy", "explorer"] = "policy"
    """Model that tries new tasks: the ``policy`` being trained, in its current state, or the
    ``explorer``'s model."""
    tries: int = Field(default=4, ge=1)
    """Trial episodes per task."""
    temperature: float = Field(default=0.7, ge=0)
    """Sampling temperature of the solver; 0 is greedy."""
    low: float = Field(default=0.0, ge=0, le=1)
    """Minimum share of successful attempts; at least one attempt must succeed in any case."""
    high: float = Field(default=1.0, ge=0, le=1)
    """Maximum share of successful attempts; values below 1 reject tasks that are always solved."""
    tip: bool = False
    """Show the reference solution to the solver. The attempts then show whether the task can be
    solved at all; without the reference solution, they show how hard the task is."""

    @model_validator(mode="after")
    def _check_order(self) -> SolveConfig:
        if self.low > self.high:
            raise ValueError(f"gates.solve: low ({self.low}) must not be above high ({self.high})")
        return self


class HoldConfig(FrozenModel):
    """Rules for holding new tasks for review (`coevo tasks review`) before training uses them.

    A task is held if it matches at least one rule.
    """

    benchmarks: tuple[str, ...] = ()
    """Names of benchmarks whose new tasks are all held."""
    first_of_scenario: bool = False
    """Hold a task if it is the first known task of its scenario."""
    below_confidence: float = Field(default=0.0, ge=0, le=1)
    """Hold a task if the model's confidence in it was below this value. 0: hold no tasks."""
    pattern: str = ""
    """Hold a task if its text or its reference solution matches this regular expression, ignoring
    case. "": hold no tasks."""

    @field_validator("pattern")
    @classmethod
    def _check_pattern(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a valid regular expression: {error}") from None
        return pattern


class SimilarityConfig(FrozenModel):
    """Settings for experiments that select new tasks by their similarity to existing tasks.

    One fifth of the native training tasks, chosen by a hash of their ids, is set aside for the
    comparison and not used for exploration. Unless ``bin`` is ``all``, a round keeps one third of
    its new tasks.
    """

    bin: Literal["all", "low", "mid", "high", "mixed"] = "all"
    """``all``: keep all tasks. ``low``, ``mid``, ``high``: keep the least, middle or most similar
    third. ``mixed``: keep one third, taken evenly from ``low``, ``mid`` and ``high``."""


class GatesConfig(FrozenModel):
    """Settings for the checks that a new task must pass before it is used for training."""

    off: tuple[str, ...] = ()
    """Gates to turn off, for ablations: any of near_duplicate, confidence, lexical, replay, prefix,
    empty_agent, solve and judge."""
    accept: Literal["verified", "paper"] = "verified"
    """``verified`` accepts tasks validated by execution. ``paper`` accepts a built task if a
    solver with the reference solution in its prompt scores above 0, or if the solver finishes and a
    judge confirms success. ``paper`` is a weaker check, intended only for comparisons."""
    confidence: float = Field(default=0.7, ge=0, le=1)
    """Minimum confidence that a model must have in its proposal."""
    lexical: float | None = Field(default=None, gt=0, le=1)
    """Reject a task if it shares at least this fraction of its words (Jaccard index, such as 0.8)
    with a known instruction in the scenario. None: reject a task only if all words are the same."""
    solve: SolveConfig = SolveConfig()
    """Trial episodes on new tasks before they are accepted."""
    judge: bool = False
    """Ask a model whether the reference solution fulfils the instruction. The model may reject the
    task. The model's answer is stored, but never affects rewards."""
    hold: HoldConfig = HoldConfig()
    """Rules for holding new tasks for review."""
    similarity: SimilarityConfig = SimilarityConfig()
    """Settings for selecting new tasks by similarity to native tasks."""

    @field_validator("off")
    @classmethod
    def _check_off(cls, off: tuple[str, ...]) -> tuple[str, ...]:
        if problem := describe_off_problem(off):
            raise ValueError(problem)
        return off

    def has_gate(self, gate: str) -> bool:
        """Return True if the settings include the given gate."""
        wanted = {
            "lexical": self.lexical is not None,
            "solve": self.solve.on,
            "judge": self.judge,
            "hold": self.hold != HoldConfig(),
        }
        return wanted.get(gate, True) and gate not in self.off
