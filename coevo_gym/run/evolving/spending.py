"""Cost of a run so far."""

from __future__ import annotations

from coevo_gym.core.evolution import Round, RoundResult
from coevo_gym.core.spend import Cost, Meter
from coevo_gym.run.progress import ProgressSink
from coevo_gym.trainers.parts import LoopState


class Spending:
    """Sum of the costs of warm-up, first tasks and arms.

    Args:
        progress: progress display for the sum.
    """

    def __init__(self, progress: ProgressSink) -> None:
        self._progress = progress
        self._pieces: dict[str, Cost] = {}
        self._first: list[tuple[Round, Cost]] = []

    def count(self, piece: str, cost: Cost) -> None:
        """Update the cost of a piece of work."""
        self._pieces[piece] = cost
        self._progress.spent(self._known)

    def asking(self, meter: Meter) -> None:
        """Report the cost of finding first tasks while the search runs."""
        over = sum((cost for _, cost in self._first), Cost())
        self._progress.spent(self._known + meter.total.less(over))

    def first_tasks(self, round: Round, result: RoundResult) -> None:
        """Count the cost of a first round."""
        self._first.append((round, Cost.of(result.env_steps, *result.usage.values())))
        self._progress.spent(self._known)

    def by_arm(self, name: str, first: Round | None, state: LoopState) -> None:
        """Count the cost of an arm without its first tasks, which are counted separately."""
        begun = next((cost for round, cost in self._first if round == first), Cost())
        self.count(f"arm {name}", Cost.of(state.env_steps, state.used).less(begun))

    @property
    def _known(self) -> Cost:
        return sum((cost for _, cost in self._first), sum(self._pieces.values(), Cost()))
