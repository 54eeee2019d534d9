"""Replicas of a vLLM server, with a stand-in for the server."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from coevo_gym.agents.lm import vllm_launch, vllm_replicas
from coevo_gym.agents.lm.answers import NOTHING, Ask, Sampled
from coevo_gym.agents.lm.vllm_engine import VLLMConfig, sampling_fields
from coevo_gym.agents.lm.vllm_launch import (
    Served,
    VLLMServersConfig,
    check_server_settings,
    server_arguments,
    server_environment,
)
from coevo_gym.agents.lm.vllm_replicas import Handover, Probe, Replica, Replicas
from coevo_gym.core.errors import ConfigError, ModelError
from tests.agents.stand_in_vllm import PATIENCE_S, VOCABULARY, StandIn

SERVED = Served(Path("model"), {"vocab_size": VOCABULARY}, "float32", 64, 0, False)
PROBED = (5, 10, 15, 20)
MODULE = "tests.agents.stand_in_vllm"


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Replicas]]:
    """Make replicas that are closed after the test; by default, of servers that they start."""
    monkeypatch.setattr(vllm_launch, "_SERVER_MODULE", MODULE)
    monkeypatch.setattr(vllm_replicas, "find_spec", lambda name: True)
    monkeypatch.setattr(vllm_replicas, "_POLL_S", 0.02)
    pools = list[Replicas]()

    def make(served: Served = SERVED, **config: Any) -> Replicas:
        pools.append(Replicas(VLLMServersConfig(**config), VLLMConfig(kv_cache_gib=1), served))
        pools[-1].start()
        return pools[-1]

    yield make
    for replicas in pools:
        replicas.close()


@pytest.fixture
def two(make: Callable[..., Replicas], tmp_path: Path) -> Replicas:
    """Two servers that were started, with the weights 1.0."""
    replicas = make(replicas=2)
    replicas.hand_over(weights(tmp_path, 1.0))
    return replicas


def weights(folder: Path, value: float, *, expected: float | None = None) -> Handover:
    """Weights, and the log-probabilities that a learner with ``expected`` computes."""
    logprobs = tuple(-((value if expected is None else expected) + t / 1000) for t in PROBED[1:])
    handover = Handover(folder, Probe(PROBED, logprobs, 1e-3), is_adapter=False)
    assert handover.file is not None
    handover.file.write_text(json.dumps(value))
    return handover


def ask(replicas: Replicas, prompt: tuple[int, ...], **fields: Any) -> Future[Sampled]:
    asked = Ask(**{"prompt": prompt, "temperature": 1.0, "max_tokens": 2, **fields})
    return replicas.submit(asked, sampling_fields(asked, (), 0), NOTHING)


def tell(replica: Replica, **behaviour: Any) -> None:
    httpx.post(f"{replica.client.url}/stand_in", json=behaviour, trust_env=False)


def state_of(replica: Replica) -> dict[str, Any]:
    state: dict[str, Any] = httpx.get(f"{replica.client.url}/stand_in", trust_env=False).json()
    return state


def wait_until(holds: Callable[[], bool]) -> None:
    for _ in range(int(PATIENCE_S / 0.01)):
        if holds():
            return
        time.sleep(0.01)
    pytest.fail("waited for too long")


def process_ids(replicas: Replicas) -> list[int]:
    return [one.process.pid for one in replicas.replicas if one.process is not None]


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_answers_have_ids_and_logprobs(two: Replicas) -> None:
    assert ask(two, (3, 4)).result(PATIENCE_S) == Sampled((5, 6), (-1.0, -1.0))
    assert ask(two, (3, 4), temperature=0.0).result(PATIENCE_S) == Sampled((5, 6), (0.0, 0.0))
    asked = Ask((3, 4), 1.0, 3)
    begun = Sampled((7,), (-0.5,))
    answer = two.submit(asked, sampling_fields(asked, (), 1), begun).result(PATIENCE_S)
    assert answer == Sampled((7, 8, 9), (-0.5, -1.0, -1.0))


def test_a_conversation_stays_with_the_server_that_has_its_prefix(two: Replicas) -> None:
    for replica in two.replicas:
        tell(replica, may_answer=False)
    firsts = [ask(two, (place,), episode=f"episode {place}") for place in range(6)]
    wait_until(lambda: sum(len(state_of(one)["asked"]) for one in two.replicas) == 6)
    begun = [{ids[0] for ids in state_of(one)["asked"]} for one in two.replicas]
    assert [len(places) for places in begun] == [3, 3]
    for replica in two.replicas:
        tell(replica, may_answer=True)
    assert all(not one.result(PATIENCE_S).lost for one in firsts)
    for turn in range(2, 4):
        for place in reversed(range(6)):
            ask(two, (place,) * turn, episode=f"episode {place}").result(PATIENCE_S)
    for replica, places in zip(two.replicas, begun, strict=True):
        assert {ids[0] for ids in state_of(replica)["asked"]} == places


def test_new_weights_reach_every_server(two: Replicas, tmp_path: Path) -> None:
    for value in (2.0, 3.0):
        handover = weights(tmp_path, value)
        two.hand_over(handover)
        assert [state_of(one)["weights"] for one in two.replicas] == [value, value]
        assert all(one.holds is handover and one.gap < 1e-9 for one in two.replicas)
    del handover
    assert len([*tmp_path.iterdir()]) == 1, "earlier weights were not deleted"


def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with StandIn() as server:
        replicas = Replicas(VLLMServersConfig(urls=(server.url,)), VLLMConfig(), SERVED, missing)
        with pytest.raises(ConfigError, match=r"policy\.servers\.folder: .*missing cannot be"):
            replicas.start()


def test_a_server_that_keeps_its_weights_is_found_and_restarted(
    two: Replicas, tmp_path: Path
) -> None:
    first, second = two.replicas
    tell(second, withholds=True)
    old = process_ids(two)
    two.hand_over(weights(tmp_path, 1.5))
    assert first.is_ready
    assert not second.is_ready, "the server was not found at once"
    assert ask(two, (3,)).result(PATIENCE_S).logprobs == (-1.5, -1.5)
    wait_until(lambda: second.is_ready)
    assert state_of(second)["weights"] == 1.5
    new = process_ids(two)
    assert new[0] == old[0]
    assert new[1] != old[1]
    assert two.take_counts() == {"answers_lost": 0.0, "server_restarts": 1.0}
    assert two.take_counts() == {"answers_lost": 0.0, "server_restarts": 0.0}


def test_a_step_that_is_smaller_than_the_tolerance_must_arrive_too(
    two: Replicas, tmp_path: Path
) -> None:
    tell(two.replicas[1], withholds=True)
    two.hand_over(weights(tmp_path, 1.0001))
    assert [one.is_ready for one in two.replicas] == [True, False]


def test_equal_weights_are_no_reason_to_suspect_a_server(two: Replicas, tmp_path: Path) -> None:
    two.hand_over(weights(tmp_path, 1.0))
    assert all(one.is_ready for one in two.replicas)
    assert two.n_restarts == 0


def test_a_disagreement_that_a_restart_does_not_cure_ends_the_run(
    two: Replicas, tmp_path: Path
) -> None:
    with pytest.raises(
        ModelError, match=r"replica [01] .* differ from the learner's by 1 .* was restarted"
    ):
        two.hand_over(weights(tmp_path, 2.0, expected=3.0))
    with pytest.raises(ModelError, match="does not sample with the learner's weights"):
        two.raise_if_failed()


def test_a_failed_update_restarts_only_its_server(two: Replicas, tmp_path: Path) -> None:
    first, second = two.replicas
    tell(first, fails_updates=True)
    two.hand_over(weights(tmp_path, 2.0))
    assert second.is_ready
    assert ask(two, (3,)).result(PATIENCE_S).logprobs == (-2.0, -2.0)
    wait_until(lambda: first.is_ready)
    assert state_of(first)["weights"] == 2.0
    assert two.n_restarts == 1
    assert two.folder.is_dir(), "the server that was stopped has deleted the weights"


def test_only_the_answers_of_a_killed_server_are_lost(two: Replicas, tmp_path: Path) -> None:
    for replica in two.replicas:
        tell(replica, may_answer=False)
    answers = [ask(two, (place,), episode=f"episode {place}") for place in range(8)]
    wait_until(lambda: sum(len(state_of(one)["asked"]) for one in two.replicas) == 8)
    first, second = two.replicas
    lost = {ids[0] for ids in state_of(first)["asked"]}
    os.kill(process_ids(two)[0], signal.SIGKILL)
    wait_until(lambda: sum(one.done() for one in answers) == 4)
    tell(second, may_answer=True)
    ended = [one.result(PATIENCE_S) for one in answers]
    assert {place for place, one in enumerate(ended) if one.lost} == lost
    assert all(first.name in one.lost for one in ended if one.lost)
    assert two.n_lost == 4
    # A conversation that was there goes on elsewhere, and the server returns with the weights.
    again = ask(two, (min(lost), 1), episode=f"episode {min(lost)}").result(PATIENCE_S)
    assert not again.lost
    wait_until(lambda: first.is_ready)
    assert state_of(first)["weights"] == 1.0
    assert two.n_restarts == 1


def test_a_server_that_restarts_during_a_hand_over_gets_the_newest_weights(
    two: Replicas, tmp_path: Path
) -> None:
    first = two.replicas[0]
    os.kill(process_ids(two)[0], signal.SIGKILL)
    while not ask(two, (3,)).result(PATIENCE_S).lost:
        pass
    for value in (2.0, 3.0, 4.0):
        two.hand_over(weights(tmp_path, value))
    wait_until(lambda: first.is_ready)
    assert state_of(first)["weights"] == 4.0
    assert ask(two, (3,)).result(PATIENCE_S).logprobs == (-4.0, -4.0)


def test_a_server_that_dies_again_and_again_ends_the_run(make: Callable[..., Replicas]) -> None:
    replicas = make(replicas=1)
    (replica,) = replicas.replicas

    def fail_again() -> bool:
        if replica.is_ready:
            os.kill(process_ids(replicas)[0], signal.SIGKILL)
            assert ask(replicas, (3,)).result(PATIENCE_S).lost
        return replicas._failure is not None

    wait_until(fail_again)
    with pytest.raises(ModelError, match=r"replica 0 .* failed 4 times without an answer"):
        replicas.raise_if_failed()


def test_running_answers_end_before_the_weights_change(two: Replicas, tmp_path: Path) -> None:
    for replica in two.replicas:
        tell(replica, may_answer=False)
    answers = [ask(two, (place,)) for place in range(4)]
    wait_until(lambda: sum(len(state_of(one)["asked"]) for one in two.replicas) == 4)
    handover = weights(tmp_path, 2.0)
    thread = threading.Thread(target=lambda: two.hand_over(handover))
    thread.start()
    wait_until(lambda: not any(one.is_ready for one in two.replicas))
    late = ask(two, (9,))
    for replica in two.replicas:
        tell(replica, may_answer=True)
    thread.join(PATIENCE_S)
    assert {one.result(PATIENCE_S).logprobs for one in answers} == {(-1.0, -1.0)}
    assert late.result(PATIENCE_S).logprobs == (-2.0, -2.0)


def test_adapters_are_loaded_by_name_and_two_are_kept(
    make: Callable[..., Replicas], tmp_path: Path
) -> None:
    with StandIn() as server:
        replicas = make(SERVED._replace(lora_rank=8), urls=(server.url,))
        for value in (1.0, 2.0, 3.0):
            logprobs = tuple(-(value + t / 1000) for t in PROBED[1:])
            handover = Handover(tmp_path, Probe(PROBED, logprobs, 1e-3), is_adapter=True)
            (handover.folder / "adapter.json").write_text(json.dumps(value))
            replicas.hand_over(handover)
            assert ask(replicas, (3,)).result(PATIENCE_S).logprobs == (-value, -value)
        assert sorted(server.adapters.values()) == [2.0, 3.0]
        assert server.weights == 0.0


def test_given_servers_are_used_and_left_running(
    make: Callable[..., Replicas], tmp_path: Path
) -> None:
    with StandIn() as one, StandIn() as other:
        replicas = make(urls=(one.url, f"{other.url}/"))
        replicas.hand_over(weights(tmp_path, 2.0))
        assert [one.weights, other.weights] == [2.0, 2.0]
        replicas.close()
        assert httpx.get(f"{one.url}/health", trust_env=False).status_code == 200


def test_a_given_server_that_keeps_its_weights_ends_the_run(
    make: Callable[..., Replicas], tmp_path: Path
) -> None:
    with StandIn() as one, StandIn(withholds=True) as other:
        replicas = make(urls=(one.url, other.url))
        replicas.hand_over(weights(tmp_path, 2.0))
        wait_until(lambda: replicas._failure is not None)
        with pytest.raises(ModelError, match=f"replica 1 .{other.url}.* got the weights again, "):
            replicas.raise_if_failed()


def test_a_server_that_another_program_updates_ends_the_run(
    make: Callable[..., Replicas], tmp_path: Path
) -> None:
    with StandIn() as server:
        replicas = make(urls=(server.url,))
        replicas.hand_over(weights(tmp_path, 2.0))
        server.weight_version = "of another run"
        with pytest.raises(ModelError, match="Another program may use the same server"):
            ask(replicas, (3,)).result(PATIENCE_S)


def test_a_refused_prompt_ends_the_run_and_not_the_server(two: Replicas) -> None:
    with pytest.raises(ModelError, match=r"refused a prompt: .*outside the vocabulary"):
        ask(two, (VOCABULARY,)).result(PATIENCE_S)
    assert all(one.is_ready for one in two.replicas)


@pytest.mark.parametrize(
    ("behaviour", "message"),
    [
        ({"page": True}, "a web page, not as vLLM does"),
        ({"version": "0.30.1"}, "runs vLLM 0.30.1, but only vLLM 0.32.x is supported"),
        ({"vocab_size": 7}, "its model has vocab_size = 7, but the policy's model has 100"),
    ],
)
def test_a_server_that_does_not_suit_is_refused(
    make: Callable[..., Replicas], behaviour: dict[str, Any], message: str
) -> None:
    with (
        StandIn() as one,
        StandIn(**behaviour) as other,
        pytest.raises(ConfigError, match=f"policy.servers.urls: {other.url} .*{message}"),
    ):
        make(urls=(one.url, other.url))


def test_servers_of_different_versions_are_refused(make: Callable[..., Replicas]) -> None:
    with (
        StandIn() as one,
        StandIn(version="0.32.1") as other,
        pytest.raises(ConfigError, match=f"0.32.0 at {one.url}, 0.32.1 at {other.url}"),
    ):
        make(urls=(one.url, other.url))


def test_a_url_without_a_server_is_refused(make: Callable[..., Replicas]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConfigError, match=f"{url} cannot be used: GET /version failed"):
        make(urls=(url,))


def test_a_port_in_use_is_refused_before_a_server_starts(make: Callable[..., Replicas]) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"policy.servers.port: port {port} cannot be used"):
            make(replicas=1, port=port)


def test_a_server_that_does_not_start_shows_its_output(
    make: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_launch, "_SERVER_MODULE", "tests.agents.no_such_module")
    with pytest.raises(ModelError, match=r"replica 0 .* ended[\s\S]*No module named"):
        make(replicas=1)


def test_vllm_must_be_installed_to_start_servers(
    make: Callable[..., Replicas], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_replicas, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"policy\.servers\.urls"):
        make(replicas=1)


def test_closed_servers_are_gone_and_start_again(two: Replicas) -> None:
    before, folder = process_ids(two), two.folder
    two.close()
    two.close()
    assert all(is_gone(pid) for pid in before)
    assert not folder.exists()
    two.start()
    assert len(process_ids(two)) == 2


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_servers_do_not_survive_the_process_that_started_them(how: signal.Signals) -> None:
    code = f"""
