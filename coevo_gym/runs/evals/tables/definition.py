"""The definition of a table of evaluations: its models, its benchmarks, and its cells."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from coevo_gym.agents.lm.stored_models import resolve_model
from coevo_gym.core.benchmark import benchmark_specs, find_spec_by_any_name
from coevo_gym.core.errors import ConfigError, ModelError, SplitLeakError, StoreError
from coevo_gym.core.evaluation_mark import refuse_marked
from coevo_gym.core.own_code import absolute_import_path
from coevo_gym.core.panel import Panel
from coevo_gym.core.registry import did_you_mean, suggest
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.spend import Cost
from coevo_gym.core.task import FrozenDict, FrozenModel, JsonObject, Split, pattern_validator
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.runs.config.table_files import (
    MAX_SEEDS,
    explain_file_errors,
    parse_seeds,
    read_toml,
)
from coevo_gym.runs.evals.job import (
    DEFAULT_SPLIT,
    EvalJob,
    make_model_job,
    make_run_job,
    play_panel_with_run,
)
from coevo_gym.runs.manifest import read_manifest
from coevo_gym.runs.panels.panel_files import find_panel, shipped_names
from coevo_gym.runs.policies import MODEL_KINDS, model_settings
from coevo_gym.runs.progress_reports import SILENT, ProgressSink
from coevo_gym.runs.table import RANDOM, SCRIPTED, WARMUP
from coevo_gym.store.checkpoint import Checkpoints
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import (
    NAME,
    NAME_RULE,
    RunFolder,
    check_folder_name,
    read_json,
    read_lines,
)

ENDING = ".toml"
"""File name extension of definitions."""
SECTIONS = ("arithmetic", "benchmark", "evaluation", "policy")
"""Sections of settings that affect an evaluation."""
_OWN_KEYS = {
    "seed": "seeds",
    "evaluation.n_tasks": "n_tasks",
    "evaluation.samples": "samples",
    "evaluation.split": "split",
    "evaluation.panel": "panel",
    "benchmark.name": "benchmark",
}
"""Settings that have a key of their own, with that key."""

Name = Annotated[str, pattern_validator(f"({NAME})?", f"a name {NAME_RULE}")]
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class ModelEntry(FrozenModel):
    """A model to evaluate: a row of the table.

    Attributes:
        name: name of the row; by default, made from the policy and the run.
        policy: ``transformers:MODEL``, ``vllm:MODEL``, ``openai:MODEL``, ``random`` or
            ``scripted``; for a run, one of its arms or ``warm-up``, and by default its last arm.
        run: name or folder of a trained run; "" for a model that was not trained here.
        set: settings of this model's cells, by dotted key.
    """

    name: Name = ""
    policy: str = ""
    run: str = ""
    set: JsonObject = FrozenDict()

    @model_validator(mode="after")
    def _check_label(self) -> ModelEntry:
        if not self.label:
            raise ValueError("a model needs policy or run, for example policy = 'random'")
        return self

    @property
    def label(self) -> str:
        """The name of the row, which is also the first part of its folders' names."""
        parts = [Path(self.run).name, self.policy.partition(":")[2] or self.policy]
        return self.name or _to_name("-".join(part for part in parts if part))


class BenchmarkEntry(FrozenModel):
    """Tasks to evaluate the models on: a column of the table.

    Attributes:
        name: name of the column; by default, made from the benchmark, the split and the panel.
        benchmark: name of the benchmark, or a JSONL file of rows.
        split: ``train``, ``val``, ``test`` or ``held_out``; None for the file's split.
        panel: name or file of a panel to play instead of a split.
        n_tasks: number of tasks; None for the file's number.
        samples: episodes per task; None for the file's number.
        seeds: seeds of the evaluations, one evaluation each; None for the file's seeds.
        env: extra arguments for the benchmark's env.
        set: settings of this column's cells, by dotted key.
        verify: for rows: the function that judges answers, as ``"FILE.py:FUNCTION"``.
        tools: for rows: functions and classes that the agent can call, in the same form.
    """

    name: Name = ""
    benchmark: str
    split: Split | None = None
    panel: str = ""
    n_tasks: Count | None = None
    samples: Count | None = None
    seeds: Seeds | None = None
    env: JsonObject = FrozenDict()
    set: JsonObject = FrozenDict()
    verify: str = ""
    tools: tuple[str, ...] = ()

    @field_validator("seeds", mode="before")
    @classmethod
    def _parse_seed_text(cls, seeds: Any) -> Any:
        return _seeds_from(seeds)

    @model_validator(mode="after")
    def _check_consistency(self) -> BenchmarkEntry:
        if self.panel and (self.split is not None or self.n_tasks is not None):
            key = "split" if self.split is not None else "n_tasks"
            raise ValueError(
                f"the panel {self.panel!r} determines the tasks, so omit {key}, or omit panel"
            )
        rows = self.benchmark.endswith(".jsonl")
        if rows != bool(self.verify):
            needs = "also needs verify" if rows else "is not a JSONL file of rows, so omit verify"
            raise ValueError(f"benchmark = {self.benchmark!r} {needs}")
        return self


