"""Which trainers there are adapters for, and what each of them takes.

What an adapter imports of its trainer it imports when it is used: knowing what there is loads none.
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
    """A trainer of somebody else's.

    Attributes:
        name: what it is called on the command line.
        title: what it is called by its users.
        packages: the distributions whose versions are told, the trainer's own first.
        extra: the extra of this package that brings it, where both fit into one environment; None
            where nothing of ours is installed beside it, and ``modules`` are copied there.
        modules: for a trainer without an extra, what is copied: names there → files of this
            package.
        size: about how much it takes on disk.
    """

    name: str
    title: str
    packages: tuple[str, ...]
    extra: str | None = None
    modules: Mapping[str, str] = field(default_factory=dict)
    size: str = "1 GB"

    @property
    def pins(self) -> Path:
        """The versions of all that is installed with it, one a line."""
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
                "coevo_sample_factory": "trainers/plug/sample_factory.py",
            },
        ),
    )
}
"""By name."""


def import_trainer(module: str, trainer: str) -> ModuleType:
    """A module of a trainer.

    Args:
        module: what to import, such as ``"stable_baselines3"``.
        trainer: name of the trainer that brings it.

    Raises:
        ImportError: if it is not installed here; it says what to run.
    """
    try:
        return import_module(module)
    except ImportError as error:
        found = TRAINERS[trainer]
        here = f"{extra_advice(found.extra)}, or run" if found.extra else "Run"
        raise ImportError(
            f"{found.title} is not here ({error}). {here} `coevo install {trainer}` and use the "
            "Python of the environment that it makes."
        ) from error
