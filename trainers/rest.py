"""ReST: gather rollouts, then imitate the best of them, with a bar that rises.

A Grow step of the method is several steps of the loop whose rollouts are gathered; nothing is
learned from them, so all of them come from one policy, but for episodes that a loop with staleness
lets go on over an Improve. Then follow the Improve steps: each clones the rollouts with a score
above its threshold. One Improve above 0.5 is rejection-sampling fine-tuning (RFT).

Sources: ReST (arXiv 2308.08998), in which each Improve goes on from the one before; there its
learning rate falls too, here it is the same. RFT (arXiv 2308.01825).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import Group, Trajectory
from coevo_gym.core.trajectory_json import trajectory_from_json, trajectory_to_json
from coevo_gym.provision import extra_advice
from coevo_gym.trainers.demonstrations import accepted_rollouts
from coevo_gym.trainers.grpo import Learnable
from coevo_gym.trainers.settings import RestConfig
from coevo_gym.trainers.sft import imitate
from coevo_gym.trainers.update.batch import group_metrics

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(f"ReST needs PyTorch. {extra_advice('train')}.") from error

logger = logging.getLogger(__name__)


def kept(scores: Sequence[float], threshold: float) -> list[int]:
    """Places of the rollouts that an Improve with this threshold imitates.

    Args:
        scores: of the rollouts.
        threshold: those above it are imitated, those at it are not.
    """
    return [place for place, score in enumerate(scores) if score > threshold]


class ReST:
    """Learns from the best rollouts of several steps of the loop at once.

    An update gathers, and leaves the policy as it is; every ``grow_steps``-th one improves it.

    Args:
        policy: what to train.
        config: settings.
        seed: seed of what an Improve holds out and of the order of what it learns.

    Attributes:
        spent: share of the run's budget that is spent; nothing here depends on it.
    """

    def __init__(
        self, policy: Learnable, config: RestConfig | None = None, *, seed: int = 0
    ) -> None:
        self.policy = policy
        self.config = config or RestConfig()
        self.updates, self.spent = 0, 0.0
        self._grown = 0
        self._gathered: list[tuple[Task, Trajectory]] = []  # those above the lowest threshold
        self._scores: list[float] = []  # of all that were gathered
        self._rng = np.random.default_rng(seed)

    @property
    def version(self) -> int:
        """Version of the policy under training."""
        return self.policy.version

    def advantages(self, groups: Sequence[Group], notes: Notes = NO_NOTES) -> list[list[Advantage]]:
        """1 for a rollout that the first Improve will imitate, else 0."""
        found: list[list[Advantage]] = []
        for group in groups:
            places = kept([t.score for t in group.trajectories], self.config.thresholds[0])
            found.append([float(k in places) for k in range(len(group.trajectories))])
        return found

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Gather rollouts; with the last ones of a Grow, imitate the best.

        Args:
            groups: rollouts; they need not be whole.
            advantages: not used; scores decide.

        Returns:
            Counts, and after an Improve how it went: ``accepted_share@τ`` of all rollouts of the
            Grow, ``imitation_loss`` and ``watched_loss`` of the last fine-tuning.

        Raises:
            SplitLeakError: if a task is not a training task.
            TrainingDiverged: if an imitation's loss is not finite.
        """
        whole = [group for group in groups if group.whole]
        metrics = group_metrics(groups, whole, self.advantages(whole), "score")
        for group in groups:
            for trajectory in group.trajectories:
                if trajectory.end_reason.lost:
                    continue
                self._scores.append(trajectory.score)
                if kept([trajectory.score], self.config.thresholds[0]):
                    self._gathered.append((group.task, trajectory))
        self._grown += 1
        self.updates += 1
        metrics["gathered"] = float(len(self._scores))
        if self._grown < self.config.grow_steps:
            return metrics
        metrics |= self._improve()
        self._grown, self._gathered, self._scores = 0, [], []
        return metrics

    def _improve(self) -> dict[str, float]:
        """Imitate what is above each threshold, one after the other."""
        metrics: dict[str, float] = {}
        parameters = list(self.policy.parameters())
        start: list[torch.Tensor] = []
        if self.config.improve_from == "start":
            start = [p.detach().to("cpu", copy=True) for p in parameters]
        groups = [Group("", task, 1, (trajectory,)) for task, trajectory in self._gathered]
        for threshold in self.config.thresholds:
            accepted = len(kept(self._scores, threshold))
            share = accepted / len(self._scores) if self._scores else 0.0
            metrics[f"accepted_share@{threshold:g}"] = share
            seed = int(self._rng.integers(2**31))
            chosen = accepted_rollouts(groups, above=threshold)
            if not chosen.decisions:
                continue
            with torch.no_grad():
                for parameter, value in zip(parameters, start, strict=False):
                    parameter.copy_(value)
            done = imitate(self.policy, chosen, self.config.imitation, seed=seed)
            best = done.best_epoch - 1
            metrics |= {
                "imitation_loss": done.losses[best],
                "watched_loss": done.watched[best],
                "watched_loss_first": done.watched[0],
                "imitation_epochs": float(len(done.losses)),
                "nonfinite_steps": float(done.nonfinite_steps),
            }
        if "watched_loss" not in metrics:
            logger.warning(
                "improve step=%d skipped: none of %d rollouts has a score above %g",
                self.updates,
                len(self._scores),
                self.config.thresholds[0],
            )
        return metrics

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """What has been gathered, counters and generator; the policy keeps its own state.

        Args:
            reference: there is none; for learners that have one.
        """
        gathered = [
            [task.to_json(), trajectory_to_json(trajectory)] for task, trajectory in self._gathered
        ]
        return {
            "gathered": json.dumps(gathered),
            "scores": list(self._scores),
            "grown": self._grown,
            "updates": self.updates,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore :meth:`state_dict`."""
        self._gathered = [
            (Task.from_json(task), trajectory_from_json(trajectory))
            for task, trajectory in json.loads(state["gathered"])
        ]
        self._scores = [float(score) for score in state["scores"]]
        self._grown, self.updates = int(state["grown"]), int(state["updates"])
        self._rng.bit_generator.state = state["rng"]
        return self