class EvalTableFile(FrozenModel):
    """The content of a file that defines a table of evaluations.

    Attributes:
        title: title of the table, in one line.
        split: split of all benchmarks without one of their own.
        n_tasks: number of tasks of all benchmarks without a number of their own; None for the
            number in the settings.
        samples: episodes per task, in the same way.
        seeds: seeds, in the same way; a list, or a text such as ``"1-3"``.
        settings: settings of all cells, by dotted key.
        models: the rows of the table.
        benchmarks: the columns of the table.
    """

    title: str = ""
    split: Split = Split(DEFAULT_SPLIT)
    n_tasks: Count | None = None
    samples: Count = 1
    seeds: Seeds = (0,)
    settings: JsonObject = FrozenDict()
    models: Annotated[tuple[ModelEntry, ...], Field(min_length=1)]
    benchmarks: Annotated[tuple[BenchmarkEntry, ...], Field(min_length=1)]

    @field_validator("seeds", mode="before")
    @classmethod
    def _parse_seed_text(cls, seeds: Any) -> Any:
        return _seeds_from(seeds)


@dataclass(frozen=True)
class EvalCell:
    """One evaluation of a table: a model on a benchmark with one seed.

    Attributes:
        model: the model.
        column: name of the column.
        entry: the benchmark, with the file's values filled in.
        seed: the seed.
        folder: folder of the evaluation.
        sets: the cell's settings, by dotted key, with which a run is evaluated.
        config: settings with all defaults; for a run, without those of the run.
        panel: the panel to play, or None.
        mistake: the mistake in the file because of which the model cannot be played, or "".
    """

    model: ModelEntry
    column: str
    entry: BenchmarkEntry
    seed: int
    folder: EvalFolder
    sets: Mapping[str, Any]
    config: RunConfig
    panel: Panel | None
    mistake: str = ""

    @property
    def row(self) -> str:
        """The name of the row."""
        return self.model.label

    @property
    def name(self) -> str:
        """The name of the folder: row, column and seed."""
        return self.folder.path.name

    @property
    def place(self) -> str:
        """The cell's place in the table, in words."""
        return f"{self.row} on {self.column}, seed {self.seed}"

    @property
    def samples(self) -> int:
        """Episodes per task; 1 for reference solutions, because all samples would be identical."""
        return 1 if self.model.policy == SCRIPTED else self.entry.samples or 1

    @property
    def is_started(self) -> bool:
        """True if the cell's folder has an evaluation, finished or not."""
        return self.folder.config.is_file()

    @property
    def has_result(self) -> bool:
        """True if the evaluation is finished, here or in another table that the folder links to."""
        return self.is_started and self.folder.summary.is_file()

    @property
    def uses_endpoint(self) -> bool:
        """True if the model is behind an endpoint."""
        return not self.model.run and self.model.policy.startswith("openai:")

    def make_job(self, progress: ProgressSink = SILENT, others: Cost | None = None) -> EvalJob:
        """Create the job of the evaluation.

        Args:
            progress: display for the usage of an endpoint.
            others: the cost of the model's other cells, which its caps include.

        Raises:
            CoevoError: if the run, the model or the benchmark cannot be used.
        """
        if self.mistake:
            raise ConfigError(self.mistake)
        split = self.entry.split if self.panel is None else self.panel.split
        benchmark, policy = self.config.benchmark.name, self.model.policy
        env = [f"{name}={_env_text(value)}" for name, value in self.entry.env.items()]
        if not self.model.run:
            config = self.config if others is None else self._lower_caps(others)
            return make_model_job(
                benchmark,
                policy,
                str(split),
                progress,
                panel=self.panel,
                samples=self.samples,
                config=config,
                env=env,
            )
        run = RunFolder.of(self.model.run)
        if self.panel is not None:
            return play_panel_with_run(
                run, policy or None, self.panel, self.samples, benchmark, sets=self.sets, env=env
            )
        return make_run_job(
            run,
            policy or None,
            str(split),
            samples=self.samples,
            on=benchmark,
            sets=self.sets,
            env=env,
        )

    def read_spending(self) -> Cost:
        """Return what the cell's requests have cost, as counted towards caps, over all starts."""
        if self.folder.path.is_symlink() or not self.folder.endpoint.is_file():
            return Cost()
        counts = read_json(self.folder.endpoint)
        return Cost(tokens=counts["capped_tokens"], usd=counts["capped_usd"])

    def _lower_caps(self, others: Cost) -> RunConfig:
        """Return the settings with caps that leave out what the model's other cells have spent."""
        caps, own = self.config.policy.endpoint.caps, self.read_spending()
        left: dict[str, float] = {}
        if caps.max_tokens_total is not None:
            left["max_tokens_total"] = max(1, own.tokens, caps.max_tokens_total - others.tokens)
        if caps.max_usd_total is not None:
            left["max_usd_total"] = max(1e-9, own.usd, caps.max_usd_total - others.usd)
        sets = {f"policy.endpoint.{name}": cap for name, cap in left.items()}
        return load_config(self.config, sets=sets, environ={}).config if sets else self.config


