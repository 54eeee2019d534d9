"""Predictions that the agent writes into the answer that holds its action."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from coevo_gym.core.seams import Guidance, Ticket
from coevo_gym.core.trajectory import Cue, Group, Trajectory
from coevo_gym.methods.role_agent.predictors import Made, numbered_texts
from coevo_gym.prompts.cue import load_cue

PROMPT = "role_agent/inline"
"""Name of the words that ask for predictions in every answer."""
_TAG = re.compile(r'<predict_next(?: n="(\d{1,3})")?>(.*?)</predict_next>', re.DOTALL)


class InlineCoach:
    """Asks for predictions in every answer of a training episode; what is said is trained on.

    Args:
        horizon: H, observations to predict per step.
    """

    def __init__(self, horizon: int) -> None:
        prompt = load_cue(PROMPT)
        text = prompt.write({"horizon": horizon})
        self._guidance = Guidance(cues=(Cue(text, place="turn", id=prompt.label),))

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """See :class:`~coevo_gym.core.seams.Coach`."""
        return [self._guidance] * len(tickets)


class InlinePredictor:
    """Reads the predictions that the agent wrote beside its actions; it asks nothing.

    Args:
        horizon: H, observations to predict per step.

    Source: the code of Role-Agent, with one tag for each observation ahead.
    """

    source: Literal["model"] = "model"

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """See :class:`~coevo_gym.methods.role_agent.predictors.Predictor`."""
        return Made([[written(step.said, self.horizon) for step in one.steps] for one in asked])


def written(said: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, the next observation's first; "" where one is missing.

    A tag without a number is of the next observation; of equal numbers the last one counts.

    Example:
        >>> written('<predict_next n="1">a door</predict_next><action>open it</action>', 2)
        ['a door', '']
    """
    return numbered_texts(_TAG, said, horizon)
