"""Data models for tasks made from a user's rows."""

from __future__ import annotations

from coevo_gym.core.task import JsonObject, Text, Verifier, World


class RowWorld(World):
    """The world of a task made from a row: what the agent sees in addition to the prompt.

    Attributes:
        system: the system message, or "".
        choices: the answers to choose from; () if the answer is free text.
        tags: the row's tags.
        row: the whole row, if a user's function or env needs it during the episode; else None.
    """

    system: Text = ""
    choices: tuple[Text, ...] = ()
    tags: tuple[str, ...] = ()
    row: JsonObject | None = None


class RowVerifier(Verifier):
    """The row against which the user's function judges answers. The agent never sees it.

    Attributes:
        row: the row, as JSON.
    """

    row: JsonObject
