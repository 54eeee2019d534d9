"""The settings of a verl-agent run that determine its tasks, from a launch script or options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from coevo_gym.core.errors import ConfigError
from coevo_gym.runs.audits.launch_script import LaunchScript

MAX_TASKS = 10_000_000
"""Maximum number of tasks that an audit draws, which takes about a minute."""


class PeerBenchmark(StrEnum):
    """Benchmarks for which verl-agent's rules for drawing tasks are known."""

    ALFWORLD = "alfworld"
    WEBSHOP = "webshop"


class EvalDataset(StrEnum):
    """Sets of ALFWorld games to validate on, as verl-agent names them."""

    SEEN = "eval_in_distribution"
    UNSEEN = "eval_out_of_distribution"


_ENV_NAMES = {
    "alfworld/AlfredTWEnv": PeerBenchmark.ALFWORLD,
    "Webshop": PeerBenchmark.WEBSHOP,
}
_DEFAULTS = {
    "env.env_name": "alfworld/AlfredTWEnv",
    "env.seed": "0",
    "data.train_batch_size": "1024",
    "env.rollout.n": "1",
    "data.val_batch_size": "null",
    "trainer.total_epochs": "30",
    "trainer.total_training_steps": "null",
    "trainer.test_freq": "-1",
    "trainer.val_before_train": "True",
    "env.alfworld.eval_dataset": EvalDataset.SEEN,
    "env.webshop.use_small": "True",
    "env.webshop.human_goals": "False",
    "algorithm.filter_groups.enable": "False",
}
"""Values of the keys that determine tasks, where a script does not set them."""
_KNOWN_ENV_KEYS = (
    *("env.env_name", "env.seed", "env.max_steps", "env.history_length", "env.rollout.n"),
    *("env.resources_per_worker.", "env.alfworld.eval_dataset", "env.search.", "env.sokoban."),
    *("env.webshop.use_small", "env.webshop.human_goals"),
)
"""Keys of the env, or beginnings of keys, whose meaning for the tasks is known."""
_PREPARED_ROWS = "256"
"""Rows that the data preparation makes where a script does not say how many."""

SCRIPT_DEFAULT = "verl-agent's default"
SHIPPED = "as in its scripts for GRPO"
OPTION = "option"


@dataclass(frozen=True, slots=True)
class RecipeSetting:
    """A setting that the audit used.

    Attributes:
        key: name of the setting, as in verl-agent where it has one.
        value: the value.
        origin: where the value is from, such as a line of the script.
    """

    key: str
    value: str
    origin: str


