"""The folder of an evaluation: what it is of, how each episode ended, and what happened in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.registry import meant
from coevo_gym.core.spend import Cost, Usage
from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import EvalTrajectory
from coevo_gym.store.folder import (
    LOCK,
    check_deletable,
    check_name,
    delete,
    locked,
    read_json,
    read_lines,
    storing,
    written_by_us,
)
from coevo_gym.store.reader import Evaluated, RunReader

EVALS = Path("evals")
Key = tuple[str, int]
"""Id of a task, and which of its episodes it is."""


class EvalLine(FrozenModel):
    """An episode of an evaluation, as it stands in ``results.jsonl``.

    Attributes:
        id: id of its task.
        sample: which of the task's episodes it is, from 0.
        name: the task's name.
        scenario: the unit that stays on one side of a split.
        tags: its tags, ``"kind:value"``.
        success: the binary outcome.
        score: the benchmark's own score.
        steps: env steps taken.
        end_reason: why it ended.
        seed: seed of its env.
        prompt_tokens: tokens that a model read in it.
        completion_tokens: tokens that it wrote.
        usd: price of these in US dollars, as far as prices are set.
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

    @property
    def key(self) -> Key:
        """Key of a line: task and sample."""
        return self.id, self.sample

    @property
    def usage(self) -> Usage:
        """Usage of models in the episode."""
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            usd=self.usd,
        )

    @property
    def cost(self) -> Cost:
        """Cost of the episode."""
        return Cost.of(self.steps, self.usage)

    @property
    def ended(self) -> Evaluated:
        """The row that the database stores of it."""
        return Evaluated(
            self.id, self.success, self.score, self.end_reason, self.steps, self.sample
        )


@dataclass(frozen=True)
class EvalFolder:
    """The files of an evaluation."""

    path: Path

    @property
    def config(self) -> Path:
        """The settings that its numbers depend on."""
        return self.path / "config.json"

    @property
    def results(self) -> Path:
        """A line for each task and sample, written when its episode is over."""
        return self.path / "results.jsonl"

    @property
    def lost(self) -> Path:
        """A line for each episode that was lost to a fault, of every try."""
        return self.path / "lost.jsonl"

    @property
    def database(self) -> Path:
        """Database with the episodes and their tasks."""
        return self.path / "trajectories.db"

    @property
    def summary(self) -> Path:
        """Its numbers, when it is finished."""
        return self.path / "summary.json"

    @classmethod
    def named(cls, name: str) -> Self:
        """Return the folder under ``evals/`` for a name, which may not exist yet.

        Raises:
            ConfigError: if it cannot be the name of a folder.
        """
        check_name(name)
        return cls(EVALS / name)

    @classmethod
    def of(cls, name: str) -> EvalFolder:
        """Return the folder of an existing evaluation, by its name under ``evals/`` or its path.

        Raises:
            ConfigError: if there is none.
        """
        found = cls.find(name)
        if found is None:
            names = cls.names()
            raise ConfigError(
                f"There is no evaluation {name!r}, in {EVALS}/ or as a path. {meant(name, names)}"
                f"Evaluations here: {', '.join(names) or 'none'}."
            )
        return found

    @classmethod
    def find(cls, name: str) -> EvalFolder | None:
        """Return the folder of the evaluation with this name or path, or None."""
        for path in (EVALS / name, Path(name)):
            if (path / "config.json").is_file():
                return cls(path)
        return None

    @staticmethod
    def names() -> list[str]:
        """Names of the evaluations under ``evals/``."""
        return sorted(path.parent.name for path in EVALS.glob("*/config.json"))

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder, so that no other process writes to it.

        Raises:
            StoreError: if one does.
        """
        return locked(self.path)

    def is_evaluation(self) -> bool:
        """Return whether the folder holds an evaluation, damaged or not."""
        if not self.config.is_file():
            return False
        return self.results.is_file() or written_by_us(self.config, "policy", "tasks")

    def contents(self) -> list[Path]:
        """Return what :meth:`empty` would delete.

        Raises:
            ConfigError: if it is no evaluation, or the folder is reached through a link.
        """
        there = [item for item in sorted(self.path.glob("*")) if item.name != LOCK]
        if there and not self.is_evaluation():
            raise ConfigError(
                f"{self.path} is not empty and holds no evaluation ({there[0].name}, …). "
                "Choose another --name."
            )
        if there:
            check_deletable(self.path, EVALS)
        return there

    def empty(self) -> None:
        """Delete the contents of the folder.

        Raises:
            ConfigError: as :meth:`contents`.
            StoreError: if they cannot be deleted.
        """
        with storing(self.path):
            for item in self.contents():
                delete(item)

    def read_config(self) -> dict[str, Any]:
        """Return the settings that its numbers depend on.

        Raises:
            StoreError: if the file is damaged.
        """
        config = read_json(self.config)
        if not isinstance(config, dict):
            raise StoreError(f"{self.config} is damaged: it holds no object.")
        return config

    def lines(self) -> dict[Key, EvalLine]:
        """Its episodes in the order in which they ended.

        Raises:
            StoreError: if a line is none of ours; one that was cut short is passed over.
        """
        found: dict[Key, EvalLine] = {}
        for raw in read_lines(self.results):
            try:
                line = EvalLine.model_validate(raw)
            except ValidationError as error:
                raise StoreError(
                    f"{self.results} holds a line that is no result: {str(raw)[:200]}. Delete that "
                    "line, so that its episode is run again."
                ) from error
            found.setdefault(line.key, line)
        return found

    def trajectories(self) -> Iterator[tuple[EvalLine, EvalTrajectory]]:
        """Each episode with what happened in it, in the order in which they ended.

        Raises:
            StoreError: if a file is missing or damaged.
        """
        reader, policy = RunReader(self.database), self.read_config()["policy"]
        for line in self.lines().values():
            trajectory = reader.eval_trajectory(policy, 0, line.id, line.sample)
            if trajectory is not None:
                yield line, trajectory
