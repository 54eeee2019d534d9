"""Rules that diagnose episodes by labelling the result of each user turn.

A benchmark computes the labels from the recorded steps, the grader's report and the last
observation. A task with a single request has one turn, so it gets one label.

Labels may depend on ground truth. They are counted and used to weight training data, but never
appear in a prompt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from typing import Any, Literal, NamedTuple, Protocol, cast

from coevo_gym.core.benchmark import Benchmark, find_spec, get_benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory

logger = logging.getLogger(__name__)


class TurnLabel(StrEnum):
    """The result of a turn: success or the kind of failure.

    Source: the kinds of failure in SEAL (arXiv 2605.24426, Tables 5 and 6); ``not_reached`` is
    ours.
    """

    PASS = "pass"  # noqa: S105 (not a password)
    CORRECT_ABSTENTION = "correct_abstention"
    """The request could not be fulfilled, and the agent did not call a function."""
    INVALID_TOOL_CALL = "invalid_tool_call"
    """A call could not be parsed or executed."""
    SPURIOUS_TOOL_CALL = "spurious_tool_call"
    """A function was called even though the request could not be fulfilled."""
    ARGUMENT_MISMATCH = "argument_mismatch"
    """The right function was called with the wrong arguments."""
    STATE_MISMATCH = "state_mismatch"
    """The final state differs from the expected state."""
    RECOVERY_FAILURE = "recovery_failure"
    """A failed call was never corrected."""
    MISSING_TOOL_CALL = "missing_tool_call"
    """A required function was never called."""
    EMPTY_TURN = "empty_turn_model_response"
    """A call was required, but the agent did not make a call."""
    RESPONSE_MISMATCH = "response_mismatch"
    """The final state is right, but a required result is missing."""
    NOT_REACHED = "not_reached"
    """The turn was not judged, for example because the episode ended before the end of the turn."""


NO_FAILURES = frozenset({TurnLabel.PASS, TurnLabel.CORRECT_ABSTENTION, TurnLabel.NOT_REACHED})
"""The labels that do not denote failures."""

TurnOutcome = Literal["passed", "empty", "state", "response", "not_reached"]
"""The result of comparing a turn with its reference solution.

