"""Steps that showed what a later step uses."""

from __future__ import annotations

from collections.abc import Sequence

from coevo_gym.core.benchmark import Effect, Evidence, Replay
from coevo_gym.curricula.gates.told import ShownValues, stands_in


class Sources:
    """The values that each step of a replay was the first to show.

    The id that a list has shown can be written down without the list, but the agent could not know
    it then. So the list is needed, although a replay without it works.

    Args:
        replay: the steps; only those that read something are sources.
        evidence: text of the task; values in it are already known.
    """

    def __init__(self, replay: Replay, evidence: Evidence) -> None:
        told = ShownValues(evidence.said)
        self._news: list[set[str]] = []
        self._answers: list[bool] = []
        for effect, text in zip(replay.effects, replay.shown, strict=True):
            reads = effect is Effect.READ
            self._news.append(told.news(text) if reads else set())
            self._answers.append(reads and bool(told.counts(text) & {*evidence.answers}))
            told.read(text)

    def feeds(self, step: int, later: Sequence[str]) -> bool:
        """Tell whether a step showed what one of some later actions uses, or counted the answer.

        Args:
            step: its position in the replay.
            later: actions after it.
        """
        text = "\n".join(later)
        return self._answers[step] or any(stands_in(text, value) for value in self._news[step])
