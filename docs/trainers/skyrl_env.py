"""A text env for skyrl-gym whose tasks come from a curriculum.

Import this file where SkyRL starts, set the ``env_class`` of the rows to ``coevo``, and give each
row its own ``slot``::

    {"prompt": [], "env_class": "coevo", "slot": "row 17"}                       # training
    {"prompt": [], "env_class": "coevo", "split": "val", "task": "<id or name>"}  # evaluation

SkyRL sends each row ``n_samples_per_prompt`` times; copies with the same slot get the same task. If
SkyRL uses several processes, set ``session`` to an ``HTTPSession`` (see `coevo serve`) or to a
``RaySession`` (coevo_gym/serve/ray_actor.py).
Save the curriculum with SkyRL's checkpoints by calling ``save_session(session, folder)``, and
restore it with ``load_session``. Written for skyrl-gym 0.4.0. Run this file to play a few episodes.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import skyrl_gym
from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput
from skyrl_gym.envs.registration import register

from coevo_gym import CurriculumSession
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.curricula.pool_curriculum import make_curriculum
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.prompts import PromptTemplate
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout, message_dicts

GROUP_SIZE, GROUPS_PER_STEP = 8, 16


class CurriculumText(BaseTextEnv):  # type: ignore[misc, unused-ignore]
    """An env for one episode; SkyRL creates an env for each rollout.

    An engine failure never becomes a reward of 0: the episode is replayed up to this step, and the
    curriculum does not count it.
    """

    env_id: ClassVar[str] = "CoEvolve-WebShop-v0"
    session: ClassVar[TaskSession]
    prompt: ClassVar[PromptTemplate | None] = None
    _idle: ClassVar[list[ChatRollout]] = []  # reused, because starting an engine is slow

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.row = extras or {}
        self.rollout = (
            self._idle.pop()
            if self._idle
            else ChatRollout(self.env_id, self.session, prompt=self.prompt)
        )

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Start the episode and return the chat that SkyRL sends to the model."""
        self.rollout.begin(
            split=self.row.get("split", "train"),
            task=self.row.get("task"),
            slot=self.row.get("slot"),
        )
        if self.rollout.lost:
            raise EnvBackendError("An engine did not start.")
        return [*prompt, *message_dicts(self.rollout.opening)], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Pass a model answer to the env."""
        page = self.rollout.send_answer(action)
        if self.rollout.lost:
            page = self.rollout.recover()
        over = self.rollout.over
        outcome = self.rollout.end() if over else 0.0
        messages = [] if over else [{"role": "user", "content": page}]
        return BaseTextEnvStepOutput(
            observations=messages, reward=outcome, done=over, metadata={"success": bool(outcome)}
        )

    def close(self) -> None:
        """End the episode; SkyRL also calls this if its own turn or token limit is reached."""
        self.rollout.end()  # graded in its current state, and reported
        self._idle.append(self.rollout)


def make_session(env_id: str) -> CurriculumSession:
    """Create the curriculum of one process."""
    evolver = scripted_evolver(gym.make(f"coevo_gym:{env_id}").unwrapped)  # type: ignore[arg-type]
    return CurriculumSession(
        make_curriculum("coevolve"),
        evolver,
        group_size=GROUP_SIZE,
        groups_per_step=GROUPS_PER_STEP,
    )


register(id="coevo", entry_point=CurriculumText)

if __name__ == "__main__":
    CurriculumText.session = make_session(CurriculumText.env_id)
    rng = np.random.default_rng(0)
    for row in range(4):
        for _copy in range(GROUP_SIZE):
            env = skyrl_gym.make("coevo", env_config={}, extras={"slot": f"row {row}"})
            env.init([])
            done = False
            while not done:
                offered = env.rollout.info["admissible"] or ("search[lamp]",)
                done = env.step(f"<action>{offered[rng.integers(len(offered))]}</action>")["done"]
            env.close()
    print(json.dumps(CurriculumText.session.metrics()))
