"""Exceptions raised by coevo_gym.

Bad model output is never an exception but an observation (see ``envs/base.py``). Each exception
here signals a caller's mistake or an infrastructure fault. A fault never becomes a reward of 0.
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


MAX_CHARACTERS = 10_000
"""Maximum length of an error message in characters; some messages quote values of any length."""


class CoevoError(Exception):
    """Base class of all errors raised by coevo_gym."""

    def __str__(self) -> str:
        text, half = super().__str__(), MAX_CHARACTERS // 2
        left_out = len(text) - 2 * half
        if left_out <= 0:
            return text
        return f"{text[:half]} ... ({left_out:,} characters left out) ... {text[-half:]}"


class ConfigError(CoevoError, ValueError):
    """A setting, argument or source checkout cannot be used."""


class TaskError(CoevoError, ValueError):
    """A task is unknown or malformed, or belongs to another benchmark."""


class BuildError(TaskError):
    """A proposal or draft could not be turned into a proven task. The message gives the reason."""


class SplitLeakError(CoevoError):
    """A validation or test task would have been used for exploration, drafting or training."""


class EnvBackendError(CoevoError):
    """The engine behind an environment failed. The episode has no score."""


class BenchmarkNotInstalled(EnvBackendError):
    """A benchmark's engine or data is missing. The message contains the install command."""


class DataError(EnvBackendError):
    """Benchmark data is incomplete or corrupt."""


class WorkersFailed(CoevoError):
    """Worker processes kept failing despite restarts."""


class TrainingDiverged(CoevoError, FloatingPointError):
    """Losses or gradients stayed infinite or NaN, so training stopped."""


class StoreError(CoevoError):
    """A run folder, database or checkpoint cannot be read or written."""


class ModelError(CoevoError):
    """A language model could not be loaded, or its engine or endpoint failed."""


class ModelNotFetched(ModelError):
    """A language model has not been downloaded yet. The message contains the download command."""


class ModelNotFound(ModelError, ValueError):
    """A setting names a language model that does not exist. The message lists valid values."""


class RateLimited(ModelError):
    """An endpoint did not have the capacity to serve a request, even after all retries."""


class BudgetSpent(ModelError):
    """The next request was not sent because it might exceed a token or cost limit."""


class AnswerMissing(CoevoError, LookupError):
    """A replayed tape has no answer to a request. The message names the prompt and key."""
