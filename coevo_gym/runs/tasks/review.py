"""A run's tasks that are held for review, and the decisions about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

from coevo_gym.core.errors import ConfigError, TaskError
from coevo_gym.core.evolution import Verdict
from coevo_gym.core.spaces import clean_text
from coevo_gym.core.task import Task
from coevo_gym.runs.tasks.story import MIN_ID_LENGTH
from coevo_gym.store.database import RunStore
from coevo_gym.store.folder import RunFolder
from coevo_gym.store.reader import RunReader
from coevo_gym.store.rows import Decision

_REASON_CAP = 2_000


@dataclass(frozen=True)
class HeldDraft:
    """A task that a run found and holds for review.

    Attributes:
        task: the task.
        verdict: the reason for holding the task, and the gates that it had passed.
        arms: names of the arms whose rounds found the task.
        round_id: the first of these rounds.
        decision: the user's decision; None if there is no decision yet.
        joined: arms whose pools the task has joined since, each with the round.
    """

    task: Task
    verdict: Verdict
    arms: tuple[str, ...]
    round_id: str
    decision: Decision | None = None
    joined: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the held task and its review status as JSON."""
        decision = self.decision
        return {
            "name": self.task.name,
            "id": self.task.id,
            "draft": self.verdict.draft_id,
            "arms": list(self.arms),
            "round": self.round_id,
            "held_because": self.verdict.reason,
            "checks": [check._asdict() for check in self.verdict.checks],
            "instruction": self.task.instruction,
            "actions": list(self.task.solution),
            "decision": decision.what if decision else "",
            "reason": decision.reason if decision else "",
            "at": decision.at if decision else "",
            "joined": [{"arm": arm, "round": round_id} for arm, round_id in self.joined],
        }


def find_held_tasks(folder: RunFolder) -> list[HeldDraft]:
    """Return the tasks that a run put on hold, without duplicates, in order of discovery."""
    reader = RunReader(folder.database)
    decisions, drafts = reader.decisions(), dict[str, HeldDraft]()
    for draft in reader.tasks_on_hold():
        id, earlier = draft.task.id, drafts.get(draft.task.id)
        if earlier is None:
            drafts[id] = HeldDraft(
                draft.task,
                draft.verdict,
                (draft.arm,),
                draft.round_id,
                decisions.get(id),
                tuple(reader.rounds_that_added(id)),
            )
        elif draft.arm not in earlier.arms:
            drafts[id] = replace(earlier, arms=(*earlier.arms, draft.arm))
    return list(drafts.values())


def select_drafts(drafts: Sequence[HeldDraft], ids: Iterable[str]) -> list[HeldDraft]:
    """Return the tasks on hold that have the given ids, without duplicates, in the order given.

    An id may be the name of a task, or the start of the id of a task or of its draft.

    Raises:
        TaskError: if an id is unknown or ambiguous.
    """
    matches = dict[str, HeldDraft]()
    for name in ids:
        meant = [one for one in drafts if one.task.name == name]
        meant = meant or [one for one in drafts if _id_begins_with(one, name)]
        if len(meant) != 1:
            what = f"matches {len(meant)} held tasks" if meant else "does not match a held task"
            names = ", ".join(one.task.name for one in meant or drafts) or "none"
            raise TaskError(f"{name!r} {what}. Held tasks: {names}.")
        matches[meant[0].task.id] = meant[0]
    return list(matches.values())


def store_decisions(
    folder: RunFolder,
    drafts: Sequence[HeldDraft],
    what: Literal["released", "rejected"],
    reason: str = "",
) -> None:
    """Store decisions on tasks that are on hold. A task's latest decision applies.

    The run may be training: released tasks join its arms with their next rounds.

    Raises:
        ConfigError: if a task to reject is already in a pool; in this case, nothing is saved.
        StoreError: if the store cannot be written.
    """
    for one in drafts if what == "rejected" else ():
        if one.joined:
            arm, round_id = one.joined[0]
            raise ConfigError(
                f"{one.task.name} was added to the pool of {arm} in {round_id}. Tasks cannot be "
                "removed from a pool. Keep the task, or start a new run."
            )
    if not drafts:
        return
    at = timestamp()
    with closing(RunStore(folder.database)) as store:
        store.add_decisions(
            Decision(one.task.id, what, clean_text(reason, _REASON_CAP), at) for one in drafts
        )


def timestamp() -> str:
    """Return the current time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _id_begins_with(one: HeldDraft, name: str) -> bool:
    begins = name.rpartition("/evolved/")[2]
    ids = (one.task.id, one.verdict.draft_id)
    return len(begins) >= MIN_ID_LENGTH and any(id.startswith(begins) for id in ids)
