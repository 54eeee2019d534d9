"""Teach a tiny language model that starts from random weights to look things up, on a CPU.

    python docs/rows/tools.py    # about 2 minutes on one core

Each row has a shop of its own, which the model cannot see: it has to call the right tool for the
right item, and to answer with the result. It first imitates 160 solutions, and then learns with
GRPO from its own calls and answers.
"""

from __future__ import annotations

import json
import random
from typing import Any

import coevo_gym
from coevo_gym.testing.scripted_models import tiny_chat_model

Row = dict[str, Any]
QUESTIONS = {
    "price": ["What does item {} cost?", "How much is item {}?", "Price of item {}?"],
    "stock": ["How many of item {} are left?", "Is item {} in stock?", "Stock of item {}?"],
}


def price(row: Row, item: int) -> int:
    """Look up the price of an item."""
    return int(row["price"][item])


def stock(row: Row, item: int) -> int:
    """Look up how many pieces of an item are left."""
    return int(row["stock"][item])


def check(row: Row, answer: str) -> bool:
    """Judge the final answer."""
    return answer.strip() == str(row[row["about"]][row["item"]])


def solution(row: Row) -> list[str]:
    """Return the call and the answer that the warm-up imitates."""
    call = json.dumps({"name": row["about"], "arguments": {"item": row["item"]}})
    return [f"<tool_call>\n{call}\n</tool_call>", str(row[row["about"]][row["item"]])]


def make_rows() -> list[Row]:
    """Return all questions about each of 40 items, in three shops each."""
    draw = random.Random(1)
    return [
        {"prompt": text.format(item), "about": about, "item": item}
        | {name: [draw.randint(1, 9) for _ in range(40)] for name in QUESTIONS}
        for item in range(40)
        for about, texts in QUESTIONS.items()
        for text in texts * 3
    ]


SETTINGS = {
    "name": "lookups",
    "benchmark": "lookups",
    "arms": ["static"],
    "policy": {
        "kind": "transformers",
        "model": {"path": "tiny-model"},
        "chat": {"style": "hermes", "max_answer_tokens": 24},
    },
    "warmup": {"n_tasks": 160, "lr": 3e-3, "max_epochs": 13, "batch_decisions": 16, "holdout": 0},
    "learner": {"lr": 6e-4, "kl_coef": 0.0},
    "loop": {"max_steps": 100, "groups_per_step": 16, "evaluate_every_steps": 50},
    "evaluation": {"n_tasks": 60, "temperature": 1.0, "samples": 2, "final": ["test"]},
}


def main() -> None:
    """Train the model, and compare it with the model after the warm-up on the test rows."""
    rows, shares = make_rows(), {"train": 0.6, "val": 0.1, "test": 0.3}
    options = {"tools": [price, stock], "reference": solution, "max_turns": 3, "shares": shares}
    coevo_gym.from_rows(rows, check, name="lookups", **options)
    texts = [row["prompt"] for row in rows] + solution(rows[0]) + solution(rows[-1])
    model, tokenizer = tiny_chat_model(texts=texts)
    model.save_pretrained("tiny-model")
    tokenizer.save_pretrained("tiny-model")
    for row in coevo_gym.train(SETTINGS, overwrite=True, progress=True).table:
        print(f"{row.name:>7}: {row.success:.0%} of {row.n_tasks} validation rows")
    print(coevo_gym.compare("lookups", arms=["warm-up", "static"], on="test"))


if __name__ == "__main__":
    main()
