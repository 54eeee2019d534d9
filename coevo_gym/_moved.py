"""Modules that have moved: their old names go on working for one more version.

A finder at the end of Python's own serves an import of an old name with a module that looks
everything up in the new one, and says once where that is.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    f"coevo_gym.{old}": f"coevo_gym.{new}"
    for old, new in {
        "agents.answers": "prompts.answers",
        "agents.language_model": "agents.lm.language_model",
        "agents.openai_policy": "agents.endpoint.openai_policy",
        "agents.transformers_policy": "agents.lm.transformers_policy",
        "agents.vllm_engine": "agents.lm.vllm_engine",
        "agents.vllm_policy": "agents.lm.vllm_policy",
        "benchmark": "core.benchmark",
        "curricula.groups": "curricula.session.groups",
        "curricula.methods": "methods",
        "curricula.methods.coevolve": "methods.coevolve",
        "curricula.sampler": "curricula.session.sampler",
        "curricula.vector_sampler": "curricula.session.vector_sampler",
        "errors": "core.errors",
        "evolution": "core.evolution",
        "seams": "core.seams",
        "spaces": "core.spaces",
        "task": "core.task",
        "task_file": "core.task_file",
        "trainers.collect": "trainers.rollouts.lock_step",
        "trainers.evaluate": "episodes.evaluation",
        "trainers.loss": "trainers.update.loss",
        "trainers.rollout": "episodes",
        "trajectory": "core.trajectory",
        "vector": "envs.vector",
        "wrappers": "envs.wrappers",
    }.items()
}
"""Old name to new name."""

RENAMED = {"coevo_gym.trajectory.Turn": "PastStep"}
"""Names that are others in the module that took the place of theirs."""


class _Moved(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = MOVED[module.__name__]
        warnings.warn(
            f"{module.__name__} has moved to {new}; the old name goes with the next version.",
            DeprecationWarning,
            stacklevel=2,
        )
        real = import_module(new)
        module.__doc__ = real.__doc__
        if any(name.startswith(f"{module.__name__}.") for name in MOVED):
            module.__path__ = []  # a package, whose modules are found here and nowhere else

        def find(name: str) -> object:
            return getattr(real, RENAMED.get(f"{module.__name__}.{name}", name))

        module.__getattr__ = find  # type: ignore[method-assign]


def install() -> None:
    """Serve old names from now on; twice is fine."""
    if not any(type(finder) is _Moved for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
