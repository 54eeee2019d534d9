"""A random Qwen3 that may say little: it is held to tool calls, and chooses between them itself."""

from __future__ import annotations

import json
import re
from typing import Any

from coevo_gym.testing.scripted_models import tiny_chat_model
from tests import toy

HEAD = "<|im_start|>assistant\n"


def make_tiny_qwen(template: str, seed: int = 0) -> tuple[Any, Any]:
    """Model and tokenizer, which knows the words of the toy.

    Args:
        template: the chat template; Qwen3's, so that TRL knows how to parse tool calls.
        seed: of the weights.
    """
    answers = [tool_call(action) for action in ("done", *(f"press {c}" for c in toy.COLOURS))]
    return tiny_chat_model(template, texts=(toy.PROMPT, *answers), seed=seed)


def tool_call(action: str) -> str:
    call = json.dumps({"name": "act", "arguments": {"action": action}})
    return f"<tool_call>\n{call}\n</tool_call><|im_end|>"


def allowed_answers(context: str) -> list[str]:
    """What the toy's page lets it say: the right button or the end, and afterwards no more."""
    if "The episode is over" in context.rpartition("<|im_start|>user")[2]:
        return ["Done.<|im_end|>"]
    wanted, pressed = re.findall(r"Press ([a-z, ]+)\. Pressed: ([a-z ]+)\.", context)[-1]
    done = [] if pressed == "nothing" else pressed.split(" ")
    rest = wanted.split(", ")[len(done) :]
    return [tool_call("done"), *(tool_call(f"press {colour}") for colour in rest[:1])]


class HeldToOptions:
    """``prefix_allowed_tokens_fn``: the tokens with which one of the options goes on."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._known: dict[str, list[list[int]]] = {}

    def __call__(self, _: int, ids: Any) -> list[int]:
        context, _, answer = self._tokenizer.decode(ids).rpartition(HEAD)
        n = len(self._tokenize(answer)) if answer else 0
        so_far = ids[len(ids) - n :].tolist() if n else []
        if context not in self._known:
            self._known[context] = [self._tokenize(option) for option in allowed_answers(context)]
        fitting = [option for option in self._known[context] if option[:n] == so_far]
        return sorted({option[n] for option in fitting if len(option) > n}) or [
            self._tokenizer.pad_token_id
        ]

    def _tokenize(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids
