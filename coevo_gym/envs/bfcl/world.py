"""The models of a task: the backends with what the user says, and the ground truth."""

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
    """The backends, and what the user says.

    Attributes:
        config: the state that each backend class starts with, by class, as the text of a JSON
            object: its order is that in which a directory lists its files, and JSON objects that
            are stored or hashed have none. A mapping is written down as it stands.
        classes: backend classes in use, in the order of their tools.
        turns: what the user says in each turn; "" where functions are handed out instead.
        held_out: (turn, functions) that are offered from that turn on.
        unlisted: held-out functions that can be called before they are offered.
        long_context: whether the backends pad their files, lists and results.
        setup: calls that have been made before the first turn, in Python notation.
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
        turns: reference calls of each turn, in Python notation; () where none can be made.
    """

    turns: tuple[tuple[Text, ...], ...]
