"""Sampling by real vLLM servers that a learner starts, feeds and supervises.

Where the size of the model matters, they run SmolLM2 if it has been fetched; otherwise a tiny
Llama, because most of the time goes into starting servers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import coevo_gym
from coevo_gym.agents.chat.agent import ChatAgent, ChatConfig
from coevo_gym.agents.lm.language_model import ModelConfig
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
from coevo_gym.agents.lm.vllm_launch import VLLMServersConfig
from coevo_gym.agents.lm.vllm_replicas import Handover, Replica
from coevo_gym.agents.lm.vllm_server import VLLMServerPolicy
from coevo_gym.core.arithmetic import PORTABLE
from coevo_gym.core.errors import ConfigError, ModelError
from coevo_gym.core.seams import Message, Prompt, Sampling, Ticket
from coevo_gym.core.trajectory import EndReason
from coevo_gym.envs.base import env_class_of
from coevo_gym.episodes.env_pool import EnvPool
from coevo_gym.episodes.runner import Rollout, run_rollout
from coevo_gym.prompts import load_prompt
from tests.agents.tiny_llama import make_tiny_llama
from tests.conftest import USERS_HOME
from tests.vllm.test_vllm_policy import gap

pytestmark = pytest.mark.vllm

ROOT = Path(__file__).parents[2]
CLOSE = 1e-4
PATIENCE_S = 1500.0
LOOKS = [Prompt((Message("user", f"look {k}"),), Sampling(1.0, 12)) for k in range(8)]
N_EPISODES = 8
MAX_CONTEXT = 2048


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama whose context has room for WebShop's pages."""
    folder = tmp_path_factory.mktemp("tiny")
    return make_tiny_llama(folder, head_dim=64, max_position_embeddings=MAX_CONTEXT)


@pytest.fixture(scope="module")
def model(tiny: Path) -> Path:
    smollm2 = USERS_HOME / "models/smollm2"
    return smollm2 if smollm2.is_dir() else tiny


def make_policy(path: Path) -> VLLMServerPolicy:
    """Make a policy with two servers."""
    config = ModelConfig(path=str(path), device="cpu", max_context=MAX_CONTEXT)
    vllm = VLLMConfig(kv_cache_gib=0.25, enforce_eager=True)
    return VLLMServerPolicy(config, VLLMServersConfig(replicas=2), vllm)


@pytest.fixture(scope="module")
def policy(tiny: Path) -> Iterator[VLLMServerPolicy]:
    """A policy of a tiny Llama with two servers."""
    policy = make_policy(tiny)
    yield policy
    policy.close()


@pytest.fixture
def two(policy: VLLMServerPolicy) -> Sequence[Replica]:
    """Both servers, ready and with the current weights."""
    policy.generate(LOOKS[:1])
    replicas = policy.replicas.replicas
    wait_until(lambda: all(one.is_ready for one in replicas), policy)
    policy.replicas.take_counts()
    return replicas


def wait_until(holds: Callable[[], bool], policy: VLLMServerPolicy) -> None:
    for _ in range(int(PATIENCE_S / 0.1)):
        policy.replicas.raise_if_failed()
        if holds():
            return
        time.sleep(0.1)
    pytest.fail("waited for too long")


def change(policy: VLLMServerPolicy, scale: float = 1e-5) -> None:
    """Change the weights by about as much as a step of the learner."""
    generator = torch.Generator().manual_seed(policy.version)
    with torch.no_grad():
        for weight in policy.parameters():
            weight.add_(scale * torch.randn(weight.shape, generator=generator))
    policy.version += 1


