"""The page about small language models runs as it is printed, with the real model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "howto" / "llm.ipynb"
pytestmark = pytest.mark.slow


def test_every_cell_of_the_notebook_runs_in_order(tmp_path: Path) -> None:
    programs = Path(sys.executable).parent
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    cells = [c for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == "code"]
    for number, cell in enumerate(cells):
        text = "".join(cell["source"])
        shell = text.removeprefix("%%bash\n")
        program = ["bash", "-c", shell] if shell != text else [sys.executable, "-c", text]
        done = subprocess.run(
            program, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"cell {number}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
    arms = {"first_look": ["static", "coevolve"], "second_look": ["static"]}
    for run, names in arms.items():
        summary = json.loads((tmp_path / "runs" / run / "summary.json").read_text())
        assert [row["name"] for row in summary["table"]] == ["random", "warm-up", *names]
    steps = (tmp_path / "runs" / "first_look" / "metrics.jsonl").read_text()
    assert steps.count('"event": "step"') >= 4
    assert (tmp_path / "first_look.html").stat().st_size > 10_000
    assert (tmp_path / "first_look_pages.html").stat().st_size > 100_000
