"""Approvals of what settings from other people's files may do: run Python files, and send API keys.

An approval that is kept also holds for later commands of this user, such as ``coevo resume``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.own_code import is_python_file
from coevo_gym.provision import home
from coevo_gym.store.folder import append_lines, read_lines

logger = logging.getLogger(__name__)


class Demand(NamedTuple):
    """Something that settings ask to do with the user's rights.

    Attributes:
        what: a folder whose Python files are run, a Python file or a module to run, or the
            environment variable whose value is sent.
        host: the server that gets the value, such as ``https://api.openai.com``; "" for code.
    """

    what: str
    host: str = ""

    def __str__(self) -> str:
        if self.host:
            return f"send the key in {self.what} to {self.host}"
        if is_python_file(self.what):
            return f"run the Python file {self.what}"
        if not Path(self.what).is_absolute():
            return f"import the Python module {self.what}"
        files = ", ".join(path.name for path in sorted(Path(self.what).glob("*.py")))
        return f"run the Python files in {self.what} ({files or 'none'})"


_approved = {Demand("OPENAI_API_KEY", "https://api.openai.com")}  # the defaults of an endpoint
"""The demands that are approved in this process."""


def is_approved(demand: Demand) -> bool:
    """Return True if the user has approved a demand, in this process or an earlier one."""
    if demand not in _approved:
        with suppress(OSError):
            if demand._asdict() in read_lines(_approvals_file()):
                _approved.add(demand)
    return demand in _approved


def approve(*demands: Demand, keep: bool = False) -> None:
    """Approve demands in this process, and in later ones if ``keep`` is True."""
    _approved.update(demands)
    if not keep:
        return
    try:
        approvals = read_lines(_approvals_file())
        new = [one._asdict() for one in demands if one._asdict() not in approvals]
        if new:
            _approvals_file().parent.mkdir(parents=True, exist_ok=True)
            append_lines(_approvals_file(), new)
    except (OSError, StoreError) as error:  # the next command asks again
        logger.info("approvals are not kept error=%s", error)


def require_approval(*demands: Demand) -> None:
    """Check that the user has approved demands.

    Raises:
        ConfigError: if a demand is not approved; the message lists all such demands.
    """
    if missing := [demand for demand in demands if not is_approved(demand)]:
        raise ConfigError(
            f"{describe_demands(missing)}\nTo permit this, pass --yes (yes=True in Python)."
        )


def describe_demands(demands: Sequence[Demand]) -> str:
    """Describe what the user has to approve."""
    lines = ["The settings, which come from a file or a run, ask to:"]
    return "\n".join([*lines, *(f"  {demand}" for demand in demands)])


def _approvals_file() -> Path:
    return home() / "approved.jsonl"
