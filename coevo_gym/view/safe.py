"""Redaction of secrets and of held-out tasks' ground truth in responses.

Secrets are removed from every response, by their typical patterns and by the values in this
process's environment; secrets in settings are also recognized by key name. Ground truth is
everything that tells a program how to solve a held-out task: the verifier, the solution, and the
grader's report.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Literal

from coevo_gym.core.evaluation_mark import WHY_WITHHELD, notice_of
from coevo_gym.core.task import Split, Task
from coevo_gym.store.secrets import REDACTED, is_secret_name

_SHORTEST = 8
_LOOKS = re.compile(
    r"\bsk-[A-Za-z0-9_-]{16,}"  # OpenAI, Anthropic and many similar providers
    r"|\bhf_[A-Za-z0-9]{16,}|\bgh[opsur]_[A-Za-z0-9]{20,}|\bgithub_pat_[A-Za-z0-9_]{20,}"
    r"|\bxox[abeprs]-[A-Za-z0-9-]{10,}|\bA[KS]IA[0-9A-Z]{16}\b|\bAIza[0-9A-Za-z_-]{30,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:(?!-----END).)*-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_MARKS = (
    *("sk-", "hf_", "gho_", "ghp_", "ghs_", "ghu_", "ghr_", "github_pat_"),
    *("xox", "AKIA", "ASIA", "AIza", "-----BEGIN "),
)
"""Substrings for a fast first check: every match of ``_LOOKS`` contains at least one."""
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
"""Patterns for the text before a secret, each with a substring that every match contains."""

Reveal = Literal["", "page", "terminal"]
"""The place where verdicts on held-out tasks are shown: on a page or as JSON, as text in a
terminal, or nowhere."""
_WITHHELD = f"Withheld: this is a {{split}} task, and {WHY_WITHHELD}."
_TERMINAL_ONLY = frozenset({"appworld"})
"""Benchmarks whose data may be passed on only in encrypted form."""


class Censor:
    """A filter that removes secrets from JSON responses.

    Args:
        values: values of known secrets.

    Example:
        >>> Censor(["correct horse"]).redact('{"said": "correct horse, sk-abcdefghijklmnop1234"}')
        '{"said": "<redacted>, <redacted>"}'
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        spellings = {
            json.dumps(value, ensure_ascii=ascii)[1:-1]
            for value in values
            if len(value) >= _SHORTEST
            for ascii in (True, False)
        }
        self._values = sorted(spellings, key=len, reverse=True)

    @classmethod
    def of_environment(cls) -> Censor:
        """Create a filter that redacts values of environment variables with secret-like names."""
        return cls(value.strip() for name, value in os.environ.items() if is_secret_name(name))

    def redact(self, text: str) -> str:
        """Replace the secrets in a JSON string and leave the rest unchanged."""
        for value in self._values:
            text = text.replace(value, REDACTED)
        if any(mark in text for mark in _MARKS):
            text = _LOOKS.sub(REDACTED, text)
        for needle, pattern in _BEHIND:
            if needle in text:
                text = pattern.sub(rf"\1{REDACTED}", text)
        return text


def why_withheld(task: Task, held_out: Collection[str] = ()) -> str:
    """Return the reason for withholding a task's ground truth, or "" if it is shown.

    Args:
        task: the task.
        held_out: ids of tasks that the run evaluates on.
    """
    if task.split is Split.TRAIN and task.id not in held_out:
        return ""
    return _WITHHELD.format(split=task.split)


def why_verdict_withheld(split: str, benchmark: str, reveal: Reveal = "") -> str:
    """Return the reason for withholding a grader's report, or "" if it is shown.

    Args:
        split: split of the task.
        benchmark: name of the benchmark.
        reveal: the place where verdicts on held-out tasks are shown.
    """
    if not notice_of(split) or reveal == "terminal":
        return ""
    if not reveal:
        return f"{_WITHHELD.format(split=split)} --reveal shows the verdict."
    if benchmark in _TERMINAL_ONLY:
        return (
            f"Withheld here: the data of {benchmark} may be passed on only in encrypted form, so "
            "its verdicts on held-out tasks are shown only by `coevo show --reveal` in a terminal."
        )
    return ""


def partial_scores(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the partial scores from a grader's report. They may be shown for any task."""
    return {
        key: float(value)
        for key, value in report.items()
        if isinstance(value, (int, float)) and -1 <= value <= 1
    }
