"""A stand-in for a vLLM server: its HTTP routes, with a number instead of a model.

``python -m tests.agents.stand_in_vllm FOLDER --port N`` takes the arguments of the real server. The
"weights" are a number w in a JSON file. Each token t of a prompt has the log-probability -(w + t /
1000); an answer has ``max_tokens`` tokens, the last prompt token + 1, + 2, …, of log-probability
-w. A POST to ``/stand_in`` changes how it behaves.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from coevo_gym.agents.lm.vllm_process import stop_at_end_of_input

PATIENCE_S = 300.0
"""Longest wait for an event: only a test that fails waits that long."""
VOCABULARY = 100


class StandIn(ThreadingHTTPServer):
    """The server.

    Attributes:
        behaviour: ``version``: that it claims; ``vocab_size``; ``page``: True to answer with HTML;
            ``withholds``: True to keep its weights; ``fails_updates``: True to die at an update, as
            vLLM does.
        weights: the number.
        weight_version: of the latest update.
        asked: token ids of all prompts for an answer.
        is_dead: True if its engine has died.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int = 0, **behaviour: Any) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.behaviour: dict[str, Any] = {
            "version": "0.32.0",
            "vocab_size": VOCABULARY,
            **behaviour,
        }
        self.weights, self.weight_version, self.is_dead = 0.0, "default", False
        self.asked: list[list[int]] = []
        self.adapters: dict[str, float] = {}
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> StandIn:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.may_answer.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, format: str, *args: Any) -> None:
        return

    def do_GET(self) -> None:
        server = self.server
        if server.behaviour.get("page"):
            self._send(200, b"<html>Welcome!</html>", "text/html")
        elif self.path == "/version":
            self._send_json({"version": server.behaviour["version"]})
        elif self.path == "/health":
            self._send(503 if server.is_dead else 200, b"")
        elif self.path == "/stand_in":
            state = {"asked": server.asked, "weights": server.weights}
            self._send_json({**state, "environment": dict(os.environ)})
        else:
            self._refuse(404, "Not Found")

    def do_POST(self) -> None:
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        path = self.path.partition("?")[0]
        if path == "/stand_in":
            if "may_answer" in body:
                (server.may_answer.set if body.pop("may_answer") else server.may_answer.clear)()
            server.behaviour.update(body)
            self._send_json({})
        elif server.is_dead:
            self._refuse(500, "EngineCore encountered an issue.")
        elif path == "/init_weight_transfer_engine":
            expected, own = body["init_info"]["expected"], server.behaviour["vocab_size"]
            if expected["model"]["vocab_size"] != own:
                wanted = expected["model"]["vocab_size"]
                self._refuse(
                    500,
                    "Call to collective_rpc method failed: Worker failed with error 'its model has "
                    f"vocab_size = {own}, but the policy's model has {wanted}', please check the "
                    "stack trace above for the root cause",
                )
            else:
                self._send_json({})
        elif path == "/update_weights":
            self._update(body["update_info"])
        elif path == "/finish_weight_update":
            server.weight_version = body["weight_version"]
            self._send_json({})
        elif path == "/v1/load_lora_adapter":
            file = Path(body["lora_path"]) / "adapter.json"
            server.adapters[body["lora_name"]] = json.loads(file.read_text())
            self._send_json({})
        elif path == "/v1/unload_lora_adapter":
            del server.adapters[body["lora_name"]]
            self._send_json({})
        elif path == "/inference/v1/generate":
            self._generate(body)
        else:
            self._send_json({})

    def _update(self, update_info: dict[str, str]) -> None:
        server = self.server
        if server.behaviour.get("fails_updates"):
            server.is_dead = True
            self._refuse(500, "Call to collective_rpc method failed: no memory")
            return
        if not server.behaviour.get("withholds"):
            server.weights = json.loads(Path(update_info["path"]).read_text())
        self._send_json({})

    def _generate(self, body: dict[str, Any]) -> None:
        server, ids, sampling = self.server, body["token_ids"], body["sampling_params"]
        if max(ids) >= VOCABULARY:
            self._refuse(400, "a token is outside the vocabulary")
            return
        weights = server.adapters[body["model"]] if "model" in body else server.weights
        reply: dict[str, Any] = {}
        if "prompt_logprobs" in sampling:
            logprobs = [{str(t): {"logprob": -(weights + t / 1000)}} for t in ids[1:]]
            reply = {"prompt_logprobs": [None, *logprobs]}
        else:
            server.asked.append(ids)
            assert server.may_answer.wait(PATIENCE_S), "nobody released an answer"
        n = sampling["max_tokens"]
        choice = {
            "index": 0,
            "finish_reason": "length",
            "token_ids": [(ids[-1] + 1 + place) % VOCABULARY for place in range(n)],
            "logprobs": {"content": [{"logprob": -weights}] * n},
            "weight_versions": [{"version": server.weight_version, "start": 0, "end": n}],
        }
        self._send_json({**reply, "choices": [choice]})

    def _refuse(self, status: int, message: str) -> None:
        self._send_json({"error": {"message": message, "code": status}}, status)

    def _send_json(self, body: Any, status: int = 200) -> None:
        self._send(status, json.dumps(body).encode())

    def _send(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main() -> None:
    """Serve until the standard input ends, as a started server does."""
    server = StandIn(int(sys.argv[sys.argv.index("--port") + 1]))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stop_at_end_of_input(sys.argv[1])


if __name__ == "__main__":
    main()
