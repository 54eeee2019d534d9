"""The episodes of a server's pages."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Split
from coevo_gym.core.task_file import read_tasks
from coevo_gym.testing.contract import Poison
from coevo_gym.view.play import episodes as room
from coevo_gym.view.play.episodes import EpisodeManager, NotPossible
from coevo_gym.view.play.source import benchmark_source
from tests.faults import break_engines
from tests.play.managers import HELD_OUT, OTHER, TASK, Clock, play_solution, toy_manager
from tests.toy import BENCHMARK, COLOURS, ToyEnv


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[EpisodeManager]:
    new_desk = toy_manager(tmp_path)
    yield new_desk
    new_desk.close()


def test_an_episode_from_its_first_page_to_its_grade(manager: EpisodeManager) -> None:
    state = manager.begin(TASK.id)
    assert state["instruction"] == TASK.instruction
    assert state["choices"] == [*(f"press {colour}" for colour in COLOURS), "done"]
    assert state["page"]["kind"] == "text"
    assert (state["step"], state["max_steps"], state["grade"]) == (0, 8, None)
    for step, action in enumerate(TASK.solution):
        state = manager.act(state["id"], action, step)
        assert state["from"] == step
        assert [past["action"] for past in state["past"]] == [action]
    assert state["grade"]["success"]
    assert state["grade"]["score"] == state["grade"]["reward"] == 1.0
    whole = manager.read_state(state["id"])
    assert [past["action"] for past in whole["past"]] == list(TASK.solution)
    with pytest.raises(NotPossible, match="The episode is over"):
        manager.act(state["id"], "done", len(TASK.solution))


def test_a_page_reveals_nothing_of_the_verifier_or_solution(
    manager: EpisodeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that nothing shown before the end depends on the verifier or the solution."""
    env = ToyEnv()
    poison = Poison(env)
    monkeypatch.setattr(manager._env_pools, "take", lambda split: env)
    poisoned = poison.poison_task(TASK)
    monkeypatch.setattr(EpisodeManager, "_pick_task", lambda self, wanted: (poisoned, 0))
    states = [manager.begin()]
    states.append(manager.act(states[0]["id"], TASK.solution[0], 0))
    assert poison.n_watched == 2
    other = TASK.model_copy(update={"verifier": OTHER.verifier, "solution": ("done",)})
    monkeypatch.setattr(EpisodeManager, "_pick_task", lambda self, wanted: (other, 0))
    swapped = [manager.begin()]
    swapped.append(manager.act(swapped[0]["id"], TASK.solution[0], 0))
    for state in (*states, *swapped):
        del state["id"], state["task"]["id"]  # made up, and a hash
    assert states == swapped


def test_a_page_shows_the_system_message_and_functions_of_an_agent(tmp_path: Path) -> None:
    manager = EpisodeManager(benchmark_source("bfcl"), demonstrations=tmp_path / "shown.jsonl")
    state = manager.begin()
    (title, prompt), *functions = state["documents"]
    assert "system message" in title.lower()
    assert "calling functions" in prompt
    names = [signature.partition("(")[0] for signature, _ in functions]
    assert len(names) > 5
    assert all(f'"name":"{name}"' in prompt.replace(" ", "") for name in names)
    assert state["choices"] == ["end"]
    manager.close()


def test_a_misspelt_action_is_refused_with_a_reason_and_takes_no_step(
    manager: EpisodeManager,
) -> None:
    state = manager.begin(TASK.id)
    refused = manager.act(state["id"], "press pink", 0)
    assert refused["refusal"]["reason"] == "no_such_button"
    assert refused["step"] == 0
    assert manager.act(state["id"], TASK.solution[0], 0)["refusal"] is None


def test_an_action_from_an_outdated_page_is_refused(manager: EpisodeManager) -> None:
    id = manager.begin(TASK.id)["id"]
    manager.act(id, "press red", 0)
    with pytest.raises(NotPossible, match="The episode has changed") as error:
        manager.act(id, "press red", 0)
    assert error.value.status == 409
    assert error.value.state is not None
    assert error.value.state["step"] == 1
    with pytest.raises(NotPossible, match="The episode has changed"):
        manager.give_up(id, 0)


