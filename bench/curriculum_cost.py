"""Processor time that a curriculum adds to training: recording, drawing, duplicate checks.

    record     record a group of 8 episodes of 15 steps in a pool of 10,000 tasks
    draw       draw 32 of 100,000 tasks, with each selector
    check      compare a draft with 100,000 tasks of the same scenario to find near duplicates
    nearest    find the 5 nearest of 100,000 instructions, exactly and with hnswlib's graph

Each time is the processor time of the fastest of 30 runs, so other load on the machine affects it
little. The exit code is 1 if a time or the graph's recall misses its bound.

Run: python bench/curriculum_cost.py                # about 10 minutes, 3 GB
     python bench/curriculum_cost.py --tasks 20000  # a shorter check
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

import coevo_gym
from coevo_gym.core.evolution import Draft
from coevo_gym.core.task import Split, Task
from coevo_gym.core.trajectory import EndReason, Group, Step, Trajectory
from coevo_gym.curricula.pool.embed import HashingEmbedder, Vectors
from coevo_gym.curricula.pool.index import VectorIndex
from coevo_gym.curricula.pool.known import KnownTasks
from coevo_gym.curricula.pool_curriculum import PoolCurriculum, SelectorConfig

KINDS = ("uniform", "stages", "adarft", "plr", "learnable", "progress", "sec", "band")
SETTINGS: TypeAdapter[Any] = TypeAdapter(SelectorConfig)
COUNTED = ("successes", "alpha", "beta")
K, STEPS, BATCH, NEIGHBOURS = 8, 15, 32, 5
RECORD_MS, DRAW_MS, CHECK_MS, RECALL = 1.0, 5.0, 5.0, 0.99


class Line(NamedTuple):
    """A row of the table; a value without a bound is not checked."""

    what: str
    value: float
    unit: str = "ms"
    bound: float | None = None

    @property
    def missed(self) -> bool:
        """True if the value misses its bound, which is a minimum for recall, else a maximum."""
        if self.bound is None:
            return False
        return self.value < self.bound if self.unit == "recall" else self.value > self.bound


def fastest_ms(call: Callable[[int], object], times: int) -> float:
    """Return the milliseconds per call in the fastest of 30 runs; calls get numbers from 0.

    The time is the processor time of all threads, because wall time depends on other load on the
    machine. On an idle machine, both are equal here.
    """
    runs, numbers = [], count()
    for _ in range(30):
        begun = time.process_time()
        for _ in range(times):
            call(next(numbers))
        runs.append(time.process_time() - begun)
    return 1000 * min(runs) / times


def make_tasks(n: int) -> list[Task]:
    """Return training tasks that differ only in their instructions."""
    model, rng = coevo_gym.tasks("webshop", "train")[0], np.random.default_rng(0)
    tasks = []
    for number in range(n):
        thing, one, two, colour, size, price = (int(i) for i in rng.integers(1000, size=6))
        instruction = (
            f"find a thing{thing} that is quality{one % 200} and quality{two % 200}, "
            f"colour{colour % 60}, size {size % 30}, item {number}, for less than {price} dollars"
        )
        fields = {"name": "", "scenario": "one", "instruction": instruction}
        data = {name: getattr(model, name) for name in ("benchmark", "world", "verifier")}
        tasks.append(Task(**data, **fields, solution=model.solution, split=Split.TRAIN))
    return tasks


def random_group(task: Task, rng: np.random.Generator) -> Group:
    """Return a group of episodes with random outcomes."""
    episodes = []
    for solved in rng.integers(2, size=K):
        habit = ["search", "page", "item", *["option"] * (STEPS - 4), "buy"]
        calls = rng.permutation(habit) if rng.random() < 0.2 else habit
        steps = tuple(Step("", "", str(call), calls=(str(call),)) for call in calls)
        end = EndReason.SOLVED if solved else EndReason.FAILED
        episodes.append(
            Trajectory(
                task_id=task.id, steps=steps, score=float(solved), success=bool(solved),
                end_reason=end,
            )
        )  # fmt: skip
    return Group(f"g{rng.integers(2**40)}", task, K, tuple(episodes))


def visited_curriculum(kind: str, tasks: Sequence[Task]) -> PoolCurriculum:
    """Return a curriculum whose tasks have all been visited, so that its selector has data."""
    selector = SETTINGS.validate_python({"kind": kind}).make()
    curriculum, rng = PoolCurriculum(tasks, selector=selector), np.random.default_rng(1)
    table = selector.stats.table if kind == "band" else getattr(selector, "table", None)
    for name in ("visits", "tries", "episodes") if table is not None else ():
        if name in table:
            table[name][:] = K - 1  # one visit less than the band's cap
    for name in (*COUNTED, "score", "fast", "slow", "last") if table is not None else ():
        if name in table:
            counts = rng.integers(K, size=len(tasks))
            table[name][:] = counts if name in COUNTED else counts / K
    return curriculum


def measure_recording(tasks: Sequence[Task]) -> Iterator[Line]:
    """Measure recording in a pool with a tenth of the tasks."""
    pool, rng = tasks[: len(tasks) // 10], np.random.default_rng(2)
    groups = [random_group(pool[int(i)], rng) for i in rng.integers(len(pool), size=300)]
    for kind in KINDS:
        curriculum = visited_curriculum(kind, pool)
        took = fastest_ms(lambda i, c=curriculum: c.record([groups[i]]), 10)  # type: ignore[misc]
        yield Line(f"record a group, {len(pool):,} tasks, {kind}", took, bound=RECORD_MS)


def measure_draws(tasks: Sequence[Task]) -> Iterator[Line]:
    """Measure drawing tasks, including the computation of weights."""
    for kind in KINDS:
        curriculum, rng = visited_curriculum(kind, tasks), np.random.default_rng(3)
        took = fastest_ms(lambda _, c=curriculum, r=rng: c.next(BATCH, r), 1)  # type: ignore[misc]
        yield Line(f"draw {BATCH} of {len(tasks):,}, {kind}", took, bound=DRAW_MS)


def measure_duplicate_checks(tasks: Sequence[Task]) -> Iterator[Line]:
    """Measure the check for near duplicates among the tasks of one scenario."""
    known, rng = KnownTasks(tasks), np.random.default_rng(4)
    drafts = []
    for number in rng.integers(len(tasks), size=200):
        task = tasks[int(number)]
        words = task.instruction.split()
        rng.shuffle(words)
        # Every second draft is not a copy: one word differs.
        text = " ".join([*words[:-1], "otherwise"] if len(drafts) % 2 else words)
        drafts.append((task, _draft_with_instruction(task, text)))
    copies = [known.find_original(draft) for _, draft in drafts]
    wanted = [task if i % 2 == 0 else None for i, (task, _) in enumerate(drafts)]
    right = sum(a is b for a, b in zip(copies, wanted, strict=True)) / len(drafts)
    took = fastest_ms(lambda i: known.find_original(drafts[i % 200][1]), 10)
    yield Line(f"near-duplicate check, {len(tasks):,} tasks", took, bound=CHECK_MS)
    yield Line("  drafts judged correctly", right, "recall", 1.0)


def _draft_with_instruction(task: Task, instruction: str) -> Draft:
    return Draft(
        benchmark=task.benchmark,
        scenario=task.scenario,
        instruction=instruction,
        world=task.world,
        solution=task.solution,
    )


def measure_searches(tasks: Sequence[Task]) -> Iterator[Line]:
    """Measure the search for nearest neighbours, exactly and with the graph."""
    embed, rng = HashingEmbedder(), np.random.default_rng(5)
    texts = [task.instruction for task in tasks]
    exact = VectorIndex(embed.dim, exact_up_to=len(tasks))
    graph = VectorIndex(embed.dim, exact_up_to=0)
    for at in range(0, len(texts), 5000):
        vectors = embed(texts[at : at + 5000])
        exact.add(vectors)
        graph.add(vectors)
    queries = embed(
        [_replace_two_words(texts[int(i)], rng) for i in rng.integers(len(texts), size=200)]
    )
    took = fastest_ms(lambda i: exact.nearest(_select_query(queries, i), NEIGHBOURS), 1)
    yield Line(f"{NEIGHBOURS} nearest of {len(tasks):,}, exactly", took)
    if find_spec("hnswlib") is None:
        print("hnswlib is not installed, so the graph is skipped. Run: pip install '.[embed]'")
        return
    begun = time.process_time()
    graph.nearest(queries[:1], NEIGHBOURS)
    yield Line(f"  build the graph of {len(tasks):,}, once", time.process_time() - begun, "s")
    took = fastest_ms(lambda i: graph.nearest(_select_query(queries, i), NEIGHBOURS), 2)
    yield Line(f"{NEIGHBOURS} nearest of {len(tasks):,}, with the graph", took, bound=CHECK_MS)
    wanted, cosines = (index.nearest(queries, NEIGHBOURS).cosine for index in (exact, graph))
    # A text as near as the last expected one counts as found.
    recall = float((cosines >= wanted[:, -1:] - 1e-9).mean())
    yield Line(f"  of {len(queries)} queries", recall, "recall", RECALL)


def _replace_two_words(text: str, rng: np.random.Generator) -> str:
    """Return the text with two words replaced."""
    words = text.split()
    for _ in range(2):
        words[int(rng.integers(len(words)))] = "otherwise"
    return " ".join(words)


def _select_query(queries: Vectors, i: int) -> Vectors:
    return queries[i % len(queries)][None]


def main() -> None:
    """Print the table; exit with 1 if a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--tasks", type=int, default=100_000, help="number of tasks to draw from and to search"
    )
    arguments = parser.parse_args()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, load {os.getloadavg()[0]:.0f} at the start, numpy {np.__version__}\n")
    print("| operation | measured | bound |\n|---|---|---|")
    tasks, missed = make_tasks(arguments.tasks), 0
    for part in (measure_recording, measure_draws, measure_duplicate_checks, measure_searches):
        for line in part(tasks):
            number = f"{line.value:.3f}" + ("" if line.unit == "recall" else f" {line.unit}")
            bound = "–" if line.bound is None else f"{line.bound:g}"
            mark = " (missed)" if line.missed else ""
            print(f"| {line.what} | {number} | {bound}{mark} |", flush=True)
            missed += line.missed
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
