"""The script that checks names finds participles and old prefixes, and nothing in good names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def naming(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("naming", ROOT / "docs" / "naming.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "naming", module)
    spec.loader.exec_module(module)
    return module


def test_participles_and_wrong_prefixes_of_limits_are_reported(
    naming: ModuleType, tmp_path: Path
) -> None:
    path = tmp_path / "a.py"
    path.write_text("""
_MOST_WORDS = 3
LEAST = 1

class Row:
    kept: int = 0  # a field
    told = 3

    def _told_about(self, given):
        found = [said for said in given]
        with open("a") as drawn, open("b") as (_, (made, *sent)):
            pass
        try:
            pass
        except ValueError as noted:
            pass
        return lambda shown: (named := shown)

async def found():
    pass
""")
    assert {(bad.line, bad.name) for bad in naming.bad_names(path, "a.py")} == {
        (2, "_MOST_WORDS"),
        (3, "LEAST"),
        (7, "told"),
        (9, "_told_about"),
        (9, "given"),
        (10, "found"),
        (10, "said"),
        (11, "drawn"),
        (11, "made"),
        (11, "sent"),
        (15, "noted"),
        (17, "shown"),
        (17, "named"),
        (19, "found"),
    }


def test_python_blocks_of_a_page_are_checked(naming: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_text("""# Found

```bash
found = 1
```

```python
rows = 1
found = rows
```

```python
told = 2
```
""")
    assert [(bad.line, bad.name) for bad in naming.bad_names(path, "a.md")] == [
        (9, "found"),
        (13, "told"),
    ]


def test_imperatives_nouns_and_terms_are_not_reported(naming: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("""
MAX_WORDS = 3

def read(lines):
    tellers, keptness, almost = lines
    return tellers

def split(): ...
def held_out(held_out_tasks): ...
def make_kept(): ...
print(found)
""")
    assert list(naming.bad_names(path, "a.py")) == []


def test_every_allowed_function_exists_and_has_a_reason(naming: ModuleType) -> None:
    for place, reason in naming.ALLOWED.items():
        path, _, name = place.partition(":")
        assert f"def {name}(" in (ROOT / path).read_text(), place
        assert len(reason.split()) > 3, place
