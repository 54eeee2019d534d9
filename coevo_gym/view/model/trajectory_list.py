"""Lists of training episodes, filtered in SQL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from coevo_gym.store.rows import split_names
from coevo_gym.view.collection import ShownRun
from coevo_gym.view.filters import TRAJECTORIES, Filter, paging_of
from coevo_gym.view.query import Query, task_search_text
from coevo_gym.view.rows import ListRow, Paged, TaskBrief, one_line


class Sibling(ListRow):
    """Another episode from the same group or, in an evaluation, for the same task.

    Attributes:
        id: id of the episode, used in paths; ``ARM.GROUP.POSITION`` for a training episode.
        position: position in the group, or among the task's episodes, from 0.
        success: the binary outcome.
        score: the benchmark's own score, in [0, 1].
        end_reason: why the episode ended.
        steps: env steps taken.
        failure: the benchmark's kind of failure, such as ``state_mismatch``; "" if the episode
            succeeded, or the benchmark does not diagnose episodes.
        failed_turn: number of the turn that failed, from 1; null if the task has a single request.
        signals: kinds of signals emitted for the episode.
    """

    id: str
    position: int
    success: bool
    score: float
    end_reason: str
    steps: int
    failure: str = ""
    failed_turn: int | None = None
    signals: tuple[str, ...] = ()


class TrajectoryRow(Sibling):
    """A row in the list of training episodes.

    Filters: ``arm``, ``step``, ``step_from``, ``step_to``, ``group``, ``task`` (id), ``success``
    (``true`` or ``false``), ``signal`` (kind, ``any`` or ``none``), ``end`` (reason), ``failure``,
    ``score_from``, ``score_to``, ``steps_from``, ``steps_to`` (env steps), ``version`` (of the
    policy), ``error`` (``true``: an action had no effect), ``advice`` (id of advice given to
    the episode, ``any`` or ``none``), ``q`` (words of the task's name and
    instruction, the id, and the actions). Sorts: ``step`` (default), ``score``, ``steps``,
    ``success``, ``advantage``.

    Attributes:
        arm: name of the arm.
        step: learner step.
        group: id of its group.
        task: the episode's task.
        policy_version: version of the policy at the start of the episode.
        errors: number of actions that had no effect.
        advice: ids of advice in the episode's cues.
        advantage: advantage used for learning, averaged over steps if it varies; null if
            not stored.
    """

    arm: str
    step: int
    group: str
    task: TaskBrief
    policy_version: int
    errors: int
    advice: tuple[str, ...] = ()
    advantage: float | None = None


class TrajectoryPage(Paged):
    """A page of training episodes.

    Attributes:
        failures: kinds of failures of all stored episodes of the run.
    """

    rows: tuple[TrajectoryRow, ...]
    failures: tuple[str, ...]


_COLUMNS: Mapping[str, str] = {
    "arm": "t.arm",
    "step": "t.step",
    "group": "t.group_id",
    "task.id": "t.task_id",
    "success": "t.success",
    "signals": "t.kinds",
    "end_reason": "t.end_reason",
    "failure": "t.failure",
    "score": "t.score",
    "steps": "t.steps",
    "policy_version": "t.policy_version",
    "errors": "t.errors",
    "advice": "t.advice",
    "advantage": "a.mean",
    "_place": "t.rowid",
}
"""SQL columns by field, for filtering and sorting lists of episodes."""

_SELECTED = (
    "SELECT t.rowid, t.arm, t.step, t.group_id, t.position, t.policy_version, t.success, "
    "t.score, t.end_reason, t.steps, t.failure, t.failed_turn, t.kinds, t.errors, t.advice, "
    "a.mean, t.task_id, k.name, k.instruction, k.origin{} FROM trajectories AS t "
    "LEFT JOIN tasks AS k ON k.id = t.task_id "
    "LEFT JOIN advantages AS a USING (arm, group_id, position) "
)
_WORD = (
    "(instr(t.words, ?) OR t.task_id IN "
    "(SELECT id FROM tasks WHERE instr(task_search_text(name, id, instruction), ?)))"
)


def trajectory_page(run: ShownRun, query: Query) -> TrajectoryPage:
    """Return a page of a run's stored episodes that match a query's filters.

    Raises:
        BadRequest: if a parameter is invalid or unknown.
        Damaged: if the run cannot be read.
    """
    query.check_known(TRAJECTORIES.filters, paged=True)
    conditions, values = _sql_conditions(query)
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    name, largest_first = query.sort_order(tuple(TRAJECTORIES.sorts))
    column = _COLUMNS[TRAJECTORIES.sorts[name]]
    order = f"ORDER BY {column} IS NULL, {column} {'DESC' if largest_first else 'ASC'}, t.rowid"
    advantages = "LEFT JOIN advantages AS a USING (arm, group_id, position) "
    join = advantages if name == "advantage" else ""
    matching = run.query_rows(
        f"SELECT t.rowid FROM trajectories AS t {join}{where}{order}",  # noqa: S608 (constants)
        *values,
    )
    place = query.page(len(matching))
    rowids = [number for (number,) in matching[place.first : place.first + place.per_page]]
    marks = ", ".join("?" * len(rowids))
    rows = run.query_rows(f"{_SELECTED.format('')}WHERE t.rowid IN ({marks})", *rowids)
    by_rowid = {number: _row_from_sql(*columns) for number, *columns in rows}
    return TrajectoryPage(
        rows=tuple(by_rowid[number] for number in rowids if number in by_rowid),
        failures=failure_kinds(run),
        **paging_of(len(matching), place.page, place.per_page),
    )


def failure_kinds(run: ShownRun) -> tuple[str, ...]:
    """Return the kinds of failures of a run's stored episodes, sorted.

    Raises:
        Damaged: if the run cannot be read.
    """
    query = "SELECT DISTINCT failure FROM trajectories WHERE failure <> '' ORDER BY failure"
    return run.get_or_make("failures", lambda: tuple(kind for (kind,) in run.query_rows(query)))


def trajectories_where(run: ShownRun, condition: str, *values: Any) -> list[TrajectoryRow]:
    """Return the episodes that satisfy an SQL condition, in order."""
    query = f"{_SELECTED.format('')}WHERE {condition} ORDER BY t.rowid"
    return [_row_from_sql(*columns) for _, *columns in run.query_rows(query, *values)]


def all_trajectories(run: ShownRun) -> list[TrajectoryRow]:
    """Return all stored episodes with their search terms.

    Raises:
        Damaged: if the run cannot be read.
    """
    rows = []
    for _, *columns, words in run.query_rows(f"{_SELECTED.format(', t.words')}ORDER BY t.rowid"):
        row = _row_from_sql(*columns)
        task = (
            task_search_text(row.task.name, row.task.id, columns[-2] or "") if row.task.name else ""
        )
        rows.append(row.model_copy(update={"words": f"{task} {words}"}))
    return rows


def _row_from_sql(
    arm: str, step: int, group: str, position: int, version: int, success: int, score: float,
    end_reason: str, steps: int, failure: str, failed_turn: int | None, kinds: str, errors: int,
    advice: str,
    advantage: float | None, task: str, name: str | None, instruction: str | None,
    origin: str | None,
) -> TrajectoryRow:  # fmt: skip
    """Return an episode's row in the list of training episodes. A deleted task has no name."""
    return TrajectoryRow(
        id=f"{arm}.{group}.{position}",
        arm=arm,
        step=step,
        group=group,
        position=position,
        task=TaskBrief(
            id=task, name=name or "", instruction=one_line(instruction or ""), origin=origin or ""
        ),
        policy_version=version,
        success=bool(success),
        score=score,
        end_reason=end_reason,
        steps=steps,
        failure=failure,
        failed_turn=failed_turn,
        errors=errors,
        signals=split_names(kinds),
        advice=split_names(advice),
        advantage=advantage,
    )


