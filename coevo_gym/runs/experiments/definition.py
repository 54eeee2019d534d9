"""The definition of a table: its rows, comparisons and budgets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import suggest
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, pattern_validator
from coevo_gym.methods.published import PAPERS
from coevo_gym.runs.config.table_files import explain_file_errors, parse_seeds, read_toml

FOLDER = Path(__file__).parent / "tables"
BUDGETS = Path(__file__).parent / "budgets.toml"
ANY = "any"
"""Placeholder for all benchmarks in the budgets of a table."""
Name = Annotated[
    str,
    pattern_validator(
        r"[A-Za-z0-9][A-Za-z0-9_]*",
        "a name may contain letters, digits and _, and must begin with a letter or digit",
    ),
]
Size = Literal["tiny", "small", "paper"]
Shown = Literal[
    "", "warm-up", "random", "react", "trials", "told", "last_redrawn", "best_redrawn", "printed"
]
_DIGITS = re.compile(r"(\d+)")
_KEY_IN_LABEL = re.compile(r"\{([a-z_.]+)\}")


class Budget(FrozenModel):
    """The budget of an experiment's runs, expressed as settings.

    Attributes:
        preset: base preset; ``{benchmark}`` in it is replaced by the benchmark's name.
        set: settings that override the preset, by dotted key; for a whole table, ``method.KEY`` is
            a setting of each row's method.
    """

    preset: str = ""
    set: JsonObject = FrozenDict()

    def apply_to(self, other: Budget) -> Budget:
        """Return ``other`` updated with this budget's settings. A preset replaces ``other``."""
        if self.preset:
            return self
        return Budget(preset=other.preset, set={**other.set, **self.set})


class Row(FrozenModel):
    """One row of a table: an arm, or results taken from another row's runs or from the paper.

    Attributes:
        name: name of the row; prefix of the names of its runs.
        label: printed label; ``{section.key}`` is replaced by the row's value for that setting.
        method: name of its method; by default the name of the row.
        set: settings of the arm that differ from the other rows, by dotted key.
        run: settings of the whole run, even if an arm could set them; they therefore also affect
            the search for the initial tasks.
        shows: a baseline contained in every run (``warm-up`` or ``random``); a measurement of the
            policy before training, with a thought before each action (``react``), in trials with
            reflections (``trials``), or with the hints that the coach of the row ``of`` gives at
            the end of training (``told``); the last or best evaluation of a run with verl-agent's
            draws (``last_redrawn``, ``best_redrawn``), which need the measure ``redraw``; or
            ``printed`` for numbers found only in the paper. Such a row has no runs of its own.
        of: the row whose runs contain the baseline; by default the first row with runs.
        language_model: True for a row that makes sense only for language models; like rows that
            show ``react``, ``trials`` or ``told``, it is left out if the policy is the tiny one.
        at: settings for individual budgets.
        baselines: rows to compare with, instead of the table's baselines.
        paper: numbers printed in the paper, by benchmark or ``any`` for all: one number in the unit
            of the table's metric (percent for a share), or several by name.
    """

    name: Name
    label: str = ""
    method: str = ""
    set: JsonObject = FrozenDict()
    run: JsonObject = FrozenDict()
    shows: Shown = ""
    of: str = ""
    language_model: bool = False
    at: Mapping[Size, Budget] = Field(default_factory=dict)
    baselines: tuple[Name, ...] | None = None
    paper: Mapping[str, float | Mapping[str, float]] = FrozenDict()

    @property
    def needs_language_model(self) -> bool:
        """True if the row is omitted for a policy that is not a language model."""
        return self.language_model or self.shows in ("react", "trials", "told")

    def settings_at(self, budget: Size) -> dict[str, Any]:
        """Return the row's settings for the given budget, with dotted keys."""
        more = self.at[budget].set if budget in self.at else {}
        return {**dict(flatten(self.set)), **dict(flatten(more))}

    def label_at(self, budget: Size) -> str:
        """Return the row's label for the given budget."""
        sets = {**dict(flatten(self.run)), **self.settings_at(budget)}
        label = _KEY_IN_LABEL.sub(
            lambda key: _format_setting(sets.get(key[1], "default")), self.label
        )
        return label or self.name

    def keys_at(self, budget: Size) -> frozenset[str]:
        """Return the dotted keys of the settings that the row sets for the given budget."""
        return frozenset({*dict(flatten(self.run)), *self.settings_at(budget)})

    def paper_results(self, benchmark: str, metric: str) -> dict[str, float]:
        """Return the results that the paper reports for the row, keyed by name.

        ``metric`` names a number that is given without a name.
        """
        results: dict[str, float] = {}
        for name in (ANY, benchmark):
            numbers = self.paper.get(name, {})
            results |= numbers if isinstance(numbers, Mapping) else {metric: numbers}
        return results


