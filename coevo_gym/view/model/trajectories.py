"""Training episodes: pages of the list, and single episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from coevo_gym.core.task import Task, thaw
from coevo_gym.core.trajectory import Trajectory
from coevo_gym.store.sampled import Sampled, TokensSampled
from coevo_gym.view.grade import why_failed
from coevo_gym.view.index.asking import (
    Asked,
    between,
    find_trajectories,
    trajectories_where,
)
from coevo_gym.view.model.advice import advice_told
from coevo_gym.view.model.briefs import brief_of_row
from coevo_gym.view.model.episodes import Behind, steps_of
from coevo_gym.view.model.notes import interface_of, note_views, notes_about
from coevo_gym.view.model.system_text import system_text
from coevo_gym.view.query import Query
from coevo_gym.view.refusals import NotFound
from coevo_gym.view.safe import notice_of, withheld
from coevo_gym.view.shapes.base import SignalView
from coevo_gym.view.shapes.trajectories import (
    GradeView,
    Sibling,
    StepView,
    TrajectoryDetail,
    TrajectoryPage,
    TrajectoryRow,
)
from coevo_gym.view.shelf import ShownRun, told_as_damaged


def trajectory_page(run: ShownRun, query: Query) -> TrajectoryPage:
    """Return a page of a run's stored episodes.

    Raises:
        BadRequest: if a parameter is invalid.
        Damaged: if the run cannot be read.
    """
    with told_as_damaged():
        run.index.refresh()
        rows, paging = find_trajectories(run.index, query)
        return TrajectoryPage(rows=tuple(map(trajectory_row, rows)), read=run.index.read, **paging)


def trajectory_row(row: Asked) -> TrajectoryRow:
    """Return a row of the list from an index row."""
    return TrajectoryRow(
        id=id_of(row),
        arm=row["arm"],
        step=row["step"],
        group=row["group_id"],
        position=row["position"],
        task=brief_of_row(row),
        policy_version=row["version"],
        success=bool(row["success"]),
        score=row["score"],
        end_reason=row["end_reason"],
        steps=row["steps"],
        errors=row["errors"],
        signals=between(row["kinds"]),
        advice=between(row["advice"]),
        advantage=row["advantage"],
    )


def trajectory_detail(run: ShownRun, id: str) -> TrajectoryDetail:
    """Return a whole episode.

    Args:
        run: the run.
        id: ``ARM.GROUP.POSITION``.

    Raises:
        NotFound: if the episode is not stored.
        Damaged: if the run cannot be read.
    """
    arm, group, position = _place(run, id)
    with told_as_damaged():
        run.index.refresh()
        here = trajectories_where(run.index, "t.arm = ? AND t.group_id = ?", arm, group)
        row = next((one for one in here if one["position"] == position), None)
        reader = run.reader
        episode = reader.trajectory(arm, group, position) if row is not None else None
        if row is None or episode is None:
            raise _not_there(run, id)
        task = reader.task(row["task_id"])
        signals = [one for one in reader.signals_of(arm, group) if one.index == position]
        sampled = reader.sampled(arm, group, position)
        noted = notes_about(reader, arm, row["step"], group, position)
        split = str(task.split) if task else "train"
        told = advice_told(reader, arm, episode.cue_ids, split)
        version = episode.interface
        shown_by = interface_of(reader, arm, version) if version else None
        advantages = reader.advantages(arm, group, position)
        texts = reader.token_texts(_ids(sampled))
        before, after = _neighbours(run, arm, group, position)
        ((size,),) = run.index.rows(
            "SELECT size FROM groups WHERE arm = ? AND id = ?", arm, group
        ) or [(len(here),)]
    behind = Behind(run.config.benchmark.name, sampled, advantages, texts, hidden=False)
    steps, last = steps_of(episode, behind)
    instruction = task.instruction if task else row["instruction"] or ""
    return TrajectoryDetail(
        id=id,
        of="training",
        run=run.id,
        arm=arm,
        step=row["step"],
        group=group,
        position=position,
        size=size,
        split=split,
        notice=notice_of(split),
        task=brief_of_row(row),
        instruction=instruction,
        system=system_text(
            run.config.policy, run.config.benchmark.name, run.manifest, episode, instruction
        ),
        steps=steps,
        last_observation=episode.last_observation,
        last_page=last,
        grade=_grade(episode, task if task and not withheld(task) else None),
        signals=tuple(
            SignalView(kind=one.kind, evidence=one.model_dump(mode="json")["evidence"])
            for one in signals
        ),
        siblings=tuple(map(_sibling, here)),
        policy_version=episode.policy_version,
        advantage=row["advantage"] if advantages is None else _mean(advantages),
        cue_ids=episode.cue_ids,
        advice=told,
        interface=version,
        shown_by=shown_by,
        notes=note_views(noted, split),
        stored=_stored(steps, advantages),
        before=before,
        after=after,
    )


def id_of(row: Mapping[str, Any]) -> str:
    """Return the id of an episode, as used in paths."""
    return f"{row['arm']}.{row['group_id']}.{row['position']}"


def _place(run: ShownRun, id: str) -> tuple[str, str, int]:
    arm, _, rest = id.partition(".")
    group, _, position = rest.rpartition(".")
    if not (arm and group and position.isdecimal() and len(position) < 7):
        raise _not_there(run, id)
    return arm, group, int(position)


def _not_there(run: ShownRun, id: str) -> NotFound:
    return NotFound(
        f"{run.id} stores no episode {id[:100]!r}. Ids are ARM.GROUP.POSITION; this run stores "
        f"only the episodes selected by store.record = {run.config.store.record!r}."
    )


def _neighbours(
    run: ShownRun, arm: str, group: str, position: int
) -> tuple[str | None, str | None]:
    ((number,),) = run.index.rows(
        "SELECT number FROM trajectories WHERE arm = ? AND group_id = ? AND position = ?",
        *(arm, group, position),
    )
    found = []
    for sign, way in (("<", "DESC"), (">", "ASC")):
        rows = run.index.rows(
            f"SELECT arm, group_id, position FROM trajectories WHERE number {sign} ? "  # noqa: S608 (constants)
            f"ORDER BY number {way} LIMIT 1",
            number,
        )
        found.append(".".join(map(str, rows[0])) if rows else None)
    return found[0], found[1]


def _grade(episode: Trajectory, task: Task | None) -> GradeView:
    end = str(episode.end_reason)
    return GradeView(
        success=episode.success,
        score=episode.score,
        end_reason=end,
        why=why_failed(episode.success, end, episode.report, task),
        report=thaw(episode.report),
    )


def _sibling(row: Asked) -> Sibling:
    return Sibling(
        id=id_of(row),
        position=row["position"],
        success=bool(row["success"]),
        score=row["score"],
        end_reason=row["end_reason"],
        steps=row["steps"],
        signals=between(row["kinds"]),
    )


def _ids(sampled: Sequence[Sampled | None] | None) -> list[int]:
    return [id for one in sampled or () if isinstance(one, TokensSampled) for id in one.ids]


def _mean(advantages: float | Sequence[float]) -> float | None:
    if isinstance(advantages, (int, float)):
        return float(advantages)
    return fmean(advantages) if advantages else None


def _stored(
    steps: Sequence[StepView], advantages: float | Sequence[float] | None
) -> dict[str, bool]:
    return {
        "choices": any(step.choices is not None for step in steps),
        "tokens": any(step.tokens is not None for step in steps),
        "advantages": advantages is not None,
    }
