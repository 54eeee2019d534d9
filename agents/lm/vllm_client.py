"""An HTTP client of a vLLM server: token ids in, token ids and log-probabilities out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import BaseModel, Field, ValidationError

from coevo_gym.agents.lm.answers import Sampled
from coevo_gym.agents.lm.vllm_process import BACKEND

if TYPE_CHECKING:
    from httpx import AsyncClient

VERSION = "0.32."
"""Start of the versions of vLLM whose HTTP routes this client uses."""
_HEALTH_TIMEOUT_S = 120.0  # a busy machine may be slow, but not that slow
_QUOTED = 300  # characters of a response that a message quotes
_NO_BACKEND = ("Weight transfer not configured", "Invalid init_info")
_WORKER_ERROR = re.compile(r"Worker failed with error ['\"](.*)['\"], please check", re.DOTALL)


class ServerError(Exception):
    """A server that cannot be reached, fails, or does not answer as vLLM does.

    Attributes:
        refused: True if the server works and refused this one request.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class _Logprob(BaseModel):
    logprob: float


class _Logprobs(BaseModel):
    content: list[_Logprob]


class _WeightVersion(BaseModel):
    version: str


class _Choice(BaseModel):
    token_ids: list[int]
    finish_reason: str
    logprobs: _Logprobs
    weight_versions: list[_WeightVersion] | None = None


class _Reply(BaseModel):
    choices: list[_Choice] = Field(min_length=1, max_length=1)
    prompt_logprobs: list[dict[int, _Logprob] | None] | None = None


class ServerAnswer(NamedTuple):
    """A server's answer to a prompt.

    Attributes:
        sampled: the sampled tokens; their log-probabilities are not 0, even if greedy.
        finish_reason: ``"stop"`` or ``"length"``; another reason means that vLLM gave up.
        prompt_logprobs: log-probability of each prompt token after the first, if requested.
        weight_versions: versions of the weights that sampled the tokens.
    """

    sampled: Sampled
    finish_reason: str
    prompt_logprobs: tuple[float, ...]
    weight_versions: frozenset[str]


class VLLMClient:
    """A client of one server.

    All methods raise :class:`ServerError` if the server fails.

    Args:
        url: address of the server, such as ``http://localhost:8000``.
        http: pool of connections.
    """

    def __init__(self, url: str, http: AsyncClient) -> None:
        self.url, self._http = url, http

    async def generate(
        self, prompt: Sequence[int], sampling: Mapping[str, Any], adapter: str = ""
    ) -> ServerAnswer:
        """Sample an answer.

        Args:
            prompt: token ids.
            sampling: fields of vLLM's ``SamplingParams``, which must request log-probabilities.
            adapter: name of a loaded adapter; "" for the model without one.
        """
        body = {"token_ids": list(prompt), "sampling_params": dict(sampling)}
        content = await self._post("/inference/v1/generate", body | _model_field(adapter))
        try:
            reply = _Reply.model_validate_json(content)
        except ValidationError as error:
            raise ServerError(f"its answer is not one of vLLM's: {_quote(content)}") from error
        (choice,) = reply.choices
        ids = tuple(choice.token_ids)
        logprobs = tuple(one.logprob for one in choice.logprobs.content)
        if len(ids) != len(logprobs):
            raise ServerError(f"it sent {len(ids)} tokens with {len(logprobs)} log-probabilities")
        of_prompt = reply.prompt_logprobs or [None]
        pairs = zip(of_prompt[1:], prompt[1:], strict=False)
        try:
            prompt_logprobs = tuple((one or {})[token].logprob for one, token in pairs)
        except KeyError as error:
            raise ServerError("it left out the log-probability of a prompt token") from error
        versions = frozenset(one.version for one in choice.weight_versions or ())
        return ServerAnswer(Sampled(ids, logprobs), choice.finish_reason, prompt_logprobs, versions)

    async def check_health(self) -> None:
        """Raise an error unless the server and its engine work."""
        await self._send("GET", "/health", timeout=_HEALTH_TIMEOUT_S)

    async def get_version(self) -> str:
        """Return the version of vLLM."""
        content = await self._send("GET", "/version")
        try:
            return str(json.loads(content)["version"])
        except (ValueError, KeyError, TypeError) as error:
            raise ServerError(f"it is not a vLLM server; it answered {_quote(content)}") from error

    async def check_suits(self, expected: Mapping[str, Any]) -> None:
        """Raise an error unless the server has a known version and suits the policy.

        See :func:`coevo_gym.agents.lm.vllm_process.find_difference`.
        """
        if not (version := await self.get_version()).startswith(VERSION):
            raise ServerError(f"it runs vLLM {version}, but only vLLM {VERSION}x is supported")
        try:
            await self._post(
                "/init_weight_transfer_engine", {"init_info": {"expected": dict(expected)}}
            )
        except ServerError as error:
            if error.refused or any(text in str(error) for text in _NO_BACKEND):
                raise ServerError(
                    "it cannot load new weights. Start it with VLLM_SERVER_DEV_MODE=1, "
                    f'--tokens-only and --weight-transfer-config \'{{"backend": "{BACKEND}"}}\' '
                    f"in an environment with coevo_gym ({error})"
                ) from error
            raise

    async def load_weights(self, file: Path, version: str) -> None:
        """Replace all weights by those in a safetensors file, after the running answers ended."""
        await self._post("/pause", params={"mode": "wait"})
        await self._post("/start_weight_update")
        await self._post("/update_weights", {"update_info": {"path": str(file)}})
        await self._post("/finish_weight_update", {"weight_version": version})
        await self._post("/resume")

    async def load_adapter(self, folder: Path, name: str) -> None:
        """Load an adapter in PEFT's format, for requests that name it."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})

    async def unload_adapter(self, name: str) -> None:
        """Unload an adapter."""
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})

    async def _post(
        self, path: str, body: Any = None, params: Mapping[str, str] | None = None
    ) -> bytes:
        return await self._send("POST", path, json=body, params=params)

    async def _send(self, method: str, path: str, **options: Any) -> bytes:
        """Send a request and return the body of a successful response."""
        import httpx

        try:
            response = await self._http.request(method, self.url + path, **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            reason = str(error) or type(error).__name__
            raise ServerError(f"{method} {path} failed: {reason}") from error
        if response.is_success:
            if response.headers.get("content-type", "").startswith("text/html"):
                raise ServerError(f"it answered {method} {path} with a web page, not as vLLM does")
            return response.content
        raise ServerError(
            f"{method} {path} failed with status {response.status_code}: "
            f"{_read_reason(response.content)}",
            refused=response.is_client_error,
        )


def _model_field(adapter: str) -> dict[str, str]:
    return {"model": adapter} if adapter else {}


def _read_reason(content: bytes) -> str:
    """Return the message in an error's JSON body, or the start of another body."""
    try:
        message = str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return _quote(content)
    of_worker = _WORKER_ERROR.search(message)
    return (of_worker[1] if of_worker else message)[: 2 * _QUOTED]


def _quote(content: bytes) -> str:
    text = " ".join(content[: 4 * _QUOTED].decode(errors="replace").split())
    return repr(text[:_QUOTED]) if text else "nothing"
