"""``coevo``, where each new learner tells how many of the earlier ones are still in memory."""

from __future__ import annotations

import gc
import weakref
from typing import Any

from coevo_gym.cli import main
from coevo_gym.trainers.grpo import GRPO
from tests import toy

EARLIER: weakref.WeakSet[GRPO] = weakref.WeakSet()


create = GRPO.__init__


def create_and_count(self: GRPO, *arguments: Any, **settings: Any) -> None:
    print("learners in memory:", len(EARLIER), flush=True)
    create(self, *arguments, **settings)
    EARLIER.add(self)


if __name__ == "__main__":
    toy.register()
    gc.disable()  # what the run itself does not collect stays
    GRPO.__init__ = create_and_count  # type: ignore[method-assign]
    main()
