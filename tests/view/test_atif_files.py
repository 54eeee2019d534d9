"""ATIF files of any program are shown like evaluations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.core.errors import ConfigError
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.data.atif_files import find_atif_files, read_atif_files
from coevo_gym.view.data.episodes import EpisodeFilter
from coevo_gym.view.data.write import export_episodes
from coevo_gym.view.library import Library
from coevo_gym.view.model.evals import episode_detail, episode_rows, eval_detail
from coevo_gym.view.model.trajectories import TrajectoryDetail
from tests.view import sample

pytest.importorskip("atif")

FOREIGN: dict[str, Any] = {
    "schema_version": "ATIF-v1.6",
    "agent": {"name": "terminus", "version": "2", "model_name": "some-model"},
    "steps": [
        {"step_id": 1, "source": "system", "message": "Be brief."},
        {"step_id": 2, "source": "user", "message": "What time is it?"},
        {
            "step_id": 3,
            "source": "agent",
            "message": "Let me check.",
            "reasoning_content": "A clock would help.",
            "tool_calls": [
                {"tool_call_id": "c1", "function_name": "now", "arguments": {"zone": "UTC"}}
            ],
            "observation": {"results": [{"source_call_id": "c1", "content": "12:00"}]},
            "metrics": {"completion_token_ids": [4, 5], "logprobs": [-0.5, -1.0]},
        },
        {"step_id": 4, "source": "agent", "message": "It is noon."},
    ],
}


def show_files(name: str, parent: Path) -> tuple[list[TrajectoryDetail], RunCollection, int]:
    """The episodes of files, as the viewer shows them."""
    folder, ungraded = read_atif_files(name, find_atif_files(name), parent)
    collection = RunCollection(Library([folder]))
    (evaluation,) = collection.evals()
    details = [episode_detail(evaluation, row.id) for row in episode_rows(evaluation)]
    return details, collection, ungraded


def write(path: Path, **changes: Any) -> str:
    path.write_text(json.dumps(FOREIGN | changes))
    return str(path)


def test_a_trajectory_of_another_program_is_shown_step_by_step(tmp_path: Path) -> None:
    (episode,), collection, ungraded = show_files(write(tmp_path / "talk.json"), tmp_path / "pages")
    assert ungraded == 1
    assert episode.instruction == "What time is it?"
    first, second = episode.steps
    assert first.observation == "Be brief.\n\nWhat time is it?"
    assert first.action == 'now({"zone": "UTC"})'
    assert first.said == "A clock would help.\n\nLet me check."
    assert [(token.id, token.logprob) for token in first.tokens or ()] == [(4, -0.5), (5, -1.0)]
    assert (second.observation, second.action) == ("12:00", "It is noon.")
    assert not episode.grade.success
    detail = eval_detail(collection.evals()[0])
    assert (detail.eval.name, detail.eval.model, detail.eval.done) == ("talk", "some-model", 1)


def test_a_file_with_a_held_out_episode_counts_as_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.json", extra={"split": "train"})
    write(tmp_path / "b.json", extra={"split": "val"})
    details, collection, _ = show_files(str(tmp_path), tmp_path / "pages")
    assert {episode.split for episode in details} == {"train", "val"}
    assert collection.evals()[0].config["split"] == "val"


def test_outcomes_and_subagents_are_read(tmp_path: Path) -> None:
    inner = {**FOREIGN, "trajectory_id": "helper"}
    name = write(tmp_path / "talk.json", extra={"reward": 1.0}, subagent_trajectories=[inner])
    (outer, helper), _, ungraded = show_files(name, tmp_path / "pages")
    assert (outer.task.name, outer.grade.success) == ("talk", True)
    assert helper.task.name == "talk/helper"
    assert ungraded == 1


def test_copied_context_is_not_a_step(tmp_path: Path) -> None:
    steps = [dict(step) for step in FOREIGN["steps"]]
    steps[2]["is_copied_context"] = True
    (episode,), _, _ = show_files(write(tmp_path / "talk.json", steps=steps), tmp_path / "pages")
    assert [step.action for step in episode.steps] == ["It is noon."]
    assert "Let me check." in episode.steps[0].observation
    assert "12:00" in episode.steps[0].observation


def test_exported_episodes_are_shown_like_those_of_their_evaluation(
    beside: Path, tmp_path: Path
) -> None:
    export_episodes(sample.EVAL, tmp_path / "out", "atif", EpisodeFilter(splits=("val",)))
    details, _, ungraded = show_files(str(tmp_path / "out"), tmp_path / "pages")
    assert ungraded == 0
    (evaluation,) = RunCollection(Library([sample.EVAL])).evals()
    originals = {row.id: episode_detail(evaluation, row.id) for row in episode_rows(evaluation)}
    assert len(details) == len(originals) == 24
    for episode in details:
        original = originals[episode.task.name]
        assert episode.grade.success == original.grade.success
        assert [step.action for step in episode.steps] == [step.action for step in original.steps]
        assert episode.instruction == original.instruction
        assert (episode.split, bool(episode.notice)) == ("val", True)
        assert episode.last_observation == original.last_observation


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{", "is not an ATIF trajectory: Invalid JSON"),
        ('{"steps": []}', "schema_version: Field required"),
        (json.dumps(FOREIGN | {"mood": 1}), "mood: Extra inputs are not permitted"),
        (json.dumps(FOREIGN | {"steps": [{"step_id": 1}]}), r"steps\.0\.source: Field required"),
        ("", "contains no ATIF trajectory"),
    ],
)
def test_other_files_are_an_error(text: str, match: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError, match=match):
        read_atif_files(str(file), find_atif_files(str(file)), tmp_path / "pages")


def test_other_names_are_not_atif_files(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    assert not find_atif_files(str(tmp_path / "notes.txt"))
    assert not find_atif_files(str(tmp_path / "empty"))
    assert not find_atif_files("quickstart")
