"""Where the AppWorld engine lives: an environment of its own, with every version pinned.

It needs an older pydantic than we do. What model-written code may import is kept beside it, in a
folder of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

from coevo_gym.core.errors import BenchmarkNotInstalled
from coevo_gym.provision import benchmark_home, pinned

VERSION = "0.1.3.post1"
PINS = Path(__file__).with_name("engine.txt")


def engine_python() -> Path:
    """The interpreter of the engine's environment.

    Raises:
        BenchmarkNotInstalled: if the engine is not there.
    """
    if lacking := missing():
        raise BenchmarkNotInstalled(
            f"{lacking} Run `coevo install appworld` (about 250 MB, a minute or two), or set "
            "COEVO_HOME to where it is."
        )
    return python_in(benchmark_home("appworld") / "engine")


def code_packages() -> Path:
    """The folder of what model-written code may import beside the standard library."""
    return benchmark_home("appworld") / "engine" / "packages"


def engine_environment(root: Path) -> dict[str, str]:
    """The environment variables of a process of the engine; none of ours reaches it.

    Args:
        root: its ``APPWORLD_ROOT``, which takes all that it writes.
    """
    return {
        "APPWORLD_CACHE": str(root / "cache"),
        "APPWORLD_ROOT": str(root),
        "HOME": str(root),
        "LANG": "C.UTF-8",
        "PATH": os.defpath,
        "PYTHONHASHSEED": "0",
        "PYTHON_DOTENV_DISABLED": "1",
    }


def python_in(folder: Path) -> Path:
    """The interpreter of an engine installed in ``folder``."""
    return folder / "venv" / "bin" / "python"


def missing() -> str:
    """What of the engine is not there; "" if all is."""
    folder = benchmark_home("appworld") / "engine"
    pins = folder / "pins.txt"
    if not pins.is_file():
        return f"AppWorld {VERSION} is not installed under {folder.parent}."
    if pinned(pins) != pinned(PINS):  # hashes aside: an engine from before there were any is kept
        return f"AppWorld's packages under {folder.parent} are not those of this version."
    if not python_in(folder).exists():
        return f"The Python that AppWorld was installed for is gone ({python_in(folder)})."
    return ""
