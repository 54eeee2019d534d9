"""Learners and imitators that run on several ranks.

Rank 0 runs the training loop. Each rank has a :class:`RankWorker` with its model and learner, and
calls the same methods of it in the same order: rank 0 announces each call, and the other ranks
follow (:meth:`RankWorker.follow`). To the loop, a :class:`DistributedLearner` is a learner like any
other.

Rank 0's policy determines the weights: the other ranks receive them when a learner or an imitator
is created or restored. Saved states are those of one process.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor

from coevo_gym.agents.lm.language_model import LanguageModel, ModelConfig
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.notes import NO_NOTES, Notes
from coevo_gym.core.seams import Advantage
from coevo_gym.core.trajectory import Group
from coevo_gym.trainers.credit import Credit
from coevo_gym.trainers.demonstrations import Demonstrations
from coevo_gym.trainers.grpo import GRPO
from coevo_gym.trainers.learners import load_learner_class, make_learner, parse_learner_settings
from coevo_gym.trainers.protocols import TrainedLearner
from coevo_gym.trainers.rest import ReST
from coevo_gym.trainers.settings import ImitationConfig, LearnerSettings, UpdateConfig
from coevo_gym.trainers.sft import Imitation, ImitationStep, Imitator
from coevo_gym.trainers.sharded_model import ShardedModel
from coevo_gym.trainers.update.learner import (
    LearnablePolicy,
    MeasuredSampler,
    SurrogateLearner,
)
from coevo_gym.trainers.update.optimizer import AveragedWeights
from coevo_gym.trainers.update.ranks import RankGroup, shard_like


def check_distributable(learner: LearnerSettings, warmup: ImitationConfig, *, shard: bool) -> None:
    """Check that several ranks can train with these settings.

    Args:
        learner: settings of the learner.
        warmup: settings of the warm-up.
        shard: True if the model is sharded.

    Raises:
        ConfigError: if they cannot.
    """
    kind: type = load_learner_class(learner.kind)
    if not issubclass(kind, SurrogateLearner | ReST):
        raise ConfigError(
            f"The learner {learner.kind!r} cannot be trained by several processes, because it does "
            "not share its updates. Subclass GRPO, or leave out --processes."
        )
    if not shard:
        return
    advice = "or set policy.model.shard = false"
    if not issubclass(kind, GRPO):
        raise ConfigError(
            f"A learner of kind {learner.kind!r} cannot train a sharded model. Set learner.kind = "
            f"'pg', {advice}."
        )
    assert isinstance(learner, UpdateConfig)
    for key, name in (("learner", learner.optimizer), ("warmup", warmup.optimizer)):
        if name != "adamw":
            raise ConfigError(
                f"{key}.optimizer = {name!r} does not support a sharded model, whose moments are "
                f"split over the processes. Set {key}.optimizer = 'adamw', {advice}."
            )
    if learner.average:
        raise ConfigError(
            f"learner.average = {learner.average} does not support a sharded model. Set "
            f"learner.average = 0, {advice}."
        )


class RankWorker:
    """The model of a rank, with its learner or imitator.

    Args:
        ranks: all ranks.
        config: settings of the model.
        policy: on rank 0, the policy that samples. It is also the model that rank 0 trains, unless
            the model is sharded.
        warmup: settings of the warm-up.
        seed: seed for a new adapter.
    """

    def __init__(
        self,
        ranks: RankGroup,
        config: ModelConfig,
        policy: LanguageModel | None,
        warmup: ImitationConfig,
        *,
        seed: int,
    ) -> None:
        self.ranks, self.policy, self.warmup = ranks, policy, warmup
        if config.shard:
            self.model: LanguageModel = ShardedModel(config, seed=seed)
        else:
            self.model = LanguageModel(config, seed=seed) if policy is None else policy
        self.learnable = cast("LearnablePolicy", self.model)  # learners never sample
        self.learner: Any = None
        self.imitator: Imitator | None = None

    def announce(self, method: str, *arguments: Any) -> None:
        """Make the other ranks call a method, which rank 0 must then call as well."""
        self.ranks.broadcast((method, arguments))

    def follow(self) -> None:
        """Make the calls that rank 0 announces, until it calls :meth:`stop`."""
        call: Any = None
        while (call := self.ranks.broadcast(call)) is not None:
            method, arguments = call
            getattr(self, method)(*arguments)

    def stop(self) -> None:
        """Make the other ranks return from :meth:`follow`."""
        self.ranks.broadcast(None)

    def create_learner(
        self, settings: Mapping[str, Any], seed: int, credit: Credit | None = None
    ) -> None:
        """Create a learner with the weights of rank 0's policy, replacing the last one."""
        self.learner = self.imitator = None
        gc.collect()  # breaks reference cycles, so that the new learner can use the memory
        self.receive_weights()
        self.learner = make_learner(parse_learner_settings(settings), self.learnable, credit, seed)

    def update(
        self,
        groups: Sequence[Group],
        advantages: Sequence[Sequence[Advantage]] | None,
        spent: float,
    ) -> dict[str, float]:
        """Learn from a batch of groups."""
        self.learner.spent = spent
        with self.training():
            metrics: dict[str, float] = self.learner.update(groups, advantages)
        sampler: Any = self.policy
        if sampler is not self.model and isinstance(sampler, MeasuredSampler):
            metrics |= sampler.take_sampling_metrics()
        return metrics

    def learner_state(self) -> dict[str, Any]:
        """Return the learner's state without its reference; whole tensors are on rank 0 only."""
        state: dict[str, Any] = self.learner.state_dict(reference=False)
        return state

    def load_learner(self, state: Mapping[str, Any] | None = None) -> None:
        """Restore the weights of rank 0's policy and the learner's state, which rank 0 passes."""
        self.receive_weights()
        self.learner.load_state_dict(self.receive_state(state))

    def create_imitator(self, demonstrations: Demonstrations, seed: int) -> None:
        """Create an imitator with the weights of rank 0's policy."""
        self.receive_weights()
        self.imitator = Imitator(self.learnable, demonstrations, self.warmup, seed=seed)

    def run_epoch(self) -> None:
        """Follow rank 0 through an epoch of imitation."""
        assert self.imitator is not None
        with self.training():
            self.imitator.run_epoch()

    def finish_imitation(self) -> None:
        """Follow rank 0 in loading the best epoch's weights."""
        assert self.imitator is not None
        with self.training():
            self.imitator.finish()

    def imitator_state(self) -> None:
        """Follow rank 0 in gathering the imitator's state."""
        assert self.imitator is not None
        self.imitator.state_dict()

    def load_imitator(self) -> None:
        """Follow rank 0 in restoring the imitator."""
        assert self.imitator is not None
        self.receive_weights()
        self.imitator.load_state_dict(self.receive_state(None))

    def receive_weights(self) -> None:
        """Copy the version and the weights of rank 0's policy to the models of all ranks."""
        weights = self._broadcast_weights()
        if self.model is self.policy:
            for _ in weights:  # they are already there
                pass
        else:
            self.model.load_weights(weights)
        version = 0 if self.policy is None else self.policy.version
        self.model.version = self.ranks.broadcast(version)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Train in a ``with`` block, then hand the weights over to rank 0's policy.

        A policy that is not the model itself frees the memory that it needs for sampling.
        """
        sampler = None if self.policy is self.model else self.policy
        if sampler is not None:
            sampler.train(True)
        try:
            yield
        finally:
            if sampler is not None:
                sampler.train(False)
        if not isinstance(self.model, ShardedModel):
            return
        weights = self.model.whole_weights()
        if self.policy is None:
            for _ in weights:  # gathering needs every rank
                pass
        else:
            self.policy.load_weights(weights)
            self.policy.version = self.model.version

    def receive_state(self, state: Mapping[str, Any] | None) -> Any:
        """Return the state that rank 0 passes; of sharded weights' moments, only the shards."""
        weights = self.model.parameters()

        def place(keys: tuple[Any, ...], tensor: Tensor) -> Tensor:
            match keys:
                case (*_, "state", int(number), "exp_avg" | "exp_avg_sq") | ("kept", int(number)):
                    return shard_like(tensor, weights[number])
                case _:
                    return tensor

        return self.ranks.broadcast_state(state, place)

    def _broadcast_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights of rank 0's policy on all ranks, one at a time."""
        source = {} if self.policy is None else self.policy.trained_weights()
        for name, mine in self.model.trained_weights().items():
            if source:
                weight = source[name].detach()
            else:
                weight = torch.empty(mine.shape, dtype=mine.dtype, device=mine.device)
            dist.broadcast(weight, src=0)
            yield name, weight


