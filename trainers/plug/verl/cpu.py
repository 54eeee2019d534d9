"""A CPU as a platform of verl, which knows accelerators only: for tests, and for small models.

Set both variables before verl is imported, also in Ray's workers::

    VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=coevo_gym.trainers.plug.verl.cpu
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
    """What verl asks of ``torch.cuda``: on a CPU nothing is to be waited for or set up."""

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
    """One CPU is one device."""

    device_name = vendor_name = "cpu"
    device_module = _Device("coevo_cpu_device")

    def is_available(self) -> bool:
        """There is always a CPU."""
        return True

    def current_device(self) -> str:
        """What tensors are moved to."""
        return "cpu"

    def device_count(self) -> int:
        """One for each process."""
        return 1

    def set_device(self, device_index: int) -> None:
        """Nothing to choose."""

    def synchronize(self, device_index: int | None = None) -> None:
        """Nothing to wait for."""

    def manual_seed(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        """Seed PyTorch."""
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Nothing to set."""

    def empty_cache(self) -> None:
        """Nothing to empty."""

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        """Unknown."""
        return None, None

    def communication_backend_name(self) -> str:
        """How processes talk."""
        return "gloo"

    def visible_devices_envvar(self) -> str:
        """No variable hides a CPU."""
        return "COEVO_VISIBLE_CPUS"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        """No ranges are recorded."""
        yield

    def profiler_start(self) -> None:
        """No profiler."""

    def profiler_stop(self) -> None:
        """No profiler."""

    def cudart(self) -> None:
        """No CUDA."""

    def is_ipc_supported(self) -> bool:
        """Nothing is handed over inside a device."""
        return False

    def ray_resource_name(self) -> str:
        """What a worker takes one of."""
        return "CPU"

    def ray_noset_envvars(self) -> list[str]:
        """Ray hides no CPU."""
        return []

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        """Options of an actor that takes so many."""
        return {"num_cpus": num_gpus}
