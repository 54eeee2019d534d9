"""What the tasks of a pool are about, all in all."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import tags_of

logger = logging.getLogger(__name__)


class CoveredTags:
    """Counts the different tags of a pool's tasks, each of which is looked at once.

    Tags may need a benchmark's data. Where these are missing, or are others than those that the
    tasks were made with, there is no count: a number about tasks is no reason to stop.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._n = 0
        self._lost = False

    def count(self, tasks: Sequence[Task]) -> int | None:
        """How many tags they have.

        Args:
            tasks: those of the last call, in the same order, and any that came after them.

        Returns:
            The count; None if the tags of a task cannot be told.
        """
        try:
            while self._n < len(tasks) and not self._lost:
                self._tags.update(tags_of(tasks[self._n]))
                self._n += 1
        except CoevoError as error:
            self._lost = True
            logger.warning("tags of tasks are not counted: %s", error)
        return None if self._lost else len(self._tags)