class DistributedLearner:
    """A learner whose updates run on all ranks, for the training loop of rank 0.

    Args:
        worker: rank 0's worker.
        config: settings of the learner.
        credit: credit assignment; by default, the settings specify it.
        seed: seed for the learner's own random draws.

    Attributes:
        spent: spent share of the run's budget; the loop sets it before each update.

    Raises:
        ConfigError: if several ranks cannot train with these settings.
    """

    settings: ClassVar[Any] = LearnerSettings

    def __init__(
        self,
        worker: RankWorker,
        config: LearnerSettings,
        *,
        credit: Credit | None = None,
        seed: int,
    ) -> None:
        check_distributable(config, worker.warmup, shard=isinstance(worker.model, ShardedModel))
        self._worker, self.spent = worker, 0.0
        settings = config.model_dump(mode="json")
        worker.announce("create_learner", settings, seed)
        worker.create_learner(settings, seed, credit)
        self._learner: TrainedLearner = worker.learner

    @property
    def version(self) -> int:
        """Version of the policy being trained."""
        return self._learner.version

    @property
    def has_reference(self) -> bool:
        """True if the learner compares its policy with the policy that it was created with."""
        return bool(getattr(self._learner, "has_reference", False))

    @property
    def average(self) -> AveragedWeights | None:
        """Averaged weights to evaluate instead of the trained weights, or None."""
        average: AveragedWeights | None = getattr(self._learner, "average", None)
        return average

    def advantages(
        self, groups: Sequence[Group], notes: Notes = NO_NOTES
    ) -> Sequence[Sequence[Advantage]]:
        """Return each group's advantages, one per trajectory or one per step."""
        return self._learner.advantages(groups, notes)

    def update(
        self, groups: Sequence[Group], advantages: Sequence[Sequence[Advantage]] | None = None
    ) -> dict[str, float]:
        """Learn from groups on all ranks. The metrics are those of the whole batch."""
        self._worker.announce("update", list(groups), advantages, self.spent)
        return self._worker.update(groups, advantages, self.spent)

    def state_dict(self, *, reference: bool = True) -> dict[str, Any]:
        """Return the state without the reference model.

        Raises:
            ValueError: if ``reference`` is True.
        """
        if reference:
            raise ValueError("The reference is not gathered. Save the initial policy instead.")
        self._worker.announce("learner_state")
        return self._worker.learner_state()

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state on all ranks. The policy's own state is restored first."""
        self._worker.announce("load_learner")
        self._worker.load_learner(state)
        return self


