"""The terminal's pages, and what is typed on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO

import pytest
from rich.console import Console

from coevo_gym import tasks
from coevo_gym.cli.play_terminal import CodeHand, Hand, play_episode
from coevo_gym.core.task import Task
from coevo_gym.core.trajectory import View
from coevo_gym.testing import make_env
from coevo_gym.view.play.game import Played


def reader(*lines: str) -> Callable[[], str]:
    typed: Iterator[str] = iter(lines)

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    return read


def played(task: Task, *lines: str) -> tuple[Played | None, str]:
    """The record, and what was shown."""
    output = StringIO()
    console = Console(file=output, width=300)
    with closing(make_env(task.benchmark)) as env:
        return play_episode(env, task, console, reader(*lines)).played, output.getvalue()


def number_of(thing: str, output: str) -> str:
    """The number that stands beside something on the page that was shown last."""
    line = next(line for line in reversed(output.splitlines()) if thing in line)
    return line.split()[0]


def test_products_and_options_can_be_chosen_by_their_displayed_numbers() -> None:
    task = next(task for task in tasks("webshop", "train") if len(task.solution) > 3)
    search, product, *options, _ = task.solution
    lines = [search]
    _, output = played(task, *lines)
    asin = product.removeprefix("click[")[:-1].upper()
    row = next(line for line in output.splitlines() if asin in line)
    assert "$" in row  # code, title and price in a line
    lines.append(number_of(asin, output))
    for option in options:
        _, output = played(task, *lines)
        lines.append(number_of(option.removeprefix("click[")[:-1], output))
    _, output = played(task, *lines)
    assert output.rpartition("step ")[0].count("(chosen)") >= len(options)
    lines.append(number_of("Buy Now", output))
    record, output = played(task, *lines)
    assert record is not None
    assert record.counted.success
    assert record.counted.actions == task.solution
    assert "✓ kind of product: right" in output


BFCL = "bfcl/multi_turn_base_2"


def test_functions_are_explained_and_called_by_name() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    lines = ("?", "? cd", "? nothing", "cd ..", "cd", "documents", "touch(file_name='a.txt')", "??")
    record, output = played(task, *lines)
    assert record is None
    assert "cd(folder) " in output
    assert "folder: string, needed." in output
    assert "There is no function 'nothing' here" in output
    assert "tool_response" not in output
    assert "User: " in output
    assert 'Result: {"current_working_directory": "documents"}' in output
    assert "cd is a function: call it as cd(folder)." in output
    assert '"current_working_directory": "documents"' in output
    assert "step 3 of 30" in output
    assert "[ls()]" in output  # of the calls to choose by number
    assert output.count("Functions: ") == 1  # they have not changed


def test_an_invalid_argument_value_is_reported_and_asked_for_again() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    _, output = played(task, "get_ticket", "seven", "get_ticket(ticket_id=7)")
    assert "ticket_id: " in output
    assert "is not a literal" in output
    assert "step 2 of 30" in output


def test_failed_checks_are_printed_at_the_end() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    turns = len(task.solution) // 2
    record, output = played(task, "lss()", "All is done.", *["end"] * turns)
    assert record is not None
    assert not record.counted.success
    assert "There is no function lss. Did you mean ls? (this did not cost a step)" in output
    assert "To end the turn, type end" in output
    assert record.counted.actions == ("Done.",) * turns
    assert "✗ turn 1: empty turn model response" in output
    assert "what went wrong: missing tool call" in output
    assert f"0 of {turns} checks passed" in output or "checks passed" in output


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        (("print(1)",), "print(1)"),
        (
            ("for i in range(2):", "    print(i)", "", "never read"),
            "for i in range(2):\n    print(i)",
        ),
        (("print(", "1)"), "print(\n1)"),
        (("if x:", "    y = 1", "else:", "    y = 2", ""), "if x:\n    y = 1\nelse:\n    y = 2"),
        (("```python", "a = 1", "", "print(a)", "```"), "```python\na = 1\n\nprint(a)\n```"),
        (("print 1",), "print 1"),
        (("  q  ",), "q"),
        (("x = '''a", "b'''"), "x = '''a\nb'''"),
        (("@staticmethod", "def f():", "    pass", ""), "@staticmethod\ndef f():\n    pass"),
    ],
)
def test_code_is_read_until_it_is_complete(lines: tuple[str, ...], code: str) -> None:
    assert CodeHand(Console(), reader(*lines)).read() == code


def test_the_end_of_input_within_code_raises() -> None:
    with pytest.raises(EOFError):
        CodeHand(Console(), reader("for i in range(2):")).read()


def test_a_page_does_not_repeat_the_task_of_the_panel() -> None:
    output = StringIO()
    view = View("put a cup on the desk", "A room.\n\nYour task is to: put a cup on the desk.")
    Hand(Console(file=output), reader()).draw(view, ())
    assert output.getvalue().strip() == "A room."