@dataclass(frozen=True)
class EvalTableDefinition:
    """A table of evaluations to run.

    Attributes:
        path: the file that defines it.
        content: the content of the file.
        folder: folder of the evaluations and of the table's files.
        sets: settings that override all others, as on the command line.
        n_tasks: number of tasks that overrides those in the file, or None.
    """

    path: Path
    content: EvalTableFile
    folder: Path
    sets: tuple[str, ...] = ()
    n_tasks: int | None = None

    @property
    def title(self) -> str:
        """The title of the table, by default the name of its folder."""
        return self.content.title or self.folder.name

    @property
    def rows(self) -> list[str]:
        """The names of the rows, in order."""
        return [model.label for model in self.content.models]

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in order."""
        return [_column_name(entry, self.content) for entry in self.content.benchmarks]

    @cached_property
    def cells(self) -> tuple[EvalCell, ...]:
        """The cells, row by row, so that a model's cells follow each other."""
        return tuple(self._make_cells())

    def spent_by_others(self, cell: EvalCell) -> Cost:
        """Return what the other cells of a cell's model have spent."""
        mine = (one for one in self.cells if one.row == cell.row and one is not cell)
        return sum((one.read_spending() for one in mine), Cost())

    def _make_cells(self) -> Iterator[EvalCell]:
        content = self.content
        for number, model in enumerate(content.models, start=1):
            where = f"{self.path}, models.{number} ({model.label})"
            mistake = _find_mistake(where, model)
            model_sets = () if mistake else model_settings(model.policy) or ()
            for entry, column in zip(content.benchmarks, self.columns, strict=True):
                filled = _fill_in(entry, content, self.n_tasks)
                panel = None
                if filled.panel:
                    panel = find_panel(_panel_path(filled.panel, self.path.parent))
                source = _source_of(filled, self.path.parent)
                for seed in filled.seeds or ():
                    sets = _settings_of_cell(content, model, filled, seed)
                    policy = {} if model.run else dict(map(_split_setting, model_sets))
                    try:
                        config = self._load_config({**source, **sets, **policy})
                    except ConfigError as error:
                        problem = f"{where} on {column}: {error}"
                        bare = model.model_copy(update={"set": FrozenDict()})
                        sets = _settings_of_cell(content, bare, filled, seed)
                        try:
                            config = self._load_config({**source, **sets})
                        except ConfigError:  # not because of the model
                            raise ConfigError(problem) from error
                        mistake = mistake or problem
                    yield EvalCell(
                        model,
                        column,
                        filled,
                        seed,
                        EvalFolder(self.folder / f"{model.label}-{column}-{seed}"),
                        _without_endpoint(
                            {**sets, **dict(_split_setting(item) for item in self.sets)}
                        ),
                        config,
                        panel,
                        mistake,
                    )

    def _load_config(self, source: Mapping[str, Any]) -> RunConfig:
        return load_config(source, sets=self.sets, origin=str(self.path)).config