class Experiment(FrozenModel):
    """The definition of an experiment and its table of results.

    Attributes:
        name: name of the experiment.
        title: title of the table, in one line.
        source: paper and table that it reproduces; "" for an original table.
        follows: the paper whose settings a row must have so that the paper's numbers are shown
            beside it; "" shows them beside rows without settings for the budget.
        about: remarks for readers of the table.
        benchmarks: intended benchmarks; the first is the default, and the user may choose any
            other.
        official: True if the table is meaningful only on the official data.
        budget: default budget.
        sizes: supported budgets.
        seeds: default seeds, fixed in advance; a list, or a text such as ``"401-420"``.
        metric: name of the metric on which rows are compared; see ``numbers.py``.
        columns: names of further metrics to print.
        measures: additional measurements per cell; see ``measures.py``.
        others: for the measure ``transfer``: the benchmark to test a policy on, by the benchmark it
            was trained on; see :func:`~coevo_gym.runs.experiments.measures.measure_run`.
        baselines: rows with which all others are compared; the main table shows the first one.
        questions: comparisons fixed in advance, as pairs of a row and one of its baselines. Once
            all have a p-value, adjusted p-values are printed as well.
        average: names of metrics by benchmark. Their mean is the column ``average``, if the table
            of each of these benchmarks exists in its default folder.
        cross: True to print a cross-tabulation of solved held-out tasks for each row and its first
            baseline.
        settings: settings of all cells, by dotted key.
        budgets: changes to the default budgets, by size and benchmark (``any``: all benchmarks).
        rows: rows, in order.
    """

    name: str
    title: str
    source: str = ""
    follows: str = ""
    about: str = ""
    benchmarks: tuple[str, ...] = Field(min_length=1)
    official: bool = False
    budget: Size = "tiny"
    sizes: tuple[Size, ...] = get_args(Size)
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=1)
    metric: str = "success"
    columns: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    others: Mapping[str, str] = FrozenDict()
    baselines: tuple[Name, ...]
    questions: tuple[tuple[Name, Name], ...] = ()
    average: Mapping[str, tuple[str, ...]] = FrozenDict()
    cross: bool = False
    settings: JsonObject = FrozenDict()
    budgets: Mapping[Size, Mapping[str, Budget]] = Field(default_factory=dict)
    rows: tuple[Row, ...] = Field(min_length=1)

    @field_validator("follows")
    @classmethod
    def _check_paper(cls, follows: str) -> str:
        if follows not in ("", *PAPERS):
            raise ValueError(f"unknown paper {follows!r}. {suggest(follows, PAPERS)}")
        return follows

    @field_validator("seeds", mode="before")
    @classmethod
    def _parse_seed_text(cls, seeds: Any) -> Any:
        return parse_seeds(seeds, ()) if isinstance(seeds, str) else seeds

    @model_validator(mode="after")
    def _check_consistency(self) -> Experiment:
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ValueError("two rows have the same name")
        for row in self.rows:
            for baseline in self.baselines if row.baselines is None else row.baselines:
                if baseline not in names:
                    raise ValueError(f"row {row.name!r} has an unknown baseline, {baseline!r}")
            if row.shows.endswith("_redrawn") and "redraw" not in self.measures:
                raise ValueError(f"row {row.name!r} needs 'redraw' in measures")
            if row.of and row.of not in names:
                raise ValueError(f"row {row.name!r} refers to an unknown row, {row.of!r}")
        compared = {(row.name, other) for row in self.rows for other in self.baselines_of(row)}
        for question in self.questions:
            if question not in compared:
                raise ValueError(f"questions: {question} must pair a row with one of its baselines")
        if all(row.shows for row in self.rows):
            raise ValueError("no row has runs of its own")
        if self.budget not in self.sizes:
            raise ValueError(f"the budget {self.budget!r} is not defined in the table")
        return self

    def source_row_of(self, row: Row, among: Sequence[Row] = ()) -> str:
        """Return the name of the row whose runs supply the given row's results.

        ``among`` are the selected rows, one of which has runs; by default all rows of the table.
        """
        if row.shows:
            return row.of or next(one.name for one in among or self.rows if not one.shows)
        return row.name

    @property
    def keys(self) -> frozenset[str]:
        """The dotted keys of the settings that an experiment table sets for all of its runs."""
        return frozenset(dict(flatten(self.settings)))

    def select_rows(self, names: tuple[str, ...] = ()) -> tuple[Row, ...]:
        """Return the rows with these names in table order, or all rows if no names are given.

        Raises:
            ConfigError: if a name is unknown, or none of the rows has runs.
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no row {name!r}. {suggest(name, known)}")
        rows = tuple(row for row in self.rows if not names or row.name in names)
        if all(row.shows for row in rows):
            text = ", ".join(names)
            raise ConfigError(
                f"None of the selected rows ({text}) has runs of its own. Select one that does."
            )
        return rows

    def baselines_of(self, row: Row) -> tuple[str, ...]:
        """Return a row's baselines. A baseline itself is compared only with earlier baselines."""
        baselines = self.baselines if row.baselines is None else row.baselines
        return baselines[: baselines.index(row.name)] if row.name in baselines else baselines

    def budget_of(self, size: Size, benchmark: str) -> Budget:
        """Return the budget of the given size (tiny, small or paper) for runs on a benchmark.

        Raises:
            ConfigError: if neither the table nor the default budgets define it.
        """
        own = self.budgets.get(size, {})
        layers = [default_budgets().get(size, {}).get(benchmark), own.get(ANY), own.get(benchmark)]
        known = [layer for layer in layers if layer is not None]
        if not known:
            raise ConfigError(
                f"{self.name} has no budget {size!r} for {benchmark}. Define "
                f"[budgets.{size}.{benchmark}] in your own TOML file."
            )
        budget = reduce(lambda below, layer: layer.apply_to(below), known)
        return Budget(preset=budget.preset.format(benchmark=benchmark), set=budget.set)


