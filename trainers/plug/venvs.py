"""Environments of trainers under ``$COEVO_HOME/trainers``, each with pinned versions.

A trainer whose pins fit ours gets an environment that holds coevo_gym, too. Into any other only
single modules of ours are copied, which import nothing else of it.
"""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import venv
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from coevo_gym.core.errors import ConfigError, EnvBackendError
from coevo_gym.provision import home, locked, pip_install
from coevo_gym.trainers.plug.trainer import TRAINERS, Trainer

_PACKAGE = Path(__file__).resolve().parents[2] / "coevo_gym"
_DONE = "coevo_pins.txt"
_PATIENCE_S = 3600

logger = logging.getLogger(__name__)


class Found(NamedTuple):
    """What there is of a trainer.

    Attributes:
        here: versions of its packages that this interpreter imports, by name; empty for none.
        apart: those in the environment that ``coevo install`` made.
        python: the interpreter of that environment; "" where there is none that is complete.
        stale: why that environment should be made anew; "" if it should not.
    """

    here: dict[str, str]
    apart: dict[str, str]
    python: str
    stale: str

    @property
    def ready(self) -> bool:
        """Whether it can be used."""
        return bool(self.here or (self.python and not self.stale))

    def __str__(self) -> str:
        told = [f"{_listed(self.here)}, in this environment"] if self.here else []
        if self.python:
            told.append(f"{_listed(self.apart)}, with {self.python}")
        return "; ".join([*told, *([self.stale] if self.stale else [])])


def folder_of(trainer: Trainer) -> Path:
    """Where a trainer's environment is, or would be."""
    return home() / "trainers" / trainer.name


def python_of(trainer: Trainer) -> Path:
    """The interpreter of a trainer's environment, whether it is there or not."""
    return folder_of(trainer) / "bin" / "python"


def find_trainer(trainer: Trainer) -> Found:
    """What there is of a trainer, here and in its own environment."""
    here = {} if trainer.extra is None else _versions_here(trainer)
    folder = folder_of(trainer)
    advice = f"run `coevo install {trainer.name}`"
    if not folder.is_dir():
        return Found(here, {}, "", "" if here else f"not installed: {advice}")
    done = folder / _DONE
    if not done.is_file() or not python_of(trainer).exists():
        return Found(here, {}, "", f"{folder} is not complete: {advice} again")
    site = _site_packages(folder)
    apart = _named(trainer, {d.name: d.version for d in distributions(path=[str(site)])})
    stale = ""
    if done.read_bytes() != trainer.pins.read_bytes():
        stale = f"its packages are not those of this version: {advice} again"
    elif any(_differs(site / f"{name}.py", file) for name, file in trainer.modules.items()):
        stale = f"its copy of our modules is of another version: {advice} again"
    elif other := _other_checkout(trainer, site):
        stale = f"it runs the coevo_gym of {other}: {advice} again for that of this checkout"
    return Found(here, apart, str(python_of(trainer)), stale)


def install_trainer(trainer: Trainer, source: Path | None = None) -> Path:
    """Make a trainer's environment, unless it is there already.

    What there was of another version, or of an installation that was ended early, goes first.

    Args:
        trainer: which.
        source: folder with all its wheels; None to download them.

    Returns:
        The environment's folder.

    Raises:
        ConfigError: if coevo_gym has to be installed beside it, and there is no checkout of it.
        EnvBackendError: if pip fails.
    """
    folder = folder_of(trainer)
    with locked(f"trainers/.{trainer.name}"):
        found = find_trainer(trainer)
        if found.python and not found.stale:
            return folder
        if found.python and found.stale and not _pins_differ(trainer):
            _copy_modules(trainer, folder)
            if _other_checkout(trainer, _site_packages(folder)):
                ours = ["--no-deps", *_requirements(trainer)]
                python, advice = python_of(trainer), _advice(trainer, source)
                pip_install(ours, advice=advice, timeout_s=_PATIENCE_S, python=python)
            return folder
        wanted = _requirements(trainer)
        shutil.rmtree(folder, ignore_errors=True)
        # In place, and not moved there when it is done: scripts of an environment name its path.
        venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
        _install_torch(trainer, source)
        offline = () if source is None else ("--no-index", "--find-links", str(source))
        pip_install(
            wanted,
            *("--constraint", str(trainer.pins)),
            *offline,
            advice=_advice(trainer, source),
            timeout_s=_PATIENCE_S,
            python=python_of(trainer),
        )
        _copy_modules(trainer, folder)
        shutil.copyfile(trainer.pins, folder / _DONE)
    return folder


