"""Exported episodes: other programs load the same messages, ids and outcomes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coevo_gym
from coevo_gym.core.errors import ConfigError, SplitLeakError, StoreError, TaskError
from coevo_gym.core.notations import read_action_calls
from coevo_gym.core.task import Split
from coevo_gym.core.tool_calls import Call
from coevo_gym.core.trajectory import EndReason, Group, Step, TokenDecision, Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json
from coevo_gym.core.transcript import ModelCall, Transcript
from coevo_gym.runs.config import load_config
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_model_job
from coevo_gym.runs.manifest import make_manifest
from coevo_gym.runs.progress_reports import SILENT
from coevo_gym.store.database import RunStore
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder, read_json, write_json
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.data.atif import atif_trajectories
from coevo_gym.view.data.chats import chat_rows
from coevo_gym.view.data.columns import ABOUT
from coevo_gym.view.data.episodes import EpisodeFilter, StoredEpisode
from coevo_gym.view.data.write import DataFormat, export_episodes
from coevo_gym.view.library import Library
from coevo_gym.view.model.trajectories import trajectory_detail
from coevo_gym.view.model.trajectory_list import all_trajectories
from tests.agents.fake_openai import FakeOpenAI, Messages, Say
from tests.agents.tiny_llama import make_tiny_llama
from tests.runs.test_paid_episodes import playing
from tests.toy import BENCHMARK, PROMPT
from tests.view import sample
from tests.view.atif_messages import messages_of

VAL = EpisodeFilter(splits=("val",))
TASK = BENCHMARK.tasks(Split.TRAIN)[0]


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def exported(
    target: Path, format: DataFormat, name: str = sample.RUN, wanted: EpisodeFilter | None = None
) -> list[dict[str, Any]]:
    """The rows, or ATIF trajectories, of an export of one split."""
    wanted = wanted or EpisodeFilter()
    export_episodes(name, target, format, wanted)
    if format == "atif":
        files = sorted((target / wanted.splits[0]).iterdir())
        return [json.loads(file.read_text()) for file in files]
    return rows_of(target / f"{wanted.splits[0]}.jsonl")


# A run of a policy that does not chat.


def test_rows_contain_what_the_viewer_shows(beside: Path, tmp_path: Path) -> None:
    run = RunCollection(Library([sample.RUN])).runs()[0]
    rows = {row["id"]: row for row in exported(tmp_path / "out", "jsonl")}
    assert rows.keys() == {row.id for row in all_trajectories(run)}
    for id in list(rows)[:10]:
        row, page = rows[id], trajectory_detail(run, id)
        assert (row["success"], row["score"]) == (page.grade.success, page.grade.score)
        assert (row["arm"], row["step"], row["split"]) == (page.arm, page.step, "train")
        assert (row["held_out"], row["notice"], row["exact"]) == (False, "", False)
        assert row["instruction"] == page.instruction
        assert row["last_observation"] == page.last_observation
        for step, view in zip(row["steps"], page.steps, strict=True):
            assert (step["observation"], step["action"]) == (view.observation, view.action)
            assert step["choices"] == [choice.text for choice in view.choices or ()]
            assert step["choice"] == view.taken
            assert step["advantage"] == view.advantage
            assert json.loads(step["extras"] or "{}") == view.extras


def test_a_policy_without_a_chat_gets_messages_of_observations_and_actions(
    beside: Path, tmp_path: Path
) -> None:
    episodes = {row["id"]: row for row in exported(tmp_path / "episodes", "jsonl")}
    rows = exported(tmp_path / "chats", "messages")
    assert len(rows) == len(episodes)
    for row in rows:
        steps = episodes[row["id"]]["steps"]
        roles = [message["role"] for message in row["messages"]]
        assert roles == ["user", "assistant"] * len(steps)
        assert not row["exact"]
        assert [one["content"] for one in row["messages"][1::2]] == [s["action"] for s in steps]
        assert row["instruction"] in row["messages"][0]["content"]


def test_filters_select_by_outcome_task_arm_and_split(beside: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "all", "jsonl")
    arm, task = rows[0]["arm"], rows[0]["task_name"]
    for number, (wanted, test) in enumerate(
        [
            (EpisodeFilter(success=True), lambda row: row["success"]),
            (EpisodeFilter(success=False), lambda row: not row["success"]),
            (EpisodeFilter(arms=(arm,)), lambda row: row["arm"] == arm),
            (EpisodeFilter(tasks=(task,)), lambda row: row["task_name"] == task),
            (EpisodeFilter(tasks=(rows[0]["task"],)), lambda row: row["task_name"] == task),
        ]
    ):
        got = exported(tmp_path / str(number), "jsonl", wanted=wanted)
        assert got == [row for row in rows if test(row)]
        assert got


def test_held_out_episodes_are_exported_by_name_only_and_marked_in_each_row(
    beside: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no episodes of train tasks, but .* val\. Pass --split"):
        exported(tmp_path / "refused", "jsonl", sample.EVAL)
    assert not (tmp_path / "refused").exists()
    for format in ("messages", "jsonl", "atif"):
        rows = exported(tmp_path / format, format, sample.EVAL, VAL)  # type: ignore[arg-type]
        about = [row.get("extra", row) for row in rows]
        assert all(
            one["held_out"] and "must not be used in training" in one["notice"] for one in about
        )
        assert len({one["id"] for one in about}) == 24
        assert "Evaluation data." in (tmp_path / format / "README.md").read_text()
    for row in rows_of(tmp_path / "jsonl" / "val.jsonl"):
        shares = json.loads(row["report"] or "{}").values()
        assert all(isinstance(share, float) for share in shares)
        assert not any(step["extras"] for step in row["steps"])


def test_a_runs_own_evaluations_are_exported_with_their_step(beside: Path, tmp_path: Path) -> None:
    rows = exported(tmp_path / "out", "jsonl", wanted=VAL)
    assert {row["of"] for row in rows} == {"evaluation"}
    assert {row["step"] for row in rows if row["arm"] == "static"} == {2, 4, 5}


# What other programs load.


def test_datasets_loads_every_format_with_the_same_values(beside: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    for format in ("messages", "jsonl", "parquet"):
        export_episodes(sample.RUN, tmp_path / format, format)  # type: ignore[arg-type]
    cache = str(tmp_path / "cache")
    chats = datasets.load_dataset(str(tmp_path / "messages"), cache_dir=cache)["train"]
    assert chats.to_list() == rows_of(tmp_path / "messages" / "train.jsonl")
    lines = datasets.load_dataset(str(tmp_path / "jsonl"), cache_dir=cache)["train"]
    table = datasets.load_dataset(str(tmp_path / "parquet"), cache_dir=cache)["train"]
    assert lines.to_list() == table.to_list() == rows_of(tmp_path / "jsonl" / "train.jsonl")
    assert lines.features == table.features


def test_atif_trajectories_are_valid_and_contain_the_same_messages(
    beside: Path, tmp_path: Path
) -> None:
    atif = pytest.importorskip("atif")
    chats = {row["id"]: row["messages"] for row in exported(tmp_path / "chats", "messages")}
    trajectories = exported(tmp_path / "atif", "atif")
    assert len(trajectories) == len(chats)
    for one in trajectories:
        assert atif.Trajectory.model_validate(one).schema_version == "ATIF-v1.8"
        assert messages_of(one) == chats[one["extra"]["id"]]


# Language models.


def calling(messages: Messages) -> Say:
    """Answer with the calls of the reference, as JSON."""
    say = playing(messages)
    assert say.text is not None
    calls = [call for call in read_action_calls(say.text) if isinstance(call, Call)]
    if not calls:
        return say
    functions = [{"name": one.name, "arguments": json.dumps(one.arguments)} for one in calls]
    parts = [{"id": f"c{n}", "type": "function", "function": f} for n, f in enumerate(functions)]
    return say._replace(text="I call.", finish_reason="tool_calls", tool_calls=tuple(parts))


def evaluated(
    folder: Path, *, n: int, answer: Callable[[Messages], Say] = playing, **settings: Any
) -> tuple[EvalFolder, FakeOpenAI]:
    """An evaluation of an endpoint on BFCL, and the server with what it was sent."""
    target = EvalFolder(folder / "evals" / "asked")
    with FakeOpenAI(answer=answer) as server:
        sets = {
            "policy.endpoint.base_url": server.url,
            "policy.endpoint.api_key_env": "none",
            "evaluation.n_tasks": n,
            **settings,
        }
        pairs = [f"{key}={value}" for key, value in sets.items()]
        job = make_model_job("bfcl", "openai:fake", "val", SILENT, sets=pairs)
        evaluate_job(job, folder=target)
        assert not server.problems
    return target, server


def test_an_endpoints_messages_are_exported_exactly_as_they_were_sent(tmp_path: Path) -> None:
    pytest.importorskip("atif")
    folder, server = evaluated(tmp_path, n=5)
    rows = exported(tmp_path / "chats", "messages", str(folder.path), VAL)
    assert all(row["exact"] and row["parts"] == 1 for row in rows)
    requests = [body["messages"] for body in server.bodies]
    for row in rows:
        messages = row["messages"]
        answers = [n for n, one in enumerate(messages) if one["role"] == "assistant"]
        assert row["prompt_messages"] == answers[0]
        for answer in answers:
            assert messages[:answer] in requests
            requests.remove(messages[:answer])
    assert not requests
    chats = {row["id"]: row["messages"] for row in rows}
    for one in exported(tmp_path / "atif", "atif", str(folder.path), VAL):
        assert messages_of(one) == chats[one["extra"]["id"]]
        assert one["final_metrics"]["total_completion_tokens"] > 0


def test_calls_are_exported_as_json_to_every_format(tmp_path: Path) -> None:
    pytest.importorskip("atif")
    datasets = pytest.importorskip("datasets")
    style = {"policy.chat.style": "openai"}
    folder, server = evaluated(tmp_path, n=4, answer=calling, **style)
    rows = exported(tmp_path / "chats", "messages", str(folder.path), VAL)
    requests = [body["messages"] for body in server.bodies]
    called = 0
    for row in rows:
        messages = row["messages"]
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                assert messages[:place] in requests
                called += len(message.get("tool_calls", ()))
        assert json.loads(row["tools"]) in [body["tools"] for body in server.bodies]
    assert called > 4
    chats = {row["id"]: row["messages"] for row in rows}
    trajectories = exported(tmp_path / "atif", "atif", str(folder.path), VAL)
    for one in trajectories:
        assert messages_of(one) == chats[one["extra"]["id"]]
        assert one["agent"]["tool_definitions"]
    assert any(step.get("tool_calls") for one in trajectories for step in one["steps"])
    cache = str(tmp_path / "cache")
    loaded = datasets.load_dataset(str(tmp_path / "chats"), split="val", cache_dir=cache)
    for row in loaded:
        whole = [{k: v for k, v in one.items() if v is not None} for one in row["messages"]]
        assert whole == chats[row["id"]]


def test_each_prompt_of_a_window_is_a_chat_of_its_own(tmp_path: Path) -> None:
    settings = {"policy.chat.history": "window", "policy.chat.window_turns": 1}
    folder, server = evaluated(tmp_path, n=3, **settings)
    rows = exported(tmp_path / "chats", "messages", str(folder.path), VAL)
    assert max(row["parts"] for row in rows) > 1
    requests = [body["messages"] for body in server.bodies]
    for row in rows:
        assert row["messages"][: row["prompt_messages"]] in requests


def test_long_texts_of_chats_are_stored_once(tmp_path: Path) -> None:
    folder, _ = evaluated(tmp_path, n=3)
    texts = list[str]()
    for _, episode in folder.read_episodes():
        assert episode.transcript is not None
        texts += [text for _, text in episode.transcript.messages]
        texts += [step.observation for step in episode.steps]
    long = [text for text in texts if len(text) > 64]
    with closing(RunStore(folder.database)) as store:
        ((n,),) = store._rows("SELECT count(*) FROM texts")
    assert n == len(set(long)) < len(long)


def call(*texts: str, answer: str) -> ModelCall:
    roles = ("system", *("user", "assistant") * len(texts))
    return ModelCall(tuple(zip(roles, texts, strict=False)), answer, "", 3, 2)


def token_run(
    folder: Path, name: str = "tokens", *, transcript: bool = True
) -> tuple[RunFolder, list[Trajectory]]:
    """A run with a group of two episodes, played by a model that samples tokens."""
    resolved = load_config("quickstart", sets=[f"name={name}", "store.record=all"], environ={})
    run = RunFolder(folder / name)
    run.path.mkdir(parents=True)
    write_json(run.manifest, make_manifest(resolved, task_sets={}))
    long = "A long system text. " * 20
    calls = [
        call(long, "look", answer="<think>hm</think>go"),
        call(long, "look", "<think>hm</think>go", "a \u2028 wall", answer="stop"),
    ]
    episodes = []
    for n in range(2):
        first = TokenDecision((1, 2, 3), (4, 5 + n), (-0.25, -1.5), policy_version=1)
        second = TokenDecision((1, 2, 3, 4, 5 + n, 6), (7,), (-0.125,), policy_version=2)
        steps = (
            Step("look", "look", "go", first, said="<think>hm</think>go"),
            Step("a \u2028 wall", "a \u2028 wall", "stop", second),
        )
        episodes.append(
            Trajectory(
                task_id=TASK.id, steps=steps, score=float(n), success=bool(n),
                end_reason=EndReason.SOLVED, last_observation="the end",
                transcript=Transcript.of(calls) if transcript else None,
            )
        )  # fmt: skip
    with closing(RunStore(run.database, record="all")) as store:
        group = Group("group-1", TASK, 2, tuple(episodes))
        store.add_groups("coevolve", 1, [group], [])
        store.add_advantages("coevolve", 1, [group], [[0.5, [1.0, -1.0]]])
    return run, episodes


def test_token_ids_and_logprobs_are_exported_and_read_by_atif(tmp_path: Path) -> None:
    atif = pytest.importorskip("atif")
    run, episodes = token_run(tmp_path)
    rows = exported(tmp_path / "rows", "jsonl", str(run.path))
    for one, row in zip(exported(tmp_path / "atif", "atif", str(run.path)), rows, strict=True):
        trajectory = atif.Trajectory.model_validate(one)
        metrics = [step.metrics for step in trajectory.steps if step.source == "agent"]
        decisions = [step.decision for step in episodes[row["position"]].steps]
        for metric, decision, step in zip(metrics, decisions, row["steps"], strict=True):
            assert isinstance(decision, TokenDecision)
            assert metric is not None
            assert metric.prompt_token_ids == step["prompt_ids"] == list(decision.prompt_ids)
            assert metric.completion_token_ids == step["ids"] == list(decision.ids)
            assert metric.logprobs == step["logprobs"] == list(decision.logprobs)
            assert (metric.prompt_tokens, metric.completion_tokens) == (3, 2)
        chat = [row["messages"][place] for place in row["steps"][1]["prompt"]]
        assert [(one["role"], one["content"]) for one in chat] == list(
            episodes[0].transcript.prompt_at(1)  # type: ignore[union-attr]
        )
        assert row["messages"][row["steps"][0]["answer"]]["content"] == "<think>hm</think>go"


def test_the_tokens_of_an_evaluated_model_are_those_of_its_messages(tmp_path: Path) -> None:
    pytest.importorskip("atif")
    transformers = pytest.importorskip("transformers")
    model = make_tiny_llama(tmp_path / "llama")
    (tmp_path / "toy.j2").write_text(PROMPT)
    sets = [
        f"policy.prompt={tmp_path / 'toy.j2'}",
        "policy.chat.max_answer_tokens=8",
        "evaluation.n_tasks=2",
    ]
    job = make_model_job("toy", f"transformers:{model}", "train", SILENT, sets=sets)
    folder = EvalFolder(tmp_path / "evals" / "local")
    evaluate_job(job, folder=folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    trajectories = exported(tmp_path / "atif", "atif", str(folder.path))
    assert trajectories
    for one in trajectories:
        messages, place = messages_of(one), -1
        for step in (step for step in one["steps"] if step["source"] == "agent"):
            place = next(n for n in range(place + 1, len(messages)) if n and
                         messages[n]["role"] == "assistant")  # fmt: skip
            metrics = step["metrics"]
            ids = metrics["completion_token_ids"]
            assert 0 < len(ids) == len(metrics["logprobs"]) == metrics["completion_tokens"]
            assert metrics["prompt_tokens"] == len(metrics["prompt_token_ids"])
            prompt = tokenizer.decode(metrics["prompt_token_ids"])
            assert all(message["content"].strip() in prompt for message in messages[:place])
            assert tokenizer.decode(ids, skip_special_tokens=True) == step["message"]


def test_trl_trains_on_the_messages(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    run, _ = token_run(tmp_path)
    rows = exported(tmp_path / "chats", "messages", str(run.path))
    chats = datasets.load_dataset(
        str(tmp_path / "chats"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert trl.data_utils.is_conversational(chats[0])
    assert chats[0]["messages"] == rows[0]["messages"]
    settings = trl.SFTConfig(
        output_dir=str(tmp_path / "trained"), max_steps=1, per_device_train_batch_size=2,
        use_cpu=True, report_to=[], bf16=False, save_strategy="no",
    )  # fmt: skip
    trainer = trl.SFTTrainer(
        str(make_tiny_llama(tmp_path / "llama")), settings, train_dataset=chats
    )
    text = trainer.processing_class.decode(trainer.train_dataset[0]["input_ids"])
    assert all(one["content"].strip() in text for one in rows[0]["messages"])
    trainer.train()


def test_episodes_of_older_versions_are_exported_from_their_observations(tmp_path: Path) -> None:
    run, _ = token_run(tmp_path, transcript=False)
    with closing(RunStore(run.database)) as store:
        packed = store._rows("SELECT body FROM trajectories LIMIT 1")[0][0]
        assert "transcript" not in store._unpack(packed)
    (row, _) = exported(tmp_path / "chats", "messages", str(run.path))
    assert not row["exact"]
    assert [one["content"] for one in row["messages"][1::2]] == ["<think>hm</think>go", "stop"]


def test_all_cells_of_a_table_are_exported_together(tmp_path: Path) -> None:
    pytest.importorskip("atif")
    for cell in ("static-0", "static-1"):
        token_run(tmp_path / "table", cell)
    table = str(tmp_path / "table")
    rows = exported(tmp_path / "rows", "jsonl", table)
    assert [row["run"] for row in rows] == ["table~static-0"] * 2 + ["table~static-1"] * 2
    trajectories = exported(tmp_path / "atif", "atif", table)
    assert sorted(one["session_id"] for one in trajectories) == [row["run"] for row in rows]
    assert len(coevo_gym.results(table).groups) == 2


# Files.


def test_an_export_is_complete_or_missing_and_replaced_only_on_request(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    first = export_episodes(sample.RUN, target)
    facts = read_json(target / "export.json")
    assert facts["splits"]["train"]["episodes"] == first.episodes["train"] > 0
    assert facts["files"]["train.jsonl"]["bytes"] == (target / "train.jsonl").stat().st_size
    before = (target / "train.jsonl").read_bytes()
    with pytest.raises(ConfigError, match=r"already exists\. Choose another --out, or pass"):
        export_episodes(sample.RUN, target)
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", _fail_at("README.md", target))
        with pytest.raises(StoreError):
            export_episodes(sample.RUN, target, "jsonl", overwrite=True)
    assert (target / "train.jsonl").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    export_episodes(sample.RUN, target, overwrite=True)
    assert (target / "train.jsonl").read_bytes() == before
    other = tmp_path / "mine"
    other.mkdir()
    (other / "README.md").write_text("my notes")
    with pytest.raises(ConfigError, match="is not an export of episodes"):
        export_episodes(sample.RUN, other, overwrite=True)
    assert [path.name for path in other.iterdir()] == ["README.md"]


def _fail_at(name: str, target: Path) -> Any:
    import os

    rename = os.replace

    def replace(source: Any, to: Any) -> None:
        if Path(to) == target and (Path(source) / name).exists() and "part" in Path(source).name:
            raise OSError(28, "No space left on device")
        rename(source, to)

    return replace


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ("UPDATE trajectories SET body = x'00'", "is damaged|Cannot use"),
        ("UPDATE sampled SET body = x'00'", "is damaged|Cannot use"),
        ("DELETE FROM texts", "is missing from"),
        ("PRAGMA user_version = 99", "schema version 99"),
    ],
)
def test_a_damaged_run_is_an_error_that_leaves_no_files(
    tmp_path: Path, change: str, match: str
) -> None:
    run, _ = token_run(tmp_path)
    with closing(sqlite3.connect(run.database)) as database:
        database.execute(change)
        database.commit()
    with pytest.raises(StoreError, match=match):
        export_episodes(str(run.path), tmp_path / "out")
    assert not [*tmp_path.glob("*out*")]


def test_secrets_are_removed_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = token_run(tmp_path)
    monkeypatch.setenv("MY_API_KEY", "A long system text")
    export = export_episodes(str(run.path), tmp_path / "out")
    assert export.redacted == 2
    assert "A long system text" not in (tmp_path / "out" / "train.jsonl").read_text()


def test_mistakes_say_what_to_do(beside: Path, tmp_path: Path) -> None:
    def refusal(name: str = sample.RUN, **filters: Any) -> str:
        with pytest.raises(ConfigError) as caught:
            export_episodes(name, tmp_path / "out", wanted=EpisodeFilter(**filters))
        assert not (tmp_path / "out").exists()
        return str(caught.value)

    assert "Did you mean 'small'" in refusal("smal")
    assert "no episodes of the arm 'statik'. Did you mean 'static'? Stored:" in refusal(
        arms=("statik",)
    )
    assert "no episodes of the task 'nosuch'" in refusal(tasks=("nosuch",))
    assert "no episodes of test tasks, but" in refusal(splits=("test",))
    assert "Did you mean 'coevolve'" in refusal(arms=("static", "coevolv"))
    with pytest.raises(ConfigError, match="no episodes of the arm 'other'"):
        _ = coevo_gym.results(sample.RUN, arms=["other"]).episodes
    rows = exported(tmp_path / "all", "jsonl")
    solved = {row["task"] for row in rows if row["success"]}
    never = min(row["task"] for row in rows if row["task"] not in solved)
    assert "matches all filters. There are" in refusal(success=True, tasks=(never,))


def test_held_out_rows_are_not_restored_as_training_episodes(tmp_path: Path) -> None:
    row = {"notice": "Evaluation data (val split), for viewing only.", "steps": []}
    with pytest.raises(SplitLeakError, match="of a val task, so it cannot become a training"):
        trajectory_from_json(row)


# Data frames.


def test_results_are_data_frames(beside: Path) -> None:
    pytest.importorskip("pandas")
    stored = coevo_gym.results(sample.RUN)
    episodes = stored.episodes.to_frame()
    run = RunCollection(Library([sample.RUN])).runs()[0]
    assert set(episodes.id) == {row.id for row in all_trajectories(run)}
    assert {*episodes.columns} == {column.name for column in ABOUT}
    groups = stored.groups.to_frame()
    assert groups.episodes.sum() == len(episodes)
    assert groups.successes.sum() == episodes.success.sum()
    assert set(stored.rounds.to_frame().arm) == {"static", "coevolve"}
    cells = stored.cells.to_frame().set_index("name")
    assert {"static", "coevolve"} <= set(cells.index)
    assert cells.success.between(0, 1).all()
    val = coevo_gym.results(sample.EVAL, split="val", success=True)
    assert val.episodes.to_frame().success.all()
    assert len(val.cells) == 1
    assert "24 rows" in repr(coevo_gym.results(sample.EVAL, split=["val"]).episodes)


def test_results_of_unknown_names_and_splits_are_an_error(beside: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'small'"):
        coevo_gym.results("smal")
    with pytest.raises(TaskError, match="validation"):
        coevo_gym.results(sample.RUN, split="validation")


# Any chat.

TEXTS = st.text(max_size=3)
TOOLS = st.sampled_from(["", "[]", '[{"type": "function"}]', "[1]", "no JSON"])
CHATS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), TEXTS), max_size=4)
CALLS = st.lists(
    st.none() | st.builds(ModelCall, CHATS.map(lambda chat: (("user", "hi"), *chat)), TEXTS, TOOLS),
    min_size=1,
    max_size=4,
)


@given(CALLS, TEXTS)
def test_any_chat_survives_atif(calls: list[ModelCall | None], last: str) -> None:
    atif = pytest.importorskip("atif")
    transcript = Transcript.of(calls)
    body = {
        "steps": [{"action": "go", "shown": "s", "observation": "s"} for _ in calls],
        "transcript": transcript and asdict(transcript),
        "last_observation": last,
    }
    about = {column.name: "" for column in ABOUT}
    episode = StoredEpisode(about, body, None, None, calls_tools=False)
    rows, trajectories = list(chat_rows(episode)), list(atif_trajectories(episode))
    assert len(rows) == len(trajectories)
    for row, trajectory in zip(rows, trajectories, strict=True):
        atif.Trajectory.model_validate(trajectory)
        assert messages_of(trajectory) == row["messages"]
        agents = [step for step in trajectory["steps"] if step["source"] == "agent"]
        copied = [step for step in agents if step.get("is_copied_context")]
        answers = trajectory["final_metrics"]["total_steps"]
        assert len(agents) - len(copied) == answers
    if transcript is not None:
        assert sum(one["final_metrics"]["total_steps"] for one in trajectories) == len(
            [call for call in calls if call is not None]
        )
