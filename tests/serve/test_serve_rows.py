"""``coevo serve rows.jsonl``: a user's own list, handed out like the tasks of a benchmark."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from coevo_gym import EvolvingTaskSampler, from_rows
from coevo_gym.core.errors import ConfigError
from coevo_gym.curricula.session.http_session import HTTPSession
from coevo_gym.envs.rows import RowsBenchmark
from coevo_gym.envs.rows.source import load_function
from tests import processes
from tests.serve.test_cli import COMMAND

K = 2
WAIT_S = 120
FUNCTION = "def check(row, answer):\n    return answer == str(row['sum'])\n"
ROWS = [{"prompt": f"What is {n} + 3?", "sum": n + 3} for n in range(40)]


def write_rows(folder: Path, *lines: object, function: str = FUNCTION) -> None:
    """Write rows, or lines that are none, and the function that judges answers."""
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "rows.jsonl").write_text("".join(f"{text}\n" for text in texts))
    (folder / "mine.py").write_text(function)


def load_rows(folder: Path) -> RowsBenchmark:
    """The same rows in this process."""
    check = load_function(f"{folder / 'mine.py'}:check")
    return from_rows(folder / "rows.jsonl", check)


@contextmanager
def serve_rows(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """The command, its address and the first line that it prints."""
    options = ["--group-size", str(K), "--port", "0"]
    process = subprocess.Popen(
        [*COMMAND, "rows.jsonl", "--verify", "mine.py:check", *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield process, line.split(" at ")[1].split(";")[0], line
    finally:
        process.kill()
        process.wait(WAIT_S)
        assert process.stdout is not None
        process.stdout.close()


def test_rows_are_served_judged_and_resumed(tmp_path: Path) -> None:
    write_rows(tmp_path, *ROWS)
    rows = load_rows(tmp_path)
    with serve_rows(tmp_path) as (process, address, line):
        assert f"serving {rows.name} at" in line
        assert f"is saved in {Path('served') / rows.name}-coevolve.db" in line
        env = EvolvingTaskSampler(rows.make(), session=HTTPSession(address))
        prompts = []
        for right in (True, False, True, False):
            prompt, _ = env.reset()
            number = int(prompt.removeprefix("What is ").removesuffix(" + 3?"))
            env.step(str(number + 3) if right else "words")
            prompts.append(prompt)
        assert prompts[0] == prompts[1] != prompts[2] == prompts[3]
        assert env.session.metrics()["groups"] == 2
        assert env.session.metrics()["pool_size"] == len(rows.tasks("train"))
        env.close()
        process.send_signal(signal.SIGKILL)
        process.wait(WAIT_S)
    with serve_rows(tmp_path) as (_, address, line):
        assert "resumes from" in line
        assert HTTPSession(address).metrics()["groups"] == 2


def test_a_trainer_with_other_rows_is_refused(tmp_path: Path) -> None:
    write_rows(tmp_path, *ROWS)
    served = load_rows(tmp_path).name
    with serve_rows(tmp_path) as (_, address, _):
        others = from_rows(ROWS[1:], load_function(f"{tmp_path / 'mine.py'}:check"))
        expected = f"The session has tasks of {served}, but the env is for {others.name}"
        with pytest.raises(ConfigError, match=expected):
            EvolvingTaskSampler(others.make(), session=HTTPSession(address))


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (
            [*ROWS[:2], "{no JSON"],
            ["--verify", "mine.py:check"],
            "not a JSONL file of rows: line 3",
        ),
        ([ROWS[0], {"prompt": 5}], ["--verify", "mine.py:check"], "Row 2 is invalid: prompt"),
        ([], ["--verify", "mine.py:check"], "needs at least one row"),
        (ROWS, ["--verify", "mine.py:judge"], "mine.py does not define 'judge'"),
        (ROWS, [], "also pass --verify FILE.py:FUNCTION"),
    ],
)
def test_bad_rows_are_refused_with_a_sentence(
    tmp_path: Path, lines: list[object], options: list[str], message: str
) -> None:
    write_rows(tmp_path, *lines)
    done = processes.run([*COMMAND[1:], "rows.jsonl", *options], cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert not (tmp_path / "served").exists()