class DistributedImitator(Imitator):
    """An imitator whose epochs run on all ranks, for rank 0.

    Args:
        worker: rank 0's worker.
        demonstrations: decisions to imitate.
        seed: seed for the held-out tasks and the training order.
    """

    def __init__(self, worker: RankWorker, demonstrations: Demonstrations, *, seed: int) -> None:
        self._worker = worker
        worker.announce("create_imitator", demonstrations, seed)
        worker.receive_weights()
        super().__init__(worker.learnable, demonstrations, worker.warmup, seed=seed)

    def run_epoch(
        self,
        on_step: Callable[[ImitationStep], None] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make one pass over the demonstrations, or finish an interrupted pass."""
        self._worker.announce("run_epoch")
        with self._worker.training():
            super().run_epoch(on_step, stop)

    def finish(self) -> Imitation:
        """Load the best epoch's weights into the policy."""
        self._worker.announce("finish_imitation")
        with self._worker.training():
            return super().finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the losses, best weights, optimiser state and random number generator states."""
        self._worker.announce("imitator_state")
        return super().state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> Self:
        """Restore the state from :meth:`state_dict`. Restore the policy's own state first."""
        self._worker.announce("load_imitator")
        self._worker.receive_weights()
        return super().load_state_dict(self._worker.receive_state(state))
