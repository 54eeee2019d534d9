"""The models of a task: the backends with the user's messages, and the ground truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from coevo_gym.core.task import Text, Verifier, World, thaw
from coevo_gym.envs.bfcl.engine.calls import Call, parse_truth
from coevo_gym.envs.bfcl.engine.wheel import DOCS


class BFCLWorld(World):
    """The backends and the user's messages.

    Attributes:
        config: the initial state of each backend class, by class, as the text of a JSON object.
            Its order is the order in which a directory lists its files, which stored or hashed JSON
            objects would lose. A mapping is converted in its own order.
        classes: backend classes in use, in the order of their tools.
        turns: the user's message in each turn; "" if new functions are offered instead.
        held_out: (turn, functions) that are offered from that turn on.
        unlisted: held-out functions that can be called before they are offered.
        long_context: True if the backends pad their files, lists and results.
        setup: calls made before the first turn, in Python notation.
    """

    config: Text
    classes: tuple[str, ...] = Field(min_length=1)
    turns: tuple[Text, ...] = Field(min_length=1)
    held_out: tuple[tuple[int, tuple[str, ...]], ...] = ()
    unlisted: tuple[str, ...] = ()
    long_context: bool = False
    setup: tuple[Text, ...] = ()

    @field_validator("config", mode="before")
    @classmethod
    def _written(cls, config: Any) -> Any:
        try:
            if isinstance(config, Mapping):
                return json.dumps(thaw(config), ensure_ascii=False)
            if isinstance(config, str) and not isinstance(json.loads(config), dict):
                raise ValueError("config is not the text of a JSON object")
        except RecursionError:
            raise ValueError("config is nested too deep") from None
        return config

    @field_validator("classes")
    @classmethod
    def _known(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        unknown = set(classes) - set(DOCS)
        if unknown:
            raise ValueError(f"unknown class {min(unknown)!r}; known: {', '.join(DOCS)}")
        return classes

    @cached_property
    def setup_calls(self) -> tuple[Call, ...]:
        """The calls of ``setup``.

        Raises:
            TaskError: if one is not a call with literal arguments.
        """
        return tuple(map(parse_truth, self.setup))


class BFCLVerifier(Verifier):
    """The ground truth.

    Attributes:
        turns: reference calls of each turn, in Python notation; () if there is no valid call.
    """

    turns: tuple[tuple[Text, ...], ...]
