"""The command of :mod:`tests.runs.exact_child`, in which an update of rank 1 fails."""

from __future__ import annotations

import os
from typing import Any

from coevo_gym import cli
from coevo_gym.trainers.grpo import GRPO
from tests import toy
from tests.runs.exact_child import use_float64


def fail(*arguments: Any) -> Any:
    raise MemoryError("full")


if __name__ == "__main__":
    use_float64()
    toy.register()
    if os.environ.get("RANK") == "1":
        GRPO.update = fail  # type: ignore[method-assign]
    cli.main()
