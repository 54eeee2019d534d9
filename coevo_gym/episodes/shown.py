"""What an agent is shown: a view through an interface, and what it was shown before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.seams import IDENTITY, Interface
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import PastStep, TokenDecision, View
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
    texts = {}
    for key, own in view.info.items():
        if (new := found.info[key]) is own:
            continue
        if isinstance(own, str) and isinstance(new, str):
            texts[key] = clean_text(new, max(SHOWN_CAP, len(own)))
        elif new != own:
            raise _refused(interface, f"info[{key!r}], which is no text")
    info = FrozenDict({**view.info, **texts}) if texts else view.info
    return replace(view, observation=clean_text(found.observation, SHOWN_CAP), info=info)


class Seen:
    """What the agent of one episode was shown so far. A past step stays as it was shown.

    Args:
        show: what the agent is shown of a view of the env; asked once for each step.

    Attributes:
        view: what the agent is shown now.
        texts: the text that it was shown in each step, that of now included.

    Example:
        >>> seen = Seen(lambda view: replace(view, observation=view.observation.upper()))
        >>> before = seen.look(View("Press red.", "nothing"))
        >>> now = seen.look(View("Press red.", "red", history=(PastStep("nothing", "press red"),)))
        >>> now.observation, now.history[0].observation
        ('RED', 'NOTHING')
    """

    def __init__(self, show: Callable[[View], View]) -> None:
        self._show = show
        self._past: list[PastStep] = []
        self.view = View("", "")
        self.texts: list[str] = []

    def look(self, now: View, said: str = "", decision: TokenDecision | None = None) -> View:
        """What the agent is shown after its first look, and after each step.

        Args:
            now: what the env shows.
            said: the agent's whole answer in the step, where that is more than the action.
            decision: the tokens of that answer.

        Raises:
            ConfigError: if the env has taken another number of steps than one since the last look.
        """
        if len(now.history) != len(self.texts):
            raise ConfigError(
                f"After {len(self.texts)} steps, the env inside has taken {len(now.history)}. "
                "Run episodes in envs whose wrappers make one step of each."
            )
        if now.history:
            seen, sent = self.view, now.history[-1].action
            self._past.append(PastStep(seen.observation, sent, said, decision, seen.info))
        self.view = self._show(replace(now, history=tuple(self._past)))
        self.texts.append(self.view.observation)
        return self.view


def _refused(interface: Interface, what: str) -> ConfigError:
    return ConfigError(
        f"{type(interface).__name__}.show() changed {what}. An interface may change a view's "
        "observation and the texts in its info, nothing else."
    )
