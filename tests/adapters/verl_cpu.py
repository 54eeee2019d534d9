"""A platform that lets verl run tests and small models on a CPU.

Set both variables before verl is imported, including in Ray's workers::

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=tests.adapters.verl_cpu
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(ModuleType):
    """A replacement for ``torch.cuda`` that does nothing, because a CPU needs no set-up or sync."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    def __getattr__(self, name: str) -> Any:
        if name in _NOTHING:
            return lambda *_, **__: None
        if name == "mem_get_info":
            return lambda *_, **__: (0, 0)
        if name in _NO_BYTES:
            return lambda *_, **__: 0
        return getattr(torch.cpu, name)


_NOTHING = {"empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"}
_NO_BYTES = {
    "max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved",
}  # fmt: skip


@PlatformRegistry.register(platform="cpu")  # type: ignore[untyped-decorator, unused-ignore]
class CPUPlatform(PlatformBase):  # type: ignore[misc, unused-ignore]
    """A platform with one CPU as its only device."""

    device_name = vendor_name = "cpu"
    device_module = _Device("coevo_cpu_device")

    def is_available(self) -> bool:
        """Return True, because there is always a CPU."""
        return True

    def current_device(self) -> str:
        """Return ``"cpu"``, the device on which tensors are created."""
        return "cpu"

    def device_count(self) -> int:
        """Return 1, the number of devices per process."""
        return 1

    def manual_seed(self, seed: int) -> None:
        """Seed PyTorch's random number generator."""
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_device(self, *_: Any, **__: Any) -> None:
        """Do nothing, because this call does not apply to CPUs."""

    synchronize = set_allocator_settings = empty_cache = set_device
    profiler_start = profiler_stop = cudart = set_device

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Return (None, None), because a CPU has no compute capability."""
        return None, None

    def communication_backend_name(self) -> str:
        """Return the backend for communication between processes."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """Return a placeholder, because no environment variable controls which CPUs are visible."""
        return "COEVO_VISIBLE_CPUS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """Do nothing, because NVTX ranges are not recorded on a CPU."""
        yield

    def is_ipc_supported(self) -> bool:
        """Return False, because processes do not share device memory."""
        return False

    def ray_resource_name(self) -> str:
        """Return the name of the Ray resource that workers reserve."""
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        """Return an empty list, because Ray does not restrict which CPUs a worker sees."""
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """Return the Ray options for an actor with the given number of CPUs."""
        return {"num_cpus": num_gpus}
