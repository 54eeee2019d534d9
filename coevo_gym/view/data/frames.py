"""Stored results of runs, evaluations and tables of runs, as rows and data frames.

Example:
    >>> import coevo_gym
    >>> stored = coevo_gym.results("quickstart")  # doctest: +SKIP
    >>> frame = stored.episodes.to_frame()  # doctest: +SKIP
    >>> frame.groupby("arm").success.mean()  # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from coevo_gym.core.errors import StoreError
from coevo_gym.core.text_tables import html_table, html_text
from coevo_gym.provision import explain_missing
from coevo_gym.view.collection import RunCollection
from coevo_gym.view.data.episodes import (
    EpisodeFilter,
    StoredCounts,
    check_filter,
    read_episodes,
)
from coevo_gym.view.library import Library
from coevo_gym.view.model.rounds import rounds_of
from coevo_gym.view.model.steps import group_rows
from coevo_gym.view.refusals import Refusal

if TYPE_CHECKING:
    import pandas


_MAX_ROWS, _MAX_COLUMNS, _MAX_CELL = 10, 12, 40
"""Size of the part of a table that a notebook shows, with the length of its cells."""


class DataRows(tuple[Mapping[str, Any], ...]):
    """Rows of a table, each with the same keys."""

    __slots__ = ()

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a data frame.

        Raises:
            ImportError: if pandas is missing.
        """
        with explain_missing("Data frames need pandas.", "export"):
            import pandas
        return pandas.DataFrame.from_records(list(self))

    def _repr_html_(self) -> str:
        first = self[:_MAX_ROWS]
        filled = (head for head in (first[0] if first else ()) if any(row[head] for row in first))
        heads = list(filled)[:_MAX_COLUMNS]
        title = f"The first {len(first)} of {len(self):,} rows. to_frame() returns all columns."
        return html_table(
            heads, [[_to_cell(row[head]) for head in heads] for row in first], title=title
        )

    def __repr__(self) -> str:
        columns = ", ".join(self[0]) if self else "none"
        return f"<{len(self)} rows with the columns {columns}>"


class StoredResults:
    """The stored results of a run, an evaluation or a table of runs.

    Args:
        name: its name or folder.
        wanted: the episodes to include; by default, those of training tasks.

    Raises:
        ConfigError: if the name is unknown.
    """

    def __init__(self, name: str, wanted: EpisodeFilter) -> None:
        self.name, self._wanted = name, wanted
        self._collection = RunCollection(Library([name]))

    def _repr_html_(self) -> str:
        title = f"Results of {self.name}: .episodes, .groups, .rounds, and .cells:"
        return f"<p>{html_text(title)}</p>{self.cells._repr_html_()}"

    def __repr__(self) -> str:
        return f"<results of {self.name}: episodes, groups, rounds, cells>"

    @cached_property
    def episodes(self) -> DataRows:
        """Facts about each stored episode, without its steps.

        Raises:
            ConfigError: if no episode matches the filter, or it names an unknown arm or task.
            StoreError: if stored data is damaged.
        """
        counts = StoredCounts()
        stored = read_episodes(self._collection, self._wanted, counts)
        rows = _rows(one.about for one in stored)
        check_filter(self.name, self._wanted, counts, len(rows))
        return rows

    @cached_property
    def groups(self) -> DataRows:
        """The groups of rollouts of all arms, in the order of learner steps.

        Raises:
            StoreError: if stored data is damaged.
        """
        return _rows(
            {
                "run": run.id,
                **row.model_dump(exclude={"task", "words"}),
                "task": row.task.id,
                "task_name": row.task.name,
                "outcome": row.outcome,
            }
            for run in self._collection.runs()
            for arm in run.config.arms
            for row in group_rows(run, arm)
        )

    @cached_property
    def rounds(self) -> DataRows:
        """The applied rounds of all arms.

        Raises:
            StoreError: if stored data is damaged.
        """
        return _rows(
            {"run": run.id, **row.model_dump(exclude={"usage"})}
            for run in self._collection.runs()
            for arm in run.config.arms
            for row in rounds_of(run, arm)
        )

    @cached_property
    def cells(self) -> DataRows:
        """The final table of each finished run, and the result of each finished evaluation.

        Raises:
            StoreError: if stored data is damaged.
        """
        runs = (
            {"run": run.id, "benchmark": run.config.benchmark.name, "seed": run.config.seed, **row}
            for run in self._collection.runs()
            for row in (run.summary or {}).get("table", ())
        )
        evaluations = (
            {
                "run": one.id,
                "benchmark": one.config["benchmark"],
                "seed": one.config.get("seed"),
                "name": one.config["policy"],
                **{key: value for key, value in one.summary.items() if key in _OF_EVALUATION},
            }
            for one in self._collection.evals()
            if one.summary
        )
        return _rows((*runs, *evaluations))


def _to_cell(value: Any) -> str:
    """Format a value for a table in a notebook."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_to_cell, value))
    text = "" if value is None else str(value)
    return text if len(text) <= _MAX_CELL else f"{text[: _MAX_CELL - 1]}…"


_OF_EVALUATION = ("success", "low", "high", "score", "n_tasks", "split", "samples", "episodes")


def _rows(rows: Iterable[Mapping[str, Any]]) -> DataRows:
    try:
        return DataRows(rows)
    except Refusal as refusal:
        raise StoreError(str(refusal)) from refusal
