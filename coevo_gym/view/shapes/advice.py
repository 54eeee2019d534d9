"""Advice that an arm's memories hold: texts that some of its training episodes are told."""

from __future__ import annotations

from pydantic import Field

from coevo_gym.view.shapes.base import Shape, TaskBrief


class AdviceText(Shape):
    """The text of a piece of advice.

    Attributes:
        id: id of the advice.
        texts: its texts by name, possibly cut.
    """

    id: str
    texts: dict[str, str] = Field(default_factory=dict)


class AdviceRow(AdviceText):
    """A piece of advice with its origin, and its usefulness over the arm's steps.

    Attributes:
        memory: name of the memory that holds or held it.
        source: author or reason, in the memory's own words.
        task: task of the rollout that it comes from.
        episode: id of that rollout, used in paths; null if it is not stored.
        step: learner step in which the memory took it in.
        held: true if the memory still holds it.
        why: reason for dropping it, or "".
        utility: latest usefulness in [-1, 1]; null until it is measured.
        groups: number of groups that the usefulness is measured on.
        steps: learner steps in which it was measured.
        utilities: usefulness at the end of each of these steps.
    """

    memory: str
    source: str = ""
    task: TaskBrief
    episode: str | None = None
    step: int
    held: bool = True
    why: str = ""
    utility: float | None = None
    groups: int = 0
    steps: tuple[int, ...] = ()
    utilities: tuple[float, ...] = ()


class ArmAdvice(Shape):
    """The advice of an arm; empty if no memory of it holds any.

    Attributes:
        arm: name of the arm.
        held: number of pieces of advice that its memories hold.
        dropped: numbers of dropped ones, by reason.
        rows: held ones first, each in order of utility, those without one last.
        left: number of rows omitted because there are too many.
    """

    arm: str
    held: int = 0
    dropped: dict[str, int] = Field(default_factory=dict)
    rows: tuple[AdviceRow, ...] = ()
    left: int = 0