def _sql_conditions(query: Query) -> tuple[list[str], list[Any]]:
    conditions, values = list[str](), list[Any]()
    for name, rule in TRAJECTORIES.filters.items():
        if not query.all(name):
            continue
        if rule.op == "words":
            for word in query.words(name):
                conditions.append(_WORD)
                values += [word, word]
            continue
        parts = list(_value_conditions(rule, name, query))
        conditions.append(f"({' OR '.join(condition for condition, _ in parts)})")
        values += [value for _, group in parts for value in group]
    return conditions, values


def _value_conditions(rule: Filter, name: str, query: Query) -> Iterator[tuple[str, Sequence[Any]]]:
    """Yield the SQL conditions for a parameter, one per value; a row must satisfy one of them."""
    column = _COLUMNS[rule.field]
    match rule.op:
        case "from":
            yield from ((f"{column} >= ?", (value,)) for value in query.numbers(name))
        case "to":
            yield from ((f"{column} <= ?", (value,)) for value in query.numbers(name))
        case "more":
            for flag in query.flags(name):
                yield f"{column} {'>' if flag else '<='} 0", ()
        case "has":
            for kind in query.all(name):
                if kind in ("any", "none"):
                    yield f"{column} {'<>' if kind == 'any' else '='} ''", ()
                else:
                    yield f"instr({column}, ?)", (f",{kind},",)
        case _ if rule.flag:
            yield from ((f"{column} = ?", (int(flag),)) for flag in query.flags(name))
        case _:
            if rule.field in ("step", "policy_version"):  # other columns are texts already
                column = f"CAST({column} AS TEXT)"
            yield from ((f"{column} = ?", (value,)) for value in query.all(name))
