"""Time that the learner waits for feedback, with rounds that run during training or between steps.

A local server stands in for a model endpoint: it answers by rule, after the time that a hosted
model of medium size would take (drawn with a seed). A WebShop run explores with it. The tiny policy
either trains during a round or waits for it. The benchmark reports the share of the wall time of
all steps (rollouts, updates, waiting for rounds) that the learner spends waiting. The exit code is
1 if it exceeds the bound.

Run: python bench/feedback_overlap.py     # at most 3 minutes
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import coevo_gym
from coevo_gym.core.evolution import Round, RoundResult, digest
from coevo_gym.curricula.session.curriculum_session import CurriculumSession
from coevo_gym.store.folder import read_lines

BOUND = 0.05
PAPER = (0.0967, 0.1276)
FIRST_TOKEN_S, TOKEN_S = 0.35, 0.012
"""Median time to a hosted model's first token, and time per later token."""

Messages = Sequence[Mapping[str, str]]
WISHES = ("sun dress", "ceramic mug", "wool scarf", "running shoes", "desk lamp", "throw pillow")
_BUTTONS = {"back to search", "< prev", "next >", "description", "features", "reviews",
            "attributes", "buy now"}  # fmt: skip
_PRODUCT = re.compile(r"click\[c[0-9a-z]{9}\]")


def answer_as_shopper(messages: Messages) -> str:
    """Return an answer by rule: choose shopping actions, or propose tasks from purchases."""
    last = messages[-1]["content"]
    if "Why this attempt was picked" in last:
        return json.dumps({"summary": "It bought something else (step 1).", "do_not_repeat": []})
    if "[step 1]" in last:
        return json.dumps({"tasks": list(_propose_tasks(last))})
    return f"<action>{_choose_action(messages)}</action>"


def _choose_action(messages: Messages) -> str:
    page, draw = messages[-1]["content"], int(digest([m["content"] for m in messages]), 16)
    if "To click:" not in page:
        return f"search[{WISHES[draw % len(WISHES)]}]"
    things = re.findall(r"\[([^\[\]]+)\]", page.rpartition("To click:")[2])
    products = [thing for thing in things if re.fullmatch(r"c[0-9a-z]{9}", thing)]
    if products:
        return f"click[{products[draw % len(products)]}]"
    options = [thing for thing in things if thing not in _BUTTONS]
    if options and len(messages) > 1 and _PRODUCT.search(messages[-2]["content"]):
        return f"click[{options[draw % len(options)]}]"
    return "click[buy now]"


def _propose_tasks(text: str) -> Any:
    for number, walk in enumerate(re.split(r"^Walk \d+$", text, flags=re.MULTILINE)[1:], start=1):
        actions = re.findall(r"^\[step \d+\] (.+)$", walk, flags=re.MULTILINE)
        pages = re.findall(r"\[SEP\] ([^\[]+) \[SEP\] Price: \$([0-9.]+)", walk)
        if len(actions) < 3 or actions[-1] != "click[buy now]" or not pages:
            continue
        title, price = pages[-1]
        options = "".join(f", {action[6:-1]}" for action in actions[2:-1])
        yield {
            "walk": number,
            "description": "Buy it.",
            "turns": [f"I want {title}{options}, for less than {int(float(price)) + 5} dollars."],
            "actions": actions,
            "confidence": 0.9,
        }


