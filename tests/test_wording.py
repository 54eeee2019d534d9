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


def test_only_guides_may_use_vague_pronouns(wording: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "docs" / "howto").mkdir(parents=True)
    text = "# Title\n\nIf nobody wrote it, somebody has to mend it.\n"
    for name, expected in {
        "docs/howto/own.md": ["'mend'"],
        "docs/tutorial.md": ["'mend'"],
        "docs/errors.md": ["'nobody'", "'somebody'", "'mend'"],
    }.items():
        assert [one for _, one in findings_in(wording, tmp_path / name, text)] == expected


PAGE = """# A title is no sentence

The explorer goes back. So it finds a task, such as "I want a mug." It is new.
Every draft is run, which takes
a while.

```python
print("The output. It is no prose. For example")
```

| the table | is no prose, for example |
|---|---|
| The cell. It | counts nowhere. |

- **Tasks.** They grow. [This page](it.md) is linked.
- Read on: `It is code. The end.`
<!-- It is a comment. -->
"""


def test_the_flow_of_hand_written_sentences(wording: ModuleType) -> None:
    assert list(wording.paragraphs(PAGE)) == [
        'The explorer goes back. So it finds a task, such as "I want a mug." It is new. '
        "Every draft is run, which takes a while.",
        "Tasks. They grow. This page is linked.",
        "Read on: x",
    ]
    flow = wording.measure(PAGE)
    # of eight sentences, "The", "Every" and "This"; of five that follow, "So", "It", "They", "This"
    assert flow.determined == pytest.approx(3 / 8)
    assert flow.linked == pytest.approx(4 / 5)
    assert flow.examples == pytest.approx(1000 / 36)
    assert flow.shows == 0.0


@pytest.mark.parametrize(
    ("page", "shows"),
    [
        ("![A curve](pictures/curve.svg)\n", 1),
        ("```python\nprint(1)\n```\n```text\n1\n```\n", 1),
        ("```bash\nls\n```\n\n```text\na\n```\n", 1),
        ("```python\nprint(1)\n```\n\nA formula:\n\n```text\n1\n```\n", 0),
        ("[A link](pictures/curve.svg)\n", 0),
        ("", 0),
    ],
)
def test_a_page_shows_a_picture_or_what_a_block_prints(
    wording: ModuleType, page: str, shows: int
) -> None:
    assert wording.measure(page).shows == shows


def test_guides_read_like_one_person_talking_to_another(
    wording: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A smoke alarm: prose that was written to pass this test reads no better for it."""
    monkeypatch.setattr(wording, "ROOT", ROOT)
    assert wording.main(["--measure"]) == 0
    average = wording.measure_guides()["average"]
    table = capsys.readouterr().out
    print(table)
    assert f"average {average.linked:>27.0%}" in table
    assert average.linked >= 0.18
    assert average.determined <= 0.28
    assert average.examples >= 4
    assert average.shows >= 0.7


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
