"""The official verdict on a conversation, turn by turn.

The rules are the same as in ``multi_turn_checker``. When a turn ends, its reference calls run on a
second set of backends. A turn with reference calls fails if the agent made no call, if a public
attribute of a backend differs, or if an output of the reference calls is not among the agent's
outputs in all turns so far (in any order, with multiplicity). A turn without reference calls is not
checked. The first failed turn decides. Later turns are compared as well, but only for their labels.
Both comparisons use the official functions, called with our own instances.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, Literal

from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.engine.dialogue import Dialogue, DialogueReply, TurnCalls
from coevo_gym.envs.bfcl.engine.official_calls import parse_truth
from coevo_gym.envs.bfcl.engine.toolbox import Toolbox, bind_arguments, is_error
from coevo_gym.envs.bfcl.engine.wheel import import_official
from coevo_gym.envs.bfcl.world import BFCLVerifier, BFCLWorld
from coevo_gym.envs.diagnosis import TurnFacts, TurnLabel, TurnOutcome, turn_label

Outcome = Literal[
    "passed",
    "unchecked",
    "empty_turn_model_response",
    "instance_state_mismatch",
    "execution_response_mismatch",
    "not_reached",
]
"""Outcome of a turn. ``unchecked``: no reference calls in this turn; the middle three: the official
kinds of error; ``not_reached``: the turn does not count, because an earlier turn failed or the
episode ended before the end of this turn."""

_FAILED: Mapping[Outcome, TurnOutcome] = {
    "empty_turn_model_response": "empty",
    "instance_state_mismatch": "state",
    "execution_response_mismatch": "response",
}


class Judge:
    """A judge that grades the turns of one episode.

    Attributes:
        outcomes: one outcome per finished turn, as in the official verdict.
        label: reason why the deciding turn failed, one of SEAL's six kinds in their order of
            priority (Table 5 of SEAL); ``PASS`` while nothing has failed.
        mismatches: public attributes (``Class.attribute``) that differed in the deciding turn.

    Raises:
        TaskError: if a backend cannot be set up with its initial state, or if the setup or the
            reference contains anything other than calls.
    """

    def __init__(self, world: BFCLWorld, verifier: BFCLVerifier) -> None:
        self._twin = Toolbox(world)
        self._n_turns = len(world.turns)
        self._truth = [tuple(map(parse_truth, turn)) for turn in verifier.turns]
        self.outcomes: list[Outcome] = []
        self._compared: list[Outcome] = []
        self._attempts: list[TurnCalls] = []
        self.label = TurnLabel.PASS
        self.mismatches: tuple[str, ...] = ()

    @property
    def solved(self) -> bool:
        """Return True if every turn has ended and none has failed."""
        ended = len(self.outcomes)
        return ended == self._n_turns == len(self._truth) and not self.failed

    @property
    def failed(self) -> bool:
        """Return True if a turn has failed."""
        return self.label is not TurnLabel.PASS

    @property
    def turns(self) -> tuple[TurnFacts, ...]:
        """Facts about each turn, including turns after a failed turn and turns that did not end."""
        facts = [
            facts_of_turn(outcome, self._reference_calls(turn), attempt)
            for turn, (outcome, attempt) in enumerate(
                zip(self._compared, self._attempts, strict=True)
            )
        ]
        left = range(len(facts), self._n_turns)
        return (*facts, *(TurnFacts.unreached(bool(self._reference_calls(turn))) for turn in left))

    def continue_dialogue(
        self, dialogue: Dialogue, reply: DialogueReply, *, stop_at_failure: bool = False
    ) -> DialogueReply:
        """Judge the turn if it has just ended, and let the user continue.

        With ``stop_at_failure``, the first failed turn ends the conversation. Returns the reply to
        the latest message, with the user's next message.
        """
        if dialogue.ended is not None:
            self.judge_turn(dialogue.toolbox, dialogue.ended, dialogue.outputs)
        if not dialogue.is_between_turns:
            return reply
        stops = stop_at_failure and self.failed
        return reply._replace(
            observation=dialogue.end_conversation() if stops else dialogue.begin_next_turn()
        )

    def judge_turn(self, model: Toolbox, attempt: TurnCalls, outputs: Sequence[str]) -> Outcome:
        """Judge the turn that has just ended. ``outputs`` are the results of the whole episode."""
        truth = self._reference_calls(len(self.outcomes))
        expected = [self._twin.call(call) for call in truth]
        compared, mismatches = self._compare_turn(model, attempt, outputs, expected)
        outcome: Outcome = "not_reached" if self.failed else compared
        self.outcomes.append(outcome)
        self._compared.append(compared)
        self._attempts.append(attempt)
        if outcome in _FAILED:
            self.label = failure_label(facts_of_turn(outcome, truth, attempt))
            self.mismatches = mismatches
        return outcome

    def _reference_calls(self, turn: int) -> Sequence[Call]:
        """Return the reference calls for a turn."""
        return self._truth[turn] if turn < len(self._truth) else ()

    def _compare_turn(
        self, model: Toolbox, attempt: TurnCalls, outputs: Sequence[str], expected: list[str]
    ) -> tuple[Outcome, tuple[str, ...]]:
        """Return the latest turn's outcome and the attributes that differ from the reference.

        ``expected`` are the results of the reference calls, which the twin has already run.
        """
        if not expected:
            return "unchecked", ()
        if not attempt.calls:
            return "empty_turn_model_response", ()
        try:
            state = _checker().state_checker(model.instances, self._twin.instances)
        except RecursionError:  # directories that contain each other cannot be compared
            state = {"valid": False, "details": {"differences": {}}}
        if not state["valid"]:
            return "instance_state_mismatch", tuple(state["details"]["differences"])
        answer = _checker().response_checker(list(outputs), expected, len(self.outcomes))
        return ("passed" if answer["valid"] else "execution_response_mismatch"), ()


def facts_of_turn(outcome: Outcome, truth: Sequence[Call], attempt: TurnCalls) -> TurnFacts:
    """Collect the facts about a turn that has ended.

    Example:
        >>> attempt = TurnCalls([Call("cd", {"folder": "b"})], ["{}"])
        >>> facts = facts_of_turn("instance_state_mismatch", [Call("cd", {"folder": "a"})], attempt)
        >>> facts.arguments_wrong, facts.outcome, facts.missing
        (True, 'state', False)
    """
    calls = [_call_key(call) for call in attempt.calls]
    tried = {name for name, _ in calls}
    wanted = [_call_key(call) for call in truth]
    last = {call.name: result for call, result in zip(attempt.calls, attempt.results, strict=True)}
    return TurnFacts(
        reached=True,
        reference=bool(truth),
        calls=len(calls),
        malformed=attempt.malformed or None in attempt.results,
        arguments_wrong=any(
            name in tried and (name, arguments) not in calls for name, arguments in wanted
        ),
        outcome=_FAILED.get(outcome, "passed"),
        unrecovered=any(result is not None and is_error(result) for result in last.values()),
        missing=any(name not in tried for name, _ in wanted),
    )


def failure_label(facts: TurnFacts) -> TurnLabel:
    """Return the most informative label for the turn that decided the episode.

    Example:
        >>> failure_label(TurnFacts(reached=True, reference=True, outcome="empty", missing=True))
        <TurnLabel.MISSING_TOOL_CALL: 'missing_tool_call'>
    """
    label = turn_label(facts)
    # Table 5 of SEAL has no label for an empty turn.
    return TurnLabel.MISSING_TOOL_CALL if label is TurnLabel.EMPTY_TURN else label


def _call_key(call: Call) -> tuple[str, Mapping[str, Any]]:
    try:
        return call.name, bind_arguments(call).arguments
    except (KeyError, TypeError):  # an unknown function, or arguments that do not fit
        return call.name, call.arguments


@lru_cache(maxsize=1)
def _checker() -> ModuleType:
    return import_official("eval_checker.multi_turn_eval.multi_turn_checker")
