"""Devices for training a language model: known GPUs, and this machine's GPU and CPU."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.config.run_sections import PolicySettings

GIB = 2**30
_CGROUP_LIMITS = ("memory.max", "memory/memory.limit_in_bytes")  # cgroup versions 2 and 1


@dataclass(frozen=True)
class Device:
    """A GPU or CPU that can train a language model.

    Attributes:
        name: name to display.
        memory: bytes that programs can use.
        is_gpu: True for a GPU.
        note: reason why this device was chosen, for users, or "".
        count: number of these devices, one per process (``--processes``).
    """

    name: str
    memory: int
    is_gpu: bool = True
    note: str = ""
    count: int = 1

    @property
    def reserve(self) -> int:
        """A rough allowance, in bytes, for memory that the estimates do not cover.

        On a GPU, this is for CUDA with its graphs and workspaces, logits, and allocation gaps; on a
        CPU, for the interpreter, libraries, envs, and logits.
        """
        return (6 if self.is_gpu else 2) * GIB


CARDS = {
    "h100": Device("H100", 79 * GIB),
    "h200": Device("H200", 139 * GIB),
    "a100": Device("A100 80GB", 79 * GIB),
    "a100-40gb": Device("A100 40GB", 39 * GIB),
    "l40s": Device("L40S", 44 * GIB),
    "l4": Device("L4", 22 * GIB),
    "rtx4090": Device("RTX 4090", 47 * GIB // 2),
}
"""Known GPUs by name.

Memory is the total that CUDA reports, rounded down to half a GiB; it is less than the size on the
data sheet.
"""

H200 = CARDS["h200"]


def find_card(name: str) -> Device:
    """Look up a known GPU by name in :data:`CARDS`, ignoring case.

    Raises:
        ConfigError: if the GPU is unknown.
    """
    if name.lower() not in CARDS:
        raise ConfigError(f"Unknown GPU {name!r}. Choose one of: {', '.join(CARDS)}.")
    return CARDS[name.lower()]


def rank_of_process() -> int | None:
    """Return this process's rank, or None if it was not started as one of several."""
    if count_ranks() == 1 or "LOCAL_RANK" not in os.environ:
        return None
    return int(os.environ["RANK"])


def count_ranks() -> int:
    """Return the number of processes that this process was started as one of."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def device_here(settings: PolicySettings) -> Device | None:
    """Return the device that would be used to train a language model on this machine.

    Imports PyTorch to look for a GPU, unless the settings choose the CPU.

    Returns:
        The device; None if the settings require a GPU and there is none.
    """
    wanted = settings.model.device
    if wanted != "cpu" and (gpu := _gpu_here()) is not None:
        return gpu
    if wanted == "cuda":
        return None
    return Device("CPU of this machine", _machine_memory(), is_gpu=False)


def device_to_plan_for(settings: PolicySettings, card: str | None = None) -> Device:
    """Return the device to plan a run for.

    Args:
        settings: settings of the policy; without a language model, the device does not matter.
        card: name of a known GPU; None for the device of this machine, or for an H200 if the
            settings need a GPU and this machine has none.

    Raises:
        ConfigError: if the card is unknown.
    """
    if card is not None:
        chosen = find_card(card)
        if settings.model.device == "cpu":
            note = "the run itself uses the CPU, because policy.model.device is 'cpu'"
            return replace(chosen, note=note)
        return chosen
    if settings.kind not in LANGUAGE_MODELS:
        return H200
    device = device_here(settings)
    assumed = is_for_gpu(settings) and settings.model.device == "auto"
    if device is None or (not device.is_gpu and assumed):
        note = "assumed: these settings are for a GPU, but none was found here; see --card"
        return replace(H200, note=note)
    return device


def is_for_gpu(settings: PolicySettings) -> bool:
    """Return True if a policy's settings are meant for a GPU.

    This is the case if they name a GPU, or if vLLM takes a share of the device's memory
    (``gpu_memory_utilization``). On a CPU, ``kv_cache_gib`` takes the place of that share.
    """
    starts_vllm = settings.kind == "vllm" or (
        settings.kind == "vllm_server" and not settings.servers.urls
    )
    share = starts_vllm and settings.vllm.kv_cache_gib is None
    return share or settings.model.device == "cuda"


def _gpu_here() -> Device | None:
    try:
        import torch
    except ModuleNotFoundError:
        return None
    if not torch.cuda.is_available():
        return None
    properties = torch.cuda.get_device_properties(0)
    return Device(properties.name, properties.total_memory, note="found here", count=count_ranks())


def _machine_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory of this machine or container in bytes."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for name in _CGROUP_LIMITS:
        try:
            text = (groups / name).read_text()
        except OSError:
            continue
        if text.strip().isdigit():  # "max" if there is no limit
            sizes.append(int(text))
    return min(sizes)
