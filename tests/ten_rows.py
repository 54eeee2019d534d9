"""A benchmark of rows in ten lines, and a user's env in fifteen, as other processes import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from coevo_gym import from_rows
from coevo_gym.envs.rows import RowFindings, RowsBenchmark


def row(n: int) -> dict[str, Any]:
    choices = [str(n + i) for i in range(2, 6)]
    return {
        "prompt": f"What is {n} + 3?", "answer": n + 3, "choices": choices, "tags": ["goal:sum"]
    }  # fmt: skip


def check(row: dict[str, Any], answer: str) -> bool:
    return answer.strip() == str(row["answer"])


def more(one: dict[str, Any], findings: RowFindings) -> list[dict[str, Any]]:
    return [row(one["answer"] + 1_000 + (findings.seed + i) % 10_000) for i in range(3)]


def ten(name: str = "ten") -> RowsBenchmark:
    return from_rows([row(n) for n in range(40)], check, propose=more, name=name)


def price(row: dict[str, Any], fruit: str) -> int:
    """Look up a price."""
    return len(fruit) * int(row["answer"])


class Guessing:
    def reset(self, row: dict[str, Any]) -> str:
        self.number = row["number"]
        return f"Guess my number; it is at most {row['most']}."

    def step(self, text: str) -> tuple[str, float, bool]:
        if text == str(self.number):
            return "Right!", 1.0, True
        return "Too low." if text < str(self.number) else "Too high.", 0.0, text == "stop"


def guess(number: int, most: int = 9) -> dict[str, Any]:
    return {
        "number": number, "most": most, "choices": [str(n) for n in range(10)],
        "answer": number, "tags": ["goal:guess"],
    }  # fmt: skip


def harder(one: dict[str, Any], findings: RowFindings) -> Iterator[dict[str, Any]]:
    yield guess(one["number"], one["most"] + 1 + findings.seed % 100_000)


def guesses(name: str = "guesses") -> RowsBenchmark:
    rows = [guess(n, most) for n in range(10) for most in range(9, 15)]
    return from_rows(rows, env=Guessing, propose=harder, name=name, max_turns=3)
