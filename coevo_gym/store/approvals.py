"""Permissions that settings from other people's files need: to run code or send API keys.

An approval that is stored also holds for later commands of this user, such as ``coevo resume``.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.own_code import is_python_file
from coevo_gym.provision import coevo_home
from coevo_gym.store.folder import append_lines, read_lines

logger = logging.getLogger(__name__)


class Permission(NamedTuple):
    """A permission that settings need: to run Python code, or to send an API key.

    Attributes:
        what: a folder whose Python files are run, a Python file or a module to run, or the
            environment variable that contains the key.
        host: the server that gets the key, such as ``https://api.openai.com``; "" for code.
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


_approved = {Permission("OPENAI_API_KEY", "https://api.openai.com")}  # the defaults of an endpoint
"""The permissions that are approved in this process."""


def is_approved(permission: Permission) -> bool:
    """Return True if the user has approved a permission, now or in an earlier process."""
    if permission not in _approved:
        with suppress(OSError):
            if permission._asdict() in read_lines(_approvals_file()):
                _approved.add(permission)
    return permission in _approved


def approve(*permissions: Permission, keep: bool = False) -> None:
    """Approve permissions for this process; if ``keep`` is True, store the approval for later."""
    _approved.update(permissions)
    if not keep:
        return
    try:
        approvals = read_lines(_approvals_file())
        new = [one._asdict() for one in permissions if one._asdict() not in approvals]
        if new:
            _approvals_file().parent.mkdir(parents=True, exist_ok=True)
            append_lines(_approvals_file(), new)
    except (OSError, StoreError) as error:  # the next command asks again
        logger.info("approvals are not kept error=%s", error)


def require_approval(*permissions: Permission) -> None:
    """Check that the user has approved all of these permissions.

    Raises:
        ConfigError: if a permission is not approved; the message lists all such permissions.
    """
    if missing := [permission for permission in permissions if not is_approved(permission)]:
        raise ConfigError(
            f"{describe_permissions(missing)}\nTo permit this, pass --yes (yes=True in Python)."
        )


def describe_permissions(permissions: Sequence[Permission]) -> str:
    """Describe the permissions that the user has to approve."""
    lines = ["These settings come from a file or a run, and need your permission to:"]
    return "\n".join([*lines, *(f"  {permission}" for permission in permissions)])


def _approvals_file() -> Path:
    return coevo_home() / "approved.jsonl"
