"""The folder of an evaluation: its settings, results and trajectories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.panel import Panel
from coevo_gym.core.registry import did_you_mean
from coevo_gym.core.spend import Usage
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.store.folder import (
    LOCK,
    check_folder_name,
    delete,
    has_keys,
    lock_folder,
    raise_store_errors,
    read_json,
    read_lines,
    read_panel_copy,
    refuse_links,
    write_atomic,
)
from coevo_gym.store.reader import Evaluated, RunReader

EVALS = Path("evals")
Key = tuple[str, int]
"""A task's id, and the index of one of its episodes."""


class EvalLine(FrozenModel):
    """The result of one episode, as stored in a line of ``results.jsonl``.

    Attributes:
        id: the task's id.
        sample: index of the episode among those of its task, from 0.
        name: the task's name.
        scenario: unit that belongs entirely to one split.
        tags: the task's tags, each as ``"kind:value"``.
        success: binary outcome.
        score: the benchmark's own score.
        steps: number of env steps taken.
        end_reason: reason why the episode ended.
        seed: the env seed.
        prompt_tokens: number of tokens that models read.
        completion_tokens: number of tokens that models wrote.
        usd: price of these tokens in US dollars, where prices are set.
        empty: number of answers without an action.
        cut: number of answers that were cut off at the token limit.
        invalid: number of actions that had no effect.
        failure: the benchmark's kind of failure, such as ``state_mismatch``; "" if the episode
            succeeded, or the benchmark does not diagnose episodes.
        failed_turn: number of the turn that failed, from 1; None if the task has a single request.
    """

    id: str
    sample: int = Field(ge=0)
    name: str
    scenario: str
    tags: tuple[str, ...] = ()
    success: bool
    score: float = Field(ge=0, le=1)
    steps: int = Field(ge=0)
    end_reason: str
    seed: int
    prompt_tokens: int = Field(default=0, ge=0)
    completion_tokens: int = Field(default=0, ge=0)
    usd: float = Field(default=0.0, ge=0)
    empty: int = Field(default=0, ge=0)
    cut: int = Field(default=0, ge=0)
    invalid: int = Field(default=0, ge=0)
    failure: str = ""
    failed_turn: int | None = None

    @property
    def key(self) -> Key:
        """The task id and sample index, which together identify a line of results."""
        return self.id, self.sample

    @property
    def usage(self) -> Usage:
        """Model usage in the episode."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            usd=self.usd,
        )

    @property
    def database_row(self) -> Evaluated:
        """The database row for this episode."""
        return Evaluated(
            self.id,
            self.success,
            self.score,
            self.end_reason,
            self.steps,
            self.sample,
            self.failure,
            self.failed_turn,
        )


@dataclass(frozen=True)
class EvalFolder:
    """The paths of an evaluation's files."""

    path: Path

    @property
    def config(self) -> Path:
        """File with the settings that the results depend on."""
        return self.path / "config.json"

    @property
    def results(self) -> Path:
        """File with one line per finished episode."""
        return self.path / "results.jsonl"

    @property
    def lost(self) -> Path:
        """Log of episodes lost to a fault, with one line per episode."""
        return self.path / "lost.jsonl"

    @property
    def database(self) -> Path:
        """Database with the episodes and their tasks."""
        return self.path / "trajectories.db"

    @property
    def endpoint(self) -> Path:
        """File with the counts of endpoint requests and tokens, summed over all starts."""
        return self.path / "endpoint.json"

    @property
    def answers(self) -> Path:
        """File with an endpoint's answers, kept until all episodes are finished."""
        return self.path / "answers.jsonl"

    @property
    def summary(self) -> Path:
        """File with the final results of a finished evaluation."""
        return self.path / "summary.json"

    @property
    def panel(self) -> Path:
        """File with the panel of tasks to evaluate."""
        return self.path / "panel.json"

    @classmethod
    def by_name(cls, name: str) -> Self:
        """Return the folder with the given name under ``evals/``, even if it does not exist yet.

        Raises:
            ConfigError: if the name is not allowed.
        """
        check_folder_name(name)
        return cls(EVALS / name)

    @classmethod
    def of(cls, name: str) -> EvalFolder:
        """Return the folder of an existing evaluation, by its name under ``evals/`` or its path.

        Raises:
            ConfigError: if the evaluation does not exist.
        """
        folder = cls.find(name)
        if folder is None:
            here = ", ".join(names := cls.names()) or "none"
            raise ConfigError(
                f"There is no evaluation {name!r} in {EVALS}/ or at the path {name!r}. "
                f"{did_you_mean(name, names)}Evaluations here: {here}."
            )
        return folder

    @classmethod
    def find(cls, name: str) -> EvalFolder | None:
        """Return the folder of the evaluation with this name or path, or None."""
        for path in (EVALS / name, Path(name)):
            if (path / "config.json").is_file():
                return cls(path)
        return None

    @staticmethod
    def names() -> list[str]:
        """Return the names of the evaluations under ``evals/``, excluding those of tables."""
        return sorted(path.parent.name for path in EVALS.glob("*/config.json"))

    @staticmethod
    def table_folders() -> list[Path]:
        """Return the folders under ``evals/`` that contain evaluations, sorted by name."""
        return sorted({path.parents[1] for path in EVALS.glob("*/*/config.json")})

    @classmethod
    def of_table(cls, table: Path) -> list[EvalFolder]:
        """Return the evaluations in a table's folder, sorted by name; [] for any other folder."""
        return [cls(path.parent) for path in sorted(table.glob("*/config.json"))]

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder so that no other process can write to it.

        Raises:
            StoreError: if another process holds the lock.
        """
        return lock_folder(self.path)

    def is_evaluation(self) -> bool:
        """Return True if the folder contains an evaluation, damaged or not."""
        if not self.config.is_file():
            return False
        return self.results.is_file() or has_keys(self.config, "policy", "tasks")

    def deletable_contents(self) -> list[Path]:
        """Return the paths that :meth:`delete_contents` would delete.

        Raises:
            ConfigError: if the folder is not an evaluation, or is reached through a link.
        """
        there = [item for item in sorted(self.path.glob("*")) if item.name != LOCK]
        if there and not self.is_evaluation():
            raise ConfigError(
                f"{self.path} is not empty and is not an evaluation ({there[0].name}, …). "
                "Choose another --name."
            )
        if there:
            refuse_links(self.path, EVALS)
        return there

    def delete_contents(self) -> None:
        """Delete the contents of the folder.

        Raises:
            ConfigError: in the same cases as :meth:`deletable_contents`.
            StoreError: if the contents cannot be deleted.
        """
        with raise_store_errors(self.path):
            for item in self.deletable_contents():
                delete(item)

    def read_config(self) -> dict[str, Any]:
        """Return the settings that the results depend on.

        Raises:
            StoreError: if the file is damaged.
        """
        config = read_json(self.config)
        if not isinstance(config, dict):
            raise StoreError(f"{self.config} is damaged: it is not a JSON object.")
        return config

    def write_panel(self, panel: Panel) -> None:
        """Write the panel of tasks to evaluate, unless the file already exists.

        Raises:
            StoreError: if it cannot be written.
        """
        if not self.panel.is_file():
            write_atomic(self.panel, panel.to_json().encode())

    def read_panel(self) -> Panel:
        """Return the panel of tasks to evaluate.

        Raises:
            ConfigError: if the file is missing, or was edited.
        """
        return read_panel_copy(self.panel, "evaluate again with --overwrite")

    def read_results(self) -> dict[Key, EvalLine]:
        """Return the episodes in the order in which they ended. Truncated lines are skipped.

        Raises:
            StoreError: if another line is not a valid result.
        """
        by_key: dict[Key, EvalLine] = {}
        for raw in read_lines(self.results):
            try:
                line = EvalLine.model_validate(raw)
            except ValidationError as error:
                raise StoreError(
                    f"{self.results} contains an invalid line: {str(raw)[:200]}. Delete that line "
                    "to run its episode again."
                ) from error
            by_key.setdefault(line.key, line)
        return by_key

    def read_episodes(self) -> Iterator[tuple[EvalLine, EvalTrajectory]]:
        """Yield each episode with its trajectory, in the order in which the episodes ended.

        Raises:
            StoreError: if a file is missing or damaged.
        """
        reader, policy = RunReader(self.database), self.read_config()["policy"]
        for line in self.read_results().values():
            trajectory = reader.eval_trajectory(policy, 0, line.id, line.sample)
            if trajectory is not None:
                yield line, trajectory
