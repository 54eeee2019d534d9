"""The benchmark of ways to sample replays recorded episodes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.agents.tiny_llama import make_tiny_llama

BENCH = Path(__file__).parents[1] / "bench" / "lm_replay.py"


def test_recorded_episodes_are_replayed_in_three_ways(tmp_path: Path) -> None:
    long, short = [20, 21, 22, 23, 24, 25, 26, 2], [20, 2]
    episodes = [_steps(long, short, long), _steps(short, long, short)]
    rows = [{"steps": steps} for steps in (*episodes, [{"prompt_ids": [], "ids": []}])]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = make_tiny_llama(tmp_path / "model")
    command = [sys.executable, BENCH, tmp_path, "--model", model, "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: so little work may take longer
    assert "2 episodes, 30 sampled tokens" in done.stdout
    table = re.findall(r"\| (\w+) \| (\d+) \| [\d.]+ \| (\d+) \| (\d+) \|", done.stdout)
    assert [way for way, *_ in table] == ["wait", "join", "guess"]
    waiting, joining, guessing = ([int(cell) for cell in cells] for _, *cells in table)
    assert waiting == [8 + 8 + 8, 0, 0]
    assert joining == [8 + 2 + 8, 0, 0]
    passes, guessed, right = guessing
    assert passes < 8 + 2 + 8
    assert guessed >= right > 0


def _steps(*answers: list[int]) -> list[dict[str, list[int]]]:
    steps, prompt = [], [7, 8, 9]
    for answer in answers:
        steps.append({"prompt_ids": prompt, "ids": answer})
        prompt = [*prompt, *answer, 10, 11]
    return steps


def test_a_folder_without_an_export_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, BENCH, tmp_path / "missing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "coevo export RUN --format jsonl" in done.stderr
