"""The folders of installed benchmarks on this machine, and functions that fill them.

Each benchmark has its own folder under ``$COEVO_HOME`` (default: the user's cache folder), so that
its pins and data are independent of other benchmarks. ``$COEVO_<BENCHMARK>_DATA`` points to
existing data.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coevo_gym.core.errors import EnvBackendError

logger = logging.getLogger(__name__)


_PIN_TORCH = ("vllm", "verl")
"""Extras with their own versions of PyTorch or transformers, which differ from constraints.txt."""


def install_hint(extra: str) -> str:
    """Return a hint with the command for installing one of this package's extras.

    Args:
        extra: name of the extra in ``pyproject.toml``, such as ``"train"``.
    """
    checkout = Path(__file__).resolve().parents[1]
    constraints = "" if extra in _PIN_TORCH else "-c constraints.txt "
    if (checkout / "pyproject.toml").is_file():
        constraints = constraints.replace("constraints.txt", f"'{checkout}/constraints.txt'")
        return f"Run `pip install {constraints}-e '{checkout}[{extra}]'`"
    return f"Run `pip install {constraints}'.[{extra}]'` in a checkout of coevo_gym"


@contextmanager
def explain_missing(need: str, extra: str) -> Iterator[None]:
    """Explain how to install a missing package if an import in the ``with`` block fails.

    Args:
        need: the first sentence of the message, such as "The tiny policy needs PyTorch."
        extra: name of the extra that contains the package.

    Raises:
        ImportError: instead of ``ModuleNotFoundError``.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(f"{need} {install_hint(extra)}.") from error


def coevo_home() -> Path:
    """Return the folder for everything that is installed, with one subfolder per benchmark."""
    chosen = os.environ.get("COEVO_HOME")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "coevo"


SENTENCES = "minilm"
"""Name of the fetched model that computes sentence embeddings."""


def models_home() -> Path:
    """Return the folder for downloaded models; the folder may not exist yet."""
    return coevo_home() / "models"


def benchmark_home(benchmark: str) -> Path:
    """Return a benchmark's own folder, which may not exist yet."""
    return coevo_home() / benchmark


def data_folder(benchmark: str) -> Path | None:
    """Return a benchmark's data folder, or None if there is none.

    The folder in ``$COEVO_<BENCHMARK>_DATA`` is returned even if it does not exist, so that a wrong
    path is reported rather than ignored. If an installation was interrupted while it replaced the
    installed folder, the old folder is put back first.
    """
    chosen = os.environ.get(f"COEVO_{benchmark.upper()}_DATA")
    if chosen:
        return Path(chosen).expanduser()
    installed = benchmark_home(benchmark) / "data"
    if _old_folder(installed).is_dir():
        with lock_installation(benchmark):
            _restore_if_interrupted(installed)
    return installed if installed.is_dir() else None


def install_files(benchmark: str, files: Iterable[Path]) -> Path:
    """Copy data files into the benchmark's folder, leaving the folder unchanged on failure.

    Returns:
        The folder that now contains only these files.
    """
    target = benchmark_home(benchmark) / "data"
    with lock_installation(benchmark), replace_folder(target) as folder:
        for file in files:
            shutil.copyfile(file, folder / file.name)
    return target


@contextmanager
def lock_installation(benchmark: str) -> Iterator[None]:
    """Lock a benchmark's installation for a ``with`` block, waiting if it is already locked."""
    folder = benchmark_home(benchmark)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def replace_folder(target: Path) -> Iterator[Path]:
    """Yield a new folder that replaces the target if the ``with`` block succeeds.

    After an error or an interrupt the target is unchanged, and no temporary folder remains. If the
    process is killed while it exchanges the folders, the next call puts the old one back. Only one
    process at a time may use it; see :func:`lock_installation`.
    """
    _restore_if_interrupted(target)
    scratch = _scratch_folder(target)
    shutil.rmtree(scratch, ignore_errors=True)  # left by a process that was killed
    new = scratch / "new"
    new.mkdir(parents=True)
    try:
        yield new
        with suppress(FileNotFoundError):
            target.rename(_old_folder(target))
        new.rename(target)
    finally:
        _restore_if_interrupted(target)
        shutil.rmtree(scratch, ignore_errors=True)


