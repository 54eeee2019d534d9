"""Why an episode failed, from its commands and from how far the goal was met."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from coevo_gym.core.trajectory import EndReason, EvalTrajectory, Step, Trajectory
from coevo_gym.envs.alfworld.goals import CHANGES, TWO, Goal
from coevo_gym.envs.diagnosis import Diagnosis, TurnLabel, diagnosis_of, first_that_applies
from coevo_gym.envs.modes import COMMON, listed_modes, modes_that_apply, stretches

WRONG_RECEPTACLE, WRONG_LOCATION = "wrong_receptacle", "wrong_target_location"
PRECONDITION, CONFUSION = "missing_precondition", "entity_confusion"
WRONG_OBJECT = "wrong_object_interaction"
MODES = (WRONG_RECEPTACLE, WRONG_LOCATION, PRECONDITION, CONFUSION, WRONG_OBJECT, *COMMON)
"""Failure modes, in the order in which they are tried.

Source: names of Role-Agent (arXiv 2606.10917), Table 6; the rules are ours.
"""
_STEPS = 50
"""Most steps of an episode, by default: a third of it is early for giving up."""
_COMMAND = re.compile(
    r"go to .+|take .+ from .+|(?:move|put) .+ (?:to|in|on|in/on|into|onto) .+|(?:open|close) .+"
    r"|(?:heat|cool|clean|slice) .+ with .+|(?:use|examine) .+|look|inventory|help"
)
"""Commands of a form that the engine knows, whether or not they are possible."""
_TAKE = re.compile(r"take (.+) from (.+)")
_PUT = re.compile(r"(?:move|put) (.+) (?:to|in|on|in/on|into|onto) (.+)")
_CHANGE = re.compile(r"(heat|cool|clean) (.+) with .+")
_NEEDS = re.compile(r"(?:heat|cool|clean) .+ with .+|use .+")
"""Commands that need something else to be done before them."""

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
    modes = listed_modes(
        _own_modes(steps, _goal(episode.report)),
        episode,
        stretches(steps, _kind),
        modes=MODES,
        format_kinds=("unreadable",),
        max_steps=_STEPS,
    )
    return diagnosis_of([label], success=episode.success, modes=modes)


def _own_modes(steps: Sequence[Step], goal: Goal | None) -> tuple[str, ...]:
    """Return the modes that depend on the goal, or on the commands of this engine.

    ``wrong_receptacle``: a thing of the goal's type was left in a place of another type.
    ``wrong_target_location``: two such things were left in different places of the right type.
    ``missing_precondition``: to heat, cool, clean or use something was refused, or a thing was put
    where it belongs without that. ``entity_confusion``: a thing of another type was moved.
    ``wrong_object_interaction``: a thing of another type was heated, cooled or cleaned.
    """
    refused = [step.action for step in steps if step.error_kind]
    needs = any(_NEEDS.fullmatch(action) for action in refused)
    if goal is None:
        return modes_that_apply([(PRECONDITION, needs)])
    wanted, place = goal.object.lower(), goal.receptacle.lower()
    done = _Done(step.action for step in steps if not step.error_kind)
    lying = [(thing, where) for thing, where in done.places.items() if _type(thing) == wanted]
    right = [(thing, where) for thing, where in lying if _type(where) == place]
    change = CHANGES.get(goal.kind)
    unchanged = change and any((thing, change.verb) not in done.changed for thing, _ in right)
    apart = goal.kind == TWO and len({where for _, where in right}) > 1
    return modes_that_apply(
        (
            (WRONG_RECEPTACLE, bool(place) and len(right) < len(lying)),
            (WRONG_LOCATION, apart),
            (PRECONDITION, needs or bool(unchanged)),
            (CONFUSION, any(_type(thing) != wanted for thing in done.moved)),
            (WRONG_OBJECT, any(_type(thing) != wanted for thing, _ in done.changed)),
        )
    )


class _Done:
    """Follows what commands have done.

    Attributes:
        places: where each thing was put down, unless it was taken up again.
        moved: the things that were taken up and put down.
        changed: the things that were heated, cooled or cleaned, with the verb.
    """

    def __init__(self, commands: Iterable[str]) -> None:
        self.places: dict[str, str] = {}
        self.moved: set[str] = set()
        self.changed: set[tuple[str, str]] = set()
        for command in commands:
            if taken := _TAKE.fullmatch(command):
                self.places.pop(taken[1], None)
            elif put := _PUT.fullmatch(command):
                self.places[put[1]] = put[2]
                self.moved.add(put[1])
            elif change := _CHANGE.fullmatch(command):
                self.changed.add((change[2], change[1]))


def _goal(report: Mapping[str, Any]) -> Goal | None:
    """The goal that the grader wrote down; older reports hold none."""
    try:
        return Goal.model_validate(report.get("goal"))
    except ValidationError:
        return None


def _kind(step: Step) -> str:
    readable = not step.error_kind or _COMMAND.fullmatch(step.action)
    return step.error_kind if readable else "unreadable"


def _type(name: str) -> str:
    """The type of a thing or a place: ``desk`` of ``desk 1``."""
    return name.rpartition(" ")[0]
