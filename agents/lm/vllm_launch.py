"""Settings of vLLM servers, and the processes of servers that this process starts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from coevo_gym.agents.lm.vllm_engine import (
    VLLMConfig,
    check_adapter_settings,
    lora_settings,
)
from coevo_gym.agents.lm.vllm_process import BACKEND, STOP_S
from coevo_gym.core.arithmetic import PORTABLE
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenModel

_SERVER_MODULE = "coevo_gym.agents.lm.vllm_process"
_LOG_LINES, _LINE_CHARS = 12, 500  # of the output that a message quotes
_ERROR = re.compile(r"\b[A-Z]\w*(Error|Exception|Interrupt)\b: ")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_LAUNCHER_PREFIXES = ("TORCHELASTIC_", "MASTER_", "LOCAL_", "GROUP_", "ROLE_")
_LAUNCHER_NAMES = ("RANK", "WORLD_SIZE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")


class VLLMServersConfig(FrozenModel):
    """Settings for sampling with vLLM servers."""

    urls: tuple[str, ...] = ()
    """Addresses of running servers, such as ``http://node1:8000``; without any, the run starts its
    own servers on this machine and stops them at its end."""
    replicas: int | None = Field(default=None, ge=1)
    """Number of servers to start. None starts one per GPU that the learner does not use, and at
    least one."""
    port: int | None = Field(default=None, ge=1, le=65_535)
    """Port of the first server that the run starts; the others use the ports after it. None uses
    free ports."""
    folder: str | None = None
    """Folder through which the servers get new weights; it needs room for two copies. Servers on
    other machines must see it under the same path. None uses a folder in this machine's memory."""
    timeout_s: float = Field(default=1_800.0, gt=0)
    """Timeout in seconds for starting a server, for an answer and for a hand-over of weights."""

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        urls = tuple(url.rstrip("/") for url in urls)
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.path:
                raise ValueError(
                    f"{url!r} is not the address of a server, such as http://localhost:8000"
                )
        if len(set(urls)) < len(urls):
            raise ValueError("each server may be listed only once")
        return urls

    @model_validator(mode="after")
    def _check_conflicts(self) -> VLLMServersConfig:
        if self.urls and (self.replicas is not None or self.port is not None):
            raise ValueError(
                "urls names servers that are running already, so replicas and port have no "
                "effect. Remove either urls, or replicas and port."
            )
        if self.folder is not None and not Path(self.folder).is_absolute():
            raise ValueError(
                f"folder must be an absolute path, because servers see it, too; got {self.folder!r}"
            )
        others = [url for url in self.urls if urlsplit(url).hostname not in _LOOPBACK]
        if others and self.folder is None:
            raise ValueError(
                f"{others[0]} is another machine, which gets new weights through a folder that "
                "both machines share. Set folder to its path."
            )
        return self


def check_server_settings(
    lora_rank: int, vllm: VLLMConfig, servers: VLLMServersConfig, *, has_gpu: bool
) -> None:
    """Check that the settings of vLLM suit servers.

    Raises:
        ConfigError: if they do not.
    """
    if vllm.sleep:
        raise ConfigError(
            "policy.vllm.sleep frees the memory of vLLM in the learner's process, but "
            "policy.kind = 'vllm_server' runs it in processes of its own. Set policy.vllm.sleep "
            "to false."
        )
    check_adapter_settings(lora_rank, vllm)
    if servers.urls:
        return
    if vllm.kv_cache_gib is None and not has_gpu:
        raise ConfigError(
            "On a CPU, each vLLM server would take a share of the machine's memory. Set "
            "policy.vllm.kv_cache_gib to the size of a server's key-value cache, such as 1."
        )
    if has_gpu and servers.replicas is not None and servers.replicas > count_gpus():
        raise ConfigError(
            f"policy.servers.replicas is {servers.replicas}, but this machine has "
            f"{count_gpus()} GPUs, and a server takes one. Lower it."
        )


class Served(NamedTuple):
    """The model that servers must run.

    Attributes:
        folder: folder of the model, for servers that are started.
        model: fields of the model's transformers config that identify it.
        dtype: precision of the weights.
        max_context: maximum number of tokens of a prompt with its answer.
        lora_rank: maximum rank of adapters that are handed over alone; 0 for none.
        has_gpu: True if servers are started on GPUs.
    """

    folder: Path
    model: Mapping[str, Any]
    dtype: Literal["bfloat16", "float32"]
    max_context: int
    lora_rank: int
    has_gpu: bool

    @property
    def expected(self) -> dict[str, Any]:
        """The settings that a server must have, except for the folder with weights.

        See :func:`coevo_gym.agents.lm.vllm_process.find_difference`.
        """
        return {
            "model": dict(self.model),
            "dtype": self.dtype,
            "logprobs_mode": "processed_logprobs",
            "max_model_len": self.max_context,
        }


