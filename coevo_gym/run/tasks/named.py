"""Lookup of a run's tasks and drafts by name or by the start of an id."""

from __future__ import annotations

from dataclasses import dataclass

from coevo_gym.core.errors import TaskError
from coevo_gym.store.reader import HOLD, RunReader
from coevo_gym.store.rows import VerdictPlace

FEWEST = 4
"""Fewest characters of an abbreviated id."""
_NAMED = 6


@dataclass(frozen=True)
class NamedTask:
    """A task or a draft of a run.

    Attributes:
        id: its id.
        places: places of its verdicts, the most informative first; empty for a task that no round
            of the run made.
    """

    id: str
    places: tuple[VerdictPlace, ...] = ()


def look_up(reader: RunReader, given: str) -> NamedTask | None:
    """Find a task or draft; return None if there is none.

    Args:
        reader: reader of the run.
        given: name of a task, or at least the first :data:`FEWEST` characters of the id of a task
            or draft.

    Raises:
        TaskError: if the id is ambiguous.
    """
    id = reader.task_id(given) or _meant(reader, given)
    if id is None:
        return None
    places = [p for p in reader.verdict_places(id) if id in (p.task_id, p.draft_id)]
    return NamedTask(id, tuple(sorted(places, key=_tells)))


def _meant(reader: RunReader, given: str) -> str | None:
    # An evolved task without a name is named by the start of its id.
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
    raise TaskError(f"{given!r} is ambiguous ({len(ids)} matches): {some}, … Type more characters.")


def _tells(place: VerdictPlace) -> tuple[bool, bool]:
    """Return a sort key: accepted verdicts first, then held ones."""
    return (not place.accepted, place.gate != HOLD)
