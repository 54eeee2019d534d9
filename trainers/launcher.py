"""Processes that share the updates of a command, started with torchrun's library.

The command starts itself once per rank. Rank 0 executes it, and the others follow
(:mod:`coevo_gym.trainers.distributed`). The process that has started them waits, passes Ctrl-C on
to rank 0, and ends all ranks as soon as one has died.
"""

from __future__ import annotations

import json
import logging
import math
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten

from coevo_gym.agents.lm.language_model import NEEDS
from coevo_gym.core.errors import CoevoError, WorkersFailed
from coevo_gym.provision import explain_missing

with explain_missing(*NEEDS):
    import torch
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torch.distributed.elastic.multiprocessing import (
        DefaultLogsSpecs,
        PContext,
        start_processes,
    )
    from torch.distributed.elastic.multiprocessing.errors import ErrorHandler

    from coevo_gym.agents.lm.causal_lm import pick_device
    from coevo_gym.trainers.update.ranks import RankLost, join_ranks

_FAILED, _LOST = 1, 75
"""Exit codes of a rank that failed, and of one that can no longer reach the others."""
_POLL_S = 0.1
_GRACE_S = 10.0
"""Seconds in which the other ranks may end by themselves after one has failed."""


def run_ranks(processes: int) -> int:
    """Run this process's own command in several ranks, and wait for rank 0.

    Returns:
        The exit code of rank 0.

    Raises:
        WorkersFailed: if a rank failed or was killed; the others have then been ended.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    # Permissions and costs have been agreed to, and the ranks cannot ask.
    command = (*sys.orig_argv[1:], "--yes")
    logging.getLogger(PContext.__module__).setLevel(logging.ERROR)  # it tells of each signal
    with TemporaryDirectory(prefix="coevo-ranks-") as logs, _Signals() as signals:
        # By default, torchrun's library would replace the handlers of Ctrl-C and SIGTERM.
        os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGQUIT"
        context = start_processes(
            name="coevo",
            entrypoint=sys.executable,
            args=dict.fromkeys(range(processes), command),
            envs={rank: _environment(rank, processes, store.port) for rank in range(processes)},
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            pids = context.pids()
            signals.forward_to(pids[0])
            errors = {rank: Path(file) for rank, file in context.error_files.items()}
            return _judge(_wait_for_end(pids, errors), pids, errors)
        finally:
            context.close(signal.SIGKILL)


def _environment(rank: int, processes: int, port: int) -> dict[str, str]:
    """Return the variables that torchrun would set for a rank."""
    threads = max(1, len(os.sched_getaffinity(0)) // processes)
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(processes),
        "LOCAL_WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),  # this machine only
    }


class _Signals:
    """A context manager that passes SIGINT and SIGTERM on to rank 0, as SIGINT."""

    def __init__(self) -> None:
        self._pid: int | None = None
        self._n_pending = 0

    def __enter__(self) -> _Signals:
        self._before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def forward_to(self, pid: int) -> None:
        """Pass signals on to a process, including those that have arrived before."""
        self._pid = pid
        for _ in range(self._n_pending):
            os.kill(pid, signal.SIGINT)

    def _on_signal(self, number: int, frame: object) -> None:
        if self._pid is None:
            self._n_pending += 1
            return
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(self._pid, signal.SIGINT)


def _wait_for_end(pids: Mapping[int, int], errors: Mapping[int, Path]) -> dict[int, int]:
    """Wait until rank 0 has ended or a rank has failed.

    After a failure, the other ranks have a few seconds to end by themselves, because rank 0 may
    have the same error and print it.

    Args:
        pids: process id of each rank.
        errors: file in which each rank records an error that it does not print.

    Returns:
        The exit code of each rank that has ended, negative for a signal.
    """
    codes: dict[int, int] = {}
    deadline = math.inf
    while len(codes) < len(pids) and time.monotonic() < deadline:
        for rank in pids.keys() - codes.keys():
            status = os.waitid(os.P_PID, pids[rank], os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is not None:
                exited = status.si_code == os.CLD_EXITED
                codes[rank] = status.si_status if exited else -status.si_status
        if min(codes.values(), default=0) < 0 or (0 in codes and not errors[0].exists()):
            break
        if deadline == math.inf and any(codes.values()):
            deadline = time.monotonic() + _GRACE_S
        time.sleep(_POLL_S)
    return codes


def _judge(codes: Mapping[int, int], pids: Mapping[int, int], errors: Mapping[int, Path]) -> int:
    """Return rank 0's exit code, if it has ended as a command of one process would have.

    Raises:
        WorkersFailed: if a rank was killed or failed.
    """
    if codes.get(0, -1) >= 0 and not errors[0].exists():
        return codes[0]
    rank = min((rank for rank, code in codes.items() if code), key=lambda r: _blame(codes[r]))
    code = codes[rank]
    if code < 0:
        why = ", as happens when memory runs out" if code == -signal.SIGKILL else ""
        raise WorkersFailed(
            f"Rank {rank} (process {pids[rank]}) was killed by {signal.Signals(-code).name}{why}, "
            "so the run has ended."
        )
    reason = f"exit code {code}"
    if errors[rank].exists():
        reason = shorten(json.loads(errors[rank].read_text())["message"]["message"], 2_000)
    raise WorkersFailed(f"Rank {rank} failed, so the run has ended: {reason}")


def _blame(code: int) -> int:
    """Return a key that sorts ranks that were killed first, and those that lost others last."""
    return 0 if code < 0 else 2 if code == _LOST else 1


@contextmanager
def lead_ranks(device: str) -> Iterator[None]:
    """Join the other ranks as rank 0 for a ``with`` block, and let them end after it.

    If rank 0 loses the others, the supervising process reports the reason, and rank 0 exits.

    Args:
        device: setting of the model's device.
    """
    parent = os.pidfd_open(os.getppid())
    threading.Thread(target=_stop_with, args=(parent,), daemon=True).start()
    with _recorded_errors(RankLost), join_ranks(_take_device(device)) as ranks:
        yield
        ranks.broadcast(None)


@contextmanager
def follow_ranks(device: str) -> Iterator[None]:
    """Join the other ranks for a ``with`` block, as a rank that prints nothing.

    The supervising process reports errors of the block, and this process exits.

    Args:
        device: setting of the model's device.
    """
    with _recorded_errors(Exception), join_ranks(_take_device(device)):
        yield


def _stop_with(parent: int) -> None:
    """Wait for the end of the supervising process, then stop after the current step.

    ``parent`` is its pid file descriptor. A parent-death signal would come once for each thread of
    the parent, and a second signal stops a run at once.
    """
    waiting = select.poll()
    waiting.register(parent, select.POLLIN)
    waiting.poll()
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def _recorded_errors(kind: type[Exception]) -> Iterator[None]:
    """Record errors of a ``with`` block for the supervising process, and exit.

    As in a single process, only unexpected errors have a traceback.
    """
    try:
        yield
    except kind as error:
        if not isinstance(error, CoevoError):
            traceback.print_exc()
        ErrorHandler().record_exception(error)
        sys.exit(_LOST if isinstance(error, RankLost) else _FAILED)


def _take_device(setting: str) -> torch.device:
    """Return the device of this rank: a GPU of its own, or the CPU."""
    device = pick_device(setting)
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    return device
