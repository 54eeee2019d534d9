"""Adapter for Stable-Baselines3 and sb3-contrib, with one stream of tasks for all envs.

    from sb3_contrib import MaskablePPO
    curriculum = make_curriculum("coevolve", growth={"every_groups": 100})
    envs = make_envs("CoEvolve-WebShop-v0", 8, group_size=4, curriculum=curriculum)
    model = with_curriculum(MaskablePPO)("MlpPolicy", envs)
    model.learn(100_000)
    model.save("shop.zip")      # includes the curriculum; load() restores both

An agent acts by choosing among the benchmark's candidate actions; MaskablePPO never draws actions
that are not offered. Requires the extra ``[sb3]``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium as gym

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import Split
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.envs.wrappers import ChooseAction, HashText
from coevo_gym.trainers.adapters.trainer import import_trainer

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

    AlgorithmT = TypeVar("AlgorithmT", bound=BaseAlgorithm)


def make_envs(
    env_id: str,
    n_envs: int = 1,
    *,
    split: str = "train",
    max_choices: int = 64,
    dim: int = 512,
    observe_choices: bool = False,
    env_kwargs: dict[str, Any] | None = None,
    **stream: Any,
) -> VecEnv:
    """Create vectorised envs for a Stable-Baselines3 algorithm, in this process.

    Args:
        env_id: Gymnasium id of a coevo_gym env.
        n_envs: number of envs, which all share one session.
        split: ``"train"`` for training; any other split for evaluation, which is never
            recorded.
        max_choices: maximum number of candidate actions offered at once.
        dim: size of hashed text vectors.
        observe_choices: True to include the candidate actions in observations, for a
            ``MultiInputPolicy``. Otherwise an ``MlpPolicy`` sees the page and the instruction.
        env_kwargs: arguments for the env.
        **stream: arguments for :class:`~coevo_gym.curricula.session.sampler.EvolvingTaskSampler`,
            such as ``group_size``, ``evolve_every_groups`` or ``session``.

    Raises:
        ImportError: if Stable-Baselines3 is not installed.
        ConfigError: if an argument is invalid.
        SplitLeakError: if evaluation envs are given arguments for training.
    """
    vec_env = import_trainer("stable_baselines3.common.vec_env", "sb3")
    envs: list[gym.Env[Any, Any]] = []
    for _ in range(n_envs):
        env = gym.make(env_id, split=split, **(env_kwargs or {}))
        if Split(split) is Split.TRAIN or stream:
            env = EvolvingTaskSampler(env, **stream)
            stream = {"session": env.session}
        chosen = ChooseAction(env, max_choices, observe_choices=observe_choices)
        envs.append(HashText(chosen, dim))
    factories = [partial(lambda env: env, env) for env in envs]
    return cast("VecEnv", vec_env.VecMonitor(vec_env.DummyVecEnv(factories)))


def with_curriculum(algorithm: type[AlgorithmT]) -> type[AlgorithmT]:
    """Return a subclass of an algorithm that saves the curriculum together with the model.

    ``load(path, env=make_envs(…))`` restores both. Without an env, or with evaluation envs, it
    loads only the policy. The curriculum's metrics are logged as ``curriculum/…``
    with each update.
    """

    class Practising(algorithm):  # type: ignore[misc, valid-type]
        """A subclass of the given algorithm that has access to its envs' session."""

        def train(self) -> None:
            super().train()
            if (session := _session_of(self.env)) is not None:
                for name, value in session.metrics().items():
                    self.logger.record(f"curriculum/{name}", value)

        def save(self, *args: Any, **kwargs: Any) -> None:
            if (session := _session_of(self.env)) is not None:
                self.curriculum = session.state_dict()
            super().save(*args, **kwargs)

        @classmethod
        def load(cls, *args: Any, **kwargs: Any) -> Any:
            model = super().load(*args, **kwargs)
            if (session := _session_of(model.env)) is not None:
                if not hasattr(model, "curriculum"):
                    raise ConfigError(
                        "This model was saved without a curriculum. Load it without an env, then "
                        "call set_env() with a training env."
                    )
                session.load_state_dict(model.curriculum)
            return model

    Practising.__name__ = Practising.__qualname__ = algorithm.__name__
    return cast("type[AlgorithmT]", Practising)


def _session_of(envs: VecEnv | None) -> TaskSession | None:
    """Return the session that training envs share, or None for other envs."""
    try:
        return None if envs is None else cast(TaskSession, envs.get_attr("session")[0])
    except AttributeError:
        return None
