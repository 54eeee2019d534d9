"""Errors, by the boundary that failed.

Bad model output is never an exception: it is an observation (see ``envs/base.py``). What is
raised here is either a caller's mistake or a fault of the machinery, and no fault becomes a
reward of 0.
"""

from __future__ import annotations

from gymnasium.error import ResetNeeded

__all__ = [
    "AnswerMissing",
    "BenchmarkNotInstalled",
    "BudgetSpent",
    "BuildError",
    "CoevoError",
    "ConfigError",
    "DataError",
    "EnvBackendError",
    "ModelError",
    "ModelNotFetched",
    "ModelNotFound",
    "RateLimited",
    "ResetNeeded",
    "SplitLeakError",
    "StoreError",
    "TaskError",
    "TrainingDiverged",
    "WorkersFailed",
]


MOST_CHARACTERS = 10_000
"""Longest text of an error: values of any length are quoted in some."""


class CoevoError(Exception):
    """Base of every error that coevo_gym raises on its own account."""

    def __str__(self) -> str:
        text, half = super().__str__(), MOST_CHARACTERS // 2
        left_out = len(text) - 2 * half
        if left_out <= 0:
            return text
        return f"{text[:half]} ... ({left_out:,} characters left out) ... {text[-half:]}"


class ConfigError(CoevoError, ValueError):
    """A setting, argument or checkout is not usable as given."""


class TaskError(CoevoError, ValueError):
    """A task is unknown, malformed, or belongs to another benchmark."""


class BuildError(TaskError):
    """A draft could not be turned into a proven task; the message is the reason."""


class SplitLeakError(CoevoError):
    """A validation or test task was about to reach exploration, drafting or training."""


class EnvBackendError(CoevoError):
    """The engine behind an environment failed; the episode has no score."""


class BenchmarkNotInstalled(EnvBackendError):
    """A benchmark's engine or data is missing; the message names the install command."""


class DataError(EnvBackendError):
    """Benchmark data was found but is incomplete or corrupt."""


class WorkersFailed(CoevoError):
    """Worker processes were lost, or went on failing, each new one like the one before."""


class TrainingDiverged(CoevoError, FloatingPointError):
    """Losses or gradients went on being infinite or not a number; training cannot go on."""


class StoreError(CoevoError):
    """A run folder, database or checkpoint cannot be read or written."""


class ModelError(CoevoError):
    """A language model cannot be loaded, or its engine or endpoint failed."""


class ModelNotFetched(ModelError):
    """A model that can be fetched is not on this machine; the message names the command."""


class ModelNotFound(ModelError, ValueError):
    """No language model is where a setting says; the message says what it may name."""


class RateLimited(ModelError):
    """An endpoint went on refusing for want of capacity, however often it was asked."""


class BudgetSpent(ModelError):
    """The next request might pass a cap on tokens or money; it was not sent."""


class AnswerMissing(CoevoError, LookupError):
    """A tape that is replayed lacks an answer; the message names the prompt and the key."""
