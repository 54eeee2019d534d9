"""Speed of the viewer with many trajectories: the first view, and each kind of filter.

The run is generated, with the format and texts of a real run: two arms on the built-in shop, groups
of 8, pages as long as the shop's, with choices and advantages. All requests go to a served viewer
over HTTP, as from a browser, and each time is the slowest of several answers. "First view" is the
first request of a new viewer, and loads the page's files, the list of runs and the run itself.

Run: python bench/viewer.py                      # 50,000 trajectories in a temporary folder
     python bench/viewer.py --episodes 5000      # fewer trajectories
     python bench/viewer.py --folder FOLDER      # keep the run in FOLDER to measure it again
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.evolution import Signal
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import ChoiceDecision, EndReason, Group, Step, Trajectory, View
from coevo_gym.envs.diagnosis import stored_failure
from coevo_gym.envs.webshop.engine.shop_session import Session
from coevo_gym.envs.webshop.tasks import open_catalogue
from coevo_gym.runs.config import load_config
from coevo_gym.runs.manifest import make_manifest
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder, append_lines, write_json

K = 8
GROUPS_A_STEP = 16
ARMS = ("static", "coevolve")
KINDS = ("forgetting", "boundary", "rare")
FIRST_S, FILTER_MS = 1.0, 200.0
TRIES = 5


def make_run(folder: RunFolder, episodes: int) -> None:
    """Store a run with this many episodes, step by step as in training."""
    folder.path.mkdir(parents=True)
    sets = [f"name={folder.path.name}", "store.record=all"]
    resolved = load_config("quickstart", sets=sets, environ={})
    write_json(folder.manifest, make_manifest(resolved, task_sets={}))
    tasks = get_benchmark("webshop").tasks(Split.TRAIN)
    rng, walks = np.random.default_rng(0), {task.id: reference_steps(task) for task in tasks[:400]}
    steps = episodes // (K * GROUPS_A_STEP * len(ARMS))
    with closing(RunStore(folder.database, record="all")) as store:
        store._db.execute("PRAGMA synchronous=OFF")  # a crash may lose this run
        store.diagnose = stored_failure
        for arm in ARMS:
            lines = []
            for step in range(1, steps + 1):
                groups = [make_group(step, n, tasks, walks, rng) for n in range(GROUPS_A_STEP)]
                fired = [
                    Signal(
                        kind=KINDS[(step + n) % 3],
                        task_id=group.task.id,
                        group_id=group.id,
                        index=int(rng.integers(K)),
                        evidence={"outcome": 0.5},
                    )
                    for n, group in enumerate(groups)
                    if n % 3
                ]
                store.add_groups(arm, step, groups, fired)
                store.add_advantages(arm, step, groups, [[0.5] * K for _ in groups])
                lines.append({"event": "step", "arm": arm, "step": step, **make_metrics(step)})
            append_lines(folder.metrics, lines)


def make_metrics(step: int) -> dict[str, float]:
    """Return about as many metrics for a step as a real run stores."""
    return {"env_steps": 500 * step, "success": 0.5} | {f"number.{n}": n * step for n in range(40)}


def reference_steps(task: Task) -> tuple[Step, ...]:
    """Return the steps of a task's reference, with pages and choices."""
    session = Session(open_catalogue(task.world))  # type: ignore[arg-type]
    page, steps = session.reset(task.instruction), list[Step]()
    for action in task.solution:
        choices = tuple(f"click[{name}]" for name in session.targets())
        choices = choices if action in choices else (*choices, action)
        logprobs = (float(-np.log(len(choices))),) * len(choices)
        place = choices.index(action)
        decision = ChoiceDecision(View("", ""), choices, place, logprobs[0], 1, logprobs)
        steps.append(Step(page, page, action, decision=decision, calls=("step",)))
        page = session.step(action).observation or "The receipt."
    return tuple(steps)


def make_group(
    step: int,
    number: int,
    tasks: list[Task],
    walks: dict[str, tuple[Step, ...]],
    rng: np.random.Generator,
) -> Group:
    """Return a group of K episodes of a random task; some episodes end early."""
    task, id = tasks[int(rng.integers(len(walks)))], f"group-{step * GROUPS_A_STEP + number}"
    episodes = []
    for _ in range(K):
        solved = bool(rng.integers(2))
        walk = walks[task.id]
        steps = walk if solved else walk[: int(rng.integers(1, len(walk) + 1))]
        end = EndReason.SOLVED if solved else EndReason.FAILED
        score = 1.0 if solved else float(rng.integers(0, 10)) / 10
        episodes.append(
            Trajectory(
                task_id=task.id,
                steps=steps,
                score=score,
                success=solved,
                end_reason=end,
                last_observation="Thank you for shopping with us!",
                group_id=id,
                policy_version=step,
            )
        )
    return Group(id, task, K, tuple(episodes))


