"""Cost of a curriculum server on WebShop: CPU time per empty episode, and env steps per second.

Run: python bench/serve.py [--pairs 1000] [--clients 4] [--seconds 20]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coevo_gym.core.trajectory import EndReason, Trajectory
from coevo_gym.core.trajectory_json import trajectory_to_json
from coevo_gym.remote import RemoteTaskEnv, TicketClient


@contextmanager
def run_server(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start ``coevo serve webshop`` without rounds; yield its process and its address."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "coevo_gym.cli", "serve", "webshop", "--port", "0"),
            *("--db", str(folder / "bench.db"), "--evolve-every", "1000000", *arguments),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    match = re.search(r"http://\S+?(?=;)", process.stdout.readline())
    assert match
    try:
        yield process, match.group()
    finally:
        process.terminate()
        process.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds that all threads of a process have used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def play(address: str, seconds: float, seed: int, queue: Any) -> None:
    """Play random choices until the time is up; put steps and CPU seconds into the queue."""
    env, rng, steps = RemoteTaskEnv(address, choices=16), random.Random(seed), 0
    until, begun = time.perf_counter() + seconds, time.process_time()
    over, info = True, dict[str, Any]()
    while time.perf_counter() < until:
        if over:
            _, info = env.reset()
        _, _, terminated, truncated, info = env.step(rng.choice(info["choices"] or ("",)))
        over = terminated or truncated
        steps += 1
    env.close()
    queue.put((steps, time.process_time() - begun))


def measure_empty_episodes(pid: int, address: str, n: int) -> dict[str, float]:
    """Return the CPU and wall time of taking a ticket and reporting an episode without steps."""
    client = TicketClient(address)
    client.give_back(client.take()["id"])  # wait for the first round
    cpu, wall = cpu_s(pid), time.perf_counter()
    for _ in range(n):
        ticket = client.take()
        episode = Trajectory(
            task_id=ticket["task_id"],
            steps=(),
            score=0.0,
            success=False,
            end_reason=EndReason.FAILED,
        )
        assert client.report(ticket["id"], trajectory_to_json(episode)) == "reported"
    cpu, wall = cpu_s(pid) - cpu, time.perf_counter() - wall
    return {"server_cpu_ms_a_pair": 1e3 * cpu / n, "wall_ms_a_pair": 1e3 * wall / n}


def measure_steps(pid: int, address: str, n: int, seconds: float) -> dict[str, float]:
    """Return the speed and the CPU time of the steps of ``n`` client processes."""
    context = multiprocessing.get_context("spawn")
    queue: Any = context.Queue()
    clients = [
        context.Process(target=play, args=(address, seconds, seed, queue)) for seed in range(n)
    ]
    for client in clients:
        client.start()
    while not TicketClient(address).metrics()["tickets_out"] >= n:
        time.sleep(0.1)
    cpu, wall, before = cpu_s(pid), time.perf_counter(), 0
    results = [queue.get() for _ in clients]
    cpu, wall = cpu_s(pid) - cpu, time.perf_counter() - wall
    for client in clients:
        client.join()
    steps = sum(steps for steps, _ in results) - before
    client_cpu = sum(cpu for _, cpu in results)
    return {
        "steps": steps,
        "steps_a_second": steps / wall,
        "server_cpu_ms_a_step": 1e3 * cpu / steps,
        "client_cpu_ms_a_step": 1e3 * client_cpu / steps,
        "steps_a_second_of_one_server_core": steps / cpu,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, run_server(Path(folder)) as (process, address):
        rows = {
            **measure_empty_episodes(process.pid, address, options.pairs),
            **measure_steps(process.pid, address, options.clients, options.seconds),
        }
    about = {"cores": os.cpu_count(), "python": platform.python_version(), "load_before": load}
    print(json.dumps({**about, **{name: round(value, 3) for name, value in rows.items()}}))


if __name__ == "__main__":
    main()