import sys
from pathlib import Path
from coevo_gym.agents.lm import vllm_launch as launch, vllm_replicas as module
from coevo_gym.agents.lm.vllm_engine import VLLMConfig
launch._SERVER_MODULE, module.find_spec = {MODULE!r}, lambda name: True
served = launch.Served(Path("model"), {{"vocab_size": {VOCABULARY}}}, "float32", 64, 0, False)
replicas = module.Replicas(launch.VLLMServersConfig(replicas=2), VLLMConfig(), served)
replicas.start()
print(replicas.folder, *(one.process.pid for one in replicas.replicas), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        folder, *pids = parent.stdout.readline().decode().split()
        servers = [int(pid) for pid in pids]
        assert len(servers) == 2
        assert Path(folder).is_dir()
        parent.send_signal(how)
        parent.wait(PATIENCE_S)
    wait_until(lambda: all(is_gone(pid) for pid in servers))
    assert not Path(folder).exists(), "weights stayed in memory"


def test_a_launchers_variables_do_not_reach_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_NAME")
    names += ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "ATEN_CPU_CAPABILITY")
    for name in names:
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    monkeypatch.setenv("VLLM_PLUGINS", "theirs")
    environment = server_environment(1, adapters=True)
    assert not set(names) & set(environment)
    assert environment["CUDA_VISIBLE_DEVICES"] == "6"
    assert environment["VLLM_PLUGINS"] == "theirs,coevo_gym"
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert environment["PATH"] == os.environ["PATH"]


