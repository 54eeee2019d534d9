"""An environment manager for verl-agent whose tasks come from a curriculum.

verl-agent steps many envs at once, with ``env.rollout.n`` consecutive envs for each row of a batch,
and sends the model a separate prompt at every step. Pass this manager to its trainer as ``envs``,
and a manager of another split as ``val_envs``::

    envs = CurriculumManager(env_id, session, n_rows=16, group_size=8)
    val_envs = CurriculumManager(env_id, session, n_rows=128, split="val")

Save the curriculum with the trainer's checkpoints by calling ``save_session(session, folder)``, and
restore it with ``load_session``. The manager has the interface of ``EnvironmentManagerBase`` in
verl-agent, without importing it: ``reset``, ``step`` with lists of texts, ``success_evaluator`` and
``close``. Run this file to play a few steps.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from coevo_gym import CurriculumSession
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.trajectory import EndReason
from coevo_gym.curricula.pool_curriculum import make_curriculum
from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.curricula.session.stream import scripted_evolver
from coevo_gym.prompts import PromptTemplate
from coevo_gym.trainers.adapters.chat_rollout import ChatRollout

REMEMBERED = 4
"""Number of past steps in a prompt: in verl-agent, models see one prompt per step and no chat."""


class CurriculumManager:
    """A manager of many episodes that are stepped together.

    Args:
        env_id: the env.
        session: the curriculum session.
        n_rows: number of rows in a batch.
        group_size: envs per row, which share a task; in training, the session's group size.
        split: ``"train"``, or the split to evaluate on.
        prompt: the prompt that describes the env; default: the benchmark's prompt.
    """

    def __init__(
        self,
        env_id: str,
        session: TaskSession,
        *,
        n_rows: int,
        group_size: int = 1,
        split: str = "train",
        prompt: PromptTemplate | None = None,
    ) -> None:
        self.split, self.group_size, self.resets = split, group_size, 0
        n = n_rows * group_size
        self.rollouts = [ChatRollout(env_id, session, prompt=prompt) for _ in range(n)]
        self.pages, self.past = [""] * n, [list[str]() for _ in range(n)]

    def reset(self, kwargs: Any = None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Start all episodes, after grading the episodes that verl-agent's step limit ended."""
        self.resets += 1
        for rollout in self.rollouts:
            if rollout.opening and not rollout.over:
                rollout.end(EndReason.TIME_LIMIT)
        for i, rollout in enumerate(self.rollouts):
            slot = f"{self.resets}/{i // self.group_size}" if self.split == "train" else None
            rollout.begin(split=self.split, slot=slot, policy_version=self.resets - 1)
            if rollout.lost:
                raise EnvBackendError("An engine did not start.")
            self.pages[i], self.past[i] = rollout.opening[-1].content, []
        return self._observations(), [{"won": False} for _ in self.rollouts]

    def step(
        self, text_actions: Sequence[str]
    ) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Pass one answer to every env; finished episodes ignore their answers."""
        rewards = np.zeros(len(self.rollouts), dtype=np.float32)
        infos = []
        for i, (rollout, text) in enumerate(zip(self.rollouts, text_actions, strict=True)):
            if not rollout.over:
                page = rollout.send_answer(text)
                if rollout.lost:  # replay the episode up to this step instead of a reward of 0
                    page = rollout.recover()
                self.past[i].append(f"You: {text}")
                self.past[i].append(page)
                self.pages[i] = page
                rewards[i] = rollout.end() if rollout.over else 0.0
            valid = np.array(bool(rollout.info["action_valid"]))
            won = rollout.over and bool(rollout.info["success"])
            infos.append({"won": won, "is_action_valid": valid})
        dones = np.array([rollout.over for rollout in self.rollouts])
        return self._observations(), rewards, dones, infos

    def success_evaluator(
        self, *, total_infos: Any, total_batch_list: Any, **_: Any
    ) -> dict[str, NDArray[np.float64]]:
        """Return the success of each episode, from its last active step."""
        success = []
        for infos, steps in zip(total_infos, total_batch_list, strict=True):
            both = zip(infos, steps, strict=True)
            active = [info for info, step in both if step["active_masks"]]
            success.append(float(active[-1]["won"]) if active else 0.0)
        return {"success_rate": np.array(success)}

    def close(self) -> None:
        """Return the episodes in progress, and close the envs."""
        for rollout in self.rollouts:
            rollout.close()

    def _observations(self) -> dict[str, Any]:
        """Return a prompt per env; GiGPO compares states by ``anchor``."""
        texts = []
        for rollout, past in zip(self.rollouts, self.past, strict=True):
            opening = [message.content for message in rollout.opening]
            texts.append("\n\n".join([*opening, *past[-2 * REMEMBERED :]]))
        return {"text": texts, "image": None, "anchor": list(self.pages)}


if __name__ == "__main__":
    env_id, k = "CoEvolve-WebShop-v0", 4
    evolver = scripted_evolver(gym.make(f"coevo_gym:{env_id}").unwrapped)  # type: ignore[arg-type]
    session = CurriculumSession(
        make_curriculum("coevolve"), evolver, group_size=k, groups_per_step=2
    )
    manager = CurriculumManager(env_id, session, n_rows=2, group_size=k)
    rng = np.random.default_rng(0)
    for _ in range(2):
        manager.reset()
        for _ in range(5):
            offered = [r.info["admissible"] or ("search[lamp]",) for r in manager.rollouts]
            manager.step(
                [f"<action>{choices[rng.integers(len(choices))]}</action>" for choices in offered]
            )
    manager.close()
    print(json.dumps(session.metrics()))
