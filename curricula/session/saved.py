"""The saved state of a session's groups, validated as a whole before use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from coevo_gym.core.errors import ConfigError
from coevo_gym.curricula.saved import Count, Version
from coevo_gym.curricula.session.open_group import OpenGroup

_PREFIX = "group-"


class SavedLedger(BaseModel):
    """The state of a :class:`~coevo_gym.curricula.session.groups.GroupLedger`.

    Fields with a default may be missing in states of earlier versions.

    Attributes:
        group_size: K, episodes per group.
        n_groups: number of groups drawn so far.
        rng: state of the generator for drawing tasks.
        in_step: True if a learner's step is open.
        policy_version: newest policy version.
        groups: the unrecorded groups.
        out: id, group, place and policy version of each outstanding ticket.
        returned: group and place of each ticket to be issued again.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    group_size: int
    n_groups: Count
    rng: Mapping[str, Any]
    in_step: bool = False
    policy_version: Version = 0
    groups: list[dict[str, Any]]
    out: list[tuple[str, str, Count, Version]] = []
    returned: list[tuple[str, Count]]

    def open_groups(self) -> dict[str, OpenGroup]:
        """Return the groups by their ids.

        Raises:
            ConfigError: if a group has the wrong size or a duplicate id, or if a ticket's place is
                taken.
            ValueError: if a group cannot be read.
        """
        groups = [OpenGroup.from_json(data) for data in self.groups]
        by_id = {group.id: group for group in groups}
        free = {
            (group.id, index)
            for group in groups
            for index, place in enumerate(group.places[: group.n_begun])
            if place.trajectory is None
        }
        waiting = [(id, index) for _, id, index, _ in self.out] + list(self.returned)
        for group in groups:
            number = int(group.id.removeprefix(_PREFIX))
            if number >= self.n_groups or not group.n_begun <= len(group.places) == self.group_size:
                raise ConfigError(
                    f"The saved state is damaged: {group.id} has an invalid number or size."
                )
        if len(by_id) < len(groups) or len(set(waiting)) < len(waiting) or set(waiting) - free:
            raise ConfigError("The saved state is damaged: its tickets do not match its groups.")
        return by_id
