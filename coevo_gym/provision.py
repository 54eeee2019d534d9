"""Where benchmarks live on this machine.

Every benchmark has a folder of its own under ``$COEVO_HOME`` (default: the user's cache folder),
so that no engine's pins or data decide another's. ``$COEVO_<BENCHMARK>_DATA`` points at data that
is already at hand.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


def home() -> Path:
    """The folder that holds one folder a benchmark."""
    chosen = os.environ.get("COEVO_HOME")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "coevo"


def benchmark_home(benchmark: str) -> Path:
    """A benchmark's own folder; it need not exist."""
    return home() / benchmark


def data_folder(benchmark: str) -> Path | None:
    """Where a benchmark's data is: ``$COEVO_<BENCHMARK>_DATA``, else what was installed, if any.

    A folder named by the variable is returned whether it exists or not, so that a wrong path is
    reported instead of being passed over.
    """
    chosen = os.environ.get(f"COEVO_{benchmark.upper()}_DATA")
    if chosen:
        return Path(chosen).expanduser()
    installed = benchmark_home(benchmark) / "data"
    return installed if installed.is_dir() else None


def install_files(benchmark: str, files: Iterable[Path]) -> Path:
    """Copy data files into the benchmark's folder, all or none.

    Returns:
        The folder that holds them now; what was there before is gone.
    """
    target = benchmark_home(benchmark) / "data"
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".data-", dir=target.parent))
    try:
        for file in files:
            shutil.copyfile(file, staging / file.name)
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return target


@dataclass(frozen=True)
class Installation:
    """What `coevo doctor` says of a benchmark.

    Attributes:
        ready: whether its env can be made now.
        engine: the engine in use.
        data: the data in use.
        isolation: how model-written code is kept apart, or why there is none to keep.
    """

    ready: bool
    engine: str
    data: str
    isolation: str
