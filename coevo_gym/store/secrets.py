"""Redaction of secrets in settings before they are stored, shown or compared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["REDACTED", "is_secret_name", "redact_secrets"]

REDACTED = "<redacted>"
_SECRET_NAMES = frozenset(
    {"key", "apikey", "secret", "password", "passwd", "token", "credential", "credentials"}
    | {"authorization", "auth", "cookie", "bearer"}
)


def is_secret_name(name: str) -> bool:
    """Return True if a setting, header or variable with this name holds a secret."""
    return bool(_SECRET_NAMES & set(re.split(r"[^a-z0-9]+", name.lower())))


def redact_secrets(settings: Any, *, secret: bool = False) -> Any:
    """Convert settings to JSON, redacting the values of secret keys."""
    if isinstance(settings, Mapping):
        return {
            str(key): redact_secrets(value, secret=secret or is_secret_name(str(key)))
            for key, value in settings.items()
        }
    if isinstance(settings, (list, tuple)):
        return [redact_secrets(value, secret=secret) for value in settings]
    return REDACTED if secret and isinstance(settings, str) and settings else settings