class ServerProcess:
    """A vLLM server that this process has started.

    It has its own process group, which is stopped by :meth:`stop`, when the object is deleted, and
    when this process ends, however it ends.

    Args:
        weights: folder with weights, which the server deletes when this process has ended.
        arguments: arguments of the server.
        environment: its environment variables.
        log: file for its output.
    """

    def __init__(
        self, weights: Path, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 (our own arguments)
                [sys.executable, "-m", _SERVER_MODULE, str(weights), *arguments],
                env=dict(environment),
                stdin=subprocess.PIPE,  # its end tells the server that this process has ended
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.stop = weakref.finalize(self, _stop_group, self._process, os.getpid())

    @property
    def pid(self) -> int:
        """Process id, which is also the id of the process group."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """True if the server has exited."""
        return self._process.poll() is not None

    def describe_log(self) -> str:
        """Return the first error in the server's output, or its last lines if there is none."""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if _ERROR.search(line) and " WARNING " not in line]
        return "\n".join(line[:_LINE_CHARS] for line in errors[:1] or lines[-_LOG_LINES:])


def _stop_group(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return  # a fork's copy
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdin is not None
    process.stdin.close()  # at last, because its end would delete the weights


def server_environment(gpu: int | None, *, adapters: bool) -> dict[str, str]:
    """Return the environment of a server.

    It lacks the variables of a launcher such as torchrun, and those that select portable
    arithmetic, with which vLLM's compiled kernels fail.

    Args:
        gpu: index of the server's GPU among those that this process sees; None on a CPU.
        adapters: True if adapters are loaded while the server runs.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (*_LAUNCHER_NAMES, *PORTABLE) and not name.startswith(_LAUNCHER_PREFIXES)
    }
    environment |= {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    if adapters:
        environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if plugins := environment.get("VLLM_PLUGINS"):
        environment["VLLM_PLUGINS"] = f"{plugins},coevo_gym"
    if gpu is not None:
        visible = environment.get("CUDA_VISIBLE_DEVICES")
        environment["CUDA_VISIBLE_DEVICES"] = visible.split(",")[gpu] if visible else str(gpu)
    return environment


def server_arguments(served: Served, vllm: VLLMConfig, port: int) -> list[str]:
    """Return the command line arguments of a server that listens on this machine only."""
    cache = vllm.kv_cache_gib
    arguments = {
        "model": str(served.folder),
        "host": "127.0.0.1",
        "port": port,
        "dtype": served.dtype,
        "max_model_len": served.max_context,
        "tokens_only": True,
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        # The default would be the log-probabilities before temperature scaling.
        "logprobs_mode": "processed_logprobs",
        "gpu_memory_utilization": vllm.gpu_memory_utilization,
        "kv_cache_memory_bytes": None if cache is None else int(cache * 2**30),
        "enforce_eager": vllm.enforce_eager,
        "weight_transfer_config": json.dumps({"backend": BACKEND}),
        **lora_settings(served.lora_rank),
    }
    words = []
    for name, value in arguments.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


def count_gpus() -> int:
    """Return the number of GPUs that this process sees."""
    import torch

    return torch.cuda.device_count()


def choose_ports(config: VLLMServersConfig, *, has_gpu: bool) -> list[int]:
    """Return a free port for each server to start.

    Raises:
        ConfigError: if a port in the settings is in use.
    """
    n = config.replicas
    if n is None:
        n_learners = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)  # a launcher sets it
        n = max(1, count_gpus() - n_learners) if has_gpu else 1
    if config.port is None:
        return _free_ports(n)
    ports = [config.port + place for place in range(n)]
    for port in ports:
        _require_free(port)
    return ports


def _free_ports(n: int) -> list[int]:
    """Return ports that nothing uses at the moment."""
    sockets = [socket.socket() for _ in range(n)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _require_free(port: int) -> None:
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"policy.servers.port: port {port} cannot be used ({error.strerror}). Choose "
                "another one, or leave it unset to use free ports."
            ) from None
