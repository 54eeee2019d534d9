"""Data models for BFCL tasks: the backends, the user's messages and the ground truth."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from coevo_gym.core.task import Text, Verifier, World, freeze, thaw
from coevo_gym.core.tool_calls import Call
from coevo_gym.envs.bfcl.engine.official_calls import parse_truth
from coevo_gym.envs.bfcl.engine.wheel import DOCS


class BFCLWorld(World):
    """The world of a BFCL task: its backends and the user's messages.

    Attributes:
        config: JSON text of an object with the initial state of each backend class. It is text
            because the order of keys, which a stored or hashed object would lose, is the order in
            which a directory lists its files. A mapping is converted in its own order.
        classes: backend classes in use, in the order of their tools.
        turns: the user's message in each turn; "" if new functions are offered instead.
        held_out: (turn, functions) pairs; the functions are offered from that turn on.
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
    def _check_config(cls, config: Any) -> Any:
        try:
            if isinstance(config, Mapping):
                config = json.dumps(thaw(config), ensure_ascii=False)
            # freeze raises if a number is not finite
            if isinstance(config, str) and not isinstance(freeze(json.loads(config)), dict):
                raise ValueError("config must be a string that contains a JSON object")
        except RecursionError:
            raise ValueError("config is nested too deeply") from None
        return config

    @field_validator("classes")
    @classmethod
    def _check_classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        unknown = set(classes) - set(DOCS)
        if unknown:
            raise ValueError(f"unknown class {min(unknown)!r}; choose from: {', '.join(DOCS)}")
        return classes

    @cached_property
    def setup_calls(self) -> tuple[Call, ...]:
        """The parsed calls from ``setup``.

        Raises:
            TaskError: if an entry is not a call with literal arguments.
        """
        return tuple(map(parse_truth, self.setup))


class BFCLVerifier(Verifier):
    """The ground truth of a BFCL task.

    Attributes:
        turns: reference calls per turn, in Python notation; () if there is no valid call.
    """

    turns: tuple[tuple[Text, ...], ...]