@dataclass(frozen=True, slots=True)
class PeerRecipe:
    """The settings that determine the tasks of a verl-agent run.

    Attributes:
        benchmark: the benchmark.
        seed: seed of the first training workers.
        groups: tasks per iteration.
        group_size: episodes per task.
        iterations: number of training iterations.
        validate_every: iterations between evaluations; 0 or less for none during training.
        validate_first: True if there is an evaluation before training.
        val_batch: number of validation workers.
        val_tasks: tasks per evaluation, a multiple of ``val_batch``.
        eval_dataset: ALFWorld's games to validate on.
        settings: all settings, with their origins.
        notes: limits and assumptions of the audit, as sentences.
    """

    benchmark: PeerBenchmark
    seed: int
    groups: int
    group_size: int
    iterations: int
    validate_every: int
    validate_first: bool
    val_batch: int
    val_tasks: int
    eval_dataset: EvalDataset
    settings: tuple[RecipeSetting, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("groups", "group_size", "iterations", "val_batch", "val_tasks"):
            if (number := getattr(self, name)) < 1:
                raise ConfigError(f"The audit needs {name} to be at least 1, got {number}.")
        if self.seed < 0:
            raise ConfigError(f"The audit needs the seed to be at least 0, got {self.seed}.")
        if self.val_tasks % self.val_batch:
            raise ConfigError(
                f"An evaluation of {self.val_tasks} tasks cannot be divided into batches of "
                f"{self.val_batch}, so verl-agent would stop. Choose a multiple."
            )

        evaluations = self.iterations // max(1, self.validate_every) + 2
        tasks = self.groups * self.iterations + self.val_tasks * evaluations
        if tasks > MAX_TASKS:
            raise ConfigError(
                f"The run draws {tasks:,} tasks, but the audit can draw at most {MAX_TASKS:,}. "
                "Check the number of iterations. To audit only the first N of them, pass "
                "--iterations N."
            )

    @property
    def evaluated_at(self) -> tuple[int, ...]:
        """The iterations after which the policy is evaluated; 0 means before training."""
        if self.validate_every < 1:
            return (0,) if self.validate_first else ()
        within = range(self.validate_every, self.iterations + 1, self.validate_every)
        at = {*within, self.iterations} | ({0} if self.validate_first else set())
        return tuple(sorted(at))


def shipped_recipe(benchmark: PeerBenchmark, options: Mapping[str, Any]) -> PeerRecipe:
    """Return the recipe of verl-agent's GRPO script for a benchmark, with some settings replaced.

    Args:
        benchmark: the benchmark.
        options: field of :class:`PeerRecipe` to value; None keeps the script's.
    """
    fields = {
        "seed": 0,
        "groups": 16,
        "group_size": 8,
        "iterations": 150,
        "validate_every": 5,
        "val_batch": 128,
        "eval_dataset": EvalDataset.SEEN,
    }
    replaced = {name: value for name, value in options.items() if value is not None}
    fields |= replaced
    fields.setdefault("val_tasks", fields["val_batch"])
    origins = {name: OPTION if name in replaced else SHIPPED for name in fields}
    return _make(benchmark, fields, origins, validate_first=True, notes=())


def recipe_of_script(script: LaunchScript, options: Mapping[str, Any]) -> PeerRecipe:
    """Return the recipe of a launch script, with some settings replaced.

    Args:
        script: the script.
        options: field of :class:`PeerRecipe` to value; None keeps the script's.

    Raises:
        ConfigError: if the script is for another benchmark or for tasks whose rules are unknown, or
            a value is missing or has the wrong type.
    """
    return _ScriptReading(script, options).recipe()


class _ScriptReading:
    """A reader for a script's settings that remembers where each value comes from."""

    def __init__(self, script: LaunchScript, options: Mapping[str, Any]) -> None:
        self._script = script
        self._given = {name: value for name, value in options.items() if value is not None}
        self._fields: dict[str, Any] = {}
        self._origins: dict[str, str] = {}
        self._notes: list[str] = []

    def recipe(self) -> PeerRecipe:
        benchmark = self._benchmark()
        self._set_number("seed", "env.seed")
        self._set_number("groups", "data.train_batch_size")
        self._set_number("group_size", "env.rollout.n")
        if self._fields["group_size"] < 1:
            self._fields["group_size"] = 1  # as verl-agent does
        self._set_number("val_batch", "data.val_batch_size")
        self._set_number("validate_every", "trainer.test_freq")
        self._set_iterations()
        self._set_val_tasks()
        if benchmark is PeerBenchmark.ALFWORLD:
            self._set_eval_dataset()
        else:
            self._fields["eval_dataset"] = EvalDataset.SEEN
        first, _ = self._flag("trainer.val_before_train")
        self._add_notes()
        return _make(
            benchmark, self._fields, self._origins, validate_first=first, notes=tuple(self._notes)
        )

    def _text(self, key: str) -> tuple[str, str]:
        """Return a key's value and its origin.

        Raises:
            ConfigError: if the value depends on a variable that the script does not set.
        """
        override = self._script.overrides.get(key)
        if override is None:
            return _DEFAULTS[key], SCRIPT_DEFAULT
        if "$" in override.text or "`" in override.text:
            raise ConfigError(
                f"{self._script.source}:{override.line}: {key}={override.text} depends on a value "
                "that the script does not set. Set it in a copy of the script, or pass the option "
                "for it; see `coevo audit --help`."
            )
        return override.text, f"{self._script.source}:{override.line}"

    def _number(self, key: str) -> tuple[int, str]:
        text, origin = self._text(key)
        try:
            return int(text), origin
        except ValueError:
            missing = key not in self._script.overrides
            raise ConfigError(
                f"{self._script.source} does not set {key}, and verl-agent needs a number. Set it, "
                "or pass the option for it; see `coevo audit --help`."
                if missing
                else f"{origin}: {key} must be a whole number, got {text!r}. Correct it."
            ) from None

    def _flag(self, key: str) -> tuple[bool, str]:
        text, origin = self._text(key)
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{origin}: {key} must be True or False, got {text!r}. Correct it.")
        return text.lower() == "true", origin

    def _set(self, name: str, value: Any, origin: str) -> None:
        self._fields[name], self._origins[name] = value, origin

    def _use_option(self, name: str) -> bool:
        """Use a field's option if the caller passed one."""
        if name in self._given:
            self._set(name, self._given[name], OPTION)
        return name in self._given

    def _set_number(self, name: str, key: str) -> None:
        if not self._use_option(name):
            self._set(name, *self._number(key))

    def _benchmark(self) -> PeerBenchmark:
        name, origin = self._text("env.env_name")
        if name not in _ENV_NAMES:
            known = ", ".join(_ENV_NAMES)
            raise ConfigError(
                f"{origin}: env.env_name={name} draws tasks by rules that the audit does not know. "
                f"It knows {known}. If a run mixes benchmarks, audit each with --benchmark and the "
                "number of its own workers."
            )
        if _ENV_NAMES[name] is PeerBenchmark.WEBSHOP:
            for key, wanted in (
                ("env.webshop.use_small", True),
                ("env.webshop.human_goals", False),
            ):
                value, origin = self._flag(key)
                if value is not wanted:
                    raise ConfigError(
                        f"{origin}: {key}={value} is not supported: the audit covers the shop of "
                        "1,000 products with synthetic goals, verl-agent's default."
                    )
        return _ENV_NAMES[name]

    def _set_iterations(self) -> None:
        if self._use_option("iterations"):
            return
        steps, origin = self._text("trainer.total_training_steps")
        if steps != "null":
            self._set("iterations", *self._number("trainer.total_training_steps"))
            return
        epochs, origin = self._number("trainer.total_epochs")
        rows = self._rows("train_data_size")
        if rows is None:
            self._notes.append(
                "The script does not prepare its data, so one iteration per epoch is assumed, as "
                "in verl-agent's scripts. Pass --iterations if there are more rows."
            )
            self._set("iterations", epochs, origin)
        else:
            self._set("iterations", epochs * (rows // self._fields["groups"]), origin)

    def _set_val_tasks(self) -> None:
        if self._use_option("val_tasks"):
            return
        rows = None if "val_batch" in self._given else self._rows("val_data_size")
        if rows is None:
            self._set("val_tasks", self._fields["val_batch"], "assumed: one batch")
        else:
            size = self._script.options.get("val_data_size")
            where = f"{self._script.source}:{size.line}" if size else SCRIPT_DEFAULT
            self._set("val_tasks", rows, where)

    def _rows(self, option: str) -> int | None:
        """Return how many rows the script's data preparation makes, or None if it makes none."""
        if not any(name.endswith("_data_size") for name in self._script.options):
            return None
        size = self._script.options.get(option)
        text = _PREPARED_ROWS if size is None else size.text
        if not text.isdecimal():
            raise ConfigError(
                f"{self._script.source}: --{option} must be a whole number, got {text}. Correct it "
                "in a copy of the script."
            )
        return int(text)

    def _set_eval_dataset(self) -> None:
        if self._use_option("eval_dataset"):
            return
        text, origin = self._text("env.alfworld.eval_dataset")
        if text not in [*EvalDataset]:
            raise ConfigError(
                f"{origin}: env.alfworld.eval_dataset={text} is unknown. Choose one of: "
                f"{', '.join(EvalDataset)}."
            )
        self._set("eval_dataset", EvalDataset(text), origin)

    def _add_notes(self) -> None:
        if self._flag("algorithm.filter_groups.enable")[0]:
            self._notes.append(
                "algorithm.filter_groups.enable draws further batches where groups agree, which "
                "depends on the policy. The audit counts one batch per iteration, so training "
                "plays more tasks than it says; the evaluations are exact."
            )
        unknown = [
            key
            for key in self._script.overrides
            if key.startswith("env.") and not key.startswith(_KNOWN_ENV_KEYS)
        ]
        if unknown:
            self._notes.append(
                f"Keys that verl-agent does not have: {', '.join(unknown)}. If a fork draws tasks "
                "by them, the audit is wrong for it."
            )
        if self._script.branches:
            self._notes.append(
                f"The script has {', '.join(self._script.branches)}: of a variable that several "
                "branches set, the last value in the file was used."
            )


_KEYS = {
    "seed": "env.seed",
    "groups": "data.train_batch_size",
    "group_size": "env.rollout.n",
    "iterations": "iterations",
    "validate_every": "trainer.test_freq",
    "val_batch": "data.val_batch_size",
    "val_tasks": "tasks per evaluation",
    "eval_dataset": "env.alfworld.eval_dataset",
}


def _make(
    benchmark: PeerBenchmark,
    fields: Mapping[str, Any],
    origins: Mapping[str, str],
    *,
    validate_first: bool,
    notes: tuple[str, ...],
) -> PeerRecipe:
    settings = tuple(
        RecipeSetting(key, str(fields[name]), origins[name])
        for name, key in _KEYS.items()
        if name in origins and (benchmark is PeerBenchmark.ALFWORLD or name != "eval_dataset")
    )
    return PeerRecipe(
        benchmark=benchmark,
        validate_first=validate_first,
        settings=settings,
        notes=notes,
        **fields,
    )
