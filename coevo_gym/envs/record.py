"""The record of a running episode, from which its trajectory is made once, when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from coevo_gym.core.seams import Act
from coevo_gym.core.trajectory import PastStep, Step
from coevo_gym.envs.frame import Frame


class _Result(NamedTuple):
    """What came of a step."""

    frame: Frame
    reward: float
    terminated: bool
    truncated: bool


class EpisodeRecord:
    """What the agent acted on in each step, what it did, and what came of it."""

    def __init__(self) -> None:
        self._past: list[PastStep] = []
        self._results: list[_Result] = []

    def __len__(self) -> int:
        return len(self._past)

    @property
    def history(self) -> tuple[PastStep, ...]:
        """What an agent remembers of it, as far as the env knows: no answers, no tokens."""
        return tuple(self._past)

    def add(
        self, past: PastStep, led_to: Frame, *, reward: float, terminated: bool, truncated: bool
    ) -> None:
        """Note one step.

        Args:
            past: what its agent saw and did.
            led_to: what the engine showed then.
            reward: its reward.
            terminated: whether the task's own end was reached.
            truncated: whether the episode was cut.
        """
        self._past.append(past)
        self._results.append(_Result(led_to, reward, terminated, truncated))

    def steps(self, acts: Sequence[Act] = (), shown: Sequence[str] = ()) -> tuple[Step, ...]:
        """The steps as they go into a trajectory.

        Args:
            acts: what the agent said and decided in each of them; () if only the env was watched.
            shown: the text that it was shown in each of them; () for the env's own.

        Raises:
            ValueError: if there are acts or texts, but not one for each step.
        """
        for name, given in (("an act", acts), ("a shown text", shown)):
            if given and len(given) != len(self):
                raise ValueError(
                    f"An episode of {len(self)} steps needs {name} for each, actual: {len(given)}."
                )
        known = acts or [Act(past.action) for past in self._past]
        texts = shown or [past.observation for past in self._past]
        return tuple(map(_step, self._past, self._results, known, texts))


def _step(past: PastStep, result: _Result, act: Act, shown: str) -> Step:
    return Step(
        observation=past.observation,
        shown=shown,
        action=past.action,
        decision=act.decision,
        reward=result.reward,
        terminated=result.terminated,
        truncated=result.truncated,
        calls=result.frame.calls,
        error_kind=result.frame.error_kind,
        extras=result.frame.extras,
        said=act.said,
    )
