"""A server with the protocol of AgentEvolver's ``env_service``, for training on a curriculum.

    python docs/trainers/agentevolver_env_service.py --port 8080 --state saved/

AgentEvolver's ``EnvClient`` then sends POST requests with JSON to the server's address:
``get_env_profile``, ``create``, ``step``, ``evaluate``, ``get_info`` and ``release``. The task ids
of ``train`` are slots, which the curriculum fills: the n rollouts with the same id get the same
task. The ids of other splits are tasks. ``POST /save`` (``{"params": {"name": "global_step_20"}}``)
saves the curriculum in ``--state``, and ``POST /load`` loads it: call them when the trainer writes
or loads its checkpoints.

AgentEvolver's client treats a repeated error as a reward of 0. After an engine failure, the server
therefore replays the episode up to this step instead of returning an error, and the curriculum does
not count the episode.

The server listens on this machine only and does not check passwords; for other machines, use
``coevo serve``. The server needs the extra ``[serve]``.
"""

from __future__ import annotations

import argparse
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium as gym
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from coevo_gym import CurriculumSession, tasks
from coevo_gym.core.errors import CoevoError, EnvBackendError
from coevo_gym.curricula.pool_curriculum import make_curriculum
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.prompts import PromptTemplate
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout, message_dicts
from coevo_gym.trainers.adapters.checkpoint import load_session, save_session

Asked = dict[str, Any]


class EnvService:
    """The instances of a server, one per rollout.

    Args:
        benchmark: name of the benchmark.
        env_id: id of the env.
        session: the curriculum session.
        state: folder for the saved curricula.
        places: number of training task ids; at least AgentEvolver's batch size.
        prompt: the prompt that describes the env; default: the benchmark's prompt.
    """

    def __init__(
        self,
        benchmark: str,
        env_id: str,
        session: CurriculumSession,
        state: Path,
        *,
        places: int = 256,
        prompt: PromptTemplate | None = None,
    ) -> None:
        self.benchmark, self.env_id, self.session = benchmark, env_id, session
        self.state, self.places, self.prompt = state, places, prompt
        self._live: dict[str, ChatRollout] = {}
        self._idle: list[ChatRollout] = []
        self._lock = threading.Lock()

    def get_env_profile(self, asked: Asked) -> list[str]:
        """Return the task ids of a split."""
        split = asked["params"].get("split", "train")
        if split == "train":
            return [f"place-{i}" for i in range(self.places)]
        return [f"{split}:{task.id}" for task in tasks(self.benchmark, split)]

    def create(self, asked: Asked) -> Asked:
        """Start an episode."""
        instance = asked.get("instance_id") or uuid4().hex
        place = str(asked["task_id"])
        split, _, task = place.rpartition(":")
        self.release({"instance_id": instance})  # in case the client repeats the request
        with self._lock:
            rollout = self._idle.pop() if self._idle else None
        rollout = rollout or ChatRollout(self.env_id, self.session, prompt=self.prompt)
        if split:
            rollout.begin(split=split, task=task)
        else:
            rollout.begin(slot=place)
        if rollout.lost:
            raise EnvBackendError("An engine did not start.")
        self._live[instance] = rollout
        info = {"instance_id": instance, "task_id": place}
        state = message_dicts(rollout.opening)
        return {"state": state, "reward": 0.0, "is_terminated": False, "info": info}

    def step(self, asked: Asked) -> Asked:
        """Pass a model answer to the env: ``messages`` is the assistant's message."""
        rollout = self._live[asked["instance_id"]]
        page = "The episode is over."
        if not rollout.over:
            page = rollout.send_answer(str(asked["messages"].get("content", "")))
            if rollout.lost:
                page = rollout.recover()
        reward = rollout.end() if rollout.over else 0.0
        state = [{"role": "user", "content": page}]
        info = {"instance_id": asked["instance_id"]}
        return {"state": state, "reward": reward, "is_terminated": rollout.over, "info": info}

    def evaluate(self, asked: Asked) -> float:
        """Return the outcome; a running episode is ended and graded in its current state."""
        outcome = self._live[asked["instance_id"]].end()
        assert outcome is not None  # lost episodes have been replayed
        return outcome

    def get_info(self, asked: Asked) -> list[str]:
        """Return the possible actions if the benchmark lists them."""
        return list(self._live[asked["instance_id"]].info["admissible"])

    def release(self, asked: Asked) -> bool:
        """Release an instance; an episode that is still running is abandoned."""
        rollout = self._live.pop(asked["instance_id"], None)
        if rollout is None:
            return False
        rollout.abandon()
        with self._lock:
            self._idle.append(rollout)
        return True

    def save(self, asked: Asked) -> str:
        """Save the curriculum under a name."""
        return str(save_session(self.session, self._save_folder(asked)))

    def load(self, asked: Asked) -> dict[str, float]:
        """Load the curriculum saved under a name, and return its metrics."""
        load_session(self.session, self._save_folder(asked))
        return self.session.metrics()

    def _save_folder(self, asked: Asked) -> Path:
        name = Path(str(asked["params"]["name"])).name  # a name cannot leave the folder
        return self.state / (name or "latest")


def make_app(service: EnvService) -> Starlette:
    """Create the server for a service."""

    def refused(why: str, status: int) -> JSONResponse:
        return JSONResponse({"success": False, "detail": why}, status)

    def route(name: str, call: Callable[[Asked], Any]) -> Route:
        async def answer(request: Request) -> JSONResponse:
            try:
                asked = json.loads(await request.body() or b"{}")
                asked = {**asked, "params": asked.get("params") or {}}
                asked["messages"] = asked.get("messages") or {}
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                return refused(f"The body must be a JSON object: {error}", 422)
            try:
                data = await run_in_threadpool(call, asked)
            except KeyError as error:
                return refused(f"{error} is missing in the message, or not known here", 422)
            except CoevoError as error:
                return refused(f"{type(error).__name__}: {error}", 500)
            return JSONResponse({"success": True, "data": data})

        return Route(f"/{name}", answer, methods=["POST"])

    async def health(_: Request) -> PlainTextResponse:
        return PlainTextResponse("OK")

    names = (
        "get_env_profile", "create", "step", "evaluate", "get_info", "release", "save", "load",
    )  # fmt: skip
    return Starlette(
        routes=[
            Route("/healthz", health, methods=["GET"]),
            *(route(name, getattr(service, name)) for name in names),
        ]
    )


if __name__ == "__main__":
    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--benchmark", default="webshop")
    parser.add_argument("--env-id", default="CoEvolve-WebShop-v0")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts per task id")
    parser.add_argument("--state", type=Path, default=Path("saved"), help="folder of curricula")
    parser.add_argument("--places", type=int, default=256, help="number of training task ids")
    parser.add_argument("--port", type=int, default=8080)
    args = parser.parse_args()
    bare: Any = gym.make(f"coevo_gym:{args.env_id}").unwrapped
    practised = CurriculumSession(
        make_curriculum("coevolve"), scripted_evolver(bare), group_size=args.group_size
    )
    service = EnvService(args.benchmark, args.env_id, practised, args.state, places=args.places)
    uvicorn.run(make_app(service), host="127.0.0.1", port=args.port, log_level="warning")
