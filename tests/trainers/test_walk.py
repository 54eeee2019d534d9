"""The walk through the code in docs/code-map.md names functions that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TITLE = "## From an action to the learner's loss"


def functions(path: Path) -> set[str]:
    """Names of a file's functions, and of its classes' methods as ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{f.name}" for f in node.body if isinstance(f, ast.FunctionDef)}
    return names


def test_every_function_in_the_code_walk_of_the_docs_exists() -> None:
    page = (ROOT / "docs" / "code-map.md").read_text()
    walk = page.partition(TITLE)[2].partition("\n## ")[0]
    frames = re.findall(r"^\d\. `([\w.]+)` \(`([\w/]+\.py)`", walk, re.MULTILINE)
    assert len(frames) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) == 8
    assert not [(name, path) for name, path in frames if name not in functions(ROOT / path)]
