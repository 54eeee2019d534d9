"""World and verifier models of tasks that are rows of a user's data."""

from __future__ import annotations

from coevo_gym.core.task import JsonObject, Text, Verifier, World


class RowWorld(World):
    """The texts that the agent is shown in addition to the prompt.

    Attributes:
        system: the system message, or "".
        choices: the answers to choose from; () if the answer is free text.
        tags: the row's tags.
        row: the whole row, if a user's function or env plays the other side; else None.
    """

    system: Text = ""
    choices: tuple[Text, ...] = ()
    tags: tuple[str, ...] = ()
    row: JsonObject | None = None


class RowVerifier(Verifier):
    """The whole row, which only the user's function sees.

    Attributes:
        row: the row, as JSON.
    """

    row: JsonObject