class Viewer(NamedTuple):
    """A viewer in its own process.

    Attributes:
        client: HTTP client of the viewer.
        pid: process id.
    """

    client: httpx.Client
    pid: int

    def cpu_s(self) -> float:
        """Return the CPU time so far, which is more precise than wall time on a busy machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def run_viewer(cwd: Path) -> Iterator[Viewer]:
    """Start a viewer, and stop it on exit."""
    command = [sys.executable, "-m", "coevo_gym.cli", "view", "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1].partition("#")[0]
        with httpx.Client(base_url=url, timeout=120) as client:
            yield Viewer(client, process.pid)
    finally:
        process.terminate()
        process.wait(30)


def wall_seconds(work: Callable[[], object]) -> float:
    """Return the wall time of a function call, in seconds."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def request_first_view(client: httpx.Client, run: str) -> None:
    """Send all requests that a browser needs to show the list of runs and then a run."""
    page = client.get("").raise_for_status().text
    for part in page.split('"'):
        if part.startswith("static/"):
            client.get(part).raise_for_status()
    for path in ("about", "runs", f"runs/{run}"):
        client.get(f"api/{path}").raise_for_status()


def main() -> None:
    """Generate a run, and measure the viewer with it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--episodes", type=int, default=50_000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or Path(temporary)
        run = RunFolder(folder / "runs" / "many")
        if not run.manifest.is_file():
            duration = wall_seconds(lambda: make_run(run, options.episodes))
            print(f"made in {duration:.0f} s, {run.database.stat().st_size / 1e6:.0f} MB")
        today, load = datetime.now(UTC).date(), os.getloadavg()[0]
        print(f"{today}, {platform.machine()}, {os.cpu_count()} cores, load {load:.1f}")
        measure_requests(folder)


def measure_requests(folder: Path) -> None:
    """Print the time of each request."""
    at = "api/runs/many/trajectories"
    firsts, cpu = list[float](), list[float]()
    for _ in range(3):
        with run_viewer(folder) as viewer:
            before = viewer.cpu_s()
            firsts.append(
                wall_seconds(lambda client=viewer.client: request_first_view(client, "many"))
            )
            cpu.append(viewer.cpu_s() - before)
    print(
        f"first view              {_format_times(firsts)} (at most {FIRST_S:g} s), "
        f"CPU {max(cpu):.2f} s"
    )
    with run_viewer(folder) as viewer:
        client = viewer.client
        page = client.get(f"{at}?success=true").json()
        row, failures = page["rows"][0], page["failures"]
        asked = {
            "no filter": at,
            "one filter": f"{at}?success=false",
            "a kind of failure": f"{at}?failure={failures[0]}",
            "a signal": f"{at}?signal=boundary",
            "five filters, sorted": f"{at}?arm=static&success=false&signal=any&score_from=0.3"
            "&step_from=20&sort=-score",
            "the last page": f"{at}?page=100000",
            "words": f"{at}?q=black+large",
            "words of actions": f"{at}?q=click%5Bbuy+now%5D&success=true",
            "words that nothing has": f"{at}?q=zzzzzz",
            "a task's episodes": f"{at}?task={row['task']['id']}",
            "a page of tasks": "api/runs/many/tasks?success_to=0.5&sort=-episodes",
            "a page of groups": "api/runs/many/arms/static/groups?outcome=some&q=black",
            "steps of an arm": "api/runs/many/arms/static/steps",
            "one episode": f"{at}/{row['id']}",
            "one task": f"api/runs/many/tasks/{row['task']['id']}",
            "a search of everything": "api/search?q=black+large",
        }
        for name, path in asked.items():

            def ask(path: str = path) -> object:
                return client.get(path).raise_for_status()

            before = viewer.cpu_s()
            times = [wall_seconds(ask) for _ in range(TRIES)]
            used = 1000 * (viewer.cpu_s() - before) / TRIES
            slow = "" if max(times) * 1000 <= FILTER_MS else ", SLOW"
            print(f"{name:24}{_format_times(times)}, CPU {used:.0f} ms{slow}")


def _format_times(times: list[float]) -> str:
    text = f"{1000 * max(times):7.0f} ms"
    median = f" at most, {1000 * statistics.median(times):.0f} ms median"
    return text if len(times) < 2 else text + median


if __name__ == "__main__":
    main()
