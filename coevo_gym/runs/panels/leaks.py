"""Leaks: tasks in a panel that a run may have trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coevo_gym.core.benchmark import Benchmark, scenarios_of, seen_subsets
from coevo_gym.core.errors import SplitLeakError
from coevo_gym.core.panel import Panel
from coevo_gym.core.task import Split, Task


class PanelLeak(NamedTuple):
    """The number of tasks in a panel that a run may have trained on.

    Attributes:
        tasks: tasks that belong to the training split, also under another name or split.
        scenarios: other tasks that share a scenario, such as a product or a room, with the
            training split. Tasks that share one by the benchmark's own rule do not count.
    """

    tasks: int
    scenarios: int


def count_leaks(tasks: Sequence[Task], benchmark: Benchmark) -> PanelLeak:
    """Count the tasks that a run on a benchmark may have trained on.

    The rooms of ALFWorld's ``valid_seen``, for example, do not count
    (:func:`~coevo_gym.core.benchmark.seen_subsets`).

    Args:
        tasks: the tasks of a panel.
        benchmark: the run's benchmark, with the run's held-out scenarios.
    """
    seen = seen_subsets(benchmark)
    same_task = same_scenario = 0
    for task in tasks:
        if benchmark.side_of(task) is Split.TRAIN:
            same_task += 1
        elif task.subset not in seen and any(
            benchmark.split_of(scenario) is Split.TRAIN
            for scenario in scenarios_of(benchmark, task)
        ):
            same_scenario += 1
    return PanelLeak(same_task, same_scenario)


def refuse_leaks(panel: Panel, tasks: Sequence[Task], benchmark: Benchmark, run: str) -> None:
    """Check that a run cannot have trained on the tasks, products or rooms in a panel.

    Raises:
        SplitLeakError: if it may have; the message contains the numbers.
    """
    leak = count_leaks(tasks, benchmark)
    if any(leak):
        raise SplitLeakError(
            f"The panel {panel.name} cannot measure {run}, because {run} may have trained on its "
            f"content: of its {len(tasks)} tasks, {leak.tasks} are training tasks, and "
            f"{leak.scenarios} more share a product, room or other scenario with training tasks. "
            "Choose another panel (`coevo panel list`). A model that no run here has trained can "
            "be evaluated on it."
        )
