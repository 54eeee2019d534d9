"""A subclass of verl's trainer that saves the curriculum in its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coevo_gym.curricula.session.session_calls import TaskSession
from coevo_gym.trainers.adapters.checkpoint import load_session, save_session


def with_curriculum(trainer: type[Any], session: TaskSession) -> type[Any]:
    """Return a trainer class that saves and restores a session with its checkpoints.

    Args:
        trainer: ``verl.trainer.ppo.ray_trainer.RayPPOTrainer``, or a similar class.
        session: session that its agent loops use, such as a ``RaySession`` or an
            ``HTTPSession``.

    Returns:
        A subclass of ``trainer``.
    """

    class WithCurriculum(trainer):  # type: ignore[misc]
        def _save_checkpoint(self) -> Any:
            done = super()._save_checkpoint()
            save_session(session, self._checkpoint_folder())
            return done

        def _load_checkpoint(self) -> Any:
            done = super()._load_checkpoint()
            if self.global_steps:  # 0 where training begins
                load_session(session, self._checkpoint_folder(resumed=True))
            return done

        def _checkpoint_folder(self, *, resumed: bool = False) -> Path:
            settings = self.config.trainer
            if resumed and settings.resume_mode == "resume_path":
                return Path(settings.resume_from_path)
            return Path(settings.default_local_dir) / f"global_step_{self.global_steps}"

    return WithCurriculum
