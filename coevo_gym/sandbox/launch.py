"""Start a program at the strongest level that holds here."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from coevo_gym.core.errors import ConfigError
from coevo_gym.sandbox import bubblewrap, landlock
from coevo_gym.sandbox.level import DEFAULT_LIMITS, SYSTEM, Finding, Level, Limits
from coevo_gym.sandbox.process import Program, Sandboxed

_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 (inside)
    "LANG": "C.UTF-8",
}


_RISK_VARIABLE = "COEVO_ACCEPT_RISK"
_ACCEPT = f"launch(accept_risk=True), or {_RISK_VARIABLE}=1 in the environment, accepts the risk."

logger = logging.getLogger(__name__)


def probe() -> tuple[Finding, ...]:
    """Which levels of isolation hold here, the strongest first."""
    nothing = Finding(Level.NONE, False, f"limits, but nothing keeps code apart. {_ACCEPT}")
    return (bubblewrap.finding(), landlock.finding(), nothing)


def launch(
    command: Sequence[str],
    *,
    readable: Sequence[Path] = (),
    hidden: Sequence[Path] = (),
    pass_fds: Sequence[int] = (),
    environment: Mapping[str, str] = {},
    limits: Limits = DEFAULT_LIMITS,
    level: Level | None = None,
    accept_risk: bool = False,
) -> Sandboxed:
    """Start a program in a sandbox.

    Its standard input is empty and its standard output is thrown away; it talks over the
    descriptors that it is given.

    Args:
        command: program and arguments; the program's path must be visible inside.
        readable: files and folders that it may read, beside the system's programs and libraries;
            they appear inside at the same absolute path. See :func:`python_files`.
        hidden: folders that it must not read the files of, wherever they lie in what it may read;
            what is ``readable`` within them is not hidden.
        pass_fds: descriptors that stay open, under the same numbers; all others are closed. Pass
            pipes and sockets: a file can be opened anew through its descriptor, with more rights.
        environment: variables that it sees, beside PATH, HOME and LANG.
        limits: what it may use.
        level: how to keep it apart; None for the strongest way that holds here.
        accept_risk: run it even if nothing keeps it apart.

    Raises:
        ConfigError: if the level does not hold here, or a path does not exist.
        EnvBackendError: if the sandbox does not start.
    """
    for path in readable:
        if not path.is_absolute() or not path.exists():
            raise ConfigError(f"A readable path is absolute and exists, got {str(path)!r}")
    program = Program(command, readable, hidden, pass_fds, {**_ENVIRONMENT, **environment}, limits)
    accept_risk = accept_risk or os.environ.get(_RISK_VARIABLE) == "1"
    found = _finding(level, accept_risk=accept_risk)
    if found.level is Level.BUBBLEWRAP:
        return bubblewrap.launch(program)
    _warn(found)
    return landlock.launch(program, confined=found.level is Level.LANDLOCK)


def strongest() -> Finding:
    """The strongest level that holds here.

    Raises:
        ConfigError: if none does; the message names the flag that accepts the risk.
    """
    return _finding(None, accept_risk=False)


def _finding(wanted: Level | None, *, accept_risk: bool) -> Finding:
    """What is known of the level to use: the wanted one, or the strongest that holds."""
    found = {finding.level: finding for finding in probe()}
    if wanted is None:
        wanted = next((level for level in Level if found[level].holds), Level.NONE)
    if not found[wanted].holds and not (wanted is Level.NONE and accept_risk):
        reasons = "; ".join(f"{level}: {found[level].detail}" for level in Level)
        raise ConfigError(
            f"Model-written code cannot be kept apart here at level {wanted.value!r}. {reasons}"
        )
    return found[wanted]


@cache
def _warn(found: Finding) -> None:
    """Say once that a level is a weaker one."""
    logger.warning("model-written code runs at a weaker level=%s: %s", found.level, found.detail)


def python_files(prefix: Path | None = None) -> tuple[Path, ...]:
    """What an interpreter needs to run inside, beside the system's programs and libraries.

    Args:
        prefix: the folder that it is installed in; None for this interpreter and, in a venv, its
            base.
    """
    prefixes = [prefix] if prefix else map(Path, sorted({sys.prefix, sys.base_prefix}))
    files = (p / name for p in prefixes for name in ("bin", "lib", "lib64", "pyvenv.cfg"))
    return tuple(path for path in files if path.exists() and str(path) not in SYSTEM)
