"""Without the engine there is nothing to test here, nor can these modules be imported."""

from __future__ import annotations

from tests import needs

collect_ignore_glob = ["test_*.py"] if needs.alfworld() else []
