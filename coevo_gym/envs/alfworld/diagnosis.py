"""Why an episode failed, from the commands that did nothing and from how far the goal was met."""

from __future__ import annotations

from collections import Counter

from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis, TurnLabel, diagnosis_of, first_that_applies

_MANY = 3
"""One command in so many that is not admissible is one too many."""


def diagnose(episode: Trajectory | EvalTrajectory) -> Diagnosis:
    """The label of an episode; the first that applies of those that a failure may have.

    ``empty_turn_model_response``: nothing was done. ``invalid_tool_call``: a third of the commands,
    or more, were not admissible. ``argument_mismatch``: a part of the goal was met and another was
    not, so something was done to the wrong thing, or in the wrong place. ``recovery_failure``: the
    steps ran out, and a command that did nothing had been given again. ``state_mismatch``: nothing
    of the goal was met.
    """
    steps = episode.steps
    refused = Counter(step.action for step in steps if step.error_kind)
    told = (step.extras.get("alfworld.goal_conditions", -1.0) for step in steps)
    met = [share for share in told if isinstance(share, (int, float))]
    changed = len(set(met)) > 1
    label = first_that_applies(
        (
            (episode.success, TurnLabel.PASS),
            (not steps, TurnLabel.EMPTY_TURN),
            (_MANY * refused.total() >= len(steps), TurnLabel.INVALID_TOOL_CALL),
            (changed and 0.0 < met[-1] < 1.0, TurnLabel.ARGUMENT_MISMATCH),
            (
                episode.end_reason is EndReason.MAX_STEPS and max(refused.values(), default=0) > 1,
                TurnLabel.RECOVERY_FAILURE,
            ),
        )
    )
    return diagnosis_of([label], success=episode.success)
