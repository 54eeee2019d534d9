"""Fixtures that all tests share."""

from __future__ import annotations

from tests import toy

toy.register()
