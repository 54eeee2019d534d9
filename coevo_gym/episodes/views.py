"""The views that an agent receives in an episode, as presented by an interface."""

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
"""Maximum number of characters in a string from an interface; longer strings are truncated."""


def show_through(interface: Interface, view: View) -> View:
    """Return the view as the interface presents it to the agent.

    Returns:
        The view with the interface's observation and info texts, safe to send and store.

    Raises:
        ConfigError: if the interface changes anything else.

    Example:
        >>> show_through(IDENTITY, View("Press red.", "Pressed: nothing.")).observation
        'Pressed: nothing.'
    """
    if interface is IDENTITY:
        return view
    new_view = interface.show(view)
    if new_view is view:
        return view
    if replace(new_view, observation=view.observation, info=view.info) != view:
        raise _interface_error(interface, "its instruction, history or cues")
    if new_view.info.keys() != view.info.keys():
        raise _interface_error(interface, "the keys of its info")
    texts = {}
    for key, own in view.info.items():
        if (new := new_view.info[key]) is own:
            continue
        if isinstance(own, str) and isinstance(new, str):
            texts[key] = clean_text(new, max(SHOWN_CAP, len(own)))
        elif new != own:
            raise _interface_error(interface, f"info[{key!r}], which is not text")
    info = FrozenDict({**view.info, **texts}) if texts else view.info
    return replace(view, observation=clean_text(new_view.observation, SHOWN_CAP), info=info)


class Seen:
    """The views of an episode, as the agent saw them at the time.

    ``show`` turns the env's view into the agent's view and is called once per step. ``episode`` is
    the id that all views get; see :class:`~coevo_gym.core.trajectory.View`.

    Attributes:
        view: the agent's current view.
        texts: the text shown in each step, including the current one.

    Example:
        >>> seen = Seen(lambda view: replace(view, observation=view.observation.upper()))
        >>> before = seen.record(View("Press red.", "nothing"))
        >>> history = (PastStep("nothing", "press red"),)
        >>> now = seen.record(View("Press red.", "red", history=history))
        >>> now.observation, now.history[0].observation
        ('RED', 'NOTHING')
    """

    def __init__(self, show: Callable[[View], View], episode: str = "") -> None:
        self._show, self._episode = show, episode
        self._past: list[PastStep] = []
        self.view = View("", "")
        self.texts: list[str] = []

    def record(
        self, now: View, answer: str = "", decision: TokenDecision | None = None, memory: str = ""
    ) -> View:
        """Record the env's current view, and return it as the agent sees it.

        ``answer`` is the agent's full answer in the step, if it is more than the action. ``memory``
        is the text that the agent wrote in the step about earlier steps.

        Raises:
            ConfigError: if the env did not take exactly one step since the last call.
        """
        if len(now.history) != len(self.texts):
            raise ConfigError(
                f"The wrapped env took {len(self.texts)} steps, but the unwrapped env took "
                f"{len(now.history)}. Remove wrappers that skip or repeat steps."
            )
        if now.history:
            seen, action = self.view, now.history[-1].action
            self._past.append(
                PastStep(seen.observation, action, answer, decision, seen.info, memory)
            )
        view = self._show(replace(now, history=tuple(self._past)))
        self.view = replace(view, episode=self._episode) if self._episode else view
        self.texts.append(self.view.observation)
        return self.view


def _interface_error(interface: Interface, what: str) -> ConfigError:
    return ConfigError(
        f"{type(interface).__name__}.show() changed {what}. An interface may change a view's "
        "observation and the texts in its info, nothing else."
    )