def find_trainers() -> dict[str, Found]:
    """What there is of each trainer."""
    return {name: find_trainer(trainer) for name, trainer in TRAINERS.items()}


def _requirements(trainer: Trainer) -> list[str]:
    """What pip is asked for."""
    if trainer.extra is None:
        return list(trainer.packages)
    checkout = _PACKAGE.parent
    if not (checkout / "pyproject.toml").is_file():
        raise ConfigError(
            f"{trainer.title} runs in an environment that holds coevo_gym, which is installed from "
            f"its checkout, and there is none in {checkout}. Run `coevo install {trainer.name}` "
            f"from a checkout, or pip install '.[{trainer.extra}]' there."
        )
    return ["--editable", f"{checkout}[{trainer.extra}]"]


def _install_torch(trainer: Trainer, source: Path | None) -> None:
    """Install the build of PyTorch that fits this machine, if uv is here to choose it.

    The default one brings CUDA, also where there is no GPU, and is ten times as large. If uv is not
    here, or does not reach where the builds are kept, pip takes the default one.
    """
    pins = trainer.pins.read_text(encoding="utf-8").split()
    torch = next((pin for pin in pins if pin.startswith("torch==")), None)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if torch is None or uv is None or source is not None:
        return
    options = ["--quiet", "--torch-backend", "auto", "--python", str(python_of(trainer))]
    done = subprocess.run(  # noqa: S603 (uv, with our own arguments)
        [uv, "pip", "install", *options, torch],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    if done.returncode:
        logger.info("uv has not installed torch: %s", done.stderr.strip().splitlines()[-1:])


def _copy_modules(trainer: Trainer, folder: Path) -> None:
    for name, file in trainer.modules.items():
        shutil.copyfile(_PACKAGE / file, _site_packages(folder) / f"{name}.py")


def _site_packages(folder: Path) -> Path:
    """The folder of an environment's packages.

    Raises:
        EnvBackendError: if there is none.
    """
    for found in (folder / "lib").glob("python*/site-packages"):
        return found
    raise EnvBackendError(f"{folder} is no environment of Python. Remove it, and install again.")


def _pins_differ(trainer: Trainer) -> bool:
    return (folder_of(trainer) / _DONE).read_bytes() != trainer.pins.read_bytes()


def _differs(copy: Path, file: str) -> bool:
    return not copy.is_file() or copy.read_bytes() != (_PACKAGE / file).read_bytes()


def _other_checkout(trainer: Trainer, site: Path) -> str:
    """The checkout whose coevo_gym an environment runs, if it is another than this; else ""."""
    if trainer.extra is None:
        return ""
    for found in distributions(name="coevo_gym", path=[str(site)]):
        origin = json.loads(found.read_text("direct_url.json") or "{}").get("url", "")
        folder = url2pathname(urlsplit(origin).path)
        return "" if not folder or Path(folder) == _PACKAGE.parent else folder
    return ""


def _versions_here(trainer: Trainer) -> dict[str, str]:
    try:
        return {name: version(name) for name in trainer.packages}
    except PackageNotFoundError:
        return {}


def _named(trainer: Trainer, versions: dict[str, str]) -> dict[str, str]:
    """Versions of a trainer's packages, whatever marks their names are written with."""
    plain = {_plain(name): version for name, version in versions.items()}
    return {name: plain[_plain(name)] for name in trainer.packages if _plain(name) in plain}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _advice(trainer: Trainer, source: Path | None) -> str:
    if source is not None:
        return f"{source} must hold the wheels of all that {trainer.pins} lists."
    return (
        f"It needs a network and about {trainer.size} of disk. Without a network, fetch the wheels "
        f"elsewhere (`pip download -r {trainer.pins}`), and run `coevo install {trainer.name} "
        "--from DIR` with the folder that holds them."
    )
