"""The models of a task: where it begins, and how it is judged."""

from __future__ import annotations

import json

from pydantic import field_validator

from coevo_gym.core.task import JsonObject, Text, Verifier, World


class AppWorldWorld(World):
    """Where a task begins: the databases, clock and supervisor of a native task.

    Attributes:
        data: ``official``, or the version of the built-in world, such as ``builtin-0123456789ab``.
        base: id of the native task, such as ``82e2fac_1``.
    """

    data: str
    base: str


class AppWorldVerifier(Verifier):
    """How a task is judged.

    Attributes:
        changes: what the databases must differ by in the end, see :mod:`builder`; None for the
            tests that came with the native task.
        answer: the answer that must be given, as JSON text; "" for those tests.
    """

    changes: JsonObject | None = None
    answer: Text = ""

    @field_validator("answer")
    @classmethod
    def _json(cls, answer: str) -> str:
        try:
            if answer:
                json.loads(answer)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the answer is no JSON text: {error}") from None
        return answer
