"""``coevo``, where each new learner tells how many of the earlier ones are still in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from coevo_gym.cli import main
from coevo_gym.trainers import learners
from coevo_gym.trainers.grpo import GRPO
from tests import toy

EARLIER: weakref.WeakSet[GRPO] = weakref.WeakSet()


def make(*arguments: Any, **settings: Any) -> GRPO:
    print("learners in memory:", len(EARLIER), flush=True)
    learner = GRPO(*arguments, **settings)
    EARLIER.add(learner)
    return learner


if __name__ == "__main__":
    toy.register()
    gc.disable()  # what the run itself does not collect stays
    learners.GRPO = make  # type: ignore[assignment, misc]
    main()