def test_concurrent_episodes_do_not_affect_each_other(manager: EpisodeManager) -> None:
    """Eight episodes, each played by its own thread."""
    tasks = BENCHMARK.tasks(Split.TRAIN)[: room.MAX_LIVE]
    with ThreadPoolExecutor(len(tasks)) as threads:
        states = list(threads.map(lambda task: play_solution(manager, task), tasks))
    for task, state in zip(tasks, states, strict=True):
        assert state["grade"]["success"]
        assert state["task"]["id"] == task.id
        assert state["instruction"] == task.instruction


def test_one_episode_takes_one_action_at_a_time(manager: EpisodeManager) -> None:
    id = manager.begin(TASK.id)["id"]
    gate = threading.Barrier(4)

    def act(_: int) -> bool:
        gate.wait()
        try:
            manager.act(id, "press red", 0)
        except NotPossible:
            return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(act, range(4))) == 1
    assert manager.read_state(id)["step"] == 1


def test_at_the_limit_a_new_episode_replaces_only_an_idle_one(tmp_path: Path) -> None:
    clock = Clock()
    manager = toy_manager(tmp_path, clock=clock)
    ids = [manager.begin(TASK.id)["id"] for _ in range(room.MAX_LIVE)]
    with pytest.raises(NotPossible, match="Finish one of them") as error:
        manager.begin(TASK.id)
    assert error.value.status == 429
    clock.now = room.IDLE_S + 1
    manager.act(ids[0], "press red", 0)
    manager.begin(TASK.id)
    assert manager.read_state(ids[0])["step"] == 1
    with pytest.raises(NotPossible, match="no longer exists"):
        manager.read_state(ids[1])
    manager.give_up(ids[0], 1)
    manager.begin(TASK.id)
    manager.close()


