"""Labels of BFCL's turns: what the judge writes down of each, and what comes of it."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.task import Task, thaw
from coevo_gym.core.trajectory import EndReason, Step, Trajectory
from coevo_gym.envs.diagnosis import Diagnosis, require_diagnosable
from coevo_gym.episodes.episode import trajectory_of
from coevo_gym.testing import make_env
from tests.bfcl.official import entries
from tests.bfcl.test_env import MKDIR, play, say, task_with_turns
from tests.diagnosing import episode, modes_of

BENCH = Path(__file__).parents[2] / "bench" / "seal_labels.py"
DONE = "Done."
BROKEN = '<tool_call>{"name": "ls"</tool_call>'
BFCL = require_diagnosable(get_benchmark("bfcl"))


def played(task: Task, *messages: str, cut: bool = False) -> Trajectory:
    env = make_env("bfcl", task)
    play(env, *messages)
    if cut:
        env.cut(EndReason.TIME_LIMIT)
    return trajectory_of(env)


ONE_TURN: list[tuple[str, Sequence[str], list[str]]] = [
    ("pass", MKDIR, [say(*MKDIR), DONE]),
    ("pass", MKDIR, [say("cd(folder='nowhere')"), say(*MKDIR), DONE]),
    ("pass", ["ls()"], [say("ls()", "pwd()", "do_everything()"), DONE]),
    ("correct_abstention", [], [DONE]),
    ("correct_abstention", [], ["I cannot do that."]),
    ("correct_abstention", [], [""]),
    ("spurious_tool_call", [], [say("ls()"), DONE]),
    ("spurious_tool_call", [], [say("do_everything()"), DONE]),
    ("spurious_tool_call", [], [say(*MKDIR), BROKEN]),
    ("invalid_tool_call", [], [BROKEN]),
    ("invalid_tool_call", MKDIR, [BROKEN]),
    ("invalid_tool_call", MKDIR, [say("make_folder(name='a')"), DONE]),
    ("invalid_tool_call", MKDIR, [say(MKDIR[0], "mkdir(dir_name='b')"), BROKEN]),
    ("empty_turn_model_response", MKDIR, [DONE]),
    ("empty_turn_model_response", ["ls()"], [""]),
    ("empty_turn_model_response", ["pwd()"], ["You are in a folder."]),
    ("argument_mismatch", MKDIR, [say(MKDIR[0], "mkdir(dir_name='b')"), DONE]),
    ("argument_mismatch", MKDIR, [say(MKDIR[0], "mkdir(name='a')"), DONE]),
    ("argument_mismatch", [MKDIR[0]], [say("cd(folder='nowhere')"), DONE]),
    ("state_mismatch", MKDIR, [say(*MKDIR, "mkdir(dir_name='b')"), DONE]),
    ("state_mismatch", MKDIR, [say(MKDIR[0]), DONE]),
    ("state_mismatch", MKDIR, [say(*reversed(MKDIR)), DONE]),
    ("recovery_failure", ["ls()"], [say("cat(file_name='nowhere')"), DONE]),
    ("recovery_failure", ["pwd()"], [say("cd(folder='nowhere')"), DONE]),
    ("recovery_failure", ["ls()"], [say("cd(folder='a')"), say("cd(folder='b')"), DONE]),
    ("missing_tool_call", ["ls()"], [say("pwd()"), DONE]),
    ("missing_tool_call", ["pwd()", "ls()"], [say("ls()"), DONE]),
    ("missing_tool_call", ["pwd()"], [say("ls()", "ls(a=True)"), DONE]),
    ("response_mismatch", ["ls()", "ls()"], [say("ls()"), DONE]),
    ("response_mismatch", ["pwd()", "pwd()", "ls()"], [say("ls()", "pwd()"), DONE]),
    ("response_mismatch", ["ls()"] * 3, [say("ls()"), say("ls()"), DONE]),
]


@pytest.mark.parametrize(("label", "truth", "messages"), ONE_TURN)
def test_each_trace_gets_its_label(
    label: str, truth: Sequence[str], messages: Sequence[str]
) -> None:
    assert BFCL.diagnose(played(task_with_turns(truth), *messages)).turns == (label,)


def test_turns_after_the_first_failure_are_labelled_without_changing_verdicts() -> None:
    done = played(
        task_with_turns(MKDIR, [], ["ls()"], []), say(*MKDIR), DONE, DONE, DONE, say("ls()"), DONE
    )
    assert BFCL.diagnose(done) == Diagnosis(
        ("pass", "correct_abstention", "empty_turn_model_response", "spurious_tool_call"),
        ("empty_turn_model_response", "spurious_tool_call"),
    )
    assert done.report["verdicts"] == (
        "passed", "unchecked", "empty_turn_model_response", "not_reached"
    )  # fmt: skip
    assert done.report["label"] == "missing_tool_call"


def test_a_turn_can_pass_after_a_failed_one() -> None:
    truth = task_with_turns(["ls()"], ["pwd()"], MKDIR)
    done = played(truth, DONE, say("pwd()"), DONE, say(*MKDIR, "mkdir(dir_name='b')"), DONE)
    assert BFCL.diagnose(done).turns == ("empty_turn_model_response", "pass", "state_mismatch")
    assert (done.success, done.report["mismatches"]) == (False, ())


def test_a_superfluous_call_in_a_successful_episode_is_no_failure_mode() -> None:
    done = played(task_with_turns([], ["ls()"]), say("pwd()"), DONE, say("ls()"), DONE)
    assert done.success
    assert BFCL.diagnose(done) == Diagnosis(("spurious_tool_call", "pass"), ())


def test_turns_that_an_episode_does_not_finish_count_as_empty_if_a_call_was_due() -> None:
    done = played(task_with_turns(["pwd()"], MKDIR, []), say("pwd()"), DONE, say(*MKDIR), cut=True)
    assert done.report["label"] == "force_terminated"
    turns = ("pass", "empty_turn_model_response", "not_reached")
    assert BFCL.diagnose(done) == Diagnosis(turns, ("exhaustive_exploration_failure",))


def test_a_report_contains_the_facts_of_each_turn() -> None:
    done = played(
        task_with_turns(["ls()", "pwd()"], []), say("cat(file_name='x')", "pwd()"), DONE, cut=True
    )
    turns = thaw(done.report)["turns"]
    assert json.loads(json.dumps(turns)) == turns
    assert turns == [
        {
            "reached": True,
            "reference": True,
            "calls": 2,
            "malformed": False,
            "arguments_wrong": False,
            "outcome": "response",
            "unrecovered": True,
            "missing": True,
        },
        {
            "reached": False,
            "reference": False,
            "calls": 0,
            "malformed": False,
            "arguments_wrong": False,
            "outcome": "not_reached",
            "unrecovered": False,
            "missing": False,
        },
    ]


def test_a_report_without_turns_has_no_labels() -> None:
    assert BFCL.diagnose(episode(report={"verdicts": ["passed"], "label": "pass"})) == Diagnosis()


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("seal_labels", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_planted_faults_are_labelled_as_documented(
    bench: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--quick"]) == 0
    output = capsys.readouterr().out
    assert "references: 20 of 20" in output
    rows = {line.split()[0]: line.split() for line in output.splitlines()}
    for fault in bench.FAULTS:
        assert rows[fault.__name__][1] == "3", f"{fault.__name__} fits nowhere"


def test_the_labels_bench_fails_if_a_label_is_wrong(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a passing bench would prove little."""
    every = (*entries("base")[:20], *entries("miss_param")[:20])
    monkeypatch.setattr(bench, "native_tasks", lambda *_: [each.task for each in every])
    monkeypatch.setattr(bench.BFCLEnv, "_grade", _all_passed)
    assert bench.main(["--quick"]) == 1
    assert "0.0%" in capsys.readouterr().out


