"""Labels for the steps that an episode needed, found by leaving steps out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from coevo_gym.methods.agentevolver.credit import BAD, GOOD, NO_LABEL

Keep = Callable[[int, Sequence[int]], bool]
_TOLERANCE = 1e-9


def never(step: int, later: Sequence[int]) -> bool:
    """Return False: every step may be left out."""
    return False


def eliminated(
    score: Callable[[Sequence[int]], float],
    n: int,
    *,
    keep: Keep = never,
    errors: Collection[int] = (),
    detours: Sequence[Sequence[int]] = (),
) -> list[int]:
    """Label each step of an episode by comparing the score with and without it.

    From the last step to the first, each is dropped if the rest, without those dropped already,
    scores as much as the whole. Of two steps that do the same, the earlier is therefore needed.

    Args:
        score: returns the score of some of the steps, given by their rising positions.
        n: number of steps.
        keep: called with a step and the remaining later steps; returns True to keep the step
            without a trial.
        errors: steps that failed.
        detours: groups of steps to try together first, in this order, without the steps that were
            already dropped. A walk and the way back cannot be dropped one by one.

    Returns:
        (n,) 1 for a step that was kept, -1 for one that was dropped. If the whole scores 0, no
        step is tried: steps that failed get -1, the others 0. Besides the whole, each detour and
        each step is scored at most once.

    Example:
        >>> eliminated(lambda steps: float({0, 2} <= {*steps}), 3)
        [1, -1, 1]

    Source: ours, in place of the judge model of AgentEvolver (arXiv 2511.10395), 5.1.
    """
    steps = [*range(n)]
    whole = score(steps)
    if whole <= 0.0:
        return [BAD if step in errors else NO_LABEL for step in range(n)]
    for stretch in (*detours, *([step] for step in reversed(range(n)))):
        dropped = [step for step in stretch if step in steps]
        rest = [step for step in steps if step not in dropped]
        if not dropped or any(keep(one, [s for s in rest if s > one]) for one in dropped):
            continue
        if score(rest) >= whole - _TOLERANCE:
            steps = rest
    return [GOOD if step in steps else BAD for step in range(n)]
