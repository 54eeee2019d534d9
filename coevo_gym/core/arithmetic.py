"""The arithmetic that PyTorch uses on the CPU: portable, or native to the processor.

PyTorch and its matrix library MKL choose their kernels by processor, and each kernel rounds in its
own way. After some hundred updates, a last bit decides which action is sampled. *Native* arithmetic
uses the fastest kernels. *Portable* arithmetic uses those that every x86-64 processor has, so that
the same seed gives the same bits on all of them. PyTorch reads the choice from environment
variables when it first computes, so it holds for the whole process and for the processes that it
starts.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

logger = logging.getLogger(__name__)

Kind = Literal["portable", "native"]

PORTABLE: Mapping[str, str] = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""Environment variables that select portable arithmetic. PyTorch's own kernels obey the first; MKL
obeys the second ("conditional numerical reproducibility" in its documentation)."""
_CHOOSING = (*PORTABLE, "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that influence the choice of kernels."""


class Arithmetic(NamedTuple):
    """The arithmetic that a process uses: its kind, the processor and the kernels.

    Attributes:
        kind: portable or native.
        processor: model of the CPU, or name of the GPU that computes.
        kernels: instruction set of PyTorch's kernels, and variables that influence the choice.
    """

    kind: Kind
    processor: str
    kernels: str

    def computes_same_bits_as(self, other: Arithmetic) -> bool:
        """Return True if this and the other arithmetic give the same bits (equal or portable)."""
        return self == other or self.kind == other.kind == "portable"

    def __str__(self) -> str:
        kernels = "" if self.kind == "portable" else f", {self.kernels}"
        return f"{self.kind} arithmetic ({self.processor}{kernels})"


def request_arithmetic(kind: Kind) -> None:
    """Request an arithmetic for this process and for the processes that it starts.

    Call this function before PyTorch computes anything. Otherwise, and for native arithmetic, it
    changes nothing. :func:`warn_if_other_arithmetic` logs a warning if the process has another one.
    """
    if kind == "native" or _is_portable_requested():
        return
    before = {name: os.environ[name] for name in PORTABLE if name in os.environ}
    os.environ.update(PORTABLE)
    if "torch" in sys.modules and not _is_portable(_freeze_kernels()):
        for name in PORTABLE:
            del os.environ[name]
        os.environ.update(before)


def freeze_arithmetic(gpu: str = "") -> Arithmetic:
    """Lock in the arithmetic of this process, and return it.

    ``gpu`` is the name of the GPU that computes, or "" if the CPU does.

    Raises:
        ImportError: if PyTorch is not installed.
    """
    kernels = _freeze_kernels()
    chosen = (f"{name}={os.environ[name]}" for name in _CHOOSING if name in os.environ)
    return Arithmetic(
        "portable" if _is_portable(kernels) and not gpu else "native",
        gpu or processor_name(),
        ", ".join([kernels, *chosen]),
    )


def warn_if_other_arithmetic(kind: Kind, here: Arithmetic) -> None:
    """Log a warning if this process does not use ``kind`` arithmetic."""
    if here.kind == kind:
        return
    if kind == "native":
        logger.warning(
            "This process uses portable arithmetic, which is slower, because its environment or an "
            "earlier run chose it. Start a new process without ATEN_CPU_CAPABILITY and MKL_CBWR."
        )
    elif not supports_portable_arithmetic():
        logger.warning(
            "Portable arithmetic needs an x86-64 processor and PyTorch with MKL, so native "
            "arithmetic is used, and results may differ on other processors (this one: %s).",
            here.processor,
        )
    else:
        logger.warning(
            "PyTorch has already computed something in this process, so native arithmetic is used, "
            "and results may differ on other processors. For portable arithmetic, start a new "
            "process with ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE."
        )


def arithmetic_environment() -> dict[str, str]:
    """Return environment variables for processes on other machines; {} for native arithmetic."""
    return dict(PORTABLE) if _is_portable_requested() else {}


def processor_name() -> str:
    """Return the processor's name; on x86-64, with its family and model numbers."""
    facts = _cpu_facts()
    name = re.sub(r"\s+", " ", facts.get("model name", "")) or "unknown processor"
    numbers = [f"{key} {facts[key]}" for key in ("cpu family", "model") if key in facts]
    return ", ".join([name, *numbers, platform.machine()])


def cpu_has_bf16() -> bool:
    """Return True if the CPU is known to have instructions that multiply bf16 matrices."""
    facts = _cpu_facts()
    flags = {*facts.get("flags", "").split(), *facts.get("Features", "").split()}  # x86, ARM
    return not flags.isdisjoint(("avx512_bf16", "amx_bf16", "bf16"))


def _cpu_facts() -> dict[str, str]:
    """Return the entries for the first CPU in ``/proc/cpuinfo``; {} if there is no such file."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (s.partition(":") for s in lines)}


def _is_portable_requested() -> bool:
    return all(os.environ.get(name) == value for name, value in PORTABLE.items())


def _freeze_kernels() -> str:
    """Make PyTorch choose its kernels for this process, and return their instruction set."""
    import torch

    return torch.backends.cpu.get_cpu_capability()


def _is_portable(kernels: str) -> bool:
    return _is_portable_requested() and supports_portable_arithmetic() and kernels == "DEFAULT"


def supports_portable_arithmetic() -> bool:
    """Return True if portable arithmetic is possible: on x86-64, with PyTorch built with MKL."""
    import torch

    with_mkl = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return bool(with_mkl) and platform.machine() in ("x86_64", "AMD64")