def _scratch_folder(target: Path) -> Path:
    return target.with_name(f".{target.name}-new")


def _old_folder(target: Path) -> Path:
    """Return the path to which the old folder is moved while it is replaced."""
    return _scratch_folder(target) / "old"


def _restore_if_interrupted(target: Path) -> None:
    """Put the old folder back if replacing it was interrupted."""
    if not target.exists() and _old_folder(target).exists():
        _old_folder(target).rename(target)


def pinned_packages(lock: Path) -> list[str]:
    """Return the packages in a lock file, each as ``name==version``.

    A lock file is a requirements file for ``pip install --require-hashes``. It pins each package's
    version and the SHA-256 of every file in that release.
    """
    return re.findall(r"^[^\s#]+==[^\s;]+", lock.read_text(encoding="utf-8"), re.MULTILINE)


def pip_install(
    packages: Sequence[str] | Path,
    *options: str,
    advice: str,
    timeout_s: float,
    python: Path | None = None,
) -> str:
    """Install packages with this interpreter's pip, or with uv if there is no pip.

    Args:
        packages: requirements, or a lock file (see :func:`pinned_packages`) whose hashes every
            downloaded file must match.
        *options: additional arguments for ``pip install``.
        advice: advice to the user, added to error messages.
        timeout_s: time limit in seconds.
        python: interpreter of another environment to install into; None for this one.

    Returns:
        The last lines of the output.

    Raises:
        EnvBackendError: if pip fails, takes too long, or downloads a file that is not in the lock
            file.
    """
    wanted: Sequence[str]
    if isinstance(packages, Path):
        wanted = ["--require-hashes", "--requirement", str(packages)]
        packages = pinned_packages(packages)
    else:
        wanted = packages
    command = [*_install_command(python), "--quiet", *options, *wanted]
    logger.info("installing packages=%s", ",".join(packages))
    try:
        done = subprocess.run(  # noqa: S603 (pip, with our own arguments)
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise EnvBackendError(f"pip did not finish within {timeout_s} s. {advice}") from error
    output = (done.stdout + done.stderr).strip()
    last = "\n".join(output.splitlines()[-5:])
    if done.returncode and _MISMATCH.search(output):
        raise EnvBackendError(
            f"pip rejected {_format_packages(packages)}: the hash of a downloaded file does not "
            "match the release, so the file was damaged or replaced in transit. Nothing was "
            "installed. Check the package index and the proxy that pip uses, then try "
            f"again.\n{last}"
        )
    if done.returncode:
        raise EnvBackendError(
            f"pip could not install {_format_packages(packages)} (exit code {done.returncode}):\n"
            f"{last}\n{advice}"
        )
    return last


_MISMATCH = re.compile("DO NOT MATCH THE HASHES|Hash mismatch")  # pip's and uv's messages


def _format_packages(packages: Sequence[str]) -> str:
    """Format a list of packages as text, shortened if there are many."""
    more = f" and {len(packages) - 2} more" if len(packages) > 3 else ""
    return " and ".join(packages[: 2 if more else 3]) + more


def _install_command(python: Path | None) -> list[str]:
    if find_spec("pip") is not None:
        other = [] if python is None else ["--python", str(python)]
        options = ["--disable-pip-version-check", "--no-input"]
        return [sys.executable, "-m", "pip", *other, "install", *options]
    uv = shutil.which("uv")
    if uv is None:
        raise EnvBackendError(
            f"{sys.executable} has no pip, and uv is not on the PATH. Run "
            f"`{sys.executable} -m ensurepip`, then repeat the command."
        )
    return [uv, "pip", "install", "--python", str(python or sys.executable)]


def hash_files(files: Iterable[Path]) -> str:
    """Return a SHA-256 hex digest computed from the SHA-256 digests of the given files."""
    whole = hashlib.sha256()
    for file in files:
        whole.update(hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()


@dataclass(frozen=True)
class Installation:
    """A benchmark's installation status, as shown by `coevo doctor`.

    Attributes:
        ready: True if its env can be created now.
        engine: description of the engine in use.
        data: description of the data in use.
        isolation: isolation of model-written code, or the reason why none is needed.
    """

    ready: bool
    engine: str
    data: str
    isolation: str