def test_arguments_of_a_server() -> None:
    vllm = VLLMConfig(kv_cache_gib=0.5, enforce_eager=True)
    arguments = server_arguments(SERVED._replace(lora_rank=5), vllm, 8123)
    assert "--tokens-only" in arguments
    assert "--enforce-eager" in arguments
    pairs = dict(pairwise(arguments))
    assert pairs["--kv-cache-memory-bytes"] == str(2**29)
    assert pairs["--max-lora-rank"] == "8"
    assert pairs["--logprobs-mode"] == "processed_logprobs"
    assert json.loads(pairs["--weight-transfer-config"]) == {"backend": "coevo_file"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"urls": ["http://localhost:1"], "replicas": 2}, "urls names servers that are running"),
        ({"urls": ["http://localhost:1", "http://localhost:1/"]}, "listed only once"),
        ({"urls": ["localhost:8000"]}, "is not the address of a server"),
        ({"urls": ["http://localhost:8000/v1"]}, "is not the address of a server"),
        ({"urls": ["http://node1:8000"]}, "Set folder to its path"),
        ({"folder": "weights"}, "folder must be an absolute path"),
    ],
)
def test_conflicting_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VLLMServersConfig(**settings)


@pytest.mark.parametrize(
    ("vllm", "message"),
    [
        (VLLMConfig(sleep=True, kv_cache_gib=1), "policy.vllm.sleep frees the memory"),
        (VLLMConfig(adapter="alone", kv_cache_gib=1), "all weights are trained"),
        (VLLMConfig(), "On a CPU, each vLLM server would take a share"),
    ],
)
def test_settings_of_vllm_that_do_not_suit_servers_are_refused(
    vllm: VLLMConfig, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_server_settings(0, vllm, VLLMServersConfig(), has_gpu=False)
