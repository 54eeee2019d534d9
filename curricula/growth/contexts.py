"""Contexts: starting points for explorers, made from signals or from training tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import nsmallest
from types import MappingProxyType

from numpy.random import Generator

from coevo_gym.core.benchmark import get_benchmark, proposes_tasks
from coevo_gym.core.evolution import Attempt, Context, Signal
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.growth.evidence import MAX_TEXT, drop_middle, exchanges_of
from coevo_gym.curricula.signals import (
    ALL_SIGNALS,
    BOUNDARY,
    FORGETTING,
    NOTHING,
    RARE,
    Pattern,
    sequence_pattern,
)

MAX_USUAL = 3
"""Number of common behaviours listed alongside a rare behaviour."""
EMPTY: Mapping[Pattern, int] = MappingProxyType({})

Weaknesses = dict[tuple[str, str], Context]
"""Contexts by kind and task id."""


def context_of(
    kind: str,
    task: Task,
    last: Trajectory,
    summary: str = "",
    *,
    contrast: Sequence[str] = (),
    usual: Sequence[str] = (),
    group: Group | None = None,
    bare: bool = False,
) -> Context:
    """Create a context from a rollout.

    Args:
        kind: kind of the context, such as the signal's kind.
        task: the rollout's task.
        last: the rollout.
        summary: the weakness, in one sentence.
        contrast: actions of a rollout with the opposite outcome.
        usual: the most common behaviours, as text.
        group: the rollout's group, for benchmarks that propose new tasks themselves.
        bare: True to omit the evidence, for contexts that will not be explored.
    """
    if bare:
        return Context(
            kind=kind, task=task, actions=last.actions, success=last.success, summary=summary
        )
    benchmark = get_benchmark(task.benchmark)
    behaviour = sequence_pattern(last, benchmark.symbol)
    return Context(
        kind=kind,
        task=task,
        actions=last.actions,
        success=last.success,
        summary=summary,
        evidence=drop_middle(exchanges_of(last)),
        last_observation=clean_text(last.last_observation, MAX_TEXT),
        behaviour=() if behaviour == NOTHING else behaviour,
        contrast=tuple(clean_text(action, MAX_TEXT) for action in contrast),
        usual=tuple(usual),
        attempts=_attempts(group) if group is not None and proposes_tasks(benchmark) else (),
    )


def _attempts(group: Group) -> tuple[Attempt, ...]:
    return tuple(
        Attempt(
            actions=tuple(clean_text(action, MAX_TEXT) for action in rollout.actions),
            score=rollout.score,
            success=rollout.success,
        )
        for rollout in group.trajectories
    )


def contexts_from_signals(
    signals: Sequence[Signal],
    groups: Sequence[Group],
    *,
    patterns: Mapping[Pattern, int] = EMPTY,
    bare: bool = False,
) -> Weaknesses:
    """Return one context for each pair of task and signal kind. Failed rollouts are preferred.

    Args:
        signals: the signals.
        groups: the groups that the signals were detected in.
        patterns: number of occurrences of each behaviour; the most common behaviours are listed for
            comparison with rare behaviours.
        bare: True to omit the evidence; see :func:`context_of`.
    """
    usual = describe_commonest_patterns(patterns)
    by_id = {(group.id, group.task.id): group for group in groups}
    contexts: Weaknesses = {}
    for signal in signals:
        group = by_id[signal.group_id, signal.task_id]
        task, rollout = group.task, group.trajectories[signal.index]
        known = contexts.get((signal.kind, task.id))
        if known is None or (known.success and not rollout.success):
            contexts[signal.kind, task.id] = context_of(
                signal.kind,
                task,
                rollout,
                _describe_weakness(signal),
                contrast=_contrasting_actions(rollout, group),
                usual=usual if signal.kind == RARE else (),
                group=group,
                bare=bare,
            )
    return contexts


def describe_commonest_patterns(
    patterns: Mapping[Pattern, int], n: int = MAX_USUAL
) -> tuple[str, ...]:
    """Describe the most common behaviours with their counts, most frequent first.

    Example:
        >>> describe_commonest_patterns({("search", "buy"): 3, ("search",): 5}, n=1)
        ('search (5 of 8 episodes)',)
    """
    total = sum(patterns.values())
    first = nsmallest(n, patterns.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{' > '.join(pattern)} ({count} of {total} episodes)" for pattern, count in first)


def _contrasting_actions(rollout: Trajectory, group: Group) -> tuple[str, ...]:
    """Return the actions of the first rollout whose outcome differs from ``rollout``'s, or ()."""
    others = (other for other in group.trajectories if other.success is not rollout.success)
    return next((other.actions for other in others), ())


def draw_contexts(contexts: Sequence[Context], n: int, rng: Generator) -> list[Context]:
    """Draw ``n`` contexts uniformly, without replacement if there are enough contexts."""
    rows = rng.choice(len(contexts), size=n, replace=n > len(contexts))
    return [contexts[int(row)] for row in rows]


def draw_by_kind(contexts: Sequence[Context], n: int, rng: Generator) -> list[Context]:
    """Draw ``n`` contexts, alternating between kinds so that every kind gets its share.

    If there are not enough contexts, all are returned. The signals of the paper come first, and the
    order within each kind is random.
    """
    by_kind: dict[str, list[Context]] = {}
    for index in rng.permutation(len(contexts)):
        context = contexts[int(index)]
        by_kind.setdefault(context.kind, []).append(context)
    order: list[str] = [kind for kind in ALL_SIGNALS if kind in by_kind]
    order += sorted(by_kind.keys() - set(order))
    shares = alternate_kinds({kind: len(by_kind[kind]) for kind in order}, n)
    return [by_kind[kind].pop() for kind in shares]


def alternate_kinds(pending: Mapping[str, int], n: int) -> list[str]:
    """Choose a kind for each of ``n`` contexts, alternating between the kinds that are pending.

    Args:
        pending: number of contexts per kind; kinds alternate in this order.
        n: number of contexts; if there are not enough, the result is shorter.

    Example:
        >>> alternate_kinds({"forgetting": 5, "boundary": 2, "rare": 1}, 6)
        ['forgetting', 'boundary', 'rare', 'forgetting', 'boundary', 'forgetting']
    """
    most = max(pending.values(), default=0)
    turns = [kind for turn in range(most) for kind, count in pending.items() if turn < count]
    return turns[:n]


def _describe_weakness(signal: Signal) -> str:
    """Describe a weakness in one sentence, with the numbers behind the signal."""
    numbers = signal.evidence
    if signal.kind == FORGETTING:
        visits = ", ".join(f"{outcome:.2f}" for outcome in numbers["history"])
        return f"Solved before (outcomes of its last visits: {visits}), failed now."
    if signal.kind == BOUNDARY:
        outcomes = numbers["outcomes"]
        return f"{sum(o > 0.5 for o in outcomes)} of {len(outcomes)} rollouts succeeded."
    behaviour = " > ".join(numbers["pattern"])
    return (
        f"The behaviour {behaviour} was seen in {numbers['count']} of {numbers['total']} episodes."
    )
