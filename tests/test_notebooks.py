"""The notebooks of the docs run as they are, cell by cell, in one kernel each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
pytestmark = pytest.mark.slow
KERNEL = """
import json, subprocess, sys
scope = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    text = "".join(cell["source"])
    if cell["cell_type"] == "code" and text.startswith("%%bash\\n"):
        subprocess.run(["bash", "-euc", text.removeprefix("%%bash\\n")], check=True)
    elif cell["cell_type"] == "code":
        exec(compile(text, cell["id"], "exec", dont_inherit=True), scope)
"""


def run(notebook: Path, folder: Path, **environment: str) -> None:
    """Run all cells of a notebook in a folder."""
    programs = Path(sys.executable).parent
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, notebook],
        cwd=folder,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=5000,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_tutorial_notebook_runs(tmp_path: Path) -> None:
    short = {"LOOP__MAX_ENV_STEPS": "2000", "EVALUATION__N_TASKS": "20", "WARMUP__N_TASKS": "5"}
    run(DOCS / "tutorial.ipynb", tmp_path, **{f"COEVO_CFG__{k}": v for k, v in short.items()})
    for name in ("first", "demo"):
        assert (tmp_path / "runs" / name / "report.html").is_file()


def test_the_language_model_notebook_runs(tmp_path: Path) -> None:
    run(DOCS / "howto" / "llm.ipynb", tmp_path)
    arms = {"first_look": ["static", "coevolve"], "second_look": ["static"]}
    for name, trained in arms.items():
        summary = json.loads((tmp_path / "runs" / name / "summary.json").read_text())
        assert [row["name"] for row in summary["table"]] == ["random", "warm-up", *trained]
    steps = (tmp_path / "runs" / "first_look" / "metrics.jsonl").read_text()
    assert steps.count('"event": "step"') >= 4
    assert (tmp_path / "first_look.html").stat().st_size > 10_000
    assert (tmp_path / "first_look_pages.html").stat().st_size > 100_000
