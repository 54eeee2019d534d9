"""The benchmark of guessed tokens replays recorded episodes."""

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

BENCH = Path(__file__).parents[1] / "bench" / "lm_guesses.py"


def test_recorded_episodes_are_replayed_with_and_without_guesses(tmp_path: Path) -> None:
    answer = [20, 21, 22, 23, 24, 25, 26, 2]
    prompts = [[7, 8, 9], [7, 8, 9, *answer, 10, 11], [7, 8, 9, *answer, 10, 11, *answer, 12]]
    steps = [{"prompt_ids": prompt, "ids": answer} for prompt in prompts]
    rows = [{"steps": steps}, {"steps": steps[:1]}, {"steps": [{"prompt_ids": [], "ids": []}]}]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model = make_tiny_llama(tmp_path / "model")
    command = [sys.executable, BENCH, tmp_path, "--model", model, "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1: so little work may take longer
    assert "2 episodes, 32 sampled tokens" in done.stdout
    table = re.findall(r"\| (no|yes) \| (\d+) \| (\d+) \| (\d+) \|", done.stdout)
    (_, passes, guessed, right), (_, fewer, some, some_right) = table
    assert (guessed, right) == ("0", "0")
    assert int(passes) == 24
    assert int(fewer) < 24
    assert int(some) >= int(some_right) == 24 - int(fewer)


def test_a_folder_without_an_export_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, BENCH, tmp_path / "missing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "coevo export RUN --format jsonl" in done.stderr
