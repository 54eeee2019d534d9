"""``coevo serve`` as a process of its own: started, killed, started again."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from coevo_gym.core.task import Task
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.remote import RemoteTaskEnv, TicketClient
from coevo_gym.serve.server import ServedCurriculum
from tests import processes
from tests.curricula.episodes import trajectory

COMMAND = [sys.executable, "-m", "coevo_gym.cli", "serve"]
WAIT_S = 120


@contextmanager
def serving(
    folder: Path, *arguments: str, files: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The command, which can open so many files, and the address and the line that it tells."""
    process = subprocess.Popen(
        [*COMMAND, "webshop", "--initial-size", "4", "--group-size", "2", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        preexec_fn=files and partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files)),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://\S+?(?=;)", line)
        assert match, line
        yield process, match.group(), line
    finally:
        process.kill()
        process.wait(WAIT_S)
        assert process.stdout is not None
        process.stdout.close()


def refused(*arguments: str, cwd: Path) -> tuple[int, str]:
    done = processes.run([*COMMAND[1:], *arguments], cwd=cwd)
    return done.returncode, done.stderr


@contextmanager
def half_sent(address: str, n: int) -> Iterator[None]:
    """So many connections with half a request each, open until the end of the scope."""
    with ExitStack() as stack:
        for _ in range(n):
            half = socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))
            stack.enter_context(half).sendall(b"GET /health HTTP/1.1\r\nHost: loc")
        yield


def test_a_killed_server_resumes_from_its_journal(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0") as (process, address, line):
        assert f"is saved in {Path('served') / 'webshop-coevolve.db'}" in line
        client = TicketClient(address)
        first, second = client.take(), client.take()
        task = Task.from_json(json.dumps(first["task"]))
        done = json.loads(json.dumps(trajectory_to_json(trajectory(task))))
        assert client.report(first["id"], done) == "reported"
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
    port = address.rpartition(":")[2]
    with (
        serving(tmp_path, "--port", port, files=256) as (process, _, line),
        half_sent(address, 300),  # more than the server can have open files
    ):
        assert "resumes from" in line
        assert client.report(first["id"], done) == "reported"
        assert client.report(second["id"], done) == "reported"
        metrics = client.metrics()
        assert (metrics["groups"], metrics["tickets_reported"], metrics["tickets_double"]) == (
            1,
            2,
            1,
        )
        env = RemoteTaskEnv(address)
        assert env.reset()[1]["step"] == 0
        env.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130


@pytest.mark.slow
def test_half_sent_requests_do_not_block_other_clients(tmp_path: Path) -> None:
    with serving(tmp_path, "--port", "0", files=1024) as (process, address, _):
        client = TicketClient(address)
        client.take()
        with half_sent(address, 1500):
            assert client.metrics()["tickets_out"] == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(WAIT_S) == 130
    practice = ServedCurriculum("webshop", "coevolve", group_size=2, initial_size=4)
    with closing(practice.open_session(tmp_path / "served" / "webshop-coevolve.db")) as session:
        assert session.metrics()["tickets_out"] == 1


def test_unservable_settings_are_refused_with_a_reason(tmp_path: Path) -> None:
    code, text = refused("webshop", "--host", "0.0.0.0", cwd=tmp_path)
    assert code == 2
    assert "--token-file" in text
    code, text = refused("webshop", "--curriculum", "nonsense", cwd=tmp_path)
    assert code == 2
    assert "nonsense" in text
    code, text = refused("webshopp", cwd=tmp_path)
    assert code == 2
    assert "Did you mean 'webshop'" in text


@pytest.mark.parametrize("missing", ["uvicorn", "starlette", "websockets"])
def test_a_missing_extra_is_an_error_with_the_install_command(tmp_path: Path, missing: str) -> None:
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('No module {missing}')")
    done = subprocess.run(
        [*COMMAND, "webshop"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=WAIT_S,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert done.returncode == 3
    message = " ".join(done.stderr.split())
    assert "pip install -c '" in message
    assert "[serve]'" in message
