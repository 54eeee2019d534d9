"""Why an episode went as it did: one label a user turn, by rule and without a model.

A benchmark reads the labels from what it recorded: the steps, the grader's report and the last
observation. A task of a single request has one turn, and so one label.

Labels may rest on ground truth. They weigh what is learned and are counted; they are in no prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, cast

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.trajectory import EvalTrajectory, Trajectory


class TurnLabel(StrEnum):
    """What is to be said of a turn.

    Source: the kinds of failure of SEAL (arXiv 2605.24426, Tables 5 and 6); ``not_reached`` is
    ours.
    """

    PASS = "pass"  # noqa: S105 (no password)
    CORRECT_ABSTENTION = "correct_abstention"
    """Nothing could be done, and nothing was."""
    INVALID_TOOL_CALL = "invalid_tool_call"
    """Something that cannot be read or run as a call."""
    SPURIOUS_TOOL_CALL = "spurious_tool_call"
    """Called where nothing could be done."""
    ARGUMENT_MISMATCH = "argument_mismatch"
    """The right operation, and not with the right arguments."""
    STATE_MISMATCH = "state_mismatch"
    """It has left another state than it should."""
    RECOVERY_FAILURE = "recovery_failure"
    """An error that was never repaired."""
    MISSING_TOOL_CALL = "missing_tool_call"
    """An operation that is needed was never tried."""
    EMPTY_TURN = "empty_turn_model_response"
    """Something had to be done, and nothing was tried."""
    RESPONSE_MISMATCH = "response_mismatch"
    """The state is right, and something that had to be found out is missing."""
    NOT_REACHED = "not_reached"
    """It was not judged: an earlier turn had failed, or the episode was cut before its end."""


NO_FAILURES = frozenset({TurnLabel.PASS, TurnLabel.CORRECT_ABSTENTION, TurnLabel.NOT_REACHED})
"""The labels that tell of no failure."""

TurnOutcome = Literal["passed", "empty", "state", "response", "not_reached"]
"""How a turn compares with its reference: as good, not tried, another state, a result missing."""


Position = Literal["only", "early", "middle", "late"]


def position(turn: int, turns: int) -> Position:
    """The third of an episode in which a turn ends.

    Args:
        turn: from 0.
        turns: how many the episode has.

    Example:
        >>> [position(turn, 5) for turn in range(5)]
        ['early', 'middle', 'middle', 'late', 'late']

    Source: the code of SEAL.
    """
    if turns == 1:
        return "only"
    thirds = 3 * (turn + 1)
    if thirds <= turns:
        return "early"
    return "middle" if thirds <= 2 * turns else "late"


def first_that_applies(
    rules: Iterable[tuple[bool, TurnLabel]], otherwise: TurnLabel = TurnLabel.STATE_MISMATCH
) -> TurnLabel:
    """The label of the first rule that holds.

    Example:
        >>> first_that_applies([(False, TurnLabel.PASS), (True, TurnLabel.EMPTY_TURN)])
        <TurnLabel.EMPTY_TURN: 'empty_turn_model_response'>
    """
    return next((label for holds, label in rules if holds), otherwise)


class TurnFacts(NamedTuple):
    """What a judge knows of a turn, as far as a label depends on it.

    Attributes:
        reached: whether it was judged.
        reference: whether something had to be done in it.
        calls: how many calls were made, those that were refused included.
        malformed: whether something could not be read or run as a call.
        arguments_wrong: whether a needed function was called, but never as it had to be.
        outcome: how it compares with its reference; ``"passed"`` where there is none.
        unrecovered: whether the last call of some function ended in an error.
        missing: whether a needed function was not called.
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
        """Of a turn that was not judged.

        Args:
            reference: whether something had to be done in it.
        """
        return cls(reached=False, reference=reference, outcome="not_reached")


def turn_label(turn: TurnFacts) -> TurnLabel:
    """The one label of a turn: the first that applies, in the order of what tells the most.

    Example:
        >>> turn_label(TurnFacts(True, True, calls=1, arguments_wrong=True, outcome="state"))
        <TurnLabel.ARGUMENT_MISMATCH: 'argument_mismatch'>

    Source: SEAL (arXiv 2605.24426), Eq. 6, with the priority of its Table 5. Where nothing could
    be done, and where nothing was tried, are from Table 6.
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
    return first_that_applies(rules, TurnLabel.RESPONSE_MISMATCH)


class Diagnosis(NamedTuple):
    """What rules say of an episode.

    Attributes:
        turns: a label for each user turn, most of them of :class:`TurnLabel`; () if nothing is
            known of it.
        modes: the ways in which it failed, each once and from the benchmark's closed list, the
            most telling one first; () if it succeeded, or nothing is known of it.
    """

    turns: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()


FAILING = tuple(str(label) for label in TurnLabel if label not in NO_FAILURES)
"""The labels that tell of a failure."""


def failures_in(turns: Iterable[TurnLabel]) -> tuple[str, ...]:
    """Return the kinds of failure among the labels of turns, each once, in order.

    Example:
        >>> failures_in([TurnLabel.PASS, TurnLabel.EMPTY_TURN, TurnLabel.NOT_REACHED])
        ('empty_turn_model_response',)
    """
    return tuple(dict.fromkeys(str(label) for label in turns if label not in NO_FAILURES))


def diagnosis_of(
    turns: Iterable[TurnLabel], *, success: bool, modes: Iterable[str] = ()
) -> Diagnosis:
    """Return the diagnosis with these labels.

    Args:
        turns: a label for each turn.
        success: whether the episode succeeded, as it may with a call too many.
        modes: the ways in which it failed; left out where it succeeded.
    """
    return Diagnosis(tuple(map(str, turns)), () if success else tuple(modes))


class Diagnosable(Benchmark, Protocol):
    """A benchmark that can say why an episode failed; see :func:`diagnosable`.

    Attributes:
        modes: all failure modes that its diagnoses may name; see :mod:`coevo_gym.envs.modes`.
    """

    modes: tuple[str, ...]

    def diagnose(self, episode: Trajectory | EvalTrajectory) -> Diagnosis:
        """Label an episode by what was recorded of it.

        It runs nothing and raises nothing: whatever a report lacks, as one of an older version
        may, is left unsaid.
        """
        ...


def diagnosable(benchmark: Benchmark) -> Diagnosable:
    """The benchmark, if it can say why an episode failed.

    Raises:
        ConfigError: if it has no ``diagnose``.
    """
    if not hasattr(benchmark, "diagnose"):
        raise ConfigError(
            f"{benchmark.name} cannot say why an episode failed: its benchmark has no diagnose(). "
            "Choose a method that reads no labels, or give it the member of "
            "coevo_gym.envs.diagnosis.Diagnosable."
        )
    return cast(Diagnosable, benchmark)


def texts_after(episode: Trajectory | EvalTrajectory) -> tuple[str, ...]:
    """What each action of an episode led to."""
    if not episode.steps:
        return ()
    return (*(step.observation for step in episode.steps[1:]), episode.last_observation)


def facts_of(report: Mapping[str, Any]) -> tuple[TurnFacts, ...]:
    """The facts of each turn that a grader wrote into ``report["turns"]``; () if it wrote none."""
    told = report.get("turns")
    if not isinstance(told, (list, tuple)):
        return ()
    try:
        return tuple(TurnFacts(**turn) for turn in told)
    except TypeError:  # it is somebody else's list
        return ()
