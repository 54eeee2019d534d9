"""LLM-agent benchmarks as Gymnasium envs, and a curriculum that evolves with the agent.

Importing this package registers the envs; ``gym.make("coevo_gym:CoEvolve-WebShop-v0")`` imports it.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coevo_gym.core.benchmark import (
    Benchmark,
    BenchmarkSpec,
    benchmark_specs,
    find_task,
    get_benchmark,
    register_benchmark,
)
from coevo_gym.core.errors import CoevoError, ConfigError
from coevo_gym.core.task import Split, Task, parse_split
from coevo_gym.envs.held_out import native_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coevo_gym.api import compare as compare
    from coevo_gym.api import evaluate as evaluate
    from coevo_gym.api import results as results
    from coevo_gym.api import resume as resume
    from coevo_gym.api import train as train
    from coevo_gym.curricula.session.curriculum_session import (
        CurriculumSession as CurriculumSession,
    )
    from coevo_gym.curricula.session.sampler import EvolvingTaskSampler as EvolvingTaskSampler
    from coevo_gym.curricula.session.vector_sampler import (
        EvolvingVectorSampler as EvolvingVectorSampler,
    )
    from coevo_gym.envs.rows import from_rows as from_rows
    from coevo_gym.runs.evals.judge import judge as judge

__version__ = "0.1.0"

__all__ = [
    "Benchmark",
    "BenchmarkSpec",
    "CoevoError",
    "CurriculumSession",
    "EvolvingTaskSampler",
    "EvolvingVectorSampler",
    "Split",
    "Task",
    "benchmark_specs",
    "compare",
    "evaluate",
    "find_task",
    "from_rows",
    "get_benchmark",
    "judge",
    "register_benchmark",
    "results",
    "resume",
    "tasks",
    "train",
]

_LAZY = {
    "CurriculumSession": "coevo_gym.curricula.session.curriculum_session",
    "EvolvingTaskSampler": "coevo_gym.curricula.session.sampler",
    "EvolvingVectorSampler": "coevo_gym.curricula.session.vector_sampler",
    "compare": "coevo_gym.api",
    "evaluate": "coevo_gym.api",
    "from_rows": "coevo_gym.envs.rows",
    "judge": "coevo_gym.runs.evals.judge",
    "results": "coevo_gym.api",
    "resume": "coevo_gym.api",
    "train": "coevo_gym.api",
}
_WINGS = ("agents", "curricula", "prompts", "trainers")


def tasks(
    benchmark: str, split: str = "train", subset: str | None = None, *, hold_out: float = 0.0
) -> Sequence[Task]:
    """Return a benchmark's native tasks.

    Args:
        benchmark: name of the benchmark, such as ``"webshop"``.
        split: ``"train"``, ``"val"`` or ``"test"``, or ``"held_out"``.
        subset: name of one of the benchmark's subsets; None for all tasks.
        hold_out: fraction of the training scenarios to set aside as ``held_out``, in [0, 1).

    Raises:
        ConfigError: if ``hold_out`` is not in [0, 1), or is 0 when ``held_out`` is requested.
        TaskError: if the benchmark, split or subset is unknown.

    Example:
        >>> import coevo_gym
        >>> coevo_gym.tasks("webshop", "val")[0].split
        <Split.VAL: 'val'>
    """
    return native_tasks(benchmark, parse_split(split), subset, hold_out=hold_out)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})


def _check_wings(package: Path) -> None:
    """Raise an error if the checkout contains text files in place of its symbolic links."""
    broken = [wing for wing in _WINGS if not (package / wing).is_dir()]
    if broken:
        raise ConfigError(
            f"{package / broken[0]} should be a symbolic link to a folder. The following symbolic "
            f"links are missing from this checkout: {', '.join(broken)}. Run `git config --global "
            "core.symlinks true` (on Windows, inside WSL) and clone again, or install the wheel."
        )


_OURS = "are part of this project and covered by its licence"
_BENCHMARKS = (
    (
        "webshop", "WebShop", "find and buy the product that an instruction describes",
        f"tasks from the built-in shop {_OURS}. Tasks from the official files quote product "
        "texts that have no licence: do not publish them.",
    ),
    (
        "bfcl", "BFCL", "serve a user over several turns by calling functions",
        "entries and functions come from the official package, under Apache-2.0: credit BFCL.",
    ),
    (
        "alfworld", "ALFWorld", "do a household task in a text world",
        f"tasks from the built-in rooms {_OURS}. The official games come from ALFWorld, under the "
        "MIT licence: credit ALFWorld.",
    ),
    (
        "appworld", "AppWorld", "get chores done by writing code against the APIs of apps",
        "AppWorld's data, and anything made with its databases, may be redistributed in encrypted "
        "form only: do not publish tasks in plain text.",
    ),
)  # fmt: skip


def _register() -> None:
    for name, camel, title, terms in _BENCHMARKS:
        package = f"coevo_gym.envs.{name}"
        register_benchmark(
            BenchmarkSpec(
                name=name,
                env_id=f"CoEvolve-{camel}-v0",
                benchmark=f"{package}:BENCHMARK",
                env=f"{package}.env:{camel}Env",
                world=f"{package}.world:{camel}World",
                verifier=f"{package}.world:{camel}Verifier",
                title=title,
                setup=f"{package}.setup",
                terms=terms,
            )
        )


_check_wings(Path(__file__).parent)
_register()
