from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.view import sample

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Chromium for the tests of a module."""
    from tests.view import browsing  # needs Playwright, which other tests do without

    with browsing.browser() as browser:
        yield browser


@pytest.fixture(scope="session")
def sample_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small run and an evaluation of it, see :mod:`tests.view.sample`.

    All workers of a session share it: it is only read.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (shared / "sample.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return sample.make(shared / "sample")


@pytest.fixture
def beside(sample_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the small run, as the one that commands run in."""
    monkeypatch.chdir(sample_folder)
    return sample_folder
