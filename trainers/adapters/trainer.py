"""Registry of supported third-party trainers and their requirements.

An adapter imports its trainer only when used, so listing the trainers imports none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType

from coevo_gym.provision import extra_advice

_PINS = Path(__file__).with_name("pins")


@dataclass(frozen=True)
class Trainer:
    """A third-party trainer.

    Attributes:
        name: name on the command line.
        title: display name.
        packages: distributions whose versions are reported, starting with the trainer's own.
        extra: extra of this package that installs the trainer in the same environment; None if
            the trainer is incompatible and ``modules`` are copied into its environment instead.
        modules: files to copy for a trainer without an extra: module names there → files of this
            package.
        size: approximate size on disk.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    extra: str | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    size: str = "1 GB"

    @property
    def pins(self) -> Path:
        """File with the pinned versions of the trainer's environment, one per line."""
        return _PINS / f"{self.name}.txt"


TRAINERS: Mapping[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        Trainer("sb3", "Stable-Baselines3", ("stable-baselines3", "sb3-contrib"), "sb3"),
        Trainer("rllib", "RLlib", ("ray",), "rllib", size="1.7 GB"),
        Trainer("trl", "TRL", ("trl", "transformers"), "trl"),
        Trainer("verl", "verl", ("verl", "ray", "transformers"), "verl", size="2 GB"),
        Trainer(
            "sample-factory",
            "Sample Factory",
            ("sample-factory",),
            modules={
                "coevo_remote": "remote.py",
                "coevo_sample_factory": "trainers/adapters/sample_factory.py",
            },
        ),
    )
}
"""Supported trainers by name."""


def import_trainer(module: str, trainer: str) -> ModuleType:
    """Import a module of a trainer.

    Args:
        module: module to import, such as ``"stable_baselines3"``.
        trainer: name of the trainer that provides the module.

    Raises:
        ImportError: if the module is not installed here; the message says how to install it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        found = TRAINERS[trainer]
        here = f"{extra_advice(found.extra)}, or run" if found.extra else "Run"
        raise ImportError(
            f"{found.title} is not installed here ({error}). {here} `coevo install {trainer}` and "
            "use the Python of the environment that it creates."
        ) from error
