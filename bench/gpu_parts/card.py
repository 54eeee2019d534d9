"""The device's name and software, its peak rates in this run, and timing on it."""

from __future__ import annotations

import gc
import platform
import shutil
import subprocess
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from statistics import median
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

import torch
from gpu_parts.subjects import Size

DATA_SHEET = {
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
}
"""Dense bf16 matrix operations per second by the card's name (NVIDIA's data sheets)."""
PACKAGES = ("torch", "transformers", "peft", "vllm", "flash-attn", "numpy", "gymnasium")
T = TypeVar("T")


class Peaks(NamedTuple):
    """Peak rates of a device, measured in this run.

    Attributes:
        dtype: type of the matrices.
        flops: matrix operations per second.
        data_sheet: matrix operations per second in the data sheet, or None if unknown.
        bandwidth: bytes per second that a copy reads and writes.
    """

    dtype: str
    flops: float
    data_sheet: float | None
    bandwidth: float


class Timed(NamedTuple):
    """A function's result, and the seconds until it was available."""

    result: Any
    seconds: float


def time_call(device: str, run: Callable[[], T]) -> Timed:
    """Call a function, wait for the device, and return the result with its time."""
    _synchronize(device)
    started = perf_counter()
    result = run()
    _synchronize(device)
    return Timed(result, perf_counter() - started)


def free_memory(device: str) -> None:
    """Free unreferenced memory, and reset the peak memory."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> int | None:
    """Return the peak bytes in use since :func:`free_memory`, or None without a counter."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


def measure_peaks(device: str, size: Size) -> Peaks:
    """Time a large matrix product and a large copy, and return rates from medians of 20."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    generator = torch.Generator(device).manual_seed(0)
    n = size.matrix
    a, b = (torch.randn(n, n, device=device, generator=generator).to(dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.zeros(size.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return Peaks(
        dtype=str(dtype).removeprefix("torch."),
        flops=2 * n**3 / _median_seconds(device, lambda: torch.matmul(a, b, out=product)),
        data_sheet=DATA_SHEET.get(card_name(device)),
        bandwidth=2 * size.copied / _median_seconds(device, lambda: target.copy_(source)),
    )


def card_name(device: str) -> str:
    """Return the card's name, or the processor's name on a CPU."""
    return torch.cuda.get_device_name() if device == "cuda" else f"CPU, {platform.machine()}"


def software_versions(device: str) -> dict[str, str | None]:
    """Return the versions of all software that affects the results; None if missing."""
    versions: dict[str, str | None] = {
        "python": platform.python_version(),
        "driver": _driver_version() if device == "cuda" else None,
        "cuda": torch.version.cuda,
    }
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = None
    return versions


def _median_seconds(device: str, run: Callable[[], object]) -> float:
    for _ in range(5):
        run()
    return median(time_call(device, run).seconds for _ in range(20))


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _driver_version() -> str | None:
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    asked = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    result = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=False)
    return result.stdout.strip().partition("\n")[0] or None
