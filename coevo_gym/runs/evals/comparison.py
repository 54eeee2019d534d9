"""Comparison of two policies on the same tasks, with a significance test of the difference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.panel import EvalProtocol, Panel
from coevo_gym.core.stats import SOLVED, paired_shares_interval, sign_test
from coevo_gym.core.text_tables import html_table, html_text
from coevo_gym.envs.tags import kind_of_tag, value_of_tag
from coevo_gym.store.reader import EvaluatedTask

MAX_LISTED = 3
"""Maximum number of tasks that a message lists."""
_MAX_CHARS = 60
"""Maximum length of a setting's value in a message; a hash is longer."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: a policy's results on each task.

    Attributes:
        name: name of the side.
        policy: name of the policy.
        benchmark: name of the benchmark.
        split: split of the tasks.
        outcomes: success of each episode, by task id; at least one episode per task.
        tasks: descriptions of the tasks, by id.
        protocol: the settings with which the tasks were played; a comparison reports those that
            differ.
        panel: the panel that the evaluation was given; None if it was given none.
        trained: True if a run trained the policy, with one seed.
        seed: seed of the run, or of the evaluation of an untrained policy.
        identity: hash of the settings that determine the policy, without seeds; sides with the same
            identity are repeats of each other.
        origin: the run that trained the policy, or "".
    """

    name: str
    policy: str
    benchmark: str
    split: str
    outcomes: Mapping[str, Sequence[bool]]
    tasks: Mapping[str, EvaluatedTask]
    protocol: EvalProtocol = field(default_factory=EvalProtocol)
    panel: Panel | None = None
    trained: bool = False
    seed: int | None = None
    identity: str = ""
    origin: str = ""


@dataclass(frozen=True)
class ChangedTask:
    """A task solved by only one of the two policies.

    Attributes:
        id: its id.
        name: its name.
        instruction: its instruction.
        tags: its tags.
        success_a: share of A's episodes that succeeded.
        success_b: share of B's episodes that succeeded.
    """

    id: str
    name: str
    instruction: str
    tags: tuple[str, ...]
    success_a: float
    success_b: float


@dataclass(frozen=True)
class ComparedType:
    """The results of both policies in a comparison on one type of task.

    Attributes:
        kind: kind of tag.
        value: value of the tag.
        tasks: number of tasks that both sides have.
        success_a: mean over these tasks of the share of A's episodes that succeeded.
        success_b: the same for B.
        won: number of tasks that only B solves.
        lost: number of tasks that only A solves.
    """

    kind: str
    value: str
    tasks: int
    success_a: float
    success_b: float
    won: int
    lost: int


@dataclass(frozen=True)
class Comparison:
    """A comparison of two policies on the same tasks.

    A task counts as solved if at least half of its episodes succeed.

    Attributes:
        a: name of policy A.
        b: name of policy B, which is compared with A.
        benchmark: name of the benchmark.
        split: split of the tasks.
        tasks: number of tasks that both sides have; all results are about these tasks.
        only_in_a: number of tasks that only A has.
        only_in_b: number of tasks that only B has.
        samples_a: fewest and most episodes per task of A.
        samples_b: the same for B.
        success_a: mean over tasks of the share of A's episodes that succeeded.
        success_b: the same for B.
        difference: success of B minus success of A.
        low: lower end of the difference's 95% interval, over tasks like these.
        high: upper end of the interval.
        p: p-value of the two-sided sign test over tasks without ties; with one episode per task
            this is McNemar's exact test.
        better: number of tasks on which B succeeds more often.
        worse: number of tasks on which A succeeds more often.
        both: number of tasks that both sides solve.
        neither: number of tasks that neither side solves.
        won: tasks that only B solves.
        lost: tasks that only A solves.
        types: results by kind and value of the tasks' tags, in their order.
        uneven: settings that differ, each as ``key: VALUE in A, VALUE in B``.
        panels: a sentence about the panels of the two sides; "" if neither side was given
            a panel and both have the same tasks.
        trained: True if both policies were trained in runs, each with one seed.
    """

    a: str
    b: str
    benchmark: str
    split: str
    tasks: int
    only_in_a: int
    only_in_b: int
    samples_a: tuple[int, int]
    samples_b: tuple[int, int]
    success_a: float
    success_b: float
    difference: float
    low: float
    high: float
    p: float
    better: int
    worse: int
    both: int
    neither: int
    won: tuple[ChangedTask, ...]
    lost: tuple[ChangedTask, ...]
    types: tuple[ComparedType, ...]
    uneven: tuple[str, ...]
    panels: str
    trained: bool

    def __str__(self) -> str:
        lines = [
            *([self.panels] if self.panels else []),
            *(
                [f"The two sides were evaluated differently: {'; '.join(self.uneven)}."]
                if self.uneven
                else []
            ),
            f"A: {self.a} solves {self.success_a:.1%}{_describe_samples(self.samples_a)}",
            f"B: {self.b} solves {self.success_b:.1%}{_describe_samples(self.samples_b)}",
            self.describe_difference(),
            self.verdict,
        ]
        for side, n in (("A", self.only_in_a), ("B", self.only_in_b)):
            if n:
                lines.append(
                    f"{n} tasks from {side} are left out: the other side has no results for them."
                )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        sides = [
            [f"A: {self.a}", f"{self.success_a:.1%}"],
            [f"B: {self.b}", f"{self.success_b:.1%}"],
        ]
        remarks = [line for line in str(self).splitlines() if not line.startswith(("A: ", "B: "))]
        texts = "".join(f"<p>{html_text(line)}</p>" for line in remarks)
        return html_table(["policy", f"success on {self.split}"], sides) + texts

    def describe_difference(self) -> str:
        """Describe the difference in one sentence, with its interval and p-value."""
        p = f"{self.p:.3f}" if self.p >= 0.001 else f"{self.p:.1e}"
        return (
            f"B - A: {100 * self.difference:+.1f} points, 95 % interval {100 * self.low:+.1f} to "
            f"{100 * self.high:+.1f}, p = {p} ({self.test_name}), over {self.tasks} {self.split} "
            f"tasks of {self.benchmark}: {self.better} better, {self.worse} worse, "
            f"{self.tasks - self.better - self.worse} equal."
        )

    @property
    def verdict(self) -> str:
        """The conclusion as text. It is about these two policies, not about their methods."""
        if self.low > 0 or self.high < 0:
            conclusion = (
                f"On tasks like these, B does {'better' if self.low > 0 else 'worse'} than A."
            )
            differ = (
                "These two trained policies differ; it takes several seeds to tell whether the "
                "methods do."
            )
        else:
            conclusion = "The interval includes zero: either may do better on tasks like these."
            differ = "It takes several seeds to tell whether the methods differ."
        return f"{conclusion} {differ}" if self.trained else conclusion

    @property
    def has_several_samples(self) -> bool:
        """Return True if any task was tried more than once."""
        return max(*self.samples_a, *self.samples_b) > 1

    @property
    def test_name(self) -> str:
        """The name of the statistical test used to compute ``p``."""
        return "sign test over tasks" if self.has_several_samples else "McNemar's exact test"


def compare(a: Side, b: Side, *, shared_tasks: bool = False) -> Comparison:
    """Compare two policies on the tasks that both were evaluated on.

    Args:
        a: policy A.
        b: policy B.
        shared_tasks: True to compare sides with different panels on the tasks that both have.

    Raises:
        ConfigError: if the sides have no tasks in common, or were given different panels and
            ``shared_tasks`` is False; the message contains the tasks that differ.
    """
    common = [id for id in a.outcomes if id in b.outcomes]
    if a.benchmark != b.benchmark:
        raise ConfigError(
            f"{a.name} was evaluated on {a.benchmark}, but {b.name} was evaluated on "
            f"{b.benchmark}, so they cannot be compared."
        )
    if not common:
        raise ConfigError(
            f"{a.name} ({_describe_tasks(a)}) and {b.name} ({_describe_tasks(b)}) have no tasks in "
            "common. Evaluate both on the same split with `coevo eval`."
        )
    panels = _relate_panels(a, b, common, shared_tasks=shared_tasks)
    shares = {id: (success_share(a.outcomes[id]), success_share(b.outcomes[id])) for id in common}
    differences = [of_b - of_a for of_a, of_b in shares.values()]
    solved = {id: (of_a >= SOLVED, of_b >= SOLVED) for id, (of_a, of_b) in shares.items()}
    known = {id: a.tasks.get(id) or b.tasks[id] for id in common}
    low, high = paired_shares_interval(differences)

    def changed_tasks(how: tuple[bool, bool]) -> tuple[ChangedTask, ...]:
        return tuple(
            ChangedTask(id, task.name, task.instruction, task.tags, *shares[id])
            for id, task in known.items()
            if solved[id] == how
        )

    n = len(common)
    return Comparison(
        a=a.name,
        b=b.name,
        benchmark=a.benchmark,
        split=a.split,
        tasks=n,
        only_in_a=len(a.outcomes) - n,
        only_in_b=len(b.outcomes) - n,
        samples_a=_sample_range(a, common),
        samples_b=_sample_range(b, common),
        success_a=sum(of_a for of_a, _ in shares.values()) / n,
        success_b=sum(of_b for _, of_b in shares.values()) / n,
        difference=sum(differences) / n,
        low=low,
        high=high,
        p=sign_test(differences),
        better=sum(difference > 0 for difference in differences),
        worse=sum(difference < 0 for difference in differences),
        both=sum(how == (True, True) for how in solved.values()),
        neither=sum(how == (False, False) for how in solved.values()),
        won=changed_tasks((False, True)),
        lost=changed_tasks((True, False)),
        types=tuple(_compare_types(known, shares)),
        uneven=tuple(_differing_settings(a.protocol, b.protocol)),
        panels=panels,
        trained=a.trained and b.trained,
    )


def _compare_types(
    tasks: Mapping[str, EvaluatedTask], shares: Mapping[str, tuple[float, float]]
) -> Iterator[ComparedType]:
    of_tag: dict[str, list[tuple[float, float]]] = {}
    for id, task in tasks.items():
        for tag in task.tags:
            of_tag.setdefault(tag, []).append(shares[id])
    for tag, pairs in sorted(of_tag.items()):
        yield ComparedType(
            kind=kind_of_tag(tag),
            value=value_of_tag(tag),
            tasks=len(pairs),
            success_a=sum(of_a for of_a, _ in pairs) / len(pairs),
            success_b=sum(of_b for _, of_b in pairs) / len(pairs),
            won=sum(of_b >= SOLVED > of_a for of_a, of_b in pairs),
            lost=sum(of_a >= SOLVED > of_b for of_a, of_b in pairs),
        )


def _relate_panels(a: Side, b: Side, common: Sequence[str], *, shared_tasks: bool) -> str:
    """Return a sentence about the two sides' panels; see :attr:`Comparison.panels`."""
    first, second = a.panel, b.panel
    same_tasks = len(common) == len(a.outcomes) == len(b.outcomes)
    if first is None or second is None:
        with_panel = [f"{side.name} ({side.panel.reference})" for side in (a, b) if side.panel]
        if not with_panel and same_tasks:
            return ""
        origin = (
            f"Only {with_panel[0]} was given a panel"
            if with_panel
            else "Neither side was given a panel"
        )
        return f"{origin}, so they are compared on the {len(common)} tasks that both played."
    if first.hash == second.hash:
        return f"Both sides played the panel {first.reference}."
    if shared_tasks:
        return (
            f"The panels {first.reference} and {second.reference} differ; compared on the "
            f"{len(common)} tasks that both contain."
        )
    raise ConfigError(
        f"{a.name} and {b.name} were evaluated on different panels, {first.reference} and "
        f"{second.reference}: {describe_panel_differences(first, second)}. Evaluate both on one "
        "panel, or pass --shared-tasks (shared_tasks in Python) to compare them on the tasks that "
        "both contain."
    )