def _all_passed(self: object, verifier: object) -> object:
    from coevo_gym.envs.frame import Grade

    turns = [{"reached": True, "reference": True, "calls": 1}]
    return Grade(1.0, True, report={"turns": turns * 12})


CAT = say("cat(file_name='nowhere')")
MODES = [
    *(
        (label, task_with_turns(truth), messages, False)
        for label, truth, messages in ONE_TURN
        if truth and label != "pass"
    ),
    ("spurious_tool_call", task_with_turns([], MKDIR), [say("pwd()"), DONE, DONE], False),
    ("spurious_tool_call", task_with_turns([], ["ls()"]), [say("ls()"), DONE, DONE], False),
    (
        "spurious_tool_call",
        task_with_turns([], ["pwd()"]),
        [say("mkdir(dir_name='x')"), DONE, DONE],
        False,
    ),
    ("exhaustive_exploration_failure", task_with_turns(MKDIR), [say(*MKDIR)], True),
    (
        "exhaustive_exploration_failure",
        task_with_turns(["ls()"]),
        [say("pwd()"), say("ls()")],
        True,
    ),
    (
        "exhaustive_exploration_failure",
        task_with_turns(["ls()"], ["pwd()"]),
        [say("ls()"), DONE],
        True,
    ),
    ("repeated_failed_action", task_with_turns(["ls()"]), [CAT, CAT], True),
    (
        "repeated_failed_action",
        task_with_turns(["ls()"]),
        [say("pwd()"), CAT, CAT, say("pwd()")],
        True,
    ),
    ("repeated_failed_action", task_with_turns([], ["ls()"]), [DONE, CAT, CAT, CAT], True),
]


@pytest.mark.parametrize(("mode", "task", "messages", "cut"), MODES)
def test_each_trace_gets_its_failure_mode(
    mode: str, task: Task, messages: Sequence[str], cut: bool
) -> None:
    (actual, *_) = modes_of("bfcl", played(task, *messages, cut=cut))
    assert actual == mode


@pytest.mark.parametrize("kinds", [["parse"], ["", "parse", ""], ["parse", "call", "parse"]])
def test_an_unfinished_episode_of_unreadable_messages_is_a_format_error(
    kinds: Sequence[str],
) -> None:
    steps = [Step("", "", f"say {n}", error_kind=kind) for n, kind in enumerate(kinds)]
    cut = episode(steps, end=EndReason.MAX_STEPS)
    assert modes_of("bfcl", cut) == ("action_format_error",)
    assert modes_of("bfcl", episode([*steps, *[Step("", "", "")] * 9])) == ()


def test_every_failure_mode_has_three_traces() -> None:
    counts = Counter(mode for mode, *_ in MODES)
    assert set(counts) == {*BFCL.modes} - {"action_format_error"}
    assert min(counts.values()) >= 3
