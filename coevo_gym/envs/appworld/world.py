"""Data models for AppWorld tasks: initial states and verifiers."""

from __future__ import annotations

import json

from pydantic import field_validator

from coevo_gym.core.task import JsonObject, Text, Verifier, World, freeze


class AppWorldWorld(World):
    """The world of an AppWorld task: the databases, clock and supervisor of a native task.

    Attributes:
        data: ``official``, or the version of the built-in world, such as ``builtin-0123456789ab``.
        base: id of the native task, such as ``82e2fac_1``.
    """

    data: str
    base: str


class AppWorldVerifier(Verifier):
    """The expected result of an AppWorld task.

    Attributes:
        changes: the expected changes in the databases, see :mod:`builder`; None if the native
            task's own tests decide.
        answer: the expected answer, as JSON text; "" if the native task's own tests decide.
    """

    changes: JsonObject | None = None
    answer: Text = ""

    @field_validator("answer")
    @classmethod
    def _check_json(cls, answer: str) -> str:
        try:
            if answer:
                freeze(json.loads(answer))  # freeze raises if a number is not finite
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer is not valid JSON: {error}") from None
        return answer