def test_only_the_latest_finished_episodes_are_remembered(
    manager: EpisodeManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MAX_KEPT", 3)
    first, *others = [play_solution(manager, TASK)["id"] for _ in range(4)]
    for id in others:
        assert manager.read_state(id)["grade"]["success"]
    with pytest.raises(NotPossible, match="no longer exists"):
        manager.read_state(first)


def test_an_engine_that_does_not_start_raises_and_a_later_start_succeeds(
    manager: EpisodeManager,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        break_engines(patch, "_begin", lambda env: True)
        with pytest.raises(EnvBackendError, match="the engine is gone"):
            manager.begin(TASK.id)
    assert manager.begin(TASK.id)["step"] == 0


@pytest.mark.parametrize("hook", ["_act", "_grade"])
def test_an_episode_whose_engine_failed_is_ungraded_and_can_be_resumed(
    manager: EpisodeManager, hook: str
) -> None:
    *before, last = TASK.solution
    id = manager.begin(TASK.id)["id"]
    for step, action in enumerate(before):
        manager.act(id, action, step)
    with pytest.MonkeyPatch.context() as patch:
        break_engines(patch, hook, lambda env: True)
        state = manager.act(id, last, len(before))
        assert state["fault"] == "the engine is gone"
        assert state["grade"] is None
        assert state["step"] == len(before)  # what could be seen last
        assert manager.read_state(id)["fault"]
        with pytest.raises(NotPossible, match="The engine has failed"):
            manager.act(id, last, len(before))
        if hook == "_act":
            assert manager.resume(id)["fault"]  # it is still broken
    state = manager.resume(state["id"])
    assert not state["fault"]
    assert [past["action"] for past in state["past"]] == before
    assert manager.act(id, last, len(before))["grade"]["success"]


def test_a_solved_training_task_can_be_saved_as_a_demonstration(manager: EpisodeManager) -> None:
    state = play_solution(manager, TASK)
    assert state["keep"] == {"kept": False, "why_not": "", "file": str(manager.demonstrations)}
    assert manager.keep_demonstration(state["id"])["keep"]["kept"]
    manager.keep_demonstration(state["id"])
    (task,) = read_tasks(manager.demonstrations)
    assert task.id == TASK.id
    assert task.solution == TASK.solution
    assert task.provenance["by"] == "person"


def test_an_unsolved_episode_cannot_be_saved_as_a_demonstration(manager: EpisodeManager) -> None:
    id = manager.begin(TASK.id)["id"]
    with pytest.raises(NotPossible, match="not over yet"):
        manager.keep_demonstration(id)
    state = manager.give_up(id, 0)
    assert state["grade"]["end_reason"] == "agent_done"
    with pytest.raises(NotPossible, match="Only an episode that has solved"):
        manager.keep_demonstration(id)


def test_a_held_out_episode_never_becomes_a_demonstration(tmp_path: Path) -> None:
    manager = toy_manager(tmp_path, "val")
    state = play_solution(manager, HELD_OUT)
    assert "never become demonstrations" in state["keep"]["why_not"]
    with pytest.raises(NotPossible, match="is a val task"):
        manager.keep_demonstration(state["id"])
    assert not manager.demonstrations.exists()
    manager.close()


def test_closing_ends_all_engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[ToyEnv] = []
    monkeypatch.setattr(ToyEnv, "_release", lambda self: closed.append(self))
    manager = toy_manager(tmp_path)
    for _ in range(3):
        manager.begin(TASK.id)
    play_solution(manager, TASK)
    manager.close()
    assert len({id(env) for env in closed}) == 4
    with pytest.raises(NotPossible, match="is shutting down"):
        manager.begin(TASK.id)
    manager.close()


def test_tasks_are_searched_by_words_of_their_instruction(manager: EpisodeManager) -> None:
    listing = manager.list_tasks("RED green")
    assert 0 < listing["total"] < len(manager.source.tasks)
    assert all("red" in row["instruction"].lower() for row in listing["tasks"])
    assert {key for row in listing["tasks"] for key in row} == {
        "id",
        "name",
        "instruction",
        "family",
    }
    assert manager.list_tasks("red", page=99)["tasks"] == []
    with pytest.raises(NotPossible, match="no such task"):
        manager.begin("0" * 64)


def test_the_state_after_a_hostile_action_is_valid_json(manager: EpisodeManager) -> None:
    id = manager.begin(TASK.id)["id"]
    state = manager.act(id, "\ud800<script>" + "x" * 30_000, 0)
    assert state["refusal"]
    json.dumps(state, allow_nan=False).encode()


@pytest.mark.slow
def test_closing_ends_the_worker_processes(tmp_path: Path, engine: Callable[[str], None]) -> None:
    engine("alfworld")
    manager = EpisodeManager(benchmark_source("alfworld"), demonstrations=tmp_path / "shown.jsonl")
    manager.begin(manager.source.tasks[0].id)
    assert manager._env_pools.workers is not None
    pids = [pid for pid in manager._env_pools.workers.pids if pid is not None]
    assert pids
    manager.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_an_episode_continues_where_it_was_after_its_engine_is_killed(
    tmp_path: Path, engine: Callable[[str], None]
) -> None:
    engine("alfworld")
    manager = EpisodeManager(benchmark_source("alfworld"), demonstrations=tmp_path / "shown.jsonl")
    task = manager.source.tasks[0]
    first, *rest = task.solution
    state = manager.begin(task.id)
    state = manager.act(state["id"], first, 0)
    seen = state["observation"]
    assert manager._env_pools.workers is not None
    for pid in manager._env_pools.workers.pids:
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
    state = manager.act(state["id"], rest[0], 1)
    if state["fault"]:  # else the worker pool has played it again by itself
        state = manager.resume(state["id"])
        assert state["observation"] == seen
        state = manager.act(state["id"], rest[0], 1)
    for step, action in enumerate(rest[1:], start=2):
        state = manager.act(state["id"], action, step)
    assert state["grade"]["success"]
    manager.close()


def test_variants_of_a_task_belong_to_one_family(tmp_path: Path) -> None:
    pairs = [("toy/a_1", "a"), ("toy/a_2", "a"), ("toy/b_1", "b"), ("toy/x", "b"), ("toy/y", "b")]
    variants = [
        TASK.model_copy(update={"name": name, "scenario": where, "instruction": name})
        for name, where in pairs
    ]
    source = replace(benchmark_source("toy"), find_tasks=lambda: variants)
    manager = EpisodeManager(source, demonstrations=tmp_path / "shown.jsonl")
    first, second, *others = [row["family"] for row in manager.list_tasks()["tasks"]]
    assert first == second
    assert first not in others
    manager.close()
