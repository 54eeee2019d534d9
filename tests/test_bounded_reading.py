"""Files that a user names are read with a bound, and devices are not read at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from coevo_gym.agents.lm.stored_models import fetch_model
from coevo_gym.core.errors import CoevoError
from coevo_gym.core.reading import read_file, read_lines
from coevo_gym.core.task_file import read_tasks
from coevo_gym.runs.config import load_config
from coevo_gym.runs.tasks.importing import Importer
from coevo_gym.serve.tokens import Tokens
from coevo_gym.store.answers import AnswerFile
from tests.formulas.by_name import read_vectors

READERS: list[Callable[[Path], object]] = [
    read_tasks,
    lambda path: list(Importer().judge(path)),
    lambda path: load_config(str(path)),
    Tokens.read,
    read_vectors,
    AnswerFile,
    lambda path: fetch_model("smollm2", path, tell=print),
]


@pytest.mark.parametrize(
    "read", READERS, ids=["tasks", "import", "config", "tokens", "vectors", "answers", "model"]
)
def test_a_device_file_is_refused(
    read: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COEVO_HOME", str(tmp_path / "home"))
    # Unlike /dev/zero, this one ends at once: the test fails without filling the memory.
    device = tmp_path / "device.toml"
    device.symlink_to(os.devnull)
    with pytest.raises(CoevoError, match="it is not a regular file"):
        read(device)


def test_files_and_lines_above_the_size_limit_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes("a\u2028b\n\n123456\n123456\n1234567\n".encode())
    lines = read_lines(file, most_bytes=6)
    assert [next(lines) for _ in range(4)] == ["a\u2028b".encode(), b"", b"123456", b"123456"]
    with pytest.raises(OSError, match="line 5 is longer than"):
        next(lines)
    file.write_bytes(b"1\n2")
    assert list(read_lines(file)) == [b"1", b"2"]
    assert read_file(file, most_bytes=3) == b"1\n2"
    with pytest.raises(OSError, match="it is larger than"):
        read_file(file, most_bytes=2)


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"1\n2\n"))
    writer.start()
    assert list(read_lines(pipe)) == [b"1", b"2"]
    writer.join()


def test_a_folder_and_a_missing_file_raise_the_usual_errors(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)
    with pytest.raises(FileNotFoundError):
        next(read_lines(tmp_path / "missing"))
