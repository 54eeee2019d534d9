"""What a person means by an id: a task or a draft of a run, by its name or the id's beginning."""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.core.errors import TaskError
from coevo_gym.store.reader import HOLD, RunReader
from coevo_gym.store.rows import VerdictPlace

FEWEST = 4
"""Fewest characters that an id is known by."""
_NAMED = 6


@dataclass(frozen=True)
class Found:
    """A task or a draft of a run.

    Attributes:
        id: its id.
        places: where verdicts about it are, the one that tells most first; none about a task that
            no round of the run has made.
    """

    id: str
    places: tuple[VerdictPlace, ...] = ()


def look_up(reader: RunReader, given: str) -> Found | None:
    """The task or draft that is meant; None if there is none.

    Args:
        reader: reads the run.
        given: name of a task, or the beginning of the id of a task or a draft, at least
            :data:`FEWEST` characters of it.

    Raises:
        TaskError: if it could be several.
    """
    id = reader.task_id(given) or _meant(reader, given)
    if id is None:
        return None
    places = [p for p in reader.verdict_places(id) if id in (p.task_id, p.draft_id)]
    return Found(id, tuple(sorted(places, key=_tells)))


def _meant(reader: RunReader, given: str) -> str | None:
    # A task that evolved and bears no name of its own is named by the beginning of its id.
    begins = given.rpartition("/evolved/")[2]
    if len(begins) < FEWEST:
        return None
    names = reader.task_names(begins)
    ids = dict.fromkeys(names)
    for place in reader.verdict_places(begins):
        ids |= dict.fromkeys(i for i in (place.task_id, place.draft_id) if i.startswith(begins))
    if begins in ids or len(ids) < 2:
        return begins if begins in ids else next(iter(ids), None)
    some = ", ".join(names.get(id, id) for id in list(ids)[:_NAMED])
    raise TaskError(f"{given!r} could be {len(ids)} things: {some}, … Give more of it.")


def _tells(place: VerdictPlace) -> tuple[bool, bool]:
    """Sorts accepted ones first, then held ones; the rest stay in order."""
    return (not place.accepted, place.gate != HOLD)