def experiment_names() -> list[str]:
    """Return the names of the built-in experiments, in natural order."""
    stems = (path.stem for path in FOLDER.glob("*.toml"))
    return sorted(stems, key=lambda name: [(p.zfill(4), p) for p in _DIGITS.split(name)])


def load_experiment(source: str) -> Experiment:
    """Load an experiment by its name, or from the path to a TOML file.

    Raises:
        ConfigError: if the experiment is unknown or invalid.
    """
    is_file = source.endswith(".toml")
    path = Path(source) if is_file else FOLDER / f"{source}.toml"
    if not path.is_file():
        what = "file" if is_file else "experiment"
        hint = "" if is_file else f" {suggest(source, experiment_names())}"
        raise ConfigError(
            f"There is no {what} {source!r}.{hint} To use your own file, give a path that ends "
            "in .toml. To list the built-in experiments, run `coevo experiment --list`."
        )
    try:
        return Experiment.model_validate({"name": path.stem, **read_toml(path)})
    except ValidationError as error:
        raise explain_file_errors(path, error, Experiment) from None


def default_budgets() -> Mapping[str, Mapping[str, Budget]]:
    """Return the default budgets, keyed by size and benchmark."""
    return {
        size: {name: Budget.model_validate(budget) for name, budget in of.items()}
        for size, of in read_toml(BUDGETS).items()
    }


def _format_setting(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
