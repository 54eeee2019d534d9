"""Engines that fail, in the envs of the toy benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coevo_gym.core.errors import EnvBackendError
from tests.toy import ToyEnv


def break_engines(
    patch: pytest.MonkeyPatch, hook: str, is_broken: Callable[[ToyEnv], bool]
) -> None:
    """Let a hook fail in the envs that are broken when it is called."""
    sound = getattr(ToyEnv, hook)

    def call(self: ToyEnv, *args: Any) -> Any:
        if is_broken(self):
            raise EnvBackendError("the engine is gone")
        return sound(self, *args)

    patch.setattr(ToyEnv, hook, call)
