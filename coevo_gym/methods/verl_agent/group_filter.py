"""A group filter that draws whole batches, as verl-agent does (dynamic sampling, DAPO).

Source: DAPO (arXiv 2503.14476), as verl-agent applies it to episodes at its commit 796ed31.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coevo_gym.core.trajectory import Group
from coevo_gym.methods.verl_agent.credit import episode_reward


@dataclass(frozen=True)
class DifferentRewards:
    """A filter that drops groups whose episodes all earned the same reward.

    Penalties for invalid answers do not count as rewards.

    Attributes:
        max_batches: maximum number of batches per learner step; all groups of the last batch are
            kept.

    Example:
        >>> DifferentRewards().select(1, lambda: [])
        []
    """

    max_batches: int = 10

    def select(self, n_groups: int, draw_batch: Callable[[], Sequence[Group]]) -> list[Group]:
        """Draw whole batches until enough groups are kept, and return all kept groups.

        Args:
            n_groups: number of groups that a learner step needs; it may get more.
            draw_batch: runs the episodes of one more batch.
        """
        selection: list[Group] = []
        for number in range(1, self.max_batches + 1):
            groups = draw_batch()
            is_last = number == self.max_batches
            selection += [group for group in groups if is_last or has_different_rewards(group)]
            if len(selection) >= n_groups:
                break
        return selection


def has_different_rewards(group: Group) -> bool:
    """Return True if a group's episodes earned different rewards."""
    return len({episode_reward(t) for t in group.trajectories if not t.end_reason.is_lost}) > 1
