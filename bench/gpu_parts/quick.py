"""A check in six minutes of what the other parts of the GPU check leave out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_CPU_FACTOR = 10
"""Factor of all limits on a CPU."""
_GRACE_S = 3.0


class Check(NamedTuple):
    """A command with a time limit.

    Attributes:
        name: name to print.
        limit_s: time limit in seconds.
        command: arguments of the Python interpreter.
    """

    name: str
    limit_s: int
    command: tuple[str, ...]


def list_checks(device: str, shape: str, out: Path) -> list[Check]:
    """Return the checks in their order; on a GPU, their limits add up to less than 6 minutes."""
    own = ("--device", device, "--shape", shape, "--out", str(out))
    multiturn = ("--quick", *own)
    if device == "cuda" and shape == "1.5b":  # the default of the other parts
        multiturn = ("--quick", "--device", device, "--out", str(out))
    batches = ("--batches", "64,256") if device == "cuda" else ()
    tests = ("tests/agents/test_graphs.py", "-k", "cuda", "-q", "-W", "ignore")
    return [
        *([Check("graphs", 35, ("-m", "pytest", *tests))] if device == "cuda" else []),
        Check("multi-turn", 215, ("bench/gpu_multiturn.py", *multiturn)),
        Check(
            "rollout",
            105,
            ("bench/gpu_grpo.py", "--parts", "rollout", "--model", "none", *batches, *own),
        ),
    ]


def run_quick_check(device: str, shape: str, out: Path) -> int:
    """Run the checks one after the other; return 1 if one fails, and 0 otherwise.

    A check that reaches its limit is stopped, and the next one starts.
    """
    outcomes = {} if device == "cuda" else {"graphs": "not run: it needs a GPU"}
    for check in list_checks(device, shape, out.absolute()):
        started = time.monotonic()
        outcome = _run(check, check.limit_s * (1 if device == "cuda" else _CPU_FACTOR))
        outcomes[check.name] = f"{outcome}, {time.monotonic() - started:.0f} s"
    for name, outcome in outcomes.items():
        print(f"{name}: {outcome}", flush=True)
    return int(any(outcome.startswith("failed") for outcome in outcomes.values()))


def _run(check: Check, limit_s: int) -> str:
    """Run a check in its own process group, and say how it has ended."""
    process = subprocess.Popen([sys.executable, *check.command], cwd=ROOT, process_group=0)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return f"stopped by its time limit of {limit_s} s"
    finally:
        _stop(process)
    return {0: "complete", 3: "not run: nothing could be measured"}.get(
        code, f"failed: code {code}"
    )


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop a process that still runs; Ctrl-C lets it stop the processes that it has started."""
    for number in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
