"""What others have written is shown by a terminal, and never obeyed."""

from __future__ import annotations

import ast
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

import coevo_gym.cli
from coevo_gym.cli.output import print_json
from coevo_gym.core.spaces import make_visible
from coevo_gym.core.task import Task
from coevo_gym.runs.display import RunProgress, SafeConsole
from tests.agents.fake_openai import FakeOpenAI, Refuse
from tests.curricula.episodes import TRAIN

TITLE = "\x1b]0;pwned\x07"
EVIL = f"{TITLE}\x1b[31m\x9d52;c;cHduZWQ=\x9c\u202etxt\ud800"
SHOWN = "[ESC]]0;pwned[BEL][ESC][31m[9D]52;c;cHduZWQ=[9C][202E]txt[D800]"
OF_RICH = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def seen(draw: Callable[[SafeConsole], None]) -> str:
    """What a terminal gets, without the colours and movements of Rich itself."""
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as file:
        console = SafeConsole(file=file, width=200)
        assert console.is_terminal
        draw(console)
    return OF_RICH.sub("", all_of(ours)).replace("\r", "")


def all_of(terminal: int) -> str:
    """What is written to a terminal until its other end is closed."""
    output = b""
    try:
        while part := os.read(terminal, 1 << 16):
            output += part
    except OSError:  # how Linux tells that it is closed
        pass
    os.close(terminal)
    return output.decode()


def a_table(console: SafeConsole) -> None:
    table = Table(EVIL, title=EVIL)
    table.add_row(EVIL)
    table.add_row("x" * len(SHOWN))
    console.print(table)


def a_phase(console: SafeConsole) -> None:
    with RunProgress(console) as progress:
        progress.begin_phase(EVIL.replace("[", "("), total=1)
        progress.update(1, fact=EVIL.replace("[", "("))
        progress.say(EVIL)


DRAWN: dict[str, Callable[[SafeConsole], None]] = {
    "markup": lambda console: console.print(f"[bold]{EVIL.replace('[', '(')}[/] {EVIL}"),
    "plain": lambda console: console.print(EVIL, markup=False),
    "text": lambda console: console.print(Text(EVIL)),
    "panel": lambda console: console.print(Panel(EVIL, title=EVIL.replace("[", "("))),
    "rule": lambda console: console.print(Rule(Text(EVIL))),
    "table": a_table,
    "phase": a_phase,
    "question": lambda console: console.print(EVIL, end=""),
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_a_terminal_shows_control_characters_by_name(draw: Callable[[SafeConsole], None]) -> None:
    output = seen(draw)
    assert not [c for c in output if c != "\n" and make_visible(c) != c]
    assert SHOWN.replace("[BEL]", "") in output.replace("[BEL]", "")  # Rich drops some by itself


def test_names_of_control_characters_count_in_the_width_of_a_table() -> None:
    lines = seen(a_table).splitlines()
    assert len({len(line) for line in lines if line.startswith(("│", "┃"))}) == 1


def test_commands_print_only_through_the_safe_console() -> None:
    folder = Path(coevo_gym.cli.__file__).parent
    for path in folder.rglob("*.py"):
        if "skeletons" in path.parts:
            continue
        calls = [n.func for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        names = {call.id for call in calls if isinstance(call, ast.Name)}
        assert not names & {"Console", "print"}, f"{path}: use coevo_gym.cli.output"


def test_printed_json_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"name": f"{EVIL}\x7f\U000e0041 é漢🙂"}
    print_json(value)
    output = capsys.readouterr().out
    assert json.loads(output) == value
    assert "é漢🙂" in output
    assert not [c for c in output if c != "\n" and make_visible(c) != c]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"a{TITLE}\nb\tc", "a[ESC]]0;pwned[BEL] b c"),
        ("a\x9bb\u202ec\u2028d", "a[9B]b[202E]c d"),
        ("webshop/é 漢 🙂", "webshop/é 漢 🙂"),
    ],
)
def test_a_task_name_is_one_line_without_control_characters(name: str, expected: str) -> None:
    task = TRAIN[0].model_copy(update={"name": name})
    assert task.name == expected
    assert task.id == TRAIN[0].id
    old = json.dumps({**json.loads(TRAIN[0].to_json()), "name": name})
    assert Task.from_json(old) == task
    assert Task.from_json(task.to_json()) == task


@pytest.mark.slow
def test_control_characters_from_an_endpoint_are_made_visible(tmp_path: Path) -> None:
    ours, its = pty.openpty()
    with FakeOpenAI(answer=lambda _: Refuse(401, f"No{TITLE}")) as server:
        command = [sys.executable, "-m", "coevo_gym.cli", "eval", "webshop", "--policy"]
        command += ["openai:fake", "--set", f"policy.endpoint.base_url={server.url}"]
        command += ["--set", "evaluation.n_tasks=1"]
        with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, cwd=tmp_path):
            os.close(its)
            output = all_of(ours)
    assert "No[ESC]]0;pwned[BEL]" in OF_RICH.sub("", output)
    assert "\x1b]" not in output
