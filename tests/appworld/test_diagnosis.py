"""Labels of AppWorld episodes, from texts as the engine writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.trajectory import EndReason, Step, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis, require_diagnosable
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env
from tests.diagnosing import episode, label_of, modes_of

FAILED = 'Execution failed. Traceback:\n  File "<python-input>", line 1, in <module>\n    x()\n'
DATA, ANSWER = "assert model changes match spotify.Like.", "assert answers match."
OWN_DATA, OWN_ANSWER = "nothing else has changed", "the answer is right"
COMPLETED = "the task is completed"


class Ran(NamedTuple):
    """A step, and what came of it."""

    calls: tuple[str, ...] = ()
    kind: str = ""
    told: str = "Execution successful."


DONE = Ran(("supervisor.complete_task",))
LOGIN = Ran(("spotify.login",))
SYNTAX = Ran(kind="syntax", told="Execution failed. Traceback:\nSyntax error in line:\nprint(1\n")
UNSAFE = Ran(kind="unsafe", told="Execution failed. Traceback:\nUsage of a module is not allowed")
NAME = Ran(kind="exception", told=FAILED + "NameError: name 'foo' is not defined")
API = Ran(kind="exception", told=FAILED + "Exception: No API named 'x' found in the spotify app.")
APP = Ran(kind="exception", told=FAILED + "Exception: No app named 'x' found.")
ATTRIBUTE = Ran(
    kind="exception",
    told=FAILED + "fastapi.exceptions.HTTPException: 422: No API named 'x' found in the a app.",
)
TYPE = Ran(kind="exception", told=FAILED + "TypeError: f() takes 0 positional arguments but 1 was")
KEY = Ran(("spotify.login",), "exception", FAILED + "KeyError: 'TypeError'")
LOST = Ran(kind="timeout", told="Execution timed out after 3 seconds.")


def answered(status: int, api: str = "spotify.login") -> Ran:
    """A call that an API has refused."""
    output = f"{FAILED}Exception: Response status code is {status}:\n" + '{"message":"no"}'
    return Ran((api,), "exception", output)


def played(steps: Sequence[Ran], failed: Sequence[str], *, success: bool = False) -> Trajectory:
    texts = ["first", *(step.told for step in steps)]
    return episode(
        [
            Step(before, before, "code", calls=step.calls, error_kind=step.kind)
            for before, step in zip(texts, steps, strict=False)
        ],
        success=success,
        report={
            "tests": [
                {"requirement": "assert all is well.", "label": "no_op_pass", "passed": True},
                *({"requirement": x, "label": "no_op_fail", "passed": False} for x in failed),
            ]
        },
        end=EndReason.MAX_STEPS,
        last=texts[-1],
    )


TRACES: list[tuple[str, list[Ran], list[str]]] = [
    ("invalid_tool_call", [SYNTAX, LOGIN, DONE], [ANSWER]),
    ("invalid_tool_call", [UNSAFE], [DATA]),
    ("invalid_tool_call", [NAME, TYPE], [DATA]),
    ("invalid_tool_call", [LOGIN, API, DONE], [DATA, ANSWER]),
    ("invalid_tool_call", [APP, DONE], [OWN_ANSWER]),
    ("invalid_tool_call", [ATTRIBUTE, LOGIN], [OWN_DATA]),
    ("argument_mismatch", [TYPE, LOGIN, DONE], [DATA]),
    ("argument_mismatch", [answered(422), LOGIN, DONE], [ANSWER]),
    ("argument_mismatch", [answered(405), answered(401)], [OWN_DATA, COMPLETED]),
    ("state_mismatch", [LOGIN, DONE], [DATA]),
    ("state_mismatch", [answered(401), DONE], [DATA, ANSWER]),
    ("state_mismatch", [LOGIN], [OWN_DATA, COMPLETED]),
    ("recovery_failure", [answered(401), DONE], [ANSWER]),
    ("recovery_failure", [LOGIN, answered(409, "spotify.show_song"), LOGIN, DONE], [OWN_ANSWER]),
    ("recovery_failure", [LOGIN, KEY, DONE], [ANSWER]),
    ("recovery_failure", [LOGIN, LOST], [COMPLETED]),
    ("recovery_failure", [LOGIN, KEY], [COMPLETED, OWN_ANSWER]),
    ("missing_tool_call", [DONE], [DATA]),
    ("missing_tool_call", [Ran(), DONE], [ANSWER]),
    ("missing_tool_call", [LOGIN, LOGIN], [COMPLETED, OWN_ANSWER]),
    ("missing_tool_call", [Ran()], [OWN_DATA]),
    ("response_mismatch", [LOGIN, DONE], [ANSWER]),
    ("response_mismatch", [answered(401), LOGIN, DONE], [OWN_ANSWER]),
    ("response_mismatch", [KEY, LOGIN, DONE], [ANSWER]),
    ("response_mismatch", [LOST, Ran(("spotify.login", DONE.calls[0]))], [ANSWER]),
]


@pytest.mark.parametrize(("label", "steps", "failed"), TRACES)
def test_each_trace_gets_its_label(label: str, steps: list[Ran], failed: list[str]) -> None:
    assert label_of("appworld", played(steps, failed)) == label


@pytest.mark.parametrize("steps", [[DONE], [LOGIN, DONE], [SYNTAX, answered(422), LOGIN, DONE]])
def test_a_successful_episode_is_labelled_pass(steps: list[Ran]) -> None:
    assert label_of("appworld", played(steps, [], success=True)) == "pass"


@pytest.mark.parametrize("failed", [[ANSWER], [DATA, ANSWER], [COMPLETED]])
def test_an_episode_without_actions_is_labelled_an_empty_turn(failed: list[str]) -> None:
    assert label_of("appworld", played([], failed)) == "empty_turn_model_response"


def test_an_ungraded_episode_has_no_label() -> None:
    diagnosis = require_diagnosable(get_benchmark("appworld")).diagnose(
        episode([Step("", "", "x")])
    )
    assert diagnosis == Diagnosis()


def test_every_label_has_three_traces() -> None:
    assert min(Counter(label for label, _, _ in TRACES).values()) >= 3


NAMED = Ran(("spotify.login",), "exception", FAILED + "IndexError: list index out of range")
ABSENT = Ran(
    ("spotify.show_song",),
    "exception",
    FAILED + "Exception: Response status code is 409:\n"
    '{"message":"The song with id 99999 does not exist."}',
)
CRASH, OUT = Ran(kind="crash", told="Killed."), [COMPLETED, OWN_ANSWER]
MODES: list[tuple[str, list[Ran], list[str]]] = [
    ("code_error", [LOGIN, LOGIN, SYNTAX], OUT),
    ("code_error", [LOGIN, KEY, DONE], [ANSWER]),
    ("code_error", [NAME], [DATA]),
    ("code_error", [LOGIN, NAMED], OUT),
    ("unknown_api", [LOGIN, API], OUT),
    ("unknown_api", [SYNTAX, LOGIN, LOGIN, APP, DONE], [DATA]),
    ("unknown_api", [ATTRIBUTE], OUT),
    ("wrong_arguments", [LOGIN, TYPE], OUT),
    ("wrong_arguments", [answered(422), DONE], [ANSWER]),
    ("wrong_arguments", [LOGIN, answered(405, "spotify.show_song")], OUT),
    ("missing_login", [answered(401, "spotify.show_song"), DONE], [ANSWER]),
    ("missing_login", [LOGIN, answered(401, "venmo.show_balance")], OUT),
    ("missing_login", [KEY, LOGIN, answered(401, "phone.login")], OUT),
    ("not_found", [LOGIN, answered(404, "spotify.show_song"), DONE], [DATA]),
    ("not_found", [answered(404)], OUT),
    ("not_found", [LOGIN, ABSENT], OUT),
    ("not_found", [LOGIN, answered(404, "file_system.show_file"), LOGIN], OUT),
    ("stopped_code", [LOGIN, LOST], OUT),
    ("stopped_code", [LOST, DONE], [ANSWER]),
    ("stopped_code", [LOGIN, LOGIN, CRASH], OUT),
    ("unrepaired_error", [LOGIN, answered(409, "spotify.like_song")], OUT),
    ("unrepaired_error", [answered(500, "venmo.show_balance"), LOGIN, DONE], [ANSWER]),
    ("unrepaired_error", [answered(403, "phone.show_alarms"), DONE], [DATA]),
    ("not_completed", [LOGIN], OUT),
    ("not_completed", [answered(401), LOGIN], [DATA, COMPLETED]),
    ("not_completed", [], [COMPLETED]),
    ("wrong_change", [LOGIN, DONE], [DATA]),
    ("wrong_change", [answered(401), LOGIN, DONE], [OWN_DATA]),
    ("wrong_change", [KEY, LOGIN, DONE], [DATA, ANSWER]),
    ("wrong_answer", [LOGIN, DONE], [ANSWER]),
    ("wrong_answer", [DONE], [OWN_ANSWER]),
    ("wrong_answer", [TYPE, LOGIN, DONE], [ANSWER]),
]
ALSO: list[tuple[str, list[Ran]]] = [
    ("repeated_failed_action", [KEY, KEY, LOGIN, DONE]),
    ("repeated_failed_action", [answered(401)] * 2),
    ("repeated_failed_action", [LOGIN, LOST, LOST, DONE]),
    ("action_format_error", [SYNTAX]),
    ("action_format_error", [LOGIN, SYNTAX, LOGIN]),
    ("action_format_error", [SYNTAX, SYNTAX, LOGIN, DONE]),
]


@pytest.mark.parametrize(("mode", "steps", "failed"), MODES)
def test_each_trace_gets_its_failure_mode(mode: str, steps: list[Ran], failed: list[str]) -> None:
    (actual, *_) = modes_of("appworld", played(steps, failed))
    assert actual == mode


@pytest.mark.parametrize(("mode", "steps"), ALSO)
def test_shared_failure_modes_come_after_the_mode_from_the_failed_tests(
    mode: str, steps: list[Ran]
) -> None:
    (_, *modes) = modes_of("appworld", played(steps, [DATA]))
    assert mode in modes
    assert mode not in modes_of("appworld", played([LOGIN, *[Ran()] * 6, DONE], [DATA]))


def test_every_failure_mode_has_three_traces() -> None:
    counts = Counter([*(mode for mode, _, _ in MODES), *(mode for mode, _ in ALSO)])
    assert set(counts) == set(require_diagnosable(get_benchmark("appworld")).modes)
    assert min(counts.values()) >= 3


REAL: list[tuple[str, list[str]]] = [
    ("invalid_tool_call", ["print(foo)"]),
    ("invalid_tool_call", ["apis.spotify.nothing()"]),
    ("invalid_tool_call", ["requester.request('spotify', 'nothing')"]),
    ("argument_mismatch", ["apis.spotify.login('a')"]),
    ("argument_mismatch", ["apis.spotify.show_song(song_id='x')"]),
    ("recovery_failure", ["apis.spotify.show_song(song_id=99999)"]),
    ("recovery_failure", ["apis.spotify.show_genres()", "print({}['a'])"]),
    ("missing_tool_call", ["print({}['a'])", "x = 1"]),
    ("response_mismatch", ["print({}['a'])", "apis.spotify.show_genres()"]),
]


@pytest.mark.slow
def test_episodes_on_the_real_engine_get_the_expected_labels(root: Path) -> None:
    """The texts above are the engine's: a question is answered wrongly after each of these."""
    asked = next(
        task
        for task in coevo_gym.tasks("appworld", "train")
        if "answer=" in task.solution[-1] and "spotify" in task.solution[-1]
    )
    env = make_env("appworld", asked)
    for label, codes in REAL:
        env.reset(options={"task": asked})
        for code in [*codes, "apis.supervisor.complete_task(answer='nothing of that kind')"]:
            env.step(code)
        assert label_of("appworld", trajectory_of(env)) == label, codes
    env.close()
