"""The example files that docs/trainers.md shows: they run on a CPU and print what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
pytestmark = pytest.mark.slow


def printed(name: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run an example of docs/trainers/."""
    done = subprocess.run(
        [sys.executable, DOCS / "trainers" / name, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def expected_output(name: str) -> str:
    """Return the output that the page shows for an example."""
    page = (DOCS / "trainers.md").read_text().partition(f"<!-- part trainers/{name} -->")[2]
    match = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert match
    return match[1]


def test_the_maskable_ppo_example_prints_the_rows_of_the_page_and_resumes(tmp_path: Path) -> None:
    """The output has the rows of the page; its numbers depend on the processor."""
    pytest.importorskip("sb3_contrib", reason="pip install coevo-gym[sb3]")
    text = expected_output("sb3_maskable_ppo.py")
    done = printed("sb3_maskable_ppo.py", tmp_path, "--steps", "8192")
    assert "rare_share" not in done.stderr
    first = rows_of(done.stdout)
    assert [*first] == [*rows_of(text)]
    assert int(first["rounds"]) >= 2
    assert int(first["evolved"]) > 0
    for when in ("before", "after"):
        assert 0 <= float(first[f"mean reward on 100 validation episodes, {when}"]) <= 1
    more = rows_of(printed("sb3_maskable_ppo.py", tmp_path, "--steps", "1").stdout)
    assert int(more["groups"]) > int(first["groups"])
    assert int(more["pool_size"]) >= int(first["pool_size"])


def rows_of(output: str) -> dict[str, str]:
    """Return the value at the end of each line, by the words before it."""
    lines = (line.rpartition(" ") for line in output.splitlines())
    return {words.strip(" :"): value for words, _, value in lines}


def test_the_trl_grpo_example_prints_the_output_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="pip install coevo-gym[trl]")
    assert printed("trl_grpo.py", tmp_path).stdout.endswith(expected_output("trl_grpo.py"))
