"""Contexts: what an explorer is told, made from signals or from what was practised."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from numpy.random import Generator

from coevo_gym.core.evolution import Context, Signal
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.curricula.signals.kinds import BOUNDARY, FORGETTING

Weaknesses = dict[tuple[str, str], Context]
"""Contexts by kind and task id."""


def context_of(kind: str, task: Task, last: Trajectory, summary: str = "") -> Context:
    """The context of one rollout."""
    return Context(
        kind=kind, task=task, actions=last.actions, success=last.success, summary=summary
    )


def weaknesses(signals: Sequence[Signal], groups: Sequence[Group]) -> Weaknesses:
    """One context for each kind and task; a failed rollout goes before a successful one."""
    by_id = {(group.id, group.task.id): group for group in groups}
    found: Weaknesses = {}
    for signal in signals:
        group = by_id[signal.group_id, signal.task_id]
        task, rollout = group.task, group.trajectories[signal.index]
        known = found.get((signal.kind, task.id))
        if known is None or (known.success and not rollout.success):
            found[signal.kind, task.id] = context_of(signal.kind, task, rollout, _summary(signal))
    return found


def drawn(contexts: Sequence[Context], n: int, rng: Generator) -> list[Context]:
    """``n`` of the contexts, uniformly, each at most once where there are enough."""
    rows = rng.choice(len(contexts), size=n, replace=n > len(contexts))
    return [contexts[int(row)] for row in rows]


def shared_out(
    contexts: Sequence[Context], n: int, rng: Generator, *, kinds: Iterable[str] = ()
) -> list[Context]:
    """``n`` of the contexts, the kinds taking turns, so that none is crowded out.

    Args:
        contexts: at least ``n``.
        n: how many.
        rng: decides which of a kind go first.
        kinds: these take their turns in this order, others follow.
    """
    by_kind: dict[str, list[Context]] = {}
    for index in rng.permutation(len(contexts)):
        context = contexts[int(index)]
        by_kind.setdefault(context.kind, []).append(context)
    order = [kind for kind in kinds if kind in by_kind]
    order += sorted(by_kind.keys() - set(order))
    shared: list[Context] = []
    while len(shared) < n:
        shared += [by_kind[kind].pop() for kind in order if by_kind[kind]]
    return shared[:n]


def _summary(signal: Signal) -> str:
    """The weakness in a sentence, from the numbers that the rule read."""
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
