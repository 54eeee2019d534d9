"""Number of honest drafts that the gates `length` and `substance` reject.

The scripted explorer's drafts are honest: each describes a task that it has solved in the world
that it explored. Drafts that earlier gates prove wrong, such as a purchase that never scores 1, are
not counted. The other drafts should pass. Read them with --show to check that they are honest.

Run: python bench/honest_drafts.py [--n 50] [--show] [BENCHMARK …]
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from coevo_gym.core.benchmark import Benchmark, get_benchmark
from coevo_gym.core.evolution import Context, Draft, Verdict
from coevo_gym.core.task import Split
from coevo_gym.curricula.explore.explorer import ScriptedExplorer
from coevo_gym.curricula.gates.gates import default_gates, run_gates

BENCHMARKS = ("webshop", "bfcl", "alfworld", "appworld")
SUBSETS = {"webshop": "builtin", "alfworld": "builtin", "appworld": "builtin"}
GATES = ("length", "substance")
"""The gates whose rejections are counted."""
WALK = 10  # steps; enough to look at one app in AppWorld


class Judged(NamedTuple):
    """A draft that no other gate rejected.

    Attributes:
        draft: the draft.
        verdict: the gates' verdict.
        env_steps: env steps used to build and replay the draft.
    """

    draft: Draft
    verdict: Verdict
    env_steps: int

    @property
    def lost(self) -> bool:
        """True if one of these gates rejected the draft."""
        return not self.verdict.accepted


def judge_drafts(name: str, n: int) -> list[Judged]:
    """Return the first ``n`` drafts of a benchmark that no other gate rejects."""
    benchmark = get_benchmark(name)
    gates, drafts = default_gates(benchmark), list[Judged]()
    for draft in _explore_drafts(benchmark):
        result = run_gates(gates, draft)
        if result.verdict.accepted or result.verdict.gate in GATES:
            drafts.append(Judged(draft, result.verdict, result.env_steps))
        if len(drafts) == n:
            break
    return drafts


def _explore_drafts(benchmark: Benchmark) -> Iterator[Draft]:
    tasks = benchmark.tasks(Split.TRAIN, SUBSETS.get(benchmark.name))
    explorer = ScriptedExplorer(benchmark, rounds=1, max_steps=WALK)
    for seed in count():
        rng = np.random.default_rng(seed)
        context = Context(kind="unguided", task=tasks[int(rng.integers(len(tasks)))])
        (exploration,) = explorer.explore([context], [rng])
        for draft in exploration.drafts:
            assert isinstance(draft, Draft)
            yield draft


def _print_draft(one: Judged) -> None:
    turns = getattr(one.draft.world, "turns", (one.draft.instruction,))
    print(f"\n{'LOST' if one.lost else 'kept'}  {' / '.join(turns)}")
    for action in one.draft.solution:
        print("     ", " ; ".join(action.splitlines()))
    if one.lost:
        print(f"      {one.verdict.gate}: {one.verdict.reason}")


def main() -> None:
    """Judge drafts of each benchmark, and print the number of rejected ones."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS, metavar="BENCHMARK")
    parser.add_argument("--n", type=int, default=50, help="drafts per benchmark")
    parser.add_argument("--show", action="store_true", help="print every draft")
    arguments = parser.parse_args()
    for name in arguments.benchmarks:
        drafts = judge_drafts(name, arguments.n)
        lost = [one for one in drafts if one.lost]
        for one in drafts if arguments.show else lost:
            _print_draft(one)
        steps = sum(one.env_steps for one in drafts)
        print(
            f"{name}: {len(lost)} of {len(drafts)} lost; {steps / len(drafts):.1f} env steps each"
        )


if __name__ == "__main__":
    main()
