"""Whoever evaluates sees an episode whole; how a held-out task is judged is shown on request."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect
from pydantic import BaseModel

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.evaluation_mark import WHY_WITHHELD, find_marked_split, refuse_marked
from coevo_gym.core.inquiry import Inquiry
from coevo_gym.core.task_file import decode_line
from coevo_gym.core.trajectory import Cue, EndReason, EvalTrajectory, Step
from coevo_gym.core.trajectory_json import trajectory_from_json
from coevo_gym.envs.diagnosis import TurnFacts, failure_of, stored_failure
from coevo_gym.episodes.episode import clean_cue
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.reader import Evaluated
from coevo_gym.view.api import json_response
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.library import Library
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.safe import Reveal
from tests.agents.fake_openai import Messages, Say
from tests.view import browsing
from tests.view.sample import RUN
from tests.view.serving import serve_viewer
from tests.view.test_data_export import evaluated


def fails_at_turn_2(messages: Messages) -> Say:
    """Solve the first turn as the reference does, and then only list a folder."""
    contents = [content for _, content in messages]
    task = next(task for task in coevo_gym.tasks("bfcl", "val") if task.instruction in contents[1])
    done = sum(role == "assistant" for role, _ in messages)
    text = task.solution[done] if done < 2 else "[ls()]" if done == 2 else "Done."
    return Say(text, usage=(sum(map(len, contents)) // 4, len(text) // 4 + 1))


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> EvalFolder:
    """An evaluation on BFCL whose episodes fail at their second turn."""
    folder = tmp_path_factory.mktemp("failing")
    return evaluated(folder, n=8, answer=fails_at_turn_2)[0]


def details(folder: EvalFolder, reveal: Reveal = "") -> Iterator[dict[str, Any]]:
    collection = RunCollection(Library([folder]), reveal)
    for line, _ in folder.read_episodes():
        path = f"evals/{folder.path.name}/episodes/{line.id}.{line.sample}"
        yield json.loads(json_response(collection, path))


def test_the_failing_turn_and_its_label_are_shown_for_held_out_tasks(failing: EvalFolder) -> None:
    episodes = list(details(failing))
    assert {one["split"] for one in episodes} == {"val"}
    verdicts = {line.id: one.report["verdicts"] for line, one in failing.read_episodes()}
    failures = [one["grade"]["failure"] for one in episodes if not one["grade"]["success"]]
    assert len(failures) > 4
    assert "state_mismatch at turn 2" in {failure["text"] for failure in failures}
    for one in episodes:
        if failure := one["grade"]["failure"]:
            decided = verdicts[one["task"]["id"]][failure["turn"] - 1]
            assert decided not in ("passed", "unchecked", "not_reached")
            assert failure["text"] == f"{failure['label']} at turn {failure['turn']}"
    for one in episodes:
        assert one["steps"][0]["turn"] == 1
        for before, after in pairwise(one["steps"]):
            assert after["turn"] - before["turn"] == (before["action"] == "Done.")


def test_messages_functions_tokens_and_times_are_shown(failing: EvalFolder) -> None:
    trajectories = {f"{line.id}.{line.sample}": one for line, one in failing.read_episodes()}
    for one in details(failing):
        transcript = trajectories[one["id"]].transcript
        assert transcript is not None
        assert one["system"] == transcript.messages[0][1]
        messages = [(m["role"], m["text"]) for step in one["steps"] for m in step["messages"]]
        prompt = transcript.prompt_at(len(one["steps"]) - 1)
        assert messages == [message for message in prompt if message[0] != "assistant"]
        for number, step in enumerate(one["steps"]):
            assert step["n_messages"] == len(transcript.prompts[number])
            assert (step["prompt_tokens"], step["completion_tokens"]) == transcript.tokens[number]
            assert step["answer_s"] > 0
            assert step["env_s"] > 0


def test_an_unfinished_turn_is_not_called_an_empty_one() -> None:
    passed = TurnFacts(reached=True, reference=True, calls=1)
    turns = [passed, TurnFacts.unreached(True), TurnFacts.unreached(True)]
    report = {
        "verdicts": ["passed", "not_reached", "not_reached"],
        "turns": [turn._asdict() for turn in turns],
    }
    episode = failed(report)
    assert str(failure_of("bfcl", episode)) == "not_reached at turn 2"


def test_the_verdict_decides_which_turn_failed() -> None:
    """A call in a turn that asks for nothing has a label, but the grader lets it pass."""
    spurious = TurnFacts(reached=True, reference=False, calls=1)
    wrong = TurnFacts(reached=True, reference=True, calls=1, outcome="state")
    report = {
        "verdicts": ["unchecked", "instance_state_mismatch"],
        "turns": [spurious._asdict(), wrong._asdict()],
    }
    assert str(failure_of("bfcl", failed(report))) == "state_mismatch at turn 2"


def test_a_benchmark_without_diagnoses_has_no_label() -> None:
    assert failure_of("atif", failed({})) is None


def test_a_benchmark_that_cannot_diagnose_an_episode_ends_no_evaluation(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("turns")

    monkeypatch.setattr(get_benchmark("bfcl"), "diagnose", fail)
    for _ in range(2):
        assert stored_failure("bfcl", failed({})) == ("", None)
    assert caplog.messages == ["bfcl could not diagnose an episode: KeyError: 'turns'"]


def failed(report: Mapping[str, Any], step: Step | None = None) -> EvalTrajectory:
    steps = (step or Step("a page", "a page", "look"),)
    return EvalTrajectory(
        task_id="t", steps=steps, score=0.0, success=False, end_reason=EndReason.FAILED,
        report=report,
    )  # fmt: skip


def test_a_browser_shows_the_failing_turn_messages_tokens_and_times(failing: EvalFolder) -> None:
    episode = next(
        one for one in details(failing) if (one["grade"]["failure"] or {"turn": 0})["turn"] == 2
    )
    with serve_viewer([str(failing.path)], "page") as address, browsing.browser() as browser:
        page = browser.new_page(viewport=browsing.NARROW)
        page.goto(f"{address}/#/evals/{failing.path.name}/episodes/{episode['id']}")
        figures = page.locator(".figures")
        expect(figures).to_contain_text(episode["grade"]["failure"]["text"])
        expect(figures).to_contain_text(re.compile(r"[\d,]+ in, \d+ out"))
        expect(page.locator("#step-1 .tag.bad")).to_have_count(0)
        expect(page.locator("#step-3 .tag.bad")).to_have_text("turn 2")
        expect(page.locator("#step-1 .spent")).to_contain_text(re.compile(r"answer \d.*env \d"))
        page.locator("#step-3 summary").first.click()
        messages = page.locator("#step-3 .shown details")
        expect(messages).to_contain_text("1 new message, after")
        expect(messages).to_contain_text(episode["steps"][2]["messages"][0]["text"].strip())
        expect(page.locator("#verdict")).to_contain_text("Evaluation data (val split)")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= browsing.NARROW["width"]


# Episodes of a run's evaluations.


def evaluated_in_run(folder: Path, path: str, reveal: Reveal = "") -> dict[str, Any]:
    collection = RunCollection(Library([str(folder / "runs" / RUN)]), reveal)
    answer: dict[str, Any] = json.loads(json_response(collection, f"runs/{RUN}/{path}"))
    return answer


def test_the_episodes_that_a_run_evaluated_are_shown(sample_folder: Path) -> None:
    evaluation = evaluated_in_run(sample_folder, "evaluations/coevolve/2")
    ids = [task["stored"] for task in evaluation["tasks"]]
    assert ids == [f"coevolve.2.{task['id']}.0" for task in evaluation["tasks"]]
    for before, id, after in zip([None, *ids], ids, [*ids[1:], None], strict=False):
        episode = evaluated_in_run(sample_folder, f"evaluated/{id}")
        assert (episode["before"], episode["after"]) == (before, after)
        assert (episode["of"], episode["arm"], episode["step"]) == ("evaluation", "coevolve", 2)
        assert episode["notice"].startswith("Evaluation data (val split)")
        assert not episode["grade"]["notice"]  # the report's own fields are withheld
        assert episode["steps"]
        assert [one["id"] for one in episode["siblings"]] == [id]
    revealed = evaluated_in_run(sample_folder, f"evaluated/{ids[0]}", "page")
    assert find_marked_split(revealed["grade"]) == "val"


@pytest.mark.parametrize("id", ["coevolve.2.no.0", "coevolve.x.no.0", "coevolve", "static.2.a.b"])
def test_an_episode_that_a_run_did_not_evaluate_is_not_found(sample_folder: Path, id: str) -> None:
    with pytest.raises(NotFound, match=r"no episode .* look like ARM\.STEP\.TASK\.SAMPLE"):
        evaluated_in_run(sample_folder, f"evaluated/{id}")


def test_show_prints_an_episode_that_a_run_evaluated(sample_folder: Path) -> None:
    evaluation = evaluated_in_run(sample_folder, "evaluations/coevolve/2")
    id = evaluation["tasks"][0]["stored"]
    command = [sys.executable, "-m", "coevo_gym", "show", RUN, id]
    output = subprocess.run(
        command, cwd=sample_folder, check=True, capture_output=True, text=True
    ).stdout
    assert f"{RUN}, coevolve, step 2, episode {id}, val task" in " ".join(output.split())
    assert "Evaluation data (val split)" in output


def test_a_browser_opens_an_evaluated_task_of_a_run(sample_folder: Path) -> None:
    run = str(sample_folder / "runs" / RUN)
    with serve_viewer([run]) as address, browsing.browser() as browser:
        page = browser.new_page()
        page.goto(f"{address}/#/runs/{RUN}/evaluations/coevolve/2")
        page.get_by_role("table", name="Held-out tasks").locator("a[data-row]").first.click()
        expect(page.locator("main h1")).to_contain_text("Evaluation of")
        expect(page.locator("main")).to_contain_text("Evaluation data (val split)")
        page.get_by_role("link", name="evaluation at step 2").click()
        expect(page.locator("main h1")).to_contain_text("coevolve on held-out tasks, step 2")


# The grader's verdict of held-out tasks.


def with_secrets(folder: EvalFolder, benchmark: str = "") -> EvalFolder:
    """Add things that tell how a task is judged to the first episode, and to its benchmark."""
    line, _ = next(folder.read_episodes())
    config = folder.read_config()
    report = {
        "verdicts": ["instance_state_mismatch"],
        "mismatches": ["GorillaFileSystem.THE-STATE"],
        "tests": [{"requirement": "THE-TEST", "passed": False}],
    }
    step = Step("a page", "a page", "look", extras={"price": "THE-PRICE"})
    ended = Evaluated(line.id, False, 0.0, "failed", 1, line.sample)
    with closing(RunStore(folder.database)) as store:
        store.add_eval_episode(config["policy"], 0, ended, failed(report, step))
    if benchmark:
        folder.config.write_text(json.dumps({**config, "benchmark": benchmark}))
    return folder


SECRETS = ("THE-STATE", "THE-TEST", "THE-PRICE")


@pytest.fixture
def secret(tmp_path: Path) -> EvalFolder:
    return with_secrets(evaluated(tmp_path, n=1)[0])


def test_a_verdict_is_shown_on_request_and_marked(secret: EvalFolder) -> None:
    (hidden,) = details(secret)
    assert not any(word in json.dumps(hidden) for word in SECRETS)
    assert WHY_WITHHELD in hidden["grade"]["withheld"]
    assert "--reveal" in hidden["grade"]["withheld"]
    for place in ("page", "terminal"):
        (episode,) = details(secret, place)  # type: ignore[arg-type]
        assert all(word in json.dumps(episode) for word in SECRETS)
        assert find_marked_split(episode["grade"]) == "val"
        assert episode["grade"]["withheld"] == ""


def test_appworlds_verdicts_reach_no_page(tmp_path: Path) -> None:
    folder = with_secrets(evaluated(tmp_path, n=1)[0], "appworld")
    (episode,) = details(folder, "page")
    assert not any(word in json.dumps(episode) for word in SECRETS)
    assert "coevo show --reveal" in episode["grade"]["withheld"]
    (episode,) = details(folder, "terminal")
    assert all(word in json.dumps(episode) for word in SECRETS)


def printed(folder: EvalFolder, *arguments: str, terminal: bool) -> str:
    """The output of ``coevo show`` on a terminal or in a pipe."""
    line, _ = next(folder.read_episodes())
    command = [
        sys.executable, "-m", "coevo_gym", "show", str(folder.path), line.name, *arguments
    ]  # fmt: skip
    if not terminal:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    ours, its = pty.openpty()
    with os.fdopen(its, "wb") as end, subprocess.Popen(command, stdout=end, stderr=end):
        pass
    output = b""
    try:
        while part := os.read(ours, 1 << 16):
            output += part
    except OSError:  # how Linux tells that the other end is closed
        pass
    os.close(ours)
    return output.decode()


def test_appworlds_verdicts_are_printed_on_terminals_only(tmp_path: Path) -> None:
    folder = with_secrets(evaluated(tmp_path, n=1)[0], "appworld")
    assert "THE-TEST" in printed(folder, "--reveal", terminal=True)
    for arguments in (["--reveal"], ["--reveal", "--json"]):
        output = printed(folder, *arguments, terminal=False)
        assert not any(word in output for word in SECRETS)
        assert "may be passed on only in encrypted form" in output
    assert "THE-TEST" not in printed(folder, "--reveal", "--json", terminal=True)


def test_nothing_reads_what_a_revealing_command_printed(secret: EvalFolder) -> None:
    text = printed(secret, "--reveal", terminal=False)
    data = json.loads(printed(secret, "--reveal", "--json", terminal=False))
    assert all(word in text and word in json.dumps(data) for word in SECRETS)
    for value in (text, data, data["grade"]):
        with pytest.raises(SplitLeakError, match="an exported episode of a val task"):
            refuse_marked(value, "be used")
    doors = (
        lambda: clean_cue(Cue(text)),
        lambda: Inquiry("prompt", BaseModel, {"text": text}),
        lambda: decode_line(json.dumps(data).encode()),
        lambda: coevo_gym.from_rows([{"prompt": text, "answer": "1"}], lambda row, answer: 1.0),
        lambda: coevo_gym.from_rows([{"prompt": "p", **data["grade"]}], lambda row, answer: 1.0),
        lambda: trajectory_from_json(data),
    )
    for door in doors:
        with pytest.raises(SplitLeakError):
            door()