def load_eval_table(
    source: str, *, name: str | None = None, sets: Sequence[str] = (), n_tasks: int | None = None
) -> EvalTableDefinition:
    """Load and check the definition of a table of evaluations, without loading any model.

    Mistakes in single models are not raised, see :func:`refuse_mistaken_models`, so that the plan
    of the other models can be printed.

    Args:
        source: path of a TOML file.
        name: name of the table's folder in ``evals/``; None for the name of the file.
        sets: settings that override those in the file, each as ``"section.key=value"``.
        n_tasks: number of tasks of all benchmarks; None for the numbers in the file.

    Raises:
        ConfigError: if the file is missing, or has a mistake outside of its models.
        TaskError: if a benchmark does not exist.
    """
    path = Path(source)
    if not path.is_file():
        there = sorted(map(str, path.parent.glob(f"*{ENDING}"))) if path.parent.is_dir() else []
        raise ConfigError(
            f"There is no file {source!r}. {did_you_mean(source, there)}A table of evaluations is "
            "a TOML file with [[models]] and [[benchmarks]]; see docs/howto/evaluate.md."
        )
    try:
        content = EvalTableFile.model_validate(read_toml(path))
    except ValidationError as error:
        raise explain_file_errors(path, error, EvalTableFile) from None
    name = _to_name(path.stem) if name is None else name
    check_folder_name(name)
    table = EvalTableDefinition(path, content, EVALS / name, tuple(sets), n_tasks)
    if EvalFolder(table.folder).config.is_file():
        raise ConfigError(
            f"{table.folder} contains a single evaluation, not a table. Choose another --name."
        )
    _check_entries(table)
    return table


def _check_entries(table: EvalTableDefinition) -> None:
    """Check that everything in a file exists, and that all names are unique."""
    path, content = table.path, table.content
    for number, entry in enumerate(content.benchmarks, start=1):
        where = f"{path}, benchmarks.{number}"
        _check_settings(f"{where}.set", entry.set)
        _check_benchmark(where, entry, path.parent)
        if table.n_tasks is not None and entry.panel:
            raise ConfigError(
                f"{where}: a panel is always played in full, so -n {table.n_tasks} cannot shorten "
                f"{entry.panel}. Omit -n."
            )
    _check_settings(f"{path}, settings", content.settings)
    for kind, names in (("models", table.rows), ("benchmarks", table.columns)):
        again = [name for name, n in Counter(names).items() if n > 1]
        if again:
            raise ConfigError(
                f"{path}: two {kind} have the name {again[0]!r}. Give one of them another `name`."
            )
    folders = Counter(cell.name for cell in table.cells)
    if again := [name for name, n in folders.items() if n > 1]:
        raise ConfigError(
            f"{path}: two cells would have the folder {again[0]!r}. Give a model or a benchmark "
            "another `name`."
        )


def refuse_mistaken_models(table: EvalTableDefinition) -> None:
    """Check that all models of a table can be played, as far as this is known beforehand.

    Raises:
        ConfigError: if some cannot; the message has all of their mistakes.
    """
    mistakes = dict.fromkeys(cell.mistake for cell in table.cells if cell.mistake)
    if mistakes:
        raise ConfigError("\n".join(mistakes))


def _find_mistake(where: str, model: ModelEntry) -> str:
    """Return why a model cannot be played, or "" if nothing is known against it."""
    try:
        _check_settings(f"{where}, set", model.set)
        _check_model(model)
    except (ConfigError, StoreError, ModelError) as error:
        text = str(error)
        return text if text.startswith(where) else f"{where}: {text}"
    return ""


def _check_model(model: ModelEntry) -> None:
    if not model.run:
        sets = model_settings(model.policy)
        if model.policy not in (RANDOM, SCRIPTED) and sets is None:
            kind = model.policy.partition(":")[0]
            kinds = ", ".join(f"{name}:MODEL" for name in MODEL_KINDS)
            raise ConfigError(
                f"policy = {model.policy!r} is not a model. "
                f"{did_you_mean(kind, [RANDOM, SCRIPTED, *MODEL_KINDS])}Set policy to "
                f"{kinds}, {RANDOM} or {SCRIPTED}, or set run to the name of a run with this arm."
            )
        if path := dict(map(_split_setting, sets or ())).get("policy.model.path"):
            resolve_model(path)
        return
    folder = RunFolder.find(model.run)
    if folder is None:
        names = RunFolder.names()
        raise ConfigError(
            f"there is no run {model.run!r}. {did_you_mean(model.run, names)}Runs here: "
            f"{', '.join(names) or 'none'}."
        )
    arms = read_manifest(folder)[1].arms
    policy = model.policy or arms[-1]
    known = (*arms, WARMUP, RANDOM, SCRIPTED)
    if policy not in known:
        raise ConfigError(f"the run {model.run} has no policy {policy!r}. {suggest(policy, known)}")
    if policy not in (RANDOM, SCRIPTED) and not Checkpoints(folder.checkpoints / policy).steps():
        raise ConfigError(
            f"the run {model.run} has no checkpoint of {policy} yet. Train it with "
            f"`coevo resume {model.run}`."
        )


