"""What a table is: its rows, what they are compared by, and how much each cell may take."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from coevo_gym.config.keys import flat, suggest
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, shaped
from coevo_gym.experiments.seeds import read_seeds
from coevo_gym.methods.published import PAPERS

FOLDER = Path(__file__).parent / "tables"
BUDGETS = Path(__file__).parent / "budgets.toml"
ANY = "any"
"""Stands for all benchmarks in the budgets of a table."""
Name = Annotated[
    str,
    shaped(
        r"[A-Za-z0-9][A-Za-z0-9_]*",
        "a name takes letters, digits and _, and begins with a letter or a digit",
    ),
]
Size = Literal["tiny", "small", "paper"]
Shown = Literal["", "warm-up", "random", "react", "trials", "printed"]
_DIGITS = re.compile(r"(\d+)")
_KEY_IN_LABEL = re.compile(r"\{([a-z_.]+)\}")


class Budget(FrozenModel):
    """How much a cell may take.

    Attributes:
        preset: the preset that it begins with; ``{benchmark}`` in it stands for the benchmark.
        set: settings over those, by dotted key.
    """

    preset: str = ""
    set: JsonObject = FrozenDict()

    def over(self, other: Budget) -> Budget:
        """This one in place of another; what that sets stays, unless this names a preset."""
        if self.preset:
            return self
        return Budget(preset=other.preset, set={**other.set, **self.set})


class Row(FrozenModel):
    """One line of a table: an arm.

    Attributes:
        name: begins the names of its runs.
        label: what is printed; ``{section.key}`` in it stands for what the row sets there.
        method: name of its method; the row's own if it is left out.
        set: what it sets otherwise than the others, by dotted key.
        run: what it sets for its whole run, also where an arm may set it: so its first tasks are
            looked for in that way, too.
        shows: a baseline that every run has, ``warm-up`` or ``random``; what the policy before
            training reaches with a thought before each action (``react``) or in trials with
            reflections (``trials``), which is measured for the row; or ``printed`` for what only
            the paper has. Such a row has no runs of its own.
        of: the row whose runs it shows a baseline of; the first one that has any without it.
        language_model: whether the row says something of language models alone: it is left out
            where the policy is the tiny one, as rows that show ``react`` or ``trials`` are.
        at: what it sets otherwise at one budget alone.
        baselines: what it is compared with, in place of the table's.
        paper: what the paper printed, by benchmark, ``any`` for all: a number in the unit of the
            table's metric, percent for a share, or such numbers by their names.
        worlds: of a simulated table: the worlds that it is in; all without any.
        group: the world that it is in, once that is chosen.
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
    worlds: tuple[str, ...] = ()
    group: str = ""

    @property
    def needs_words(self) -> bool:
        """Whether it is left out where the policy is no language model."""
        return self.language_model or self.shows in ("react", "trials")

    @property
    def key(self) -> str:
        """Names the row in a table of several groups."""
        return f"{self.group}-{self.name}" if self.group else self.name

    def sets_at(self, budget: Size) -> dict[str, Any]:
        """What it sets at a budget, by dotted key."""
        more = self.at[budget].set if budget in self.at else {}
        return {**dict(flat(self.set)), **dict(flat(more))}

    def printed(self, budget: Size) -> str:
        """Its label at a budget."""
        sets = {**dict(flat(self.run)), **self.sets_at(budget)}
        found = _KEY_IN_LABEL.sub(lambda key: _text(sets.get(key[1], "default")), self.label)
        return found or self.name

    def keys_at(self, budget: Size) -> frozenset[str]:
        """Return the dotted keys that the row sets at a budget."""
        return frozenset({*dict(flat(self.run)), *self.sets_at(budget)})

    def published(self, benchmark: str, metric: str) -> dict[str, float]:
        """Return what the paper printed for the row, by the name of the number.

        Args:
            benchmark: what is practised.
            metric: name of a number that is given without one.
        """
        found: dict[str, float] = {}
        for name in (ANY, benchmark):
            numbers = self.paper.get(name, {})
            found |= numbers if isinstance(numbers, Mapping) else {metric: numbers}
        return found


