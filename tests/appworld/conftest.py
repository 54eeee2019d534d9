"""The built-in world, worlds over it, and the stock engine to compare with."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coevo_gym.envs.appworld.engine import engine_pool as pool
from coevo_gym.envs.appworld.engine import prefix
from coevo_gym.envs.appworld.engine.engine_session import WorldSession

STOCK = Path(__file__).with_name("stock.py")

Stock = Callable[[Sequence[dict[str, Any]]], list[dict[str, Any]]]


@pytest.fixture(scope="session")
def root(appworld_root: Path) -> Path:
    """The folder of the built-in world."""
    return appworld_root


@pytest.fixture(scope="session")
def stock(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    """Play jobs on the stock engine, in one process for all tests."""
    folder = tmp_path_factory.mktemp("stock")
    (folder / "data").symlink_to(root / "data")
    errors = folder / "errors.txt"
    with (
        errors.open("w") as stderr,
        subprocess.Popen(
            [prefix.engine_python(), "-s", STOCK, Path(pool.__file__).parents[1]],
            env=prefix.engine_environment(folder),
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        orders, results = process.stdin, process.stdout

        def play(job: dict[str, Any]) -> dict[str, Any]:
            orders.write(json.dumps(job) + "\n")
            orders.flush()
            line = results.readline()
            assert line, errors.read_text()[-3000:]
            result: dict[str, Any] = json.loads(line)
            return result

        yield lambda jobs: [play(job) for job in jobs]
        process.kill()


@pytest.fixture
def world(root: Path) -> Iterator[WorldSession]:
    """A world that is closed afterwards; its engine stays warm for the next test."""
    session = WorldSession(root)
    yield session
    session.close()


@pytest.fixture(scope="session")
def task_ids(root: Path) -> tuple[str, ...]:
    """All tasks of the built-in world."""
    return tuple(sorted(folder.name for folder in (root / "data" / "tasks").iterdir()))


@pytest.fixture(scope="session")
def task_id(task_ids: tuple[str, ...]) -> str:
    """One of them."""
    return task_ids[0]