def _check_benchmark(where: str, entry: BenchmarkEntry, folder: Path) -> None:
    name = entry.benchmark
    if entry.verify:
        if not (folder / name).is_file():
            raise ConfigError(
                f"{where}: there is no file {name!r} in {folder}. Paths in the file are relative "
                "to it."
            )
        try:
            for number, row in enumerate(read_lines(folder / name), start=1):
                refuse_marked(row, "become a row", f"{name}, line {number}")
        except SplitLeakError as error:
            raise ConfigError(f"{where}: {error}") from error
        return
    if (spec := find_spec_by_any_name(name)) is None:
        names = [spec.name for spec in benchmark_specs()]
        raise ConfigError(
            f"{where}: there is no benchmark {name!r}. {did_you_mean(name.lower(), names)}"
            f"Benchmarks: {', '.join(names)}."
        )
    if not entry.panel:
        return
    try:
        panel = find_panel(_panel_path(entry.panel, folder))
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
    if panel.benchmark != spec.name:
        raise ConfigError(
            f"{where}: the panel {entry.panel} is for {panel.benchmark}, not for {spec.name}. Set "
            f"benchmark = {panel.benchmark!r}, or choose another panel (`coevo panel list`)."
        )


def _check_settings(where: str, settings: Mapping[str, Any]) -> None:
    for key in dict(flatten(settings)):
        if key in _OWN_KEYS:
            raise ConfigError(f"{where}: set {_OWN_KEYS[key]} instead of {key!r}.")
        if key.partition(".")[0] not in SECTIONS:
            raise ConfigError(
                f"{where}: {key!r} does not affect an evaluation. "
                f"{did_you_mean(key.partition('.')[0], SECTIONS)}Settings of an evaluation begin "
                f"with {', '.join(SECTIONS)}."
            )


def _fill_in(entry: BenchmarkEntry, content: EvalTableFile, n_tasks: int | None) -> BenchmarkEntry:
    """Return a benchmark with the file's values for what it leaves open."""
    number = None if entry.panel else n_tasks or entry.n_tasks or content.n_tasks
    return entry.model_copy(
        update={
            "split": entry.split or content.split,
            "n_tasks": number,
            "samples": entry.samples or content.samples,
            "seeds": entry.seeds or content.seeds,
        }
    )


def _settings_of_cell(
    content: EvalTableFile, model: ModelEntry, entry: BenchmarkEntry, seed: int
) -> dict[str, Any]:
    """Return a cell's settings by dotted key. A model's override those of a benchmark."""
    layers = (content.settings, entry.set, model.set)
    sets = {key: value for layer in layers for key, value in flatten(layer)}
    number = {} if entry.n_tasks is None else {"evaluation.n_tasks": entry.n_tasks}
    return {**sets, **number, "seed": seed}


def _source_of(entry: BenchmarkEntry, folder: Path) -> dict[str, Any]:
    """Return the settings that name a cell's benchmark. Paths are relative to ``folder``."""
    if not entry.verify:
        spec = find_spec_by_any_name(entry.benchmark)
        return {"benchmark.name": entry.benchmark if spec is None else spec.name}
    return {
        "benchmark.rows.file": str((folder / entry.benchmark).resolve()),
        "benchmark.rows.verify": absolute_import_path(folder, entry.verify),
        "benchmark.rows.tools": [absolute_import_path(folder, tool) for tool in entry.tools],
    }


def _column_name(entry: BenchmarkEntry, content: EvalTableFile) -> str:
    if entry.name:
        return entry.name
    if entry.panel:
        return _to_name(Path(entry.panel).stem)
    source = Path(entry.benchmark).stem if entry.verify else entry.benchmark
    return _to_name(f"{source}-{entry.split or content.split}")


def _panel_path(panel: str, folder: Path) -> str:
    """Return a panel's name, or its path, which is relative to ``folder``."""
    return panel if panel in shipped_names() else str(folder / Path(panel).expanduser())


def _to_name(text: str) -> str:
    """Return a text as a name for a folder."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-._")


def _env_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _without_endpoint(sets: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run, which has no endpoint, so that a file cannot name one."""
    return {key: value for key, value in sets.items() if not key.startswith("policy.endpoint.")}


def _split_setting(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key, value


def _seeds_from(seeds: Any) -> Any:
    if isinstance(seeds, str):
        return parse_seeds(seeds, (), "seeds")
    if isinstance(seeds, list):
        if len(seeds) > MAX_SEEDS:
            raise ValueError(f"at most {MAX_SEEDS:,} seeds are allowed")
        if len(set(map(str, seeds))) < len(seeds):
            raise ValueError("each seed may be given only once")
    return seeds
