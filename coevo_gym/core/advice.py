"""Advice that is stored in a memory and may be added to prompts in later training episodes."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field, model_validator

from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, Text


class AdviceOrigin(FrozenModel):
    """The text of a piece of advice and the rollout it comes from.

    Attributes:
        texts: texts by name, such as a description of suitable tasks and the recommended actions.
        task_id: id of the rollout's task.
        group_id: id of the rollout's group.
        index: 0 … K - 1, the rollout's index in its group.
        source: author or reason, in a format chosen by the memory.

    Raises:
        SplitLeakError: if a text is an exported episode on a held-out task.
    """

    texts: JsonObject = FrozenDict()
    task_id: str
    group_id: str
    index: int = Field(ge=0)
    source: Text = ""

    @model_validator(mode="after")
    def _refuse_held_out(self) -> AdviceOrigin:
        refuse_marked(self.texts, "become advice", "A text")
        return self


class AdviceState(FrozenModel):
    """The state of a piece of advice at the end of a learner step.

    Attributes:
        id: id of the advice; the cues of episodes that get the advice contain it
            (:func:`advice_ids`).
        held: True if the memory contains the advice.
        why: reason for dropping it, or "".
        utility: usefulness measured so far, in [-1, 1]; None until it is measured.
        groups: number of groups that the utility is measured on.
        origin: its text and its rollout; only set in the step that adds the advice to the memory.
    """

    id: str = Field(min_length=1)
    held: bool = True
    why: Text = ""
    utility: float | None = None
    groups: int = Field(default=0, ge=0)
    origin: AdviceOrigin | None = None


def advice_ids(cue_ids: Sequence[str]) -> tuple[str, ...]:
    """Extract the advice ids from a sequence of cue ids.

    Example:
        >>> advice_ids(("recover", "exp:a1,b2"))
        ('recover', 'a1', 'b2')
    """
    groups = (id.rpartition(":")[2].split(",") for id in cue_ids)
    return tuple(dict.fromkeys(id for ids in groups for id in ids if id))
