"""Supervised fine-tuning: a policy imitates reference solutions or its best rollouts.

This is plain behaviour cloning, for both choice scorers and language models. The loss is the mean
negative log-likelihood of the sampled positions; other tokens of a conversation are not learned.
Some tasks are held out to decide when to stop. If there are too few tasks to hold any out, training
stops when the training loss stops falling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.random import Generator

from coevo_gym.core.errors import ConfigError, TrainingDiverged
from coevo_gym.core.trajectory import Sample
from coevo_gym.provision import explain_missing
from coevo_gym.trainers.demonstrations import Demonstrations
from coevo_gym.trainers.grpo import LearnablePolicy
from coevo_gym.trainers.segments import n_sampled, n_tokens, samples
from coevo_gym.trainers.settings import ImitationConfig
from coevo_gym.trainers.update.optimizer import GuardedOptimizer, make_adamw
from coevo_gym.trainers.update.ranks import current_ranks, full_tensor

with explain_missing("Training needs PyTorch.", "train"):
    import torch

__all__ = ["Imitation", "ImitationConfig", "ImitationStep", "Imitator", "imitate"]

_NEGLIGIBLE = 1e-3
"""Loss decreases of less than this many nats per position do not count as progress."""


@dataclass(frozen=True, slots=True)
class Imitation:
    """The result of a fine-tuning run.

    Attributes:
        losses: training loss of each epoch: mean negative log-likelihood per sampled position (a
            choice has one position).
        watched: loss on the held-out tasks after each epoch; ``losses`` if there are none.
        converged: True if training stopped for lack of progress, not at ``max_epochs``.
        best_epoch: epoch whose weights were kept, counted from 1.
        demonstrations: number of tasks imitated, including held-out tasks.
        skipped: number of steps without a decision.
        unsolved: number of episodes left out.
        env_steps: number of env steps taken to collect the demonstrations.
        positions: number of sampled positions trained on in each epoch, without held-out tasks.
        nonfinite_steps: number of optimiser steps skipped because of a non-finite loss or gradient;
            ``losses`` are means over the other steps.
    """

    losses: tuple[float, ...]
    watched: tuple[float, ...]
    converged: bool
    best_epoch: int
    demonstrations: int
    skipped: int
    unsolved: int
    env_steps: int
    positions: int
    nonfinite_steps: int = 0


def imitate(
    policy: LearnablePolicy,
    demonstrations: Demonstrations,
    config: ImitationConfig | None = None,
    *,
    seed: int = 0,
) -> Imitation:
    """Imitate the demonstrations until the monitored loss converges, and keep the best weights.

    The seed determines the held-out tasks and the training order.

    Raises:
        ConfigError: if there are no decisions to imitate.
        TrainingDiverged: as in :meth:`Imitator.run_epoch`.
    """
    imitator = Imitator(policy, demonstrations, config, seed=seed)
    while not imitator.is_over:
        imitator.run_epoch()
    return imitator.finish()


class ImitationStep(NamedTuple):
    """Progress of an epoch, reported after each optimiser step.

    Attributes:
        step: number of steps taken in the epoch.
        tokens: number of tokens trained on in the epoch; a choice counts as one token.
        loss: mean negative log-likelihood per sampled position in the epoch; NaN if every step was
            skipped.
    """

    step: int
    tokens: int
    loss: float


@dataclass
class _Epoch:
    """An epoch in progress."""

    order: list[int]  # of the training samples
    step: int = 0
    tokens: int = 0
    total: float = 0.0  # sum of the losses of the positions learned from, in nats
    positions: int = 0

    @property
    def loss(self) -> float:
        """Mean loss per position, or NaN if every step was skipped."""
        return self.total / self.positions if self.positions else math.nan


class Imitator:
    """A trainer that fine-tunes a policy one epoch at a time; see :func:`imitate`.

    Its state can be saved between epochs, and within an epoch that was stopped. A run resumed from
    a saved state ends with bit-identical weights to an uninterrupted run.

    Attributes:
        losses: training loss of each epoch so far, see :class:`Imitation`.
        watched: loss on the held-out tasks after each epoch.
        steps_per_epoch: optimiser steps per epoch.
    """

    def __init__(
        self,
        policy: LearnablePolicy,
        demonstrations: Demonstrations,
        config: ImitationConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.policy, self.demonstrations = policy, demonstrations
        self.config = config or ImitationConfig()
        self._rng = np.random.default_rng(seed)
        self._train, self._watch = _hold_out(demonstrations, self.config, self._rng)
        weights = list(policy.parameters())
        self._optimizer = GuardedOptimizer(
            make_adamw(self.config.optimizer, (weights, self.config.lr)),
            max_grad_norm=self.config.max_grad_norm,
        )
        self.steps_per_epoch = math.ceil(len(self._train) / self.config.batch_decisions)
        self.losses: list[float] = []
        self.watched: list[float] = []
        self._kept: list[torch.Tensor] = []  # weights of the best epoch; [] if the policy has them
        self._epoch: _Epoch | None = None  # an epoch that was stopped

    @property
    def is_over(self) -> bool:
        """True if the monitored loss has converged or ``max_epochs`` is reached."""
        return self._has_converged or len(self.losses) == self.config.max_epochs

    @property
    def steps(self) -> int:
        """Number of optimiser steps so far, including those of an interrupted epoch."""
        done = len(self.losses) * self.steps_per_epoch
        return done if self._epoch is None else done + self._epoch.step

    @property
    def epoch_tokens(self) -> int:
        """Number of tokens trained on in an interrupted epoch, or 0 between epochs."""
        return 0 if self._epoch is None else self._epoch.tokens

    def run_epoch(
        self,
        on_step: Callable[[ImitationStep], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make one pass over the demonstrations, or finish an interrupted pass.

        Args:
            on_step: function called after each optimiser step.
            stop: function called before each optimiser step. If it returns True, the epoch stops
                and becomes part of the state, and the next call continues it.

        Raises:
            TrainingDiverged: if three steps in a row, or the loss of the whole epoch, are not
                finite.
        """
        loss = self._train_epoch(on_step, stop)
        if loss is None:
            return
        self.losses.append(loss)
        watched = (
            _compute_loss(self.policy, self._watch, self.config) if self._watch else self.losses[-1]
        )
        self.watched.append(watched)
        if not math.isfinite(self.losses[-1] + watched):
            raise TrainingDiverged(
                f"Imitation diverged in epoch {len(self.losses)}: the loss is {self.losses[-1]} on "
                f"training tasks and {watched} on held-out tasks. Lower the learning rate."
            )
        if self._best_epoch == len(self.losses):
            # The policy still has the last epoch's weights; a copy needs as much memory again.
            self._kept = [] if self.is_over else self._copy_weights()

    def finish(self) -> Imitation:
        """Load the best epoch's weights into the policy. Call this once, when ``over`` is True."""
        if self._best_epoch < len(self.losses):
            with torch.no_grad():
                for parameter, value in zip(self.policy.parameters(), self._kept, strict=True):
                    parameter.copy_(value)
        self.policy.version += 1
        return Imitation(
            losses=tuple(self.losses),
            watched=tuple(self.watched),
            converged=self._has_converged,
            best_epoch=self._best_epoch,
            demonstrations=len(self.demonstrations.decisions),
            skipped=self.demonstrations.skipped,
            unsolved=self.demonstrations.unsolved,
            env_steps=self.demonstrations.env_steps,
            positions=_n_positions(self._train),
            nonfinite_steps=self._optimizer.nonfinite_steps,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the losses, best weights, optimiser state and random number generator states."""
        return {
            "sizes": self._sizes,
            "losses": list(self.losses),
            "watched": list(self.watched),
            "kept": [] if self._has_best else [full_tensor(weight) for weight in self._kept],
            "epoch": None if self._epoch is None else asdict(self._epoch),
            "optimizer": self._optimizer.state_dict(),
            "nonfinite_steps": self._optimizer.nonfinite_steps,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`. Restore the policy's own state first.

        Raises:
            ValueError: if the state was saved with different demonstrations or another seed.
        """
        if state["sizes"] != self._sizes:
            raise ValueError("the saved state has different demonstrations or a different seed")
        self.losses, self.watched = list(state["losses"]), list(state["watched"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._optimizer.nonfinite_steps = int(state["nonfinite_steps"])
        self._rng.bit_generator.state = state["rng"]
        epoch = state["epoch"]
        self._epoch = None if epoch is None else _Epoch(**epoch)
        at_hand = self._has_best and not self.is_over
        self._kept = self._copy_weights() if at_hand else list(state["kept"])
        return self

    @property
    def _has_best(self) -> bool:
        """True if the policy has the weights of the best epoch."""
        return self._best_epoch == len(self.losses) and self._epoch is None

    @property
    def _sizes(self) -> list[int]:
        """Number of tokens in each sample, used to detect changed demonstrations."""
        return [n_tokens(sample) for sample in (*self._train, *self._watch)]

    @property
    def _best_epoch(self) -> int:
        """Epoch with the lowest monitored loss so far, or 0 before the first epoch."""
        return 1 + self.watched.index(min(self.watched)) if self.watched else 0

    @property
    def _has_converged(self) -> bool:
        """True if the monitored loss has not improved for ``patience_epochs`` epochs."""
        lowest, at = 1e9, 0
        for epoch, loss in enumerate(self.watched, start=1):
            if loss < lowest - max(self.config.min_improvement * lowest, _NEGLIGIBLE):
                lowest, at = loss, epoch
        return len(self.watched) - at >= self.config.patience_epochs

    def _copy_weights(self) -> list[torch.Tensor]:
        return [weight.detach().to("cpu", copy=True) for weight in self.policy.parameters()]

    def _train_epoch(
        self, on_step: Callable[[ImitationStep], None] | None, stop: Callable[[], bool]
    ) -> float | None:
        """Train once on all samples. Return the mean loss, or NaN if all steps were skipped.

        The method returns None if the pass was stopped.
        """
        config = self.config
        if self._epoch is None:
            self._epoch = _Epoch(self._rng.permutation(len(self._train)).tolist())
        epoch = self._epoch
        self.policy.train(True)
        try:
            while epoch.step < self.steps_per_epoch:
                if current_ranks().agree(stop()):
                    return None
                start = epoch.step * config.batch_decisions
                chosen = epoch.order[start : start + config.batch_decisions]
                batch = [self._train[index] for index in chosen]
                self._optimizer.zero_grad()
                loss = _compute_loss(self.policy, batch, config, backward=True)
                if self._optimizer.step(loss) is not None:
                    epoch.total += loss * _n_positions(batch)
                    epoch.positions += _n_positions(batch)
                epoch.tokens += sum(map(n_tokens, batch))
                epoch.step += 1
                if on_step:
                    on_step(ImitationStep(epoch.step, epoch.tokens, epoch.loss))
        finally:
            self.policy.train(False)
        self._epoch = None
        return epoch.loss


def _hold_out(
    demonstrations: Demonstrations, config: ImitationConfig, rng: Generator
) -> tuple[list[Sample], list[Sample]]:
    """Split the samples into a training and a held-out set, with each task in only one of them."""
    tasks = [of_task for task in demonstrations.decisions if (of_task := samples(task))]
    if not tasks:
        raise ConfigError(
            "There is nothing to imitate: no reference or rollout that the policy could give "
            "solves its task. The tiny policy only chooses among listed actions; for free text, "
            "train a language model, such as policy.kind = 'transformers'."
        )
    order = rng.permutation(len(tasks)).tolist()
    n_watched = int(config.holdout * len(tasks))
    watched, trained = order[:n_watched], order[n_watched:]
    return (
        [sample for index in trained for sample in tasks[index]],
        [sample for index in watched for sample in tasks[index]],
    )


def _compute_loss(
    policy: LearnablePolicy,
    batch: Sequence[Sample],
    config: ImitationConfig,
    *,
    backward: bool = False,
) -> float:
    """Compute the mean negative log-likelihood of all sampled positions. Ranks share the work."""
    total, positions = 0.0, _n_positions(batch)
    tokens = np.array([n_tokens(sample) for sample in batch])
    ranks = current_ranks()
    for rows, weight in ranks.share_rows(np.arange(len(batch)), tokens, config.batch_tokens):
        part = [batch[row] for row in rows]
        with torch.set_grad_enabled(backward):
            logp, mask = policy.logprobs(part)  # (B, T), (B, T)
            loss = -logp[mask].mean() * (weight * _n_positions(part) / positions)
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    return ranks.sum({"loss": total})["loss"]


def _n_positions(batch: Sequence[Sample]) -> int:
    return sum(map(n_sampled, batch))