def run_episodes(policy: VLLMServerPolicy, first: int = 0) -> Rollout:
    """Run training episodes of up to three turns in WebShop's small shop."""
    tasks = coevo_gym.tasks("webshop", subset="builtin")
    agent = ChatAgent(policy, load_prompt("webshop_short"), ChatConfig(max_answer_tokens=16))
    tickets = [
        Ticket(f"ticket {k}", tasks[k % 4], f"group {k % 4}", k // 4)
        for k in range(first, first + N_EPISODES)
    ]

    def make_env() -> Any:
        return env_class_of("webshop")(subset="builtin", max_steps=3)

    envs = EnvPool(make_env, max_envs=N_EPISODES)
    try:
        return run_rollout(tickets, agent, envs, policy_version=policy.version)
    finally:
        envs.close()


def assert_all_finish(rollout: Rollout) -> None:
    assert not rollout.lost
    assert all(one is not None for one in rollout.trajectories)


def test_twenty_updates_reach_both_servers(model: Path) -> None:
    policy = make_policy(model)
    try:
        after = policy.generate(LOOKS)
        for _ in range(20):
            before = after
            change(policy, scale=1e-4)
            after = policy.generate(LOOKS)
            gaps = [one.gap for one in policy.replicas.replicas]
            assert all(one < CLOSE for one in gaps), gaps
            assert gap(policy, after) < CLOSE < gap(policy, before)
        assert policy.replicas.take_counts() == {"answers_lost": 0.0, "server_restarts": 0.0}
    finally:
        policy.close()


def test_a_conversation_is_answered_by_one_server(
    policy: VLLMServerPolicy, two: Sequence[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = dict[tuple[int, ...], int]()
    for place, replica in enumerate(two):
        generate = replica.client.generate

        async def record(
            prompt: Sequence[int], *more: Any, place: int = place, generate: Any = generate
        ) -> Any:
            answered[tuple(prompt)] = place
            return await generate(prompt, *more)

        monkeypatch.setattr(replica.client, "generate", record)
    rollout = run_episodes(policy)
    assert_all_finish(rollout)
    servers = [
        {answered[step.decision.prompt_ids] for step in one.steps if step.decision is not None}
        for one in rollout.trajectories
        if one is not None
    ]
    assert all(len(one) == 1 for one in servers)
    assert set.union(*servers) == {0, 1}


def test_only_the_running_episodes_of_a_killed_server_are_lost(
    policy: VLLMServerPolicy, two: Sequence[Replica]
) -> None:
    first, second = two
    assert first.process is not None
    pid, n_running = first.process.pid, 0

    def kill_in_mid_episode() -> None:
        nonlocal n_running
        while first.n_running < N_EPISODES // 2:  # all episodes have begun
            time.sleep(0.001)
        n_running = first.n_running
        os.killpg(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_in_mid_episode)
    killer.start()
    rollout = run_episodes(policy)
    killer.join()
    assert 1 <= len(rollout.lost) <= n_running
    for lost in rollout.lost.values():
        assert lost.reason is EndReason.MODEL_LOST
        assert first.name in str(lost.error)
    assert len([one for one in rollout.trajectories if one is not None]) == (
        N_EPISODES - len(rollout.lost)
    )
    assert policy.replicas.n_lost >= len(rollout.lost)
    change(policy)  # the server that restarts gets these weights before it answers
    policy.generate(LOOKS)
    assert second.is_ready
    wait_until(lambda: first.is_ready, policy)
    assert first.gap < CLOSE
    assert first.process.pid != pid
    answers = policy.generate(LOOKS)
    assert gap(policy, answers) < CLOSE
    assert_all_finish(run_episodes(policy, first=8))


def test_a_failed_update_costs_a_restart_and_no_episode(
    policy: VLLMServerPolicy, two: Sequence[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    load_weights = second.client.load_weights

    async def load_a_missing_file(file: Path, version: str) -> None:
        monkeypatch.undo()
        await load_weights(file.with_name("missing.safetensors"), version)

    monkeypatch.setattr(second.client, "load_weights", load_a_missing_file)
    change(policy)
    assert_all_finish(run_episodes(policy))
    assert first.gap < CLOSE
    wait_until(lambda: second.is_ready, policy)
    assert second.gap < CLOSE
    assert policy.replicas.take_counts() == {"answers_lost": 0.0, "server_restarts": 1.0}


def test_a_withheld_update_is_found_before_the_next_answer(
    policy: VLLMServerPolicy, two: Sequence[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two
    tries = 0

    async def keep_old_weights(file: Path, version: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            monkeypatch.undo()
        await second.client._post("/update_weight_version", {"new_version": version})

    monkeypatch.setattr(second.client, "load_weights", keep_old_weights)
    change(policy, scale=1e-4)
    answers = policy.generate(LOOKS)
    assert tries == 2, "it got the weights twice"
    assert not second.is_ready
    assert gap(policy, answers) < CLOSE
    assert_all_finish(run_episodes(policy))
    wait_until(lambda: second.is_ready, policy)
    assert second.gap < CLOSE
    assert first.is_ready


def test_an_update_that_never_arrives_ends_the_run_with_the_servers_name(
    policy: VLLMServerPolicy, two: Sequence[Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = two[1]

    async def keep_old_weights(file: Path, version: str) -> None:
        await second.client._post("/update_weight_version", {"new_version": version})

    monkeypatch.setattr(second.client, "load_weights", keep_old_weights)
    change(policy, scale=1e-3)
    assert_all_finish(run_episodes(policy))
    with pytest.raises(ModelError, match=r"replica 1 .* does not sample with the learner's"):
        wait_until(lambda: False, policy)
    with pytest.raises(ModelError, match="replica 1"):
        policy.generate(LOOKS)
    policy.close()  # the next test starts with new servers


def test_given_servers_are_checked_and_used(tmp_path: Path, policy: VLLMServerPolicy) -> None:
    """The servers of one policy are given to others: to one with another model, and to one that
    updates them behind the first one's back."""
    policy.generate(LOOKS[:1])
    urls = tuple(one.client.url for one in policy.replicas.replicas)
    smaller = make_tiny_llama(tmp_path / "smaller", head_dim=64, num_hidden_layers=1)
    config = ModelConfig(path=str(smaller), device="cpu", max_context=512)
    with pytest.raises(ConfigError, match=r"cannot be used: .*its model has num_hidden_layers = 2"):
        VLLMServerPolicy(config, VLLMServersConfig(urls=urls))
    other = VLLMServerPolicy(policy.config, VLLMServersConfig(urls=urls))
    change(other)
    assert gap(other, other.generate(LOOKS)) < CLOSE
    with pytest.raises(ModelError, match="Another program may use the same server"):
        policy.generate(LOOKS)
    other.close()
    assert all(one.process and not one.process.has_ended for one in policy.replicas.replicas)


def test_an_adapter_is_handed_over_alone(folder: Path) -> None:
    config = ModelConfig(path=str(folder), device="cpu", max_context=512, lora_rank=4)
    vllm = VLLMConfig(kv_cache_gib=0.25, enforce_eager=True, adapter="alone")
    policy = VLLMServerPolicy(config, VLLMServersConfig(replicas=1), vllm)
    try:
        assert gap(policy, policy.generate(LOOKS)) < 2 * CLOSE
        for _ in range(4):
            before = policy.generate(LOOKS)
            change(policy, scale=0.05)
            answers = policy.generate(LOOKS)
            assert gap(policy, answers) < 2 * CLOSE < gap(policy, before)
        assert policy.replicas.take_counts()["server_restarts"] == 0
    finally:
        policy.close()


def run_module(*arguments: str) -> dict[str, Any]:
    """Run a module in a process of its own, and return the JSON in its last line.

    The variables of portable arithmetic would break the code that vLLM compiles.
    """
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={name: value for name, value in os.environ.items() if name not in PORTABLE},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def test_greedy_episodes_equal_those_of_the_engine_in_this_process(model: Path) -> None:
    measured = run_module("tests.vllm.greedy_episodes", str(model))
    print(measured)
    assert measured["differences_that_are_no_near_tie"] == 0
    assert measured["equal_tokens"] > 100


def test_a_process_of_torchrun_samples_with_servers(folder: Path) -> None:
    measured = run_module(
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "tests.vllm.in_torchrun",
        str(folder),
    )
    assert measured["world_size"] == 2
    assert measured["gap"] < 2 * CLOSE
    assert "Set policy.kind to vllm_server" in measured["in_process"]


def test_a_run_and_an_evaluation_use_servers(folder: Path, tmp_path: Path) -> None:
    settings = {
        "benchmark.subset": "builtin",
        "benchmark.max_steps": 3,
        "policy.model.device": "cpu",
        "policy.model.max_context": 1024,
        "policy.prompt": "webshop_short",
        "policy.chat.max_answer_tokens": 12,
        "policy.vllm.kv_cache_gib": 0.25,
        "policy.vllm.enforce_eager": "true",
        "policy.servers.replicas": 2,
        "evaluation.n_tasks": 3,
    }
    training = {
        "arms": "coevolve",
        "policy.kind": "vllm_server",
        "policy.model.path": folder,
        "warmup.n_tasks": 2,
        "warmup.max_epochs": 1,
        "warmup.holdout": 0,
        "curriculum.initial_size": 3,
        "learner.outcome": "score",
        "loop.max_steps": 2,
        "loop.max_env_steps": "none",
        "loop.groups_per_step": 2,
        "rollout.group_size": 2,
    }
    train = ["train", "quickstart", "--name", "run"]
    run_coevo(tmp_path, *train, *set_options(settings | training))
    lines = (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()
    steps = [line for line in map(json.loads, lines) if line["event"] == "step"]
    assert len(steps) == 2
    assert all(line["server_restarts"] == line["answers_lost"] == 0 for line in steps)
    manifest = json.loads((tmp_path / "runs/run/manifest.json").read_text())
    assert manifest["model"] == f"vllm_server:{folder}"
    run_coevo(tmp_path, "eval", "run", "-n", "2")
    model = ["eval", "webshop", "--policy", f"vllm_server:{folder}", "-n", "2"]
    run_coevo(tmp_path, *model, *set_options(settings))


def set_options(settings: dict[str, Any]) -> list[str]:
    return [f"--set={key}={value}" for key, value in settings.items()]


def run_coevo(cwd: Path, *arguments: str) -> None:
    """Run a command to its end, and check that no server is left behind."""
    done = subprocess.run(
        [sys.executable, "-m", "coevo_gym", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    assert not _servers_of(str(cwd))


def _servers_of(cwd: str) -> list[int]:
    """Return the ids of processes of vLLM's servers that run in a folder."""
    ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            if b"vllm_process" in words and os.readlink(process / "cwd") == cwd:
                ids.append(int(process.name))
        except OSError:  # it has ended
            continue
    return ids


def test_a_handover_is_deleted_when_the_next_one_has_arrived(policy: VLLMServerPolicy) -> None:
    change(policy)  # other policies have used these servers
    policy.generate(LOOKS[:1])
    handover = policy.replicas.replicas[0].holds
    assert isinstance(handover, Handover)
    folder = handover.folder
    del handover
    assert folder.is_dir()
    change(policy)
    policy.generate(LOOKS[:1])
    assert not folder.exists()
