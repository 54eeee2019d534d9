"""However a program ends that has workers, nothing of it goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from coevo_gym.envs.workers.starting import wait_for_exit
from tests.workers import faulty

ROOT = Path(__file__).parents[2]


def descendants(pid: int) -> dict[int, str]:
    """All processes that a process has started, and those that they have, with their names."""
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, _, rest = (folder / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended
        names[int(folder.name)] = name.partition("(")[2]
        children.setdefault(int(rest.split()[1]), []).append(int(folder.name))
    by_pid, waiting = {}, [pid]
    while waiting:
        for child in children.get(waiting.pop(), ()):
            by_pid[child] = names[child]
            waiting.append(child)
    return by_pid


@contextmanager
def owner(env_id: str, then: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A program with workers, and the ends of all processes that are there because of it."""
    with ExitStack() as undo:
        process = undo.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.workers.owner", env_id, then],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        undo.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        ends = []
        for pid in descendants(process.pid):
            ends.append(os.pidfd_open(pid))
            undo.callback(os.close, ends[-1])
        yield process, ends


def none_is_left(ends: list[int]) -> None:
    """Wait for all ends; one that never comes runs into the time limit of the test."""
    for end in ends:
        wait_for_exit(end)


@pytest.mark.parametrize("then", ["idle", "step"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_program_ends_its_workers(how: signal.Signals, then: str) -> None:
    with owner(faulty.ENV_ID, then) as (process, ends):
        assert len(ends) == 3  # two workers, and what they were forked from
        os.killpg(process.pid, how)  # as a terminal does: to all of its group
        none_is_left(ends)
        assert process.wait() != 0


def test_an_exception_in_the_program_ends_its_workers() -> None:
    with owner(faulty.ENV_ID, "exception") as (process, ends):
        _, stderr = process.communicate("go on\n")
        none_is_left(ends)
        assert process.returncode == 1
        assert stderr.rstrip().endswith("RuntimeError: the program fails")


def test_a_program_that_ends_without_closing_ends_its_workers() -> None:
    with owner(faulty.ENV_ID, "idle") as (process, ends):
        _, stderr = process.communicate("go on\n")
        none_is_left(ends)
        assert process.returncode == 0
        assert not stderr


def test_workers_end_with_the_process_they_were_forked_from() -> None:
    with owner(faulty.ENV_ID, "idle") as (process, ends):
        (first,) = (
            pid
            for pid in descendants(process.pid)
            if os.getpgid(pid) == pid and parent(pid) == process.pid
        )
        os.kill(first, signal.SIGKILL)
        none_is_left(ends)


def parent(pid: int) -> int:
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def test_subprocesses_of_engines_end_with_the_program(engine: Callable[[str], None]) -> None:
    engine("appworld")
    with owner("CoEvolve-AppWorld-v0", "idle") as (process, ends):
        assert len(ends) > 3
        process.kill()
        none_is_left(ends)
