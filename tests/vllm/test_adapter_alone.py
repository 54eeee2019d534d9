"""An adapter that vLLM gets alone; in a process of its own, because a process has one engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.vllm.test_vllm_policy import CLOSE, FAR

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def measured(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.adapter_alone", str(folder)],
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


@pytest.mark.parametrize(
    "answers",
    ["untrained", "handed over", "updated", "new adapter", "begun with the old adapter"],
)
def test_answers_follow_the_current_adapter(measured: dict[str, Any], answers: str) -> None:
    assert measured["gaps"][answers] < CLOSE


@pytest.mark.parametrize(
    "answers", ["changed, not handed over", "old answers", "of the other version"]
)
def test_answers_of_an_earlier_adapter_differ(measured: dict[str, Any], answers: str) -> None:
    assert measured["gaps"][answers] > FAR


def test_an_adapter_is_removed_when_no_answer_uses_it(measured: dict[str, Any]) -> None:
    assert (measured["n_adapters"], measured["left"]) == (2, 1)
