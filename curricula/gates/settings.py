"""Settings of the gates."""

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
"""The gates that an ablation may leave out. The others cannot be turned off."""

_NEEDED = {
    "parse": "what cannot be read could not be judged",
    "draft": "there would be nothing to build",
    "schema": "what is built might be no task of this benchmark",
    "split_leak": "validation or test tasks could be trained on",
    "build": "there would be no task, and nothing to verify it by",
    "length": "one press of a button would be a task, and references would keep needless steps",
    "duplicate": "one task would be practised as two",
    "substance": "tasks that give their answer away, or ask for nothing, would be accepted",
}
_ELSEWHERE = {
    "hold": "it holds only what the rules in gates.hold say; leave them out",
    "paper": "it is there with gates.accept = 'paper' alone",
}


def not_optional(off: Collection[str]) -> str | None:
    """Why one of the gates cannot be turned off, in words; None if all of them can be."""
    wrong = sorted(set(off) - OPTIONAL)
    if not wrong:
        return None
    name = wrong[0]
    choice = f"Those that can be are {', '.join(sorted(OPTIONAL))}."
    if name in _NEEDED:
        return f"The gate {name!r} cannot be turned off: without it {_NEEDED[name]}. {choice}"
    if name in _ELSEWHERE:
        return f"The gate {name!r} cannot be turned off: {_ELSEWHERE[name]}. {choice}"
    return f"There is no gate {name!r} to turn off. {choice}"


class SolveConfig(FrozenModel):
    """Whether somebody tries each new task before it is accepted, and how often it may be solved.

    Tries are judged by the verifier that was derived from the reference, and their env steps are
    counted like all others.
    """

    on: bool = False
    """Whether new tasks are tried."""
    solver: Literal["policy", "explorer"] = "policy"
    """Who tries: the ``policy`` under training as it is then, or the ``explorer``'s model."""
    tries: int = Field(default=4, ge=1)
    """Episodes of each task."""
    temperature: float = Field(default=0.7, ge=0)
    """What the solver's logits are divided by; 0 is greedy."""
    low: float = Field(default=0.0, ge=0, le=1)
    """Lowest share of tries that solve it; one try has to in any case."""
    high: float = Field(default=1.0, ge=0, le=1)
    """Highest share of tries that solve it; below 1, tasks that are always solved are rejected."""
    tip: bool = False
    """Whether the solver is shown the reference. With it, tries tell whether the task can be done
    at all; without it, how hard it is."""

    @model_validator(mode="after")
    def _in_order(self) -> SolveConfig:
        if self.low > self.high:
            raise ValueError(f"gates.solve: low is {self.low}, above high, {self.high}")
        return self


class HoldConfig(FrozenModel):
    """Which new tasks wait for a person (`coevo tasks review`) before anybody practises them.

    A task waits if one of the rules that are set asks for it.
    """

    benchmarks: tuple[str, ...] = ()
    """Names of benchmarks all of whose new tasks wait."""
    first_of_scenario: bool = False
    """Whether a task waits that is the first known one of its scenario."""
    below_confidence: float = Field(default=0.0, ge=0, le=1)
    """Tasks wait whose model was less sure of them than this; 0 for none."""
    pattern: str = ""
    """Tasks wait whose words or reference hold this regular expression, in any case of letters; ""
    for none."""

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        return pattern


class SimilarityConfig(FrozenModel):
    """Which of a round's new tasks are kept, by how much they are like native training tasks.

    They are compared with a fifth of the native training tasks, set aside by a hash of their ids:
    nothing is explored from those. A round then keeps a third of what it has found, so this is for
    experiments.
    """

    bin: Literal["all", "low", "mid", "high", "mixed"] = "all"
    """``all`` of them, the third that is least like them (``low``), the ``mid`` one, the one that
    is most like them (``high``), or as many that are ``mixed``."""


class GatesConfig(FrozenModel):
    """What a new task has to pass before anybody practises it."""

    off: tuple[str, ...] = ()
    """Gates to leave out, for ablations: any of near_duplicate, confidence, lexical, replay,
    prefix, empty_agent, solve and judge."""
    accept: Literal["verified", "paper"] = "verified"
    """``verified`` accepts what execution proves. ``paper`` accepts what is built and what a solver
    that is shown the reference ends, if a judge says that it has succeeded or its score is above 0.
    It proves less, and is for comparisons only."""
    confidence: float = Field(default=0.7, ge=0, le=1)
    """So sure a model has to be of what it proposes."""
    lexical: float | None = Field(default=None, gt=0, le=1)
    """Share of words in common (Jaccard) with a known instruction of the scenario from which on a
    task is rejected, such as 0.8; none to reject only those that repeat all of them."""
    solve: SolveConfig = SolveConfig()
    """Tries of new tasks."""
    judge: bool = False
    """Whether a model is asked if the reference does what the words ask for. It may reject, and its
    answer is kept; nothing is ever rewarded by it."""
    hold: HoldConfig = HoldConfig()
    """New tasks that wait for a person."""
    similarity: SimilarityConfig = SimilarityConfig()
    """New tasks that are kept by how much they are like native ones."""

    @field_validator("off")
    @classmethod
    def _can_be_off(cls, off: tuple[str, ...]) -> tuple[str, ...]:
        if problem := not_optional(off):
            raise ValueError(problem)
        return off

    def has(self, gate: str) -> bool:
        """Whether a gate that may be left out, or is only there if it is set, is there."""
        wanted = {
            "lexical": self.lexical is not None,
            "solve": self.solve.on,
            "judge": self.judge,
            "hold": self.hold != HoldConfig(),
        }
        return wanted.get(gate, True) and gate not in self.off
