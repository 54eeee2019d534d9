"""SkyRL practises a curriculum: a text env of skyrl-gym whose episodes are the curriculum's.

Import this file where SkyRL starts, name ``coevo`` as the ``env_class`` of the rows, and give each
row a ``slot`` of its own::

    {"prompt": [], "env_class": "coevo", "slot": "row 17"}                       # training
    {"prompt": [], "env_class": "coevo", "split": "val", "task": "<id or name>"}  # evaluation

SkyRL sends each row ``n_samples_per_prompt`` times; the copies get one task by their slot. Where it
does so from several processes, ``session`` is a ``RaySession`` (coevo_gym/serve/ray_actor.py).
What a checkpoint has to hold beside SkyRL's own is written by ``save_session(session, folder)`` and
read by ``load_session``. Written for skyrl-gym 0.4.0; this file alone plays a few episodes.
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
from coevo_gym.curricula.registry import make_curriculum
from coevo_gym.curricula.session.face import SessionFace
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.prompts import PromptTemplate
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout, chat

GROUP_SIZE, GROUPS_PER_STEP = 8, 16


class CurriculumText(BaseTextEnv):  # type: ignore[misc, unused-ignore]
    """One episode; SkyRL makes an env for each rollout.

    A fault of an engine is no reward of 0: the episode is played again up to there, and does not
    count in the curriculum.
    """

    env_id: ClassVar[str] = "CoEvolve-WebShop-v0"
    session: ClassVar[SessionFace]
    prompt: ClassVar[PromptTemplate | None] = None
    _idle: ClassVar[list[ChatRollout]] = []  # an engine is not started for each episode

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.row = extras or {}
        self.rollout = (
            self._idle.pop()
            if self._idle
            else ChatRollout(self.env_id, self.session, prompt=self.prompt)
        )

    def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin the episode; SkyRL tells the model what this returns."""
        self.rollout.begin(
            split=self.row.get("split", "train"),
            task=self.row.get("task"),
            slot=self.row.get("slot"),
        )
        if self.rollout.lost:
            raise EnvBackendError("An engine did not start.")
        return [*prompt, *chat(self.rollout.opening)], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        """Take in an answer of the model."""
        page = self.rollout.answer(action)
        if self.rollout.lost:
            page = self.rollout.recover()
        over = self.rollout.over
        outcome = self.rollout.end() if over else 0.0
        told = [] if over else [{"role": "user", "content": page}]
        return BaseTextEnvStepOutput(
            observations=told, reward=outcome, done=over, metadata={"success": bool(outcome)}
        )

    def close(self) -> None:
        """SkyRL closes an env also where its own limit of turns or tokens ends the episode."""
        self.rollout.end()  # graded as it stands, and reported
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
