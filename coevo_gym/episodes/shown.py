"""What an interface makes of a view, kept to what it may change."""

from __future__ import annotations

from dataclasses import replace

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import IDENTITY, Interface
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import View
from coevo_gym.envs.base import OBSERVATION_CAP

SHOWN_CAP = 2 * OBSERVATION_CAP
"""Characters of a text that an interface shows, from which on it is cut."""


def shown_through(interface: Interface, view: View) -> View:
    """A view as an agent is shown it.

    Args:
        interface: shows it.
        view: what the env shows, and what the agent was shown and did so far.

    Returns:
        The view with the interface's observation and texts of info, fit to be sent and stored.

    Raises:
        ConfigError: if the interface changes anything else.

    Example:
        >>> shown_through(IDENTITY, View("Press red.", "Pressed: nothing.")).observation
        'Pressed: nothing.'
    """
    if interface is IDENTITY:
        return view
    found = interface.show(view)
    if found is view:
        return view
    if replace(found, observation=view.observation, info=view.info) != view:
        raise _refused(interface, "its instruction, history or cues")
    if found.info.keys() != view.info.keys():
        raise _refused(interface, "the keys of its info")
    info = dict(found.info)
    for key, own in view.info.items():
        if isinstance(own, str) and isinstance(info[key], str):
            info[key] = clean_text(info[key], max(SHOWN_CAP, len(own)))
        elif info[key] != own:
            raise _refused(interface, f"info[{key!r}], which is no text")
    return replace(
        view, observation=clean_text(found.observation, SHOWN_CAP), info=FrozenDict(info)
    )


def _refused(interface: Interface, what: str) -> ConfigError:
    return ConfigError(
        f"{type(interface).__name__}.show() changed {what}. An interface may change a view's "
        "observation and the texts in its info, nothing else."
    )
