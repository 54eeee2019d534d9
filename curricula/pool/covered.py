"""Counts of the tags that the tasks of a pool cover."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from coevo_gym.core.errors import CoevoError
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import tags_of

logger = logging.getLogger(__name__)


class CoveredTags:
    """A counter of the distinct tags of a pool's tasks; each task is read once.

    Tags may require a benchmark's data. If the data is missing, or differs from the data the tasks
    were made with, there is no count, because a metric must not stop a run.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._n = 0
        self._lost = False

    def count(self, tasks: Sequence[Task]) -> int | None:
        """Return the number of distinct tags.

        Args:
            tasks: the tasks of the last call, in the same order, followed by any new ones.

        Returns:
            The count; None if the tags of a task cannot be determined.
        """
        try:
            while self._n < len(tasks) and not self._lost:
                self._tags.update(tags_of(tasks[self._n]))
                self._n += 1
        except CoevoError as error:
            self._lost = True
            logger.warning("cannot count the tags of tasks: %s", error)
        return None if self._lost else len(self._tags)