class Experiment(FrozenModel):
    """A table.

    Attributes:
        name: of the experiment.
        title: what the table shows, in a line.
        source: paper and table that it follows; "" for one of ours.
        follows: the paper whose settings a row needs for the paper's numbers to be shown beside it;
            "" shows them beside rows that no budget changes.
        about: what to know before reading it.
        kind: ``runs`` of the loop on a benchmark, or ``simulated`` ones.
        benchmarks: those that it is meant for; the first one is the default. Others may be asked
            for, too. Of simulated ones, the worlds.
        official: whether it says something on the official data alone.
        budget: the default.
        sizes: the budgets at which its rows differ.
        seeds: the default, fixed beforehand; a list, or a text such as ``"401-420"``.
        metric: number that rows are compared by, see ``numbers.py``.
        columns: more numbers to print.
        measures: what is measured of each cell beyond its run, see ``measures.py``.
        others: for the measure ``transfer``: on which benchmark a policy is tried, by the one that
            it practised; see :func:`~coevo_gym.experiments.measures.measure`.
        baselines: rows that the others are compared with; the main table shows the first one.
        questions: comparisons fixed beforehand, as pairs of a row and one of its baselines. Once
            each has a p-value, these are also printed adjusted for their number.
        average: names of numbers by benchmark; their mean is the column ``average``, where the
            table of each of these benchmarks has been made in its usual folder.
        cross: whether to print who solves which held-out tasks, beside each row's first baseline.
        settings: of all cells, by dotted key.
        budgets: over the usual ones, by size and benchmark; ``any`` is for all benchmarks.
        rows: in order.
    """

    name: str
    title: str
    source: str = ""
    follows: str = ""
    about: str = ""
    kind: Literal["runs", "simulated"] = "runs"
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
    def _known_paper(cls, follows: str) -> str:
        if follows not in ("", *PAPERS):
            raise ValueError(
                f"the settings of {follows!r} are not known. {suggest(follows, PAPERS)}"
            )
        return follows

    @field_validator("seeds", mode="before")
    @classmethod
    def _seeds(cls, seeds: Any) -> Any:
        return read_seeds(seeds, ()) if isinstance(seeds, str) else seeds

    @model_validator(mode="after")
    def _consistent(self) -> Experiment:
        names = [row.name for row in self.rows]
        if len(set(names)) != len(names):
            raise ValueError("two rows have the same name")
        for row in self.rows:
            for baseline in self.baselines if row.baselines is None else row.baselines:
                if baseline not in names:
                    raise ValueError(f"there is no row {baseline!r} to compare {row.name!r} with")
            if row.of and row.of not in names:
                raise ValueError(f"there is no row {row.of!r} for {row.name!r} to show")
        compared = {(row.name, other) for row in self.rows for other in self.baselines_of(row)}
        for question in self.questions:
            if question not in compared:
                raise ValueError(f"question {question} is no comparison of this table")
        if all(row.shows for row in self.rows):
            raise ValueError("no row has runs of its own")
        if self.budget not in self.sizes:
            raise ValueError(f"its budget {self.budget!r} is not among its sizes")
        return self

    def source_of(self, row: Row, among: Sequence[Row] = ()) -> str:
        """Return the name of the row whose runs have the numbers of a row.

        Args:
            row: a row.
            among: the rows that are made, one of which has runs; all of the table without any.
        """
        if row.shows:
            return row.of or next(one.name for one in among or self.rows if not one.shows)
        return row.name

    @property
    def keys(self) -> frozenset[str]:
        """The dotted keys that the table sets in all cells."""
        return frozenset(dict(flat(self.settings)))

    def chosen(self, names: tuple[str, ...] = ()) -> tuple[Row, ...]:
        """The rows of these names in the table's order; all without names.

        Raises:
            ConfigError: if there is none of a name, or none of them has runs.
        """
        known = [row.name for row in self.rows]
        for name in names:
            if name not in known:
                raise ConfigError(f"{self.name} has no row {name!r}. {suggest(name, known)}")
        rows = tuple(row for row in self.rows if not names or row.name in names)
        if all(row.shows for row in rows):
            raise ConfigError(f"{', '.join(names)}: without another row there is nothing to run.")
        return rows

    def baselines_of(self, row: Row) -> tuple[str, ...]:
        """Names of the rows that one is compared with; a baseline with those before it."""
        found = self.baselines if row.baselines is None else row.baselines
        return found[: found.index(row.name)] if row.name in found else found

    def budget_of(self, size: Size, benchmark: str) -> Budget:
        """How much a cell on a benchmark may take.

        Raises:
            ConfigError: if neither the table nor the usual budgets say so.
        """
        own = self.budgets.get(size, {})
        layers = [usual_budgets().get(size, {}).get(benchmark), own.get(ANY), own.get(benchmark)]
        found: Budget | None = None
        for layer in layers:
            if layer is not None:
                found = layer if found is None else layer.over(found)
        if found is None:
            raise ConfigError(
                f"{self.name} has no budget {size!r} on {benchmark}: [budgets.{size}.{benchmark}] "
                "in a TOML file of your own says what a cell may take there."
            )
        preset = found.preset.format(benchmark=benchmark)
        return Budget(preset=preset, set=found.set)


def names() -> list[str]:
    """Names of the experiments that come with the package; numbers in them count as such."""
    found = (path.stem for path in FOLDER.glob("*.toml"))
    return sorted(found, key=lambda name: [(p.zfill(4), p) for p in _DIGITS.split(name)])


def load(source: str) -> Experiment:
    """An experiment by its name, or by the path of a TOML file.

    Raises:
        ConfigError: if there is none, or something is wrong with it.
    """
    is_file = source.endswith(".toml")
    path = Path(source) if is_file else FOLDER / f"{source}.toml"
    if not path.is_file():
        what = "no file" if is_file else "no experiment"
        hint = "" if is_file else f" {suggest(source, names())}"
        raise ConfigError(
            f"There is {what} {source!r}.{hint} `coevo experiment --list` says which there are; "
            "one of your own is named with its .toml."
        )
    try:
        return Experiment.model_validate({"name": path.stem, **_read(path)})
    except ValidationError as error:
        raise ConfigError(_explained(path, error)) from None


def usual_budgets() -> Mapping[str, Mapping[str, Budget]]:
    """Budgets by size and benchmark."""
    return {
        size: {name: Budget.model_validate(budget) for name, budget in of.items()}
        for size, of in _read(BUDGETS).items()
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # also where it is not UTF-8
        raise ConfigError(f"{path} cannot be read as TOML: {error}") from error


def _explained(path: Path, error: ValidationError) -> str:
    problems = [
        (".".join(map(str, one["loc"])) or "the table", one["msg"].removeprefix("Value error, "))
        for one in error.errors()
    ]
    return f"{path}: {'; '.join(f'{where}: {what}' for where, what in problems)}"


def _text(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
