"""Experiences written by a rule, without a model."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import compress, groupby, islice

from coevo_gym.core.benchmark import Benchmark
from coevo_gym.core.notes import Findings, Note
from coevo_gym.core.task import FrozenDict, Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.methods.agentevolver.credit import GOOD
from coevo_gym.methods.agentevolver.experience import EXPERIENCE, Experience
from coevo_gym.methods.agentevolver.leak import experience_note
from coevo_gym.methods.agentevolver.replays import MAX_REPLAYS, affordable, judged, most_replays
from coevo_gym.prompts.template import FOLDER

_FAILED = "!"
"""The symbol of a step without effect."""


class RuleExperiences:
    """A study that notes, for each solved task, the kinds of the steps that were needed.

    The study replays the first success of each group without single steps, as for attribution. The
    symbols of the good steps form the advice; the instruction, without words that have a digit,
    says when the advice applies. The rule is coarse by intent: it is a control for advice that a
    model writes, and lets the user try the other parts without a model.

    Args:
        benchmark: replays actions, and names what a step did.
        due: tells before each step whether experiences are made in it.
        max_replays: maximum replays per learner's step; the longest successes are skipped.
    """

    kind = EXPERIENCE

    def __init__(
        self, benchmark: Benchmark, due: Callable[[], bool], *, max_replays: int = MAX_REPLAYS
    ) -> None:
        self._benchmark, self._due, self._max_replays = benchmark, due, max_replays

    def examine(self, groups: Sequence[Group]) -> Findings:
        """Replay the first success of each group; see :class:`~coevo_gym.core.seams.Study`."""
        if not self._due():
            return Findings()
        solved = [
            (group, index, trajectory)
            for group in groups
            for index, trajectory in islice(_successes(group), 1)
        ]
        costs = [most_replays(trajectory) for *_, trajectory in solved]
        notes: list[Note] = []
        env_steps = 0
        for group, index, trajectory in compress(solved, affordable(costs, self._max_replays)):
            found = judged(self._benchmark, group.task, trajectory)
            env_steps += found.env_steps
            needed = [label == GOOD for label in found.labels]
            if made := rule_experience(self._benchmark, group.task, trajectory, needed):
                notes.append(experience_note(self._benchmark, group, index, made, "rule"))
        return Findings(tuple(notes), env_steps=env_steps)


def rule_experience(
    benchmark: Benchmark, task: Task, trajectory: Trajectory, needed: Sequence[bool]
) -> Experience | None:
    """Return the experience from a success; None if its steps have no symbols.

    Args:
        benchmark: the benchmark, which names the effects of steps.
        task: the task.
        trajectory: the success.
        needed: (T,) True for each step that was needed.
    """
    symbols = [symbol for symbol, _ in groupby(_symbols(benchmark, trajectory, needed))]
    when = " ".join(re.sub(r"\S*\d\S*", "", task.instruction).split())
    if not symbols or not when:
        return None
    template = _templates().get(benchmark.name, _templates()["any"])
    return Experience(
        when_to_use=when,
        content=template.format(steps=", ".join(symbols)),
        task_id=task.id,
        source="rule",
    )


def _successes(group: Group) -> Iterator[tuple[int, Trajectory]]:
    return ((index, t) for index, t in enumerate(group.trajectories) if t.success)


def _symbols(benchmark: Benchmark, trajectory: Trajectory, needed: Sequence[bool]) -> Iterator[str]:
    """Yield the symbols of the needed steps, without places and tasks."""
    for step, counts in zip(trajectory.steps, needed, strict=True):
        if counts:
            alone = replace(step, observation="", shown="", extras=FrozenDict())
            yield from (s for s in benchmark.symbol(alone).split() if s != _FAILED)


@lru_cache(maxsize=1)
def _templates() -> Mapping[str, str]:
    return tomllib.loads((FOLDER / "agentevolver" / "rules.toml").read_text(encoding="utf-8"))
