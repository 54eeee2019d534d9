"""Clients that others wrote, unchanged: OpenEnv's own, and the taskset of verifiers.

Each is installed into a venv of its own, because their pins clash.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coevo_gym.serve.server import listen
from coevo_gym.serve.tokens import Tokens
from tests.serve.standing import WAIT_S, open_session, run_server

SECRET, GUEST = "s" * 32, "g" * 32
AGENTS = """
import asyncio, json, os, sys
from openenv import GenericEnvClient
address, token = sys.argv[1:]
async def play(row):
    headers = {"Authorization": f"Bearer {token}"}
    async with GenericEnvClient(base_url=address, headers=headers) as env:
        result = await env.reset(slot=row, policy_version=1)
        name = result.observation["instruction"]
        while not result.done:
            result = await env.step({"action": "press red"})
            state = await env.state()
        try:
            await env.step({"action": "press red"})
        except RuntimeError as error:
            told = str(error)
        return name, state["step_count"], result.observation["info"]["end_reason"], told
async def main():
    print(json.dumps(await asyncio.gather(*(play(f"row-{i % 2}") for i in range(4)))))
asyncio.run(main())
"""
EVALUATION = """
model = "fake"
num_rollouts = 2
max_concurrent = 4
push = false
[client]
base_url = "{model}/v1"
api_key_var = "FAKE_KEY"
[env.taskset]
id = "openenv"
base_url = "{server}"
resets = [{{slot = "row-0"}}, {{slot = "row-1"}}]
[env.player.harness]
id = "null"
[env.player.runtime]
type = "subprocess"
"""


def installed(folder: Path, *packages: str) -> Path:
    """The bin folder of a new venv with packages in it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    for wanted in (["uv"], packages):  # uv finds versions that fit together in reasonable time
        by = ["uv", "pip", "install", "-q"] if wanted is packages else ["pip", "install", "-q"]
        done = subprocess.run(
            [python, "-m", *by, *wanted],
            capture_output=True,
            text=True,
            timeout=3600,
            env={**os.environ, "VIRTUAL_ENV": str(folder)},
        )
        if done.returncode:
            pytest.skip(f"{wanted} cannot be installed here: {done.stderr[-500:]}")
    return folder / "bin"


@contextmanager
def model(action: str) -> Iterator[tuple[str, list[Any]]]:
    """An endpoint whose model always says one action; its address, and what it was asked."""
    asked: list[Any] = []

    async def chat(request: Request) -> Response:
        body = await request.json()
        asked.append(body["messages"])
        message = {"role": "assistant", "content": json.dumps({"action": action})}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        about = {"id": "x", "created": int(time.time()), "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "finish_reason": "stop", "message": message}
            whole = {"object": "chat.completion", "choices": [choice], "usage": usage}
            return JSONResponse({**about, **whole})
        parts = [
            {"choices": [{"index": 0, "delta": message, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
            {"choices": [], "usage": usage},
        ]
        lines = [json.dumps({**about, "object": "chat.completion.chunk", **part}) for part in parts]
        text = "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"])
        return Response(text, media_type="text/event-stream")

    async def models(request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": "fake", "object": "model"}]})

    app = Starlette(
        routes=[Route("/v1/chat/completions", chat, methods=["POST"]), Route("/v1/models", models)]
    )
    endpoint = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=endpoint.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        finally:
            endpoint.should_exit = True
            thread.join(WAIT_S)


@pytest.mark.slow
def test_the_openenv_client_plays_episodes(tmp_path: Path) -> None:
    clients = installed(tmp_path / "venv", "openenv==0.10.0")
    with run_server(open_session(tmp_path / "a.db"), tokens=Tokens(SECRET, (GUEST,))) as server:
        done = subprocess.run(
            [clients / "python", "-c", AGENTS, server.address, GUEST],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        played = json.loads(done.stdout)
        names = [name for name, *_ in played]
        assert names[0] == names[2] != names[1] == names[3]
        assert {(steps, end) for _, steps, end, _ in played} == {(8, "max_steps")}
        assert all("No episode is running" in message for *_, message in played)
        metrics = server.session.metrics()
        assert (metrics["groups"], metrics["tickets_reported"], metrics["tickets_out"]) == (2, 4, 0)


@pytest.mark.slow
def test_the_verifiers_taskset_plays_episodes(tmp_path: Path) -> None:
    clients = installed(tmp_path / "venv", "verifiers[openenv]==0.4.0")
    with (
        run_server(open_session(tmp_path / "a.db")) as server,
        model("press red") as (endpoint, asked),
    ):
        order = EVALUATION.format(model=endpoint, server=server.address)
        (tmp_path / "eval.toml").write_text(order)
        path = f"{clients}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [clients / "vf-eval", "@", "eval.toml"],
            capture_output=True,
            text=True,
            timeout=900,
            cwd=tmp_path,
            env={**os.environ, "FAKE_KEY": "x", "PATH": path},
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        metrics = server.session.metrics()
        assert (metrics["tickets_reported"], metrics["tickets_out"]) == (4, 0)
        assert metrics["groups"] == 2
        assert "verifier" not in json.dumps(asked)
        assert "solution" not in json.dumps(asked)
