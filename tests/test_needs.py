"""Where a machine lacks something, tests are skipped with a line that names it; CI refuses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pytest_without_bubblewrap(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one small test where bwrap is not on the PATH."""
    base = {name: value for name, value in os.environ.items() if name not in ("CI", "PATH")}
    options = "-q -p no:cacheprovider tests/test_needs.py -k needs_nothing"
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options.split()],
        cwd=ROOT,
        env=base | {"PATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_a_test_that_needs_nothing_passes() -> None:
    assert ROOT.is_dir()


@pytest.mark.parametrize(("ci", "code"), [("", 0), ("true", 4)])
def test_missing_bubblewrap_skips_tests_locally_and_fails_in_ci(
    ci: str, code: int, tmp_path: Path
) -> None:
    done = pytest_without_bubblewrap(tmp_path, **({"CI": ci} if ci else {}))
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "bwrap is not on the PATH. Install bubblewrap" in output
    assert ("CI leaves out no test" if ci else "Tests were skipped.") in output
