"""Episodes of the four benchmarks, played by an endpoint, are exported as they were sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from coevo_gym.core.task import Task
from coevo_gym.prompts.answers import answer_of
from coevo_gym.runs.evals.evaluation import evaluate_job
from coevo_gym.runs.evals.job import make_model_job
from coevo_gym.runs.policies import prompt_of
from coevo_gym.runs.progress_reports import SILENT
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.view.data.write import export_episodes
from tests.agents.fake_openai import FakeOpenAI, Messages, Say
from tests.view.atif_messages import messages_of

atif = pytest.importorskip("atif")
BENCHMARKS = ("webshop", "bfcl", "alfworld", "appworld")
SIZES = [3, pytest.param(250, marks=pytest.mark.slow)]


def reciter(tasks: Sequence[Task], form: str) -> Callable[[Messages], Say]:
    """Return a function that answers with the next action of the reference solution."""
    longest_first = sorted(tasks, key=lambda task: -len(task.instruction))

    def answer(messages: Messages) -> Say:
        task = next(
            task
            for task in longest_first
            if any(task.instruction in text for _, text in messages[:2])
        )
        done = sum(role == "assistant" for role, _ in messages)
        action = task.solution[done] if done < len(task.solution) else "Done."
        return Say(answer_of(action, form, "", "[]"))

    return answer


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_message_of_many_episodes_is_exported(
    benchmark: str, n: int, tmp_path: Path, engine: Callable[[str], None]
) -> None:
    engine(benchmark)
    folder, reciters = EvalFolder(tmp_path / "asked"), list[Callable[[Messages], Say]]()
    with FakeOpenAI(answer=lambda messages: reciters[0](messages)) as server:
        sets = [
            f"policy.endpoint.base_url={server.url}",
            "policy.endpoint.api_key_env=none",
            f"evaluation.n_tasks={n}",
        ]
        job = make_model_job(benchmark, "openai:fake", "train", SILENT, sets=sets)
        prompt = prompt_of(job.assembly.config.policy, benchmark)
        assert prompt is not None
        reciters.append(reciter(job.tasks, prompt.header.answer))
        evaluate_job(job, folder=folder)
        assert not server.problems
    export = export_episodes(str(folder.path), tmp_path / "chats")
    assert export.exact == sum(export.episodes.values()) == len(job.tasks)
    lines = (tmp_path / "chats" / "train.jsonl").read_text().split("\n")[:-1]
    requests = Counter(json.dumps(body["messages"]) for body in server.bodies)
    chats = {}
    for row in map(json.loads, lines):
        chats[row["id"]] = row["messages"]
        for place, message in enumerate(row["messages"]):
            if message["role"] == "assistant":
                requests[json.dumps(row["messages"][:place])] -= 1
    assert not any(requests.values())
    export_episodes(str(folder.path), tmp_path / "atif", "atif")
    files = sorted((tmp_path / "atif" / "train").iterdir())
    assert len(files) == len(chats)
    for file in files:
        trajectory = json.loads(file.read_text())
        atif.Trajectory.model_validate(trajectory)
        assert messages_of(trajectory) == chats[trajectory["extra"]["id"]]
