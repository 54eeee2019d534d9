"""What the documentation shows is true: its Python runs, its env pages are up to date."""

from __future__ import annotations

import doctest
import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

import coevo_gym.curricula.signals.kinds  # noqa: F401 (registered before a test takes a copy)
from coevo_gym.core.benchmark import benchmark_specs
from coevo_gym.core.kinds import kinds

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
WINGS = ("agents", "curricula", "prompts", "trainers")
DOCTESTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in (ROOT / "coevo_gym", *(ROOT / "coevo_gym" / wing for wing in WINGS))
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine: Callable[[str], None],
) -> None:
    engine(page.stem)
    monkeypatch.setattr("coevo_gym.core.kinds._KINDS", {kind.name: kind for kind in kinds()})
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    for block in _PYTHON.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), scope)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", DOCTESTS)
def test_examples_in_docstrings(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.failed == 0


def test_pages_are_written_from_the_code() -> None:
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    for benchmark in benchmark_specs():
        if benchmark.name not in ("toy", "simulated"):  # registered by tests alone
            written = (ROOT / "docs" / "envs" / f"{benchmark.name}.md").read_text()
            assert written == build.page(benchmark), "run `make docs`"
    assert build.SETTINGS.read_text() == build.settings_page(), "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_that_needs_a_model_knows_all_its_names(page: Path) -> None:
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    found = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input="\n".join(blocks),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stdout
