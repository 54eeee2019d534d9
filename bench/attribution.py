"""Check the labels that attribution gives by replay, on references with unneeded steps added.

Unneeded steps are added to each reference: on WebShop a second search and a look at the
description, on BFCL a folder that is created and removed or a call that fails, on ALFWorld a walk
to another place and back. Exactly the reference's own actions must be labelled good, and with
hindsight all added steps must be labelled bad. In AppWorld's built-in world, documents are read
before the reference. Those steps only provide knowledge, and must not be labelled bad.

A reference may have unneeded steps of its own. So the unchanged reference is labelled first, and
the steps that are good there must also be good among the added steps. The table has one row per
benchmark: episodes, references whose steps are all good, episodes where exactly the needed steps
are good, episodes whose added steps are all bad with hindsight, the share of steps without a label,
and the cost. The exit code is 1 if an episode has wrong labels.

Run: python bench/attribution.py [BENCHMARK …] [--tasks 20]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

from playing import play

import coevo_gym
from coevo_gym.core.benchmark import get_benchmark
from coevo_gym.core.notes import Notes
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.envs.base import TaskEnv
from coevo_gym.methods.agentevolver.attribution import Attribution
from coevo_gym.methods.agentevolver.credit import BAD, GOOD, NO_LABEL, labels_of
from coevo_gym.methods.agentevolver.replays import EXAMINED
from coevo_gym.testing import make_env

Planted = tuple[str, ...]


class Plan(NamedTuple):
    """A reference with added steps.

    Attributes:
        actions: all actions, including the added ones.
        planted: number of added actions.
    """

    actions: Sequence[str]
    planted: int


def plan_webshop(task: Task, env: TaskEnv) -> Plan:
    """Search twice, and open the product's description."""
    search, product, *rest = task.solution
    again, look = ("click[back to search]", search), ("click[description]", "click[< prev]")
    return Plan((search, *again, product, *look, *rest), 4)


def plan_bfcl(task: Task, env: TaskEnv) -> Plan:
    """Create and remove a folder twice, or call a missing function twice if there are no files."""
    files = "api:GorillaFileSystem" in get_benchmark("bfcl").tags(task)
    detour = ("[mkdir('zz_new')]", "[rmdir('zz_new')]") if files else ("[no_such_function()]",)
    first, *rest = task.solution
    return Plan((*detour, first, *detour, *rest), 2 * len(detour))


def plan_alfworld(task: Task, env: TaskEnv) -> Plan:
    """Go to another place, take the reference's first step, go back, and take that step again."""
    first, *rest = task.solution
    places = [one for one in env.view.info["admissible"] if one.startswith("go to ")]
    elsewhere = [one for one in places if one not in (first, *rest)]
    walk = random.Random(task.id).choice(elsewhere)
    return Plan((walk, first, walk, first, *rest), 3)


DOCUMENTS = tuple(
    f"```python\nprint(apis.api_docs.{call})\n```"
    for call in ("show_app_descriptions()", "show_api_descriptions(app_name='spotify')")
)


def plan_appworld(task: Task, env: TaskEnv) -> Plan:
    """Read API documents first."""
    return Plan((*DOCUMENTS, *task.solution), len(DOCUMENTS))


PLANS: dict[str, Callable[[Task, TaskEnv], Plan]] = {
    "webshop": plan_webshop,
    "bfcl": plan_bfcl,
    "alfworld": plan_alfworld,
    "appworld": plan_appworld,
}
TASKS = {"webshop": 400, "bfcl": 200, "alfworld": 100, "appworld": 10}


class Labelled(NamedTuple):
    """The labels of an episode.

    Attributes:
        labels: one label per step; empty if the replay differs.
        env_steps: env steps taken in replays.
        seconds: wall time of labelling.
    """

    labels: list[int]
    env_steps: int
    seconds: float


def label_episode(name: str, task: Task, done: Trajectory, *, hindsight: bool = False) -> Labelled:
    """Return the labels of a successful episode."""
    study = Attribution(get_benchmark(name), hindsight=hindsight)
    started = time.perf_counter()
    findings = study.examine([Group("g", task, 1, (done,))])
    seconds = time.perf_counter() - started
    if findings.notes[0].label != EXAMINED:
        return Labelled([], findings.env_steps, seconds)
    return Labelled(
        labels_of(Notes(findings.notes), "g", 0, len(done.steps)), findings.env_steps, seconds
    )


class Row:
    """Counts over the episodes of a benchmark."""

    def __init__(self) -> None:
        self.episodes = self.unfit = self.whole = self.exact = self.planted_bad = 0
        self.steps = self.unlabelled = self.env_steps = 0
        self.seconds = 0.0
        self.wrong: list[str] = []

    def measure_task(self, name: str, env: TaskEnv, task: Task) -> None:
        """Label the reference of a task, first unchanged and then with added steps."""
        env.reset(seed=0, options={"task": task})
        plan = PLANS[name](task, env)
        done = play(env, task, plan.actions)
        if not done.success:
            self.unfit += 1
            return
        alone = label_episode(name, task, play(env, task, task.solution)).labels
        needed = [
            action for action, label in zip(task.solution, alone, strict=True) if label == GOOD
        ]
        result = label_episode(name, task, done)
        if not result.labels:
            self.wrong.append(f"{task.name}: its replay differs")
            return
        self.episodes += 1
        self.whole += len(needed) == len(task.solution)
        self.steps += len(done.steps)
        self.unlabelled += result.labels.count(NO_LABEL)
        self.env_steps += result.env_steps
        self.seconds += result.seconds
        if name == "appworld":
            exact = BAD not in result.labels[: plan.planted]
            blamed = True
        else:
            good = [
                a for a, label in zip(plan.actions, result.labels, strict=True) if label == GOOD
            ]
            exact = good == needed
            judged = label_episode(name, task, done, hindsight=True).labels
            blamed = NO_LABEL not in judged and judged.count(GOOD) == len(needed)
        self.exact += exact
        self.planted_bad += blamed
        if not (exact and blamed):
            self.wrong.append(f"{task.name}: {list(zip(plan.actions, result.labels, strict=True))}")

    def to_markdown(self) -> str:
        """Return the row's cells in Markdown."""
        share = self.unlabelled / self.steps if self.steps else 0.0
        each = max(self.episodes, 1)
        return (
            f"{self.episodes} | {self.unfit} | {self.whole} | {self.exact} | {self.planted_bad} | "
            f"{share:.0%} | {self.env_steps / each:.0f} | {self.seconds / each:.2f} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if an episode has wrong labels."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("benchmarks", nargs="*", default=[*PLANS], metavar="BENCHMARK")
    parser.add_argument("--tasks", type=int, help=f"tasks per benchmark; default: {TASKS}")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn tasks")
    options = parser.parse_args(arguments)
    failed = False
    print(
        "| benchmark | episodes | failed with added steps | references with all steps good | "
        "exactly the needed steps good | added steps bad with hindsight | unlabelled steps | "
        "env steps per episode | seconds per episode |\n|---|---|---|---|---|---|---|---|---|"
    )
    for name in options.benchmarks:
        native = list(coevo_gym.tasks(name, "train"))
        n = min(options.tasks or TASKS[name], len(native))
        row = Row()
        with closing(make_env(name, max_steps=100)) as env:
            for task in random.Random(options.seed).sample(native, n):
                row.measure_task(name, env, task)
        print(f"| {name} | {row.to_markdown()}", flush=True)
        for line in row.wrong[:5]:
            print(f"  {line}", file=sys.stderr)
        failed |= bool(row.wrong) or not row.episodes
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
