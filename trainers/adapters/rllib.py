"""RLlib adapter: one curriculum shared by all env runners of the cluster.

    ray.init()
    start_session(make_session)                     # coevo_gym.serve.ray_actor
    config = PPOConfig().env_runners(num_env_runners=2)
    config = configure_for_curriculum(config, "CoEvolve-WebShop-v0")
    algorithm = config.build_algo()
    algorithm.train()["curriculum"]                 # curriculum metrics, besides RLlib's
    algorithm.save_to_path("checkpoint")            # includes the curriculum, as does restoring

An agent acts by choosing among the benchmark's candidate actions; actions that are not offered are
never drawn. Requires the extra ``[rllib]`` and RLlib's new API stack.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from coevo_gym.core.task import Split
from coevo_gym.curricula.session.sampler import EvolvingTaskSampler
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.envs.wrappers import ChooseAction, HashText
from coevo_gym.serve.ray_actor import NAME, connect_session
from coevo_gym.trainers.adapters.trainer import import_trainer

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    AlgorithmT = TypeVar("AlgorithmT", bound=Algorithm)
    ConfigT = TypeVar("ConfigT", bound=AlgorithmConfig)

ENV = "coevo_gym"
"""Name of the envs in RLlib's registry."""
_STATE = "curriculum"


def configure_for_curriculum(
    config: ConfigT,
    env_id: str,
    *,
    session: str = NAME,
    max_choices: int = 32,
    dim: int = 128,
    eval_split: str = "val",
    env_kwargs: Mapping[str, Any] | None = None,
) -> ConfigT:
    """Configure an algorithm to train on a session's tasks; return the modified config.

    Args:
        config: config of the algorithm, which is modified in place.
        env_id: Gymnasium id of a coevo_gym env.
        session: name of the session's actor, or address of a `coevo serve` server.
        max_choices: maximum number of candidate actions offered at once.
        dim: size of the hashed vectors for page and instruction.
        eval_split: split for RLlib's own evaluation, which is greedy and unrecorded; used only if
            the config enables evaluation.
        env_kwargs: arguments for the env.

    Raises:
        ImportError: if RLlib is not installed.
    """
    registry = import_trainer("ray.tune.registry", "rllib")
    modules = import_trainer("ray.rllib.core.rl_module.rl_module", "rllib")
    masking = import_trainer("ray.rllib.examples.rl_modules.classes.action_masking_rlm", "rllib")
    registry.register_env(ENV, make_env)
    env = {
        "env_id": env_id,
        "session": session,
        "max_choices": max_choices,
        "dim": dim,
        "env_kwargs": dict(env_kwargs or {}),
    }
    config.environment(ENV, env_config={**env, "split": "train"})
    config.evaluation(
        evaluation_config={"env_config": {**env, "split": eval_split}, "explore": False}
    )
    config.rl_module(
        rl_module_spec=modules.RLModuleSpec(module_class=masking.ActionMaskingTorchRLModule)
    )
    config.algo_class = with_curriculum(config.algo_class)
    return config


def make_env(config: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Create an env runner's env from the ``env_config`` of :func:`configure_for_curriculum`."""
    env = gym.make(config["env_id"], split=config["split"], **config["env_kwargs"])
    if Split(config["split"]) is Split.TRAIN:
        env = EvolvingTaskSampler(env, session=connect_session(config["session"]))
    return ObserveMask(HashText(ChooseAction(env, config["max_choices"]), config["dim"]))


class ObserveMask(gym.ObservationWrapper[Any, Any, Any]):
    """A wrapper that adds the action mask to the observation, as RLlib's masking module expects.

    The env must be wrapped in :class:`~coevo_gym.envs.wrappers.ChooseAction`.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        size = int(cast(Discrete, env.action_space).n)
        mask = Box(0.0, 1.0, (size,), np.float32)
        self.observation_space = Dict({"action_mask": mask, "observations": env.observation_space})

    @property
    def spec(self) -> EnvSpec | None:  # type: ignore[override]
        """Spec of the unwrapped env. RLlib's `gym.make` rejects envs without a spec."""
        return self.unwrapped.spec

    def observation(self, observation: Any) -> dict[str, NDArray[np.float32]]:
        """Return the observation vector and the mask of available choices."""
        mask = self.env.get_wrapper_attr("action_masks")()
        return {"action_mask": mask.astype(np.float32), "observations": observation}


def with_curriculum(algorithm: type[AlgorithmT]) -> type[AlgorithmT]:
    """Return a subclass of an RLlib algorithm that saves the curriculum and reports its metrics."""

    class Practising(algorithm):  # type: ignore[misc, valid-type]
        """A subclass of the given algorithm that saves the curriculum and reports its metrics."""

        def step(self) -> dict[str, Any]:
            result: dict[str, Any] = super().step()
            return {**result, _STATE: self._session.metrics()}

        def get_state(
            self, components: Any = None, *, not_components: Any = None, **options: Any
        ) -> dict[str, Any]:
            state: dict[str, Any] = super().get_state(
                components, not_components=not_components, **options
            )
            if self._check_component(_STATE, components, not_components):
                state[_STATE] = self._session.state_dict()
            return state

        def set_state(self, state: dict[str, Any]) -> None:
            super().set_state(state)
            if _STATE in state:
                self._session.load_state_dict(state[_STATE])

        @property
        def _session(self) -> TaskSession:
            return connect_session(self.config.env_config["session"])

    Practising.__name__ = Practising.__qualname__ = algorithm.__name__
    return cast("type[AlgorithmT]", Practising)
