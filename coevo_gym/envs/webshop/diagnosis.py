"""Why an episode failed, from the actions that were impossible and the parts of the score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.trajectory import EvalTrajectory, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis, TurnLabel, diagnosis_of, first_that_applies

_CHOSEN = ("webshop.r_option", "webshop.r_att", "webshop.r_price")


def diagnose(episode: Trajectory | EvalTrajectory) -> Diagnosis:
    """The label of an episode; the first that applies of those that a failure may have.

    ``empty_turn_model_response``: nothing was done. ``invalid_tool_call``: an action could not be
    read, or was impossible. ``missing_tool_call``: nothing was bought. ``argument_mismatch``: the
    options, the attributes or the price are not those asked for. ``state_mismatch``: it is another
    kind of product.
    """
    report = episode.report
    label = first_that_applies(
        (
            (episode.success, TurnLabel.PASS),
            (not episode.steps, TurnLabel.EMPTY_TURN),
            (any(step.error_kind for step in episode.steps), TurnLabel.INVALID_TOOL_CALL),
            ("webshop.r_type" not in report, TurnLabel.MISSING_TOOL_CALL),
            (any(_short(report, part) for part in _CHOSEN), TurnLabel.ARGUMENT_MISMATCH),
        )
    )
    return diagnosis_of([label], success=episode.success)


def _short(report: Mapping[str, Any], part: str) -> bool:
    """Whether a part of the score was asked for and is not full; -1 stands for nothing asked."""
    share = report.get(part, -1.0)
    return isinstance(share, (int, float)) and 0.0 <= share < 1.0
