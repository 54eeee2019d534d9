"""Tasks of a run: pages of the list, and single tasks with their lineage and success over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coevo_gym.core.notes import INTERFACE
from coevo_gym.core.task import Task
from coevo_gym.envs.tags import tags_of
from coevo_gym.store.rows import Decision
from coevo_gym.web.view.answers.drafts import story_of
from coevo_gym.web.view.answers.lineage import Family, lineage_of
from coevo_gym.web.view.answers.trajectories import id_of
from coevo_gym.web.view.filters import TASKS, WORDS, select
from coevo_gym.web.view.index.asking import trajectories_where
from coevo_gym.web.view.index.index import Index
from coevo_gym.web.view.query import Query
from coevo_gym.web.view.reader import ViewReader
from coevo_gym.web.view.refusals import NotFound
from coevo_gym.web.view.safe import withheld
from coevo_gym.web.view.shapes.tasks import (
    BeforeAndAfter,
    PracticePoint,
    TaskDetail,
    TaskPage,
    TaskPractice,
    TaskRow,
)
from coevo_gym.web.view.shelf import ShownRun, told_as_damaged

MOST_READ = 16
"""Maximum number of episodes read from either end of a task's history."""


def task_page(run: ShownRun, query: Query) -> TaskPage:
    """Return a page of a run's tasks.

    Raises:
        BadRequest: if a parameter is invalid.
    """
    found = select(task_rows(run), TASKS, query)
    return TaskPage(rows=tuple(map(_shown, found.rows)), **found.paging)


def task_rows(run: ShownRun) -> list[dict[str, Any]]:
    """Return the rows of all tasks as JSON, with their filter fields."""
    rows: list[dict[str, Any]] = run.kept("tasks", lambda: _rows(run))
    return rows


def task_detail(run: ShownRun, id: str) -> TaskDetail:
    """Return a task of a run.

    Raises:
        NotFound: if the run has no task with that id.
        Damaged: if the run cannot be read.
    """
    rows = {row["id"]: row for row in task_rows(run)}
    with told_as_damaged():
        reader = run.reader
        task = reader.task(id) if id in rows else None
        if task is None:
            raise NotFound(f"{run.id} has no task {id[:100]!r}.")
        held_out = run.kept("held-out tasks", lambda: _held_out(reader))
        decision = reader.decisions().get(id)
        points = run.index.rows(
            "SELECT arm, step, id, episodes, successes, stored FROM groups WHERE task_id = ? "
            "ORDER BY number",
            id,
        )
        pairs = tuple(
            pair
            for one in rows[id]["practice"]
            if one["arm"] in run.kept("arms with interfaces", lambda: _with_interfaces(reader))
            if (pair := _before_and_after(run.index, reader, one["arm"], id))
        )
    why = withheld(task, held_out)
    row = _shown(rows[id])
    return TaskDetail(
        task=row,
        instruction=task.instruction,
        scenario=task.scenario,
        subset=task.subset,
        tags=_tags(task),
        solution=None if why else task.solution,
        verifier=None if why else task.verifier.model_dump(mode="json"),
        world=None if why else task.world.model_dump(mode="json"),
        withheld=why,
        lineage=lineage_of(id, rows),
        story=None if why or not row.round else story_of(run, id),
        practice=tuple(
            PracticePoint(
                arm=arm, step=step, group=group, episodes=n, successes=k, stored=bool(stored)
            )
            for arm, step, group, n, k, stored in points
        ),
        arms=row.practice,
        interfaces=pairs,
        decision=_decision(decision),
    )


def _before_and_after(
    index: Index, reader: ViewReader, arm: str, task_id: str
) -> BeforeAndAfter | None:
    """Return two stored episodes of a task with an interface change between them, if any.

    The version is part of an episode's body, so at most 2 × ``MOST_READ`` episodes are read:
    forward from the first step to a failed one, and backward from the last step to one that solved
    the task with another version.
    """
    rows = trajectories_where(index, "t.arm = ? AND t.task_id = ?", arm, task_id)
    early = next((row for row in rows[:MOST_READ] if not row["success"]), rows[0] if rows else None)
    if early is None:
        return None
    version, late = _version(reader, early), None
    for row in rows[::-1][:MOST_READ]:
        if row["step"] > early["step"] and _version(reader, row) != version:
            late = late or row
            if row["success"]:
                late = row
                break
    if late is None:
        return None
    return BeforeAndAfter(
        arm=arm,
        before=id_of(early),
        before_step=early["step"],
        after=id_of(late),
        after_step=late["step"],
    )


def _with_interfaces(reader: ViewReader) -> frozenset[str]:
    return frozenset(count.arm for count in reader.note_counts() if count.kind == INTERFACE)


def _version(reader: ViewReader, row: Mapping[str, Any]) -> str | None:
    episode = reader.trajectory(row["arm"], row["group_id"], row["position"])
    return None if episode is None else episode.interface


def _held_out(reader: ViewReader) -> frozenset[str]:
    return frozenset(one.id for one in reader.evaluated_tasks() if one.split != "train")


def _rows(run: ShownRun) -> list[dict[str, Any]]:
    index = run.index
    family = Family(index.rows("SELECT arm, round_id, task_id, parent_id FROM lineage"))
    steps = {(arm, id): step for arm, id, step in index.rows("SELECT arm, id, step FROM rounds")}
    kinds = dict(
        index.rows(
            "SELECT task_id, kind FROM drafts WHERE task_id <> '' ORDER BY accepted, number DESC"
        )
    )
    practice: dict[str, list[TaskPractice]] = {}
    query = (
        "SELECT task_id, arm, count(*), sum(episodes), sum(successes) FROM groups "
        "GROUP BY task_id, arm ORDER BY min(number)"
    )
    for id, arm, groups, episodes, successes in index.rows(query):
        practice.setdefault(id, []).append(
            TaskPractice(arm=arm, groups=groups, episodes=episodes, successes=successes)
        )
    found = []
    tasks = "SELECT id, name, instruction, origin, split, text FROM tasks ORDER BY number"
    for id, name, instruction, origin, split, text in index.rows(tasks):
        arm, round_id = family.found_by.get(id, ("", ""))
        mine = practice.get(id, [])
        episodes, successes = sum(p.episodes for p in mine), sum(p.successes for p in mine)
        row = TaskRow(
            id=id,
            name=name,
            instruction=instruction,
            origin=origin,
            split=split,
            arms=family.arms.get(id, ()),
            round=round_id,
            step=steps.get((arm, round_id)),
            signal=kinds.get(id, ""),
            parents=family.parents.get(id, ()),
            children=len(family.children.get(id, ())),
            generation=family.generation(id),
            practice=tuple(mine),
            episodes=episodes,
            successes=successes,
            success=successes / episodes if episodes else None,
        )
        first = bool(round_id) and steps.get((arm, round_id)) == 0
        found.append({**row.model_dump(mode="json"), "_first": first, WORDS: text})
    return found


def _shown(row: Mapping[str, Any]) -> TaskRow:
    return TaskRow.model_validate({k: v for k, v in row.items() if not k.startswith("_")})


def _tags(task: Task) -> tuple[str, ...]:
    try:
        return tuple(sorted(tags_of(task)))
    except Exception:  # the benchmark is not installed
        return ()


def _decision(decision: Decision | None) -> dict[str, str] | None:
    if decision is None:
        return None
    return {"what": decision.what, "reason": decision.reason, "at": decision.at}