def describe_panel_differences(first: Panel, second: Panel) -> str:
    """Describe how two panels differ, listing a few tasks of each kind."""
    hashes = [{task.id: task.hash for task in panel.tasks} for panel in (first, second)]
    both = [id for id in hashes[0] if id in hashes[1]]
    kinds = {
        f"only in {first.name}": [id for id in hashes[0] if id not in hashes[1]],
        f"only in {second.name}": [id for id in hashes[1] if id not in hashes[0]],
        "with other content": [id for id in both if hashes[0][id] != hashes[1][id]],
    }
    texts = [f"{len(ids)} tasks {kind} ({_list_first(ids)})" for kind, ids in kinds.items() if ids]
    return "; ".join(texts) or "their order, split or data differs"


def _list_first(names: Sequence[str]) -> str:
    more = f", … and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def _differing_settings(a: EvalProtocol, b: EvalProtocol) -> list[str]:
    """Return the settings that differ between the two sides of a comparison.

    A setting that only one side has, such as the prompt of a language model, is left out.
    """
    first, second = a.parts, b.parts
    return [
        f"{key}: {shorten_value(first[key])} in A, {shorten_value(second[key])} in B"
        for key in a.differences(b)
        if key in first and key in second
    ]


def shorten_value(value: Any) -> str:
    """Return a setting's value as text for a message."""
    text = str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 1]}…"


def _describe_samples(samples: tuple[int, int]) -> str:
    fewest, most = samples
    if most == 1:
        return ""
    return f", {most if fewest == most else f'{fewest} to {most}'} episodes per task"


def success_share(outcomes: Sequence[bool]) -> float:
    """Return the share of a task's episodes that succeeded."""
    return sum(outcomes) / len(outcomes)


def _sample_range(side: Side, tasks: Sequence[str]) -> tuple[int, int]:
    counts = [len(side.outcomes[id]) for id in tasks]
    return min(counts), max(counts)


def _describe_tasks(side: Side) -> str:
    return f"{len(side.outcomes)} {side.split} tasks"
