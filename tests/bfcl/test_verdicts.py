"""Verdicts: what the official checker says of the same calls, turn by turn."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, cast

import gymnasium as gym
import pytest

from coevo_gym.core.task import Task
from coevo_gym.core.tool_calls import Call, write_hermes
from coevo_gym.envs.base import TaskEnv
from coevo_gym.envs.bfcl.engine import wheel
from coevo_gym.envs.bfcl.engine.dialogue import max_steps_per_turn
from coevo_gym.envs.bfcl.engine.official_calls import format_python_call
from coevo_gym.envs.bfcl.tasks import CLOSING
from coevo_gym.episodes.episode import eval_trajectory_of
from tests.bfcl.families import FAMILIES
from tests.bfcl.official import Entry, Turns, Verdict, entries, entry, executor, official_verdict

SOLVED = Verdict(-1, "")


@pytest.fixture(scope="module")
def env() -> Iterator[gym.Env[str, str]]:
    env = gym.make(
        "CoEvolve-BFCL-v0", split="test", scheme="all200", max_steps=200, disable_env_checker=True
    )
    yield env
    env.close()


def play(env: gym.Env[str, str], task: Task, messages: Sequence[str]) -> dict[str, Any]:
    """The last info of an episode."""
    env.reset(options={"task": task})
    for message in messages:
        *_, terminated, truncated, info = env.step(message)
        if terminated or truncated:
            return info
    raise AssertionError("the messages ran out")


def one_message_a_turn(turns: Turns) -> list[str]:
    """All calls of a turn at once."""
    return [
        message
        for calls in turns
        for message in ([write_hermes(calls)] if calls else []) + [CLOSING]
    ]


def one_message_a_call(turns: Turns) -> list[str]:
    return [
        message
        for calls in turns
        for message in [*(write_hermes([call]) for call in calls), CLOSING]
    ]


def truth(each: Entry) -> Turns:
    return each.turns


def silence(each: Entry) -> Turns:
    return [() for _ in each.turns]


def all_but_the_last_call(each: Entry) -> Turns:
    turns = [list(calls) for calls in each.turns]
    next(calls for calls in reversed(turns) if calls).pop()
    return turns


def every_call_twice(each: Entry) -> Turns:
    return [[call for call in calls for _ in range(2)] for calls in each.turns]


@pytest.mark.parametrize("category", wheel.CATEGORIES)
@pytest.mark.parametrize(
    ("rollout", "solved"),
    [(truth, 200), (silence, 0), (all_but_the_last_call, 0), (every_call_twice, 72)],
)
def test_rollouts_solve_as_many_entries_as_with_the_official_checker(
    env: gym.Env[str, str], category: str, rollout: Any, solved: int
) -> None:
    """However the calls of a turn are spread over messages, unless there are too many."""
    every = [(each, rollout(each)) for each in entries(category)]
    assert sum(official_verdict(*pair) == SOLVED for pair in every) == solved
    infos = [play(env, each.task, one_message_a_turn(turns)) for each, turns in every]
    assert sum(info["success"] for info in infos) == solved
    infos = [play(env, each.task, one_message_a_call(turns)) for each, turns in every]
    too_long = [info for info in infos if info["end_reason"] == "max_steps"]
    assert bool(too_long) is (category == "long_context" and rollout is not silence)
    lost = 2 if too_long and solved else 0
    assert sum(info["success"] for info in infos) == solved - lost


def test_one_call_per_message_loses_two_long_context_entries_at_the_limit(
    env: gym.Env[str, str],
) -> None:
    """Their longest turn has 34 calls; the official runner takes 20 messages with calls in a turn.

    One more message still counts and ends the conversation. It is judged if its turn was the last.
    """
    limit = max_steps_per_turn()
    long = [each for each in entries("long_context") if max(map(len, each.turns)) > limit]
    assert [[len(calls) for calls in each.turns] for each in long] == [[34, 1], [34]]
    infos = [play(env, each.task, one_message_a_call(each.turns)) for each in long]
    assert [info["step"] for info in infos] == [limit + 1, limit + 1]
    assert [info["bfcl.verdicts"] for info in infos] == [
        '["not_reached", "not_reached"]',
        '["instance_state_mismatch"]',
    ]
    assert infos[0]["bfcl.label"] == "force_terminated"
    judged = official_verdict(long[1], [long[1].turns[0][: limit + 1]])
    assert judged == Verdict(0, "instance_state_mismatch")


def as_served(each: Entry, turns: Turns) -> Turns:
    """The same calls without the functions that are held out: nobody has offered them yet.

    The official executor runs them, so that an agent which knows them by heart is better off than
    one that waits. We answer that there is no such function, as the conversation says.
    """
    since = {name: turn for turn, names in each.world.held_out for name in names}
    for name in each.world.unlisted:
        del since[name]
    return [
        [call if turn >= since.get(call.name, 0) else Call("not_offered", {}) for call in calls]
        for turn, calls in enumerate(turns)
    ]


def ours(env: gym.Env[str, str], each: Entry, turns: Turns) -> Verdict:
    """Our verdict in the words of the official checker."""
    info = play(env, each.task, one_message_a_turn(turns))
    outcomes = json.loads(info["bfcl.verdicts"])
    failures = [
        turn for turn, outcome in enumerate(outcomes) if outcome not in ("passed", "unchecked")
    ]
    assert len(outcomes) == len(turns)
    assert info["success"] is not bool(failures)
    if not failures:
        return SOLVED
    first = failures[0]
    assert set(outcomes[first + 1 :]) <= {"not_reached"}
    return Verdict(first, outcomes[first])


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", FAMILIES)
def test_verdicts_agree_with_the_official_checker(
    env: gym.Env[str, str], family: str, step: int
) -> None:
    """On which turn of each rollout fails first, if any, and how; the slow run uses all entries."""
    compared = 0
    for number, category in enumerate(wheel.CATEGORIES):
        for each in entries(category)[number % step :: step]:
            rng = random.Random(f"{family} {each.task.name}")
            turns = FAMILIES[family](each, [list(calls) for calls in each.turns], rng)
            if repr(turns) != repr(each.turns):
                compared += 1
                theirs = official_verdict(each, as_served(each, turns))
                assert ours(env, each, turns) == theirs, (each.task.name, turns)
    assert compared >= 10


def of_every_turn(each: Entry, turns: Turns) -> list[str]:
    """Compare each turn with its reference by the official functions, also after a failure."""
    checker = wheel.import_official("eval_checker.multi_turn_eval.multi_turn_checker")
    verdicts, outputs = list[str](), list[str]()
    with executor(each.data) as agent, executor(each.data) as twin:
        for number, (calls, truth) in enumerate(zip(turns, each.truth, strict=True)):
            outputs += agent.run([*map(format_python_call, calls)])
            expected = twin.run(truth)
            if not truth:
                verdicts.append("passed")
            elif not calls:
                verdicts.append("empty")
            elif not checker.state_checker(agent.instances, twin.instances)["valid"]:
                verdicts.append("state")
            else:
                valid = checker.response_checker(outputs, expected, number)["valid"]
                verdicts.append("passed" if valid else "response")
    return verdicts


@pytest.mark.parametrize("family", FAMILIES)
def test_turns_after_a_failed_one_are_judged_like_the_official_checker_does(
    env: gym.Env[str, str], family: str
) -> None:
    """For the labels of SEAL; the verdict is that of the first failed turn."""
    for number, category in enumerate(wheel.CATEGORIES):
        for each in entries(category)[number::20]:
            rng = random.Random(f"{family} {each.task.name}")
            turns = FAMILIES[family](each, [list(calls) for calls in each.turns], rng)
            play(env, each.task, one_message_a_turn(turns))
            facts = eval_trajectory_of(cast(TaskEnv, env.unwrapped)).report["turns"]
            compared = [turn["outcome"] for turn in facts]
            assert compared == of_every_turn(each, as_served(each, turns)), (each.task.name, turns)


def test_the_compared_rollouts_cover_all_outcomes(env: gym.Env[str, str]) -> None:
    """Otherwise agreement would prove little."""
    counts = Counter(
        ours(env, each, make(each, [list(calls) for calls in each.turns], random.Random(0)))[1]
        for make in FAMILIES.values()
        for each in entries("miss_param")[::20]
    )
    assert set(counts) == {
        "",
        "empty_turn_model_response",
        "instance_state_mismatch",
        "execution_response_mismatch",
    }
    assert min(counts.values()) > 10


# Where we differ, on purpose.


def test_a_function_cannot_be_called_before_it_is_offered(env: gym.Env[str, str]) -> None:
    """The official executor runs functions that are not offered.

    There, calling one early and making any call when it is due always passes. Here this passes only
    where the reference does not need the held-out function.
    """
    early = FAMILIES["one_turn_early_and_a_failing_call_when_it_is_due"]
    rollouts = [
        (each, early(each, [list(calls) for calls in each.turns], random.Random(0)))
        for each in entries("miss_func")
    ]
    assert all(official_verdict(*rollout) == SOLVED for rollout in rollouts)
    passed = [each.data["id"] for each, turns in rollouts if ours(env, each, turns) == SOLVED]
    assert passed == ["multi_turn_miss_func_33", "multi_turn_miss_func_133"]


def test_a_function_that_the_reference_calls_early_can_be_called_early(
    env: gym.Env[str, str],
) -> None:
    """One entry needs this: otherwise its reference would not solve it."""
    (each,) = [each for each in entries("miss_func") if each.world.unlisted]
    assert (each.data["id"], each.world.unlisted) == ("multi_turn_miss_func_49", ("tail",))
    _, info = env.reset(options={"task": each.task})
    assert '"tail"' not in info["bfcl.tools"]
    assert ours(env, each, each.turns) == SOLVED


def test_a_function_name_is_not_evaluated_as_code(env: gym.Env[str, str]) -> None:
    """The official executor evaluates what a model gives as the name of a function."""
    call = Call("__import__('os').getcwd", {})
    with executor(entry("base_0").data) as theirs:
        assert theirs.run([format_python_call(call)]) == [os.getcwd()]
    env.reset(options={"task": entry("base_0").task})
    for message in (write_hermes([call]), f"[{format_python_call(call)}]"):
        observation, *_, info = env.step(message)
        assert "there is no function" in observation
        assert os.getcwd() not in observation
        assert info["error_kind"] == "unknown_function"


def test_text_that_looks_like_a_call_is_not_rewritten(env: gym.Env[str, str]) -> None:
    """The official executor rewrites what looks like a call, in texts too.

    What it writes differs between the agent's side and the reference's, so that the agent that does
    what the reference does is wrong. No official entry has such a text.
    """
    each = entry("base_0")
    codes = ["touch(file_name='a')", "echo(content='use sort(x)', file_name='a')"]
    spoiled = each._replace(truth=[codes])
    assert official_verdict(spoiled, spoiled.turns) == Verdict(0, "instance_state_mismatch")
    task = each.task.model_copy(
        update={
            "world": each.world.model_copy(update={"turns": ("Note it.",)}),
            "verifier": each.task.verifier.model_copy(update={"turns": (tuple(codes),)}),
        }
    )
    assert play(env, task, one_message_a_turn(spoiled.turns))["success"]
