"""The script that checks the wording of texts finds what it names, and nothing in plain texts."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def wording(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("wording", ROOT / "docs" / "wording.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "wording", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


def findings_in(wording: ModuleType, path: Path, text: str) -> list[tuple[int, str]]:
    path.write_text(text, encoding="utf-8")
    return [(one.line, one.problem.split(":")[0]) for one in wording.findings(path)]


def test_wrong_openings_of_docstrings_settings_and_help_are_reported(
    wording: ModuleType, tmp_path: Path
) -> None:
    source = '''"""What a worker takes."""
class Settings:
    """Settings for a run.

    Attributes:
        kept: whether it is kept.
        path: a folder, whatever it holds.
    """

    n: int = 3
    """How many tasks there are."""

def make(x):
    """See :class:`Settings`."""

def read(x):
    """Read a value; see :class:`Settings`."""
    option(help="Of each task, so many.")
'''
    assert sorted(findings_in(wording, tmp_path / "a.py", source)) == [
        (1, "begins with 'What'"),
        (6, "begins with 'whether'"),
        (11, "begins with 'How'"),
        (14, "only points elsewhere"),
        (18, "begins with 'Of'"),
    ]


def test_wrong_words_in_messages_comments_and_pages_are_reported(
    wording: ModuleType, tmp_path: Path
) -> None:
    source = '''"""Plain."""
# nobody reads this
x = "somebody says a word that an agent reads"
def f(n):
    """Fail."""
    raise ValueError(f"Mend {n} of these.")
'''
    assert sorted(findings_in(wording, tmp_path / "b.py", source)) == [
        (2, "'nobody'"),
        (6, "'Mend'"),
    ]
    page = "# Title\n\n```bash\nsomebody\n```\nNobody `whoever` knows.\n"
    assert findings_in(wording, tmp_path / "c.md", page) == [(6, "'Nobody'")]


def test_words_allowed_for_a_file_are_not_reported(
    wording: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(wording.ALLOWED, "d.py", frozenset({"doors"}))
    assert findings_in(wording, tmp_path / "d.py", '"""Rooms with doors, and a door."""\n') == [
        (1, "'door'")
    ]


def test_the_exit_code_is_1_if_anything_is_reported(
    wording: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.py").write_text('"""A plain module."""\n')
    assert wording.main([str(tmp_path)]) == 0
    (tmp_path / "odd.py").write_text('"""Whose module this is."""\n')
    assert wording.main([str(tmp_path)]) == 1
    assert "odd.py:1: begins with 'Whose'" in capsys.readouterr().out