``passed``: equal. ``empty``: no call was made. ``state``: the state differs. ``response``: a result
is missing. ``not_reached``: the turn was not judged.
"""


Position = Literal["only", "early", "middle", "late"]


def position_of_turn(turn: int, turns: int) -> Position:
    """Return the part of an episode (early, middle or late) in which the given turn ends.

    Example:
        >>> [position_of_turn(turn, 5) for turn in range(5)]
        ['early', 'middle', 'middle', 'late', 'late']

    Source: the code of SEAL.
    """
    if turns == 1:
        return "only"
    thirds = 3 * (turn + 1)
    if thirds <= turns:
        return "early"
    return "middle" if thirds <= 2 * turns else "late"


def first_matching_label(
    rules: Iterable[tuple[bool, TurnLabel]], otherwise: TurnLabel = TurnLabel.STATE_MISMATCH
) -> TurnLabel:
    """Return the label of the first rule that applies, or ``otherwise`` if none applies.

    Example:
        >>> first_matching_label([(False, TurnLabel.PASS), (True, TurnLabel.EMPTY_TURN)])
        <TurnLabel.EMPTY_TURN: 'empty_turn_model_response'>
    """
    return next((label for holds, label in rules if holds), otherwise)


class TurnFacts(NamedTuple):
    """The facts about a turn that determine its label.

    Attributes:
        reached: True if the turn was finished and compared, also if an earlier turn failed.
        reference: True if the turn required an action.
        calls: number of calls made, including refused calls.
        malformed: True if a call could not be parsed or executed.
        arguments_wrong: True if a required function was called, but never with the right arguments.
        outcome: result of the comparison with the reference; ``"passed"`` without a reference.
        unrecovered: True if the last call of some function ended in an error.
        missing: True if a required function was not called.
    """

    reached: bool
    reference: bool
    calls: int = 0
    malformed: bool = False
    arguments_wrong: bool = False
    outcome: TurnOutcome = "passed"
    unrecovered: bool = False
    missing: bool = False

    @classmethod
    def unreached(cls, reference: bool) -> TurnFacts:
        """Create the record of a turn that was never reached."""
        return cls(reached=False, reference=reference, outcome="not_reached")


def turn_label(turn: TurnFacts) -> TurnLabel:
    """Return the most informative label that applies to a turn.

    Example:
        >>> turn_label(TurnFacts(True, True, calls=1, arguments_wrong=True, outcome="state"))
        <TurnLabel.ARGUMENT_MISMATCH: 'argument_mismatch'>

    Source: SEAL (arXiv 2605.24426), Eq. 6, with the priority of its Table 5. The labels for turns
    without a possible action, and for turns without a call, follow Table 6.
    """
    if not turn.reached:
        return TurnLabel.NOT_REACHED
    if not turn.reference:
        if turn.calls:
            return TurnLabel.SPURIOUS_TOOL_CALL
        return TurnLabel.INVALID_TOOL_CALL if turn.malformed else TurnLabel.CORRECT_ABSTENTION
    rules = (
        (turn.outcome == "passed", TurnLabel.PASS),
        (turn.malformed, TurnLabel.INVALID_TOOL_CALL),
        (not turn.calls, TurnLabel.EMPTY_TURN),
        (turn.arguments_wrong, TurnLabel.ARGUMENT_MISMATCH),
        (turn.outcome == "state", TurnLabel.STATE_MISMATCH),
        (turn.unrecovered, TurnLabel.RECOVERY_FAILURE),
        (turn.missing, TurnLabel.MISSING_TOOL_CALL),
    )
    return first_matching_label(rules, TurnLabel.RESPONSE_MISMATCH)


class Diagnosis(NamedTuple):
    """The labels and failure modes that rules assign to an episode.

    Attributes:
        turns: one label per user turn, usually a :class:`TurnLabel`; () if unknown.
        modes: the episode's failure modes from the benchmark's list, without duplicates and most
            informative first; () if the episode succeeded or its modes are unknown.
    """

    turns: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()


FAILING = tuple(str(label) for label in TurnLabel if label not in NO_FAILURES)
"""The labels that denote failures."""


def failures_in(turns: Iterable[TurnLabel]) -> tuple[str, ...]:
    """Return the failure labels in a sequence of turn labels, without duplicates.

    Example:
        >>> failures_in([TurnLabel.PASS, TurnLabel.EMPTY_TURN, TurnLabel.NOT_REACHED])
        ('empty_turn_model_response',)
    """
    return tuple(dict.fromkeys(str(label) for label in turns if label not in NO_FAILURES))


def diagnosis_of(
    turns: Iterable[TurnLabel], *, success: bool, modes: Iterable[str] = ()
) -> Diagnosis:
    """Create a diagnosis from turn labels and failure modes.

    The modes are dropped if the episode succeeded, which is possible even with a superfluous call.
    """
    return Diagnosis(tuple(map(str, turns)), () if success else tuple(modes))


class Diagnosable(Benchmark, Protocol):
    """A benchmark that can diagnose why an episode failed; see :func:`require_diagnosable`.

    Attributes:
        modes: all failure modes that its diagnoses may contain; see :mod:`coevo_gym.envs.modes`.
    """

    modes: tuple[str, ...]

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """Diagnose an episode from its record.

        This method does not run an engine and never raises. If facts are missing from a report, the
        diagnosis is incomplete.
        """


def require_diagnosable(benchmark: Benchmark) -> Diagnosable:
    """Return a benchmark after checking that it can diagnose why an episode failed.

    Raises:
        ConfigError: if the benchmark has no ``diagnose`` method.
    """
    if not hasattr(benchmark, "diagnose"):
        raise ConfigError(
            f"{benchmark.name} cannot diagnose failed episodes: it has no diagnose() method. "
            "Choose a method that needs no diagnoses, or implement the protocol "
            "coevo_gym.envs.diagnosis.Diagnosable."
        )
    return cast(Diagnosable, benchmark)


def observations_after(episode: Trajectory | EvalTrajectory) -> tuple[str, ...]:
    """Return the observation that follows each action in an episode."""
    if not episode.steps:
        return ()
    return (*(step.observation for step in episode.steps[1:]), episode.last_observation)


def facts_of(report: Mapping[str, Any]) -> tuple[TurnFacts, ...]:
    """Return the facts about each turn from ``report["turns"]``, or () if there are none."""
    turns = report.get("turns")
    if not isinstance(turns, (list, tuple)):
        return ()
    try:
        return tuple(TurnFacts(**turn) for turn in turns)
    except TypeError:  # a third-party grader's list in another format
        return ()


class Failure(NamedTuple):
    """The benchmark's own diagnosis of a failed episode. It names kinds, never expected values.

    Attributes:
        label: kind of failure in the first failed turn, such as ``state_mismatch``; if no turn
            failed, ``not_reached`` for the turn in which the episode ended; "" if unknown.
        turn: number of this turn, from 1; None if the task has a single request.
        modes: failure modes of the whole episode, most informative first.
    """

    label: str = ""
    turn: int | None = None
    modes: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The label or, if it is unknown, the first mode."""
        return self.label or self.modes[0]

    def __str__(self) -> str:
        """Return the kind with its turn; see :func:`describe_failure`."""
        return describe_failure(self.kind, self.turn)


