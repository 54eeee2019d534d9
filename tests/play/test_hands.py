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
    shown = StringIO()
    console = Console(file=shown, width=300)
    with closing(make_env(task.benchmark)) as env:
        return play_episode(env, task, console, reader(*lines)).played, shown.getvalue()


def number_of(thing: str, shown: str) -> str:
    """The number that stands beside something on the page that was shown last."""
    line = next(line for line in reversed(shown.splitlines()) if thing in line)
    return line.split()[0]


def test_products_and_options_have_their_numbers_beside_them() -> None:
    task = next(task for task in tasks("webshop", "train") if len(task.solution) > 3)
    search, product, *options, _ = task.solution
    lines = [search]
    _, shown = played(task, *lines)
    asin = product.removeprefix("click[")[:-1].upper()
    row = next(line for line in shown.splitlines() if asin in line)
    assert "$" in row  # code, title and price in a line
    lines.append(number_of(asin, shown))
    for option in options:
        _, shown = played(task, *lines)
        lines.append(number_of(option.removeprefix("click[")[:-1], shown))
    _, shown = played(task, *lines)
    assert shown.rpartition("step ")[0].count("(chosen)") >= len(options)
    lines.append(number_of("Buy Now", shown))
    record, shown = played(task, *lines)
    assert record is not None
    assert record.counted.success
    assert record.counted.actions == task.solution
    assert "✓ kind of product: right" in shown


BFCL = "bfcl/multi_turn_base_2"


def test_functions_are_told_of_and_called_by_name() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    lines = ("?", "? cd", "? nothing", "cd ..", "cd", "documents", "touch(file_name='a.txt')", "??")
    record, shown = played(task, *lines)
    assert record is None
    assert "cd(folder) " in shown
    assert "folder: string, needed." in shown
    assert "There is no function 'nothing' here" in shown
    assert "tool_response" not in shown
    assert "User: " in shown
    assert 'Result: {"current_working_directory": "documents"}' in shown
    assert "cd is a function: call it as cd(folder)." in shown
    assert '"current_working_directory": "documents"' in shown
    assert "step 3 of 30" in shown
    assert "[ls()]" in shown  # of the calls to choose by number
    assert shown.count("Functions: ") == 1  # they have not changed


def test_a_value_that_cannot_be_read_is_told_and_asked_for_again() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    _, shown = played(task, "get_ticket", "seven", "get_ticket(ticket_id=7)")
    assert "ticket_id: " in shown
    assert "is not a literal" in shown
    assert "step 2 of 30" in shown


def test_failing_checks_are_told_at_the_end() -> None:
    task = next(task for task in tasks("bfcl", "train") if task.name == BFCL)
    turns = len(task.solution) // 2
    record, shown = played(task, "lss()", "All is done.", *["end"] * turns)
    assert record is not None
    assert not record.counted.success
    assert "There is no function lss. Did you mean ls? (this did not cost a step)" in shown
    assert "To end the turn, type end" in shown
    assert record.counted.actions == ("Done.",) * turns
    assert "✗ turn 1: empty turn model response" in shown
    assert "what went wrong: missing tool call" in shown
    assert f"0 of {turns} checks passed" in shown or "checks passed" in shown


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
def test_code_goes_on_until_it_is_finished(lines: tuple[str, ...], code: str) -> None:
    assert CodeHand(Console(), reader(*lines)).read() == code


def test_who_ends_the_input_in_mid_code_leaves() -> None:
    with pytest.raises(EOFError):
        CodeHand(Console(), reader("for i in range(2):")).read()


def test_a_page_does_not_repeat_the_task_of_the_panel() -> None:
    shown = StringIO()
    view = View("put a cup on the desk", "A room.\n\nYour task is to: put a cup on the desk.")
    Hand(Console(file=shown), reader()).draw(view, ())
    assert shown.getvalue().strip() == "A room."
