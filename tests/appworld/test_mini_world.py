"""The built-in world: what it holds, that its tasks are sound, and that it comes out the same."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from coevo_gym.envs.appworld import builtin
from coevo_gym.envs.appworld.builtin import N_TASKS
from coevo_gym.envs.appworld.engine import prefix
from tests.appworld.conftest import Stock

SCRIPT = Path(builtin.__file__).parent / "builtin_world" / "main.py"
SPLITS = ("train", "dev", "test_normal")
NOTHING = "apis.supervisor.complete_task()"
SIDE_EFFECT = """
simple_note_token = apis.simple_note.login(
    username=me["email"], password=passwords["simple_note"]
)["access_token"]
wifi = apis.simple_note.search_notes(query="Wifi", access_token=simple_note_token)[0]
apis.simple_note.delete_note(note_id=wifi["note_id"], access_token=simple_note_token)
"""
DETOUR = """
free = next(s for s in apis.spotify.search_songs(genre="folk") if s["song_id"] not in liked)
apis.spotify.like_song(song_id=free["song_id"], access_token=spotify_token)
apis.spotify.unlike_song(song_id=free["song_id"], access_token=spotify_token)
"""


class MiniTask(NamedTuple):
    """One task as it lies on disk."""

    id: str
    split: str
    instruction: str
    supervisor: str
    solution: str
    values: Mapping[str, Any]
    metadata: Mapping[str, Any]
    answer: Any
    apps: tuple[str, ...]
    labels: Counter[str]

    @property
    def scenario(self) -> str:
        return self.id.partition("_")[0]

    @property
    def work(self) -> list[str]:
        """The lines of the solution that follow the logins."""
        return self.solution.partition("\n\n")[2].splitlines()


@pytest.fixture(scope="module")
def tasks(root: Path) -> list[MiniTask]:
    pairs = [
        (split, task_id)
        for split in SPLITS
        for task_id in (root / "data" / "datasets" / f"{split}.txt").read_text().split()
    ]
    return [read(root / "data" / "tasks" / task_id, split) for split, task_id in pairs]


def read(folder: Path, split: str) -> MiniTask:
    truth = folder / "ground_truth"
    specs = json.loads((folder / "specs.json").read_text())
    tests = json.loads((truth / "test_data.json").read_text())
    return MiniTask(
        id=folder.name,
        split=split,
        instruction=specs["instruction"],
        supervisor=specs["supervisor"]["email"],
        solution=(truth / "solution.py").read_text(),
        values=json.loads((truth / "public_data.json").read_text()),
        metadata=json.loads((truth / "metadata.json").read_text()),
        answer=json.loads((truth / "answer.json").read_text()),
        apps=tuple(json.loads((truth / "required_apps.json").read_text())),
        labels=Counter(test["label"] for test in tests),
    )


def test_the_name_of_the_built_in_world_changes_with_its_content(root: Path) -> None:
    """Tasks name the world that they were created in, so other content needs another name."""
    content = json.dumps(digests(root / "data"), sort_keys=True).encode()
    assert root.name == "builtin-4b8f42488c9b"
    assert sha256(content).hexdigest().startswith("b2a52cce5a48683d")


def test_the_built_in_world_has_enough_tasks_scenarios_and_apps(
    tasks: list[MiniTask], root: Path
) -> None:
    assert len({task.supervisor for task in tasks}) >= 5
    assert len({app for task in tasks for app in task.apps}) >= 9
    assert len(tasks) == N_TASKS >= 60
    assert len({task.scenario for task in tasks}) >= 20
    assert sorted(task.id for task in tasks) == sorted(
        folder.name for folder in (root / "data" / "tasks").iterdir()
    )
    assert all(re.fullmatch("[0-9a-f]{7}_[1-3]", task.id) for task in tasks)


def test_every_scenario_has_three_different_tasks(tasks: list[MiniTask]) -> None:
    scenarios = defaultdict(list)
    for task in tasks:
        scenarios[task.scenario].append(task)
    for variants in scenarios.values():
        assert len(variants) == 3
        assert len({task.split for task in variants}) == 1
        assert len({task.metadata["difficulty"] for task in variants}) == 1
        assert len({task.supervisor for task in variants}) == 3
        assert len({(task.supervisor, task.instruction) for task in variants}) == 3


def test_every_split_has_every_difficulty(tasks: list[MiniTask]) -> None:
    shares = Counter(task.split for task in tasks)
    assert 0.55 < shares["train"] / len(tasks) < 0.65
    for split in SPLITS:
        difficulties = {task.metadata["difficulty"] for task in tasks if task.split == split}
        assert difficulties == {1, 2, 3}
    per_difficulty = Counter(task.metadata["difficulty"] for task in tasks)
    assert min(per_difficulty.values()) >= 20


def test_enough_tasks_are_not_trivial(tasks: list[MiniTask]) -> None:
    assert sum(len(task.apps) > 1 for task in tasks) >= 0.3 * len(tasks)
    assert sum(len(task.work) <= 3 for task in tasks) <= 0.3 * len(tasks)
    assert sum(task.answer is not None for task in tasks) >= 0.2 * len(tasks)
    assert sum(task.answer is None for task in tasks) >= 0.2 * len(tasks)


def test_the_metadata_of_each_task_matches_its_files(tasks: list[MiniTask]) -> None:
    for task in tasks:
        lines = [line for line in task.solution.splitlines() if line]
        calls = set(re.findall(r"apis\.(\w+)\.(\w+)", task.solution))
        assert task.metadata["num_solution_code_lines"] == len(lines)
        assert task.metadata["num_apis"] == len(calls)
        assert task.metadata["num_apps"] == len(task.apps)
        assert set(task.apps) == {app for app, _ in calls} - {"supervisor"}
        assert task.metadata["num_api_calls"] >= len(calls)
        assert task.labels["no_op_fail"] >= 1
        assert task.labels["no_op_pass"] >= 1


def test_solutions_use_only_values_from_the_instruction(tasks: list[MiniTask]) -> None:
    for task in tasks:
        assert all(str(value) in task.instruction for value in task.values.values()), task.id
        tree = ast.parse(task.solution)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert "requester" not in names
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and (node.arg or "").endswith("_id"):
                assert not isinstance(node.value, ast.Constant), task.id
            if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
                assert node.value in (*task.values.values(), 0, 1, 2, 4, 20, 60), task.id


def success(result: Mapping[str, Any]) -> bool:
    return all(passed for _, _, passed in result["tests"])


def check_tasks(stock: Stock, tasks: list[MiniTask]) -> None:
    """The reference passes, twice with the same outcome, and doing nothing does not."""
    results = iter(
        stock(
            [
                {"task_id": task.id, "codes": [code]}
                for task in tasks
                for code in (task.solution, task.solution, NOTHING)
            ]
        )
    )
    for task, first, second, idle in zip(tasks, results, results, results, strict=True):
        assert success(first), (task.id, first)
        assert first == second, task.id
        assert first["completed"]
        assert first["answer"] == task.answer
        assert bool(first["changes"]) == (task.answer is None), task.id
        assert not success(idle), task.id
        labels = {label for _, label, passed in idle["tests"] if passed}
        assert labels == {"no_op_pass"} or not labels, task.id


@pytest.mark.slow
def test_references_pass_and_doing_nothing_fails(stock: Stock, tasks: list[MiniTask]) -> None:
    check_tasks(stock, tasks[::60])


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(27))
def test_all_references_pass_and_doing_nothing_fails(
    stock: Stock, tasks: list[MiniTask], part: int
) -> None:
    check_tasks(stock, tasks[part::27])


WRONG = {
    "a wrong amount": ("Request $", "amount=amount", "amount=amount + 1"),
    "a wrong note": ("Request $", "description=note", 'description=note + "!"'),
    "a wrong amount of a text": ("My sibling sent me a text", "group(1))", "group(1)) - 0.01"),
    "only one of several": ("Request $", "):\n", ")[:1]:\n"),
    "all pending requests": ("Approve all", "in emails", "in {request['sender']['email']}"),
    "paid by card": (
        "Approve all",
        "access_token=venmo_token\n        )",
        "access_token=venmo_token, payment_card_id=apis.venmo.show_payment_cards("
        'access_token=venmo_token)[0]["payment_card_id"]\n        )',
    ),
    "the last page only": ("How many songs", "rows += page", "rows = page"),
    "a wrong number": ("How many songs", "answer=sum(", "answer=1 + sum("),
    "the other end": ("the most plays", "max if rank", "min if rank"),
    "no answer": ("How many dollars has", "answer=round(total, 2)", ""),
    "an answer to an order": ("Turn off", "complete_task(", 'complete_task(answer="done"'),
    "more than was asked": ("Turn off", 'alarm["time"] < time', 'alarm["time"]'),
    "a public playlist": ("Make a new private", "title=title,", "title=title, is_public=True,"),
    "two mails for one": (
        "Add up all expenses",
        "apis.supervisor.complete_task",
        'apis.gmail.send_email(email_addresses=[me["email"]], subject=kind, body="", '
        "access_token=gmail_token)\napis.supervisor.complete_task",
    ),
    "a wrong total": ("Add up all expenses", "{total:.2f}", "{total:.1f}"),
    "the wrong person": ("Text my", 'contact["phone_number"],', 'me["phone_number"],'),
    "not all members": ("I have paid the latest", '["members"]]', '["members"][1:]]'),
    "a dearer product": ("names product types", "min(products", "max(products"),
    "strangers stay friends": ("Make my friend list", "present - wanted", "set()"),
    "what is packed too": ("marks with [x]", '"[ ] "', '"["'),
}


def first_with(tasks: list[MiniTask], text: str) -> MiniTask:
    return next(task for task in tasks if text in task.instruction)


def check_wrong(stock: Stock, tasks: list[MiniTask], names: list[str]) -> None:
    """None of these wrong solutions passes, though each of them runs through."""
    jobs = []
    for name in names:
        text, right, wrong = WRONG[name]
        task = first_with(tasks, text)
        logins, work = task.solution.split("\n\n")
        changed = work.replace(right, wrong)
        code = f"{logins}\n\n{changed}"
        if changed == work:
            code = f"{logins.replace(right, wrong)}\n\n{work}"
        assert code != task.solution, name
        jobs.append({"task_id": task.id, "codes": [code]})
    for name, result in zip(names, stock(jobs), strict=True):
        assert "Traceback" not in result["outputs"][0], (name, result["outputs"])
        assert not success(result), name


@pytest.mark.slow
def test_wrong_solutions_fail(stock: Stock, tasks: list[MiniTask]) -> None:
    check_wrong(stock, tasks, list(WRONG)[::10])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_wrong_solutions_fail(stock: Stock, tasks: list[MiniTask]) -> None:
    check_wrong(stock, tasks, list(WRONG))


def test_side_effects_fail_unless_they_are_undone(stock: Stock, tasks: list[MiniTask]) -> None:
    order, question = first_with(tasks, "Request $"), first_with(tasks, "How many songs")
    liking = first_with(tasks, "Like all")
    *spoilt, undone = stock(
        [
            {"task_id": task.id, "codes": [task.solution + code]}
            for task, code in ((order, SIDE_EFFECT), (question, SIDE_EFFECT), (liking, DETOUR))
        ]
    )
    for result in spoilt:
        failed = [(wanted, label) for wanted, label, passed in result["tests"] if not passed]
        assert [label for _, label in failed] == ["no_op_pass"]
        assert failed[0][0].startswith("assert nothing")
    assert "Traceback" not in undone["outputs"][0]
    assert success(undone)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_second_build_with_another_hash_seed_is_identical(root: Path, tmp_path: Path) -> None:
    subprocess.run(
        [prefix.engine_python(), SCRIPT, tmp_path, str(os.getpid())],
        env={**prefix.engine_environment(tmp_path), "PYTHONHASHSEED": "7"},
        cwd=tmp_path,
        timeout=800,
        check=True,
    )
    assert {path.name for path in tmp_path.iterdir()} == {"data"}
    assert digests(tmp_path / "data") == digests(root / "data")


def digests(folder: Path) -> dict[str, str]:
    """A hash of each file; the bytecode that a use of the world leaves does not count."""
    return {
        str(file.relative_to(folder)): sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file() and file.parent.name != "__pycache__"
    }


def test_the_builder_without_arguments_prints_its_usage(root: Path) -> None:
    done = subprocess.run(
        [prefix.engine_python(), SCRIPT], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 1
    assert "Usage: python main.py DATA_ROOT PARENT" in done.stderr
