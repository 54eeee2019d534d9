"""What a run has cost so far, piece by piece."""

from __future__ import annotations

from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.spend import Cost, Meter
from coevo_gym.run.progress import Progress
from coevo_gym.trainers.parts import LoopState


class Spending:
    """Adds up what warm-up, first tasks and arms have cost, and tells the sum.

    Args:
        progress: is told.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pieces: dict[str, Cost] = {}
        self._first: list[tuple[Round, Cost]] = []

    def count(self, piece: str, cost: Cost) -> None:
        """Count what a piece of work has cost so far."""
        self._pieces[piece] = cost
        self._progress.spent(self._known)

    def asking(self, meter: Meter) -> None:
        """Tell what looking for first tasks has cost, while it goes on."""
        over = sum((cost for _, cost in self._first), Cost())
        self._progress.spent(self._known + meter.total.less(over))

    def first_tasks(self, round: Round, result: RoundResult) -> None:
        """Count a round that arms begin with."""
        self._first.append((round, Cost.of(result.env_steps, *result.usage.values())))
        self._progress.spent(self._known)

    def by_arm(self, name: str, first: Round | None, state: LoopState) -> None:
        """Count what an arm has cost beyond its first tasks, which are counted by themselves."""
        begun = next((cost for round, cost in self._first if round == first), Cost())
        self.count(f"arm {name}", Cost.of(state.env_steps, state.used).less(begun))

    @property
    def _known(self) -> Cost:
        return sum((cost for _, cost in self._first), sum(self._pieces.values(), Cost()))
