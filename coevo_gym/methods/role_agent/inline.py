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
"""Name of the prompt that asks for predictions in every answer."""
_TAG = re.compile(r'<predict_next(?: n="(\d{1,3})")?>(.*?)</predict_next>', re.DOTALL)


class InlineCoach:
    """A coach that asks for predictions in every answer of a training episode; they are trained on.

    Args:
        horizon: H, observations to predict per step.
    """

    def __init__(self, horizon: int) -> None:
        prompt = load_cue(PROMPT)
        text = prompt.write({"horizon": horizon})
        self._guidance = Guidance(cues=(Cue(text, place="turn", id=prompt.label),))

    def guide(self, tickets: Sequence[Ticket]) -> list[Guidance]:
        """Return the request for predictions; see :class:`~coevo_gym.core.seams.Coach`."""
        return [self._guidance] * len(tickets)


class InlinePredictor:
    """A predictor that reads the predictions beside the agent's actions; it asks no questions.

    Args:
        horizon: H, observations to predict per step.

    Source: the code of Role-Agent, with one tag for each observation ahead.
    """

    source: Literal["model"] = "model"

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon

    def predict(self, asked: Sequence[Trajectory], groups: Sequence[Group]) -> Made:
        """Return the predictions written in the answers of each trajectory."""
        return Made([[written(step.said, self.horizon) for step in one.steps] for one in asked])


def written(said: str, horizon: int) -> list[str]:
    """Return the predictions in an answer, the next observation's first; "" where one is missing.

    A tag without a number predicts the next observation; of equal numbers the last one counts.

    Example:
        >>> written('<predict_next n="1">a box</predict_next><action>open it</action>', 2)
        ['a box', '']
    """
    return numbered_texts(_TAG, said, horizon)
