"""``coevo play`` on the toy benchmark, without a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from coevo_gym.cli.play_terminal import play_episode
from coevo_gym.core.errors import EnvBackendError
from coevo_gym.core.task import Split
from tests.faults import break_engines
from tests.toy import BENCHMARK, ToyEnv

TASK = BENCHMARK.tasks(Split.VAL)[0]
WRONG = "press pink"


def played(*lines: str) -> tuple[bool, str]:
    """Whether the episode came to its end, and what was shown."""
    typed: Iterator[str] = iter(lines)

    def read() -> str:
        try:
            return next(typed)
        except StopIteration:
            raise EOFError from None

    output = StringIO()
    console = Console(file=output, width=300)
    over = play_episode(ToyEnv(split="val"), TASK, console, read).played is not None
    return over, output.getvalue()


def test_actions_are_accepted_by_number_and_by_text() -> None:
    numbers = {f"press {name}": str(i) for i, name in enumerate(TASK.world.buttons, start=1)}  # type: ignore[attr-defined]
    first, *rest = TASK.solution
    over, output = played(numbers[first], *rest)
    assert over
    assert "solved: score 1.00, reward 1.00" in output
    assert output.count(TASK.name) == 1  # what is asked for is shown once


def test_a_typo_costs_no_step_and_does_not_redraw_the_page() -> None:
    first, *rest = TASK.solution
    over, output = played(first, WRONG, "99", WRONG, *rest)
    assert over
    assert "solved" in output
    assert output.count("this did not cost a step") == 2
    assert output.count("step 2 of 8") == 4
    assert "step 5 of 8" not in output
    page, explanations = 1, 2
    assert output.count(f"Pressed: {first.removeprefix('press ')}.\n") == page + explanations


def test_a_typo_at_the_last_step_does_not_end_the_game() -> None:
    press = ["press red"] * 7
    over, output = played(*press, WRONG, "press red")
    assert over
    assert output.count("step 8 of 8") == 2
    assert "max_steps" in output


@pytest.mark.parametrize(
    "lines",
    [("q",), ("press red", "quit"), ("press red",), ()],
    ids=["q", "press, quit", "press, end of input", "end of input"],
)
def test_quitting_ends_the_game_without_a_score(lines: tuple[str, ...]) -> None:
    over, output = played(*lines)
    assert not over
    assert "score" not in output


def test_an_engine_failure_ends_the_game_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    break_engines(monkeypatch, "_act", lambda env: True)
    with pytest.raises(EnvBackendError, match="the engine is gone"):
        played("press red")
