"""Which levels can be tested here."""

from __future__ import annotations

import pytest

from coevo_gym.sandbox import Level
from tests.needs import FOUND


def skip_unless_available(level: Level) -> pytest.MarkDecorator:
    """Skip where the kernel, or the machine, has no such level."""
    finding = FOUND[level]
    usable = finding.holds or level is Level.NONE
    return pytest.mark.skipif(not usable, reason=f"no {level} here: {finding.detail}")
