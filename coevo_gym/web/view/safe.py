"""What is never shown: secrets, and the ground truth of tasks that are not to train on.

Secrets go from every answer, by what they look like and by the values of this process's own
environment; from settings also by the names of keys. Ground truth is what tells a program how to
solve a held-out task: its verifier, its solution, and what a grader writes about it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from coevo_gym.core.task import Split, Task
from coevo_gym.store.secrets import REDACTED, names_secret

_SHORTEST = 8
_LOOKS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and many that are like them
    r"|\bhf_[A-Za-z0-9]{16,}|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bA[KS]IA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_MARKS = (
    *("sk-", "hf_", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_"),
    *("xox", "AKIA", "ASIA", "AIza", "-----BEGIN "),
)
"""Texts of which every match of ``_LOOKS`` has one; looking for these is many times faster."""
_BEHIND = (
    ("earer ", re.compile(r"(\b[Bb]earer\s+)[A-Za-z0-9._~+/=-]{12,}")),
    ("://", re.compile(r"(://)[^/\s:@\"']+:[^/\s@\"']+(?=@)")),
    (
        "=",
        re.compile(
            r"([?&](?i:api[_-]?key|key|access[_-]?token|token|secret|password|sig|signature)=)"
            r"[^&\s\"'\\]+"
        ),
    ),
)
"""What comes before a secret, each with a text that is there wherever it matches."""

WITHHELD = (
    "Withheld: this task is of the split {split}, and nothing that tells how to solve or judge it "
    "may reach training."
)
NOTICE = (
    "Evaluation data, split {split}: for people to look at. It must not be trained on, explored "
    "from, or put into a prompt."
)


class Censor:
    """Takes secrets out of the JSON of answers.

    Args:
        values: secrets that are known by their value.

    Example:
        >>> Censor(["correct horse"]).clean('{"said": "correct horse, sk-abcdefghijklmnop1234"}')
        '{"said": "<redacted>, <redacted>"}'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        written = {
            json.dumps(value, ensure_ascii=ascii)[1:-1]
            for value in values
            if len(value) >= _SHORTEST
            for ascii in (True, False)
        }
        self._values = sorted(written, key=len, reverse=True)

    @classmethod
    def of_environment(cls, environ: Mapping[str, str] | None = None) -> Censor:
        """One that knows the values of environment variables that are named like secrets."""
        found = os.environ if environ is None else environ
        return cls(value.strip() for name, value in found.items() if names_secret(name))

    def clean(self, text: str) -> str:
        """A JSON text without secrets; it is the JSON of the same value but for these."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        if any(mark in text for mark in _MARKS):
            text = _LOOKS.sub(REDACTED, text)
        for needle, pattern in _BEHIND:
            if needle in text:
                text = pattern.sub(rf"\1{REDACTED}", text)
        return text


def withheld(task: Task, held_out: Collection[str] = ()) -> str:
    """Why a task's verifier, solution and world are not shown; "" if they are.

    Args:
        task: the task.
        held_out: ids of tasks that the run evaluates on.
    """
    if task.split is Split.TRAIN and task.id not in held_out:
        return ""
    return WITHHELD.format(split=task.split)


def notice_of(split: str) -> str:
    """What a reader of an evaluation's episodes has to know; "" for those of training tasks."""
    return "" if split == Split.TRAIN else NOTICE.format(split=split)


def shares_of(report: Mapping[str, Any]) -> dict[str, float]:
    """What of a grader's report may be shown of any task: the parts of the score."""
    return {
        key: float(value)
        for key, value in report.items()
        if isinstance(value, (int, float)) and -1 <= value <= 1
    }