def describe_failure(kind: str, turn: int | None) -> str:
    """Return a kind of failure with its turn.

    Example:
        >>> describe_failure("state_mismatch", 2)
        'state_mismatch at turn 2'
    """
    return kind if turn is None else f"{kind} at turn {turn}"


def failure_of(benchmark: str, episode: Trajectory | EvalTrajectory) -> Failure | None:
    """Return the benchmark's diagnosis of an episode.

    Return None if the episode succeeded, or if the benchmark is not registered in this process or
    does not diagnose episodes.
    """
    if episode.success or find_spec(benchmark) is None:
        return None
    source = get_benchmark(benchmark)
    if not hasattr(source, "diagnose"):
        return None
    labels, modes = require_diagnosable(source).diagnose(episode)
    place = _deciding_turn(labels, episode.report)
    if place is None:
        return Failure(modes=modes) if modes else None
    facts = facts_of(episode.report)
    finished = place >= len(facts) or facts[place].reached
    label = labels[place] if finished else str(TurnLabel.NOT_REACHED)
    return Failure(label, place + 1 if len(labels) > 1 else None, modes)


def stored_failure(benchmark: str, episode: Trajectory | EvalTrajectory) -> tuple[str, int | None]:
    """Return the part of :func:`failure_of` that is stored for lists: the kind, and its turn.

    The kind is "" if there is no diagnosis. An error of another package's benchmark is logged,
    because it must not end an evaluation or a run.
    """
    try:
        failure = failure_of(benchmark, episode)
    except Exception as error:
        _warn_once(benchmark, f"{type(error).__name__}: {error}")
        return "", None
    return (failure.kind, failure.turn) if failure else ("", None)


@cache
def _warn_once(benchmark: str, error: str) -> None:
    logger.warning("%s could not diagnose an episode: %s", benchmark, error)


def _deciding_turn(labels: Sequence[str], report: Mapping[str, Any]) -> int | None:
    """Return the index of the turn because of which an episode failed, or None if unknown.

    It is the first failed turn or, if none failed, the turn in which the episode ended. The
    grader's verdicts decide if there are any, because it does not judge every kind of failure.
    """
    verdicts = report.get("verdicts")
    if not isinstance(verdicts, (list, tuple)) or len(verdicts) != len(labels):
        verdicts = ["passed" if label in NO_FAILURES else "failed" for label in labels]
    failed = [place for place, one in enumerate(verdicts) if one not in _NO_FAILED_TURN]
    unfinished = [place for place, one in enumerate(verdicts) if one == "not_reached"]
    return next(iter([*failed, *unfinished]), None)


_NO_FAILED_TURN = ("passed", "unchecked", "not_reached")
"""Verdicts on a turn that do not denote a failure."""
