"""The example files that pages of the docs show: they run on a CPU and print what the page says."""

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
    """Run an example of docs/."""
    done = subprocess.run(
        [sys.executable, DOCS / name, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done


def expected_output(name: str, page: str = "trainers.md") -> str:
    """Return the output that the page shows for an example."""
    page = (DOCS / page).read_text().partition(f"<!-- part {name} -->")[2]
    match = re.search(r"^```text\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert match
    return match[1]


def test_the_maskable_ppo_example_prints_the_rows_of_the_page_and_resumes(tmp_path: Path) -> None:
    """The output has the rows of the page; its numbers depend on the processor."""
    pytest.importorskip("sb3_contrib", reason="pip install coevo-gym[sb3]")
    text = expected_output("trainers/sb3_maskable_ppo.py")
    done = printed("trainers/sb3_maskable_ppo.py", tmp_path, "--steps", "8192")
    assert "rare_share" not in done.stderr
    first = rows_of(done.stdout)
    assert [*first] == [*rows_of(text)]
    assert int(first["rounds"]) >= 2
    assert int(first["evolved"]) > 0
    for when in ("before", "after"):
        assert 0 <= float(first[f"mean reward on 100 validation episodes, {when}"]) <= 1
    more = rows_of(printed("trainers/sb3_maskable_ppo.py", tmp_path, "--steps", "1").stdout)
    assert int(more["groups"]) > int(first["groups"])
    assert int(more["pool_size"]) >= int(first["pool_size"])


def rows_of(output: str) -> dict[str, str]:
    """Return the value at the end of each line, by the words before it."""
    lines = (line.rpartition(" ") for line in output.splitlines())
    return {words.strip(" :"): value for words, _, value in lines}


def test_the_trl_grpo_example_prints_the_output_of_the_page(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="pip install coevo-gym[trl]")
    assert printed("trainers/trl_grpo.py", tmp_path).stdout.endswith(
        expected_output("trainers/trl_grpo.py")
    )


def gain_of(output: str) -> float:
    """Return the lower end of the interval of a gain, in points."""
    match = re.search(r"95 % interval (\S+) to", output)
    assert match, output
    return float(match[1])


def without_numbers(output: str) -> list[str]:
    """Return the lines of the end of an output, each without its numbers."""
    lines = [re.sub(r"[-+]?\d[\d.e,-]*", "0", line) for line in output.splitlines()]
    return [
        line for line in lines if re.match(r" *(random|warm-up|static|coevolve): 0%|[AB]", line)
    ]


def check_gain(name: str, output: str) -> None:
    """Check that a gain on test rows is not due to chance, and is printed as the page shows it."""
    expected = expected_output(name, "howto/rows.md")
    assert gain_of(expected) > 0
    assert gain_of(output) > 0  # the number itself depends on the processor
    assert without_numbers(expected) == without_numbers(output)


def test_sums_are_learned_and_learned_with_trl(tmp_path: Path) -> None:
    check_gain("rows/arithmetic.py", printed("rows/arithmetic.py", tmp_path).stdout)
    pytest.importorskip("trl", reason="pip install coevo-gym[trl]")
    check_gain("rows/arithmetic_trl.py", printed("rows/arithmetic_trl.py", tmp_path).stdout)


def test_calls_of_tools_are_learned(tmp_path: Path) -> None:
    check_gain("rows/tools.py", printed("rows/tools.py", tmp_path).stdout)
