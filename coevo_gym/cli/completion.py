"""Tab completion: names that complete an argument, looked up when the shell asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.store.eval_folder import EvalFolder
from coevo_gym.store.folder import RunFolder

Names = Callable[[], Iterable[str]]


def completing(*sources: Names) -> Callable[[str], list[str]]:
    """Create a completer for an argument.

    Args:
        sources: functions that list the names it may be.
    """

    def complete(incomplete: str) -> list[str]:
        return [name for names in sources for name in names() if name.startswith(incomplete)]

    return complete


def benchmarks() -> list[str]:
    """List the names of the benchmarks."""
    return [spec.name for spec in benchmark_specs()]


def presets() -> list[str]:
    """List the names of the presets."""
    from coevo_gym.runs.config import preset_names

    return preset_names()


def cards() -> list[str]:
    """List the names of the GPUs that a plan can be made for."""
    from coevo_gym.runs.planning.device import CARDS

    return list(CARDS)


def tables() -> list[str]:
    """List the names of the experiment tables."""
    from coevo_gym.runs.experiments.definition import names

    return list(names())


def runs() -> list[str]:
    """List the names of the runs here."""
    return list(RunFolder.names())


def evaluations() -> list[str]:
    """List the names of the evaluations here."""
    return list(EvalFolder.names())