class Endpoint(ThreadingHTTPServer):
    """An OpenAI-compatible server with delays.

    Args:
        answer: returns the answer to a conversation.
        slowness: factor on all delays; 0 disables them.
        seed: seed of the delays.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        answer: Callable[[Messages], str] = answer_as_shopper,
        *,
        slowness: float = 1.0,
        seed: int = 0,
    ) -> None:
        self.answer, self.slowness, self.asked, self.keys = answer, slowness, 0, set[str]()
        self._rng, self._lock = np.random.default_rng(seed), threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        """Return the base URL for clients."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def draw_delay_s(self, n_tokens: int) -> float:
        """Return a delay that is log-normal for the first token and constant for later ones."""
        with self._lock:
            self.asked += 1
            first = FIRST_TOKEN_S * float(self._rng.lognormal(0.0, 0.5))
        return self.slowness * (first + TOKEN_S * n_tokens)

    def __enter__(self) -> Endpoint:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Endpoint

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed while it sent its request
            self.close_connection = True
            return
        asked = json.loads(body)
        self.server.keys.add(self.headers.get("Authorization", ""))
        text = self.server.answer(asked["messages"])
        read = sum(len(message["content"]) for message in asked["messages"]) // 4
        output_tokens = len(text) // 4
        time.sleep(self.server.draw_delay_s(output_tokens))
        message = {"role": "assistant", "content": text}
        usage = {"prompt_tokens": read, "completion_tokens": output_tokens}
        body = json.dumps(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": asked["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {**usage, "total_tokens": read + output_tokens},
            }
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def run_settings(url: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a run whose explorer queries the server."""
    return {
        "arms": ["coevolve"],
        "explorer.model.endpoint.base_url": url,
        "explorer.model.endpoint.model": "shopper",
        "explorer.model.endpoint.api_key_env": None,
        "explorer.model.endpoint.usd_per_million_prompt_tokens": 0.0,
        "explorer.model.endpoint.usd_per_million_completion_tokens": 0.0,
        "advisor.max_usd_total": None,
        **more,
    }


class Share(NamedTuple):
    """The results of a run.

    Attributes:
        wall_s: wall time of all steps.
        idle_s: part of the wall time that the learner spent waiting for rounds.
        rounds: rounds after the one for the initial tasks.
        tasks: tasks that these rounds added.
        requests: requests to the server, including those for the initial tasks.
        steps: learner steps.
    """

    wall_s: float
    idle_s: float
    rounds: int
    tasks: int
    requests: int
    steps: int

    @property
    def idle_share(self) -> float:
        """Share of the wall time that the learner spent waiting."""
        return self.idle_s / self.wall_s


class Clocked(CurriculumSession):
    """A session that records how long its caller has waited for rounds since the first step."""

    made: list[Clocked] = []  # noqa: RUF012 (of the whole bench)

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.began, self.idle_s = False, 0.0
        Clocked.made.append(self)

    def open_step(self, n_groups: int, *, request: str | None = None) -> None:
        """Open a step, and note that training has begun."""
        self.began = True
        super().open_step(n_groups, request=request)

    def run_round(self, round: Round) -> RoundResult:
        """Run a round, and record the time that it takes."""
        begun = time.perf_counter()
        result = super().run_round(round)
        self.idle_s += (time.perf_counter() - begun) if self.began else 0.0
        return result


def run_experiment(overlap: bool, steps: int, slowness: float) -> Share:
    """Run the experiment once, and return its results."""
    from coevo_gym.runs import arm

    arm.CurriculumSession = Clocked  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder, Endpoint(slowness=slowness) as server:
        more = {
            "evolver.overlap": overlap,
            "loop.max_steps": steps,
            "loop.max_env_steps": None,
            "curriculum.growth.every_groups": 16 * 8,
            "curriculum.growth.max_contexts": 4,
            "curriculum.growth.drafts": 12,
            "curriculum.initial_size": 8,
            "loop.evaluate_every_steps": 0,
            "evaluation.n_tasks": 20,
        }
        where = Path(folder) / "run"
        coevo_gym.train("webshop_llm", sets=run_settings(server.url, **more), folder=where)
        session = Clocked.made[-1]
        lines = read_lines(where / "metrics.jsonl")
        rounds = [line for line in lines if line["event"] == "round"][1:]
        last = [line for line in lines if line["event"] == "step"][-1]
        spent = sum(line["rollout_s"] + line["update_s"] for line in lines if "rollout_s" in line)
        wall = spent + session.idle_s  # without evaluation and report
        n_drafts = sum(line["accepted"] for line in rounds)
        return Share(wall, session.idle_s, len(rounds), n_drafts, server.asked, last["step"])


def main() -> int:
    """Run both modes, and print how long the learner waited."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=44, help="learner steps")
    parser.add_argument("--slowness", type=float, default=1.0, help="factor on the delays")
    arguments = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, {arguments.steps} steps")
    print("rounds   | waits | wall   | learner idle | rounds | tasks | requests")
    shares = {}
    for overlap in (False, True):
        share = shares[overlap] = run_experiment(overlap, arguments.steps, arguments.slowness)
        cells = (
            f"{'beside' if overlap else 'waited':8}",
            f"{share.idle_s:4.1f}s",
            f"{share.wall_s:5.1f}s",
            f"{share.idle_share:11.1%} ",
            f"{share.rounds:6}",
            f"{share.tasks:5}",
            f"{share.requests:8}",
        )
        print(" | ".join(cells), flush=True)
    low, high = PAPER
    print(f"Feedback's share of the time in the paper: {low:.2%} and {high:.2%} (arXiv 2604.15840)")
    passes = shares[True].idle_share <= BOUND
    print(f"Idle at most {BOUND:.0%} with rounds beside training: {'yes' if passes else 'NO'}")
    return 0 if passes else 1


if __name__ == "__main__":
    sys.exit(main())
