"""Check the names of functions, parameters, variables and limits; `make lint` runs it.

    python docs/naming.py [FILE_OR_FOLDER …]

A function is a verb, and a variable is the noun that it holds. A participle says neither: `found`
may be episodes, a path or an error. This script reports functions that are, or begin with, one of a
closed list of participles, parameters and variables that are one of them, and limits with another
prefix than ``MAX_`` and ``MIN_``, in Python files and in the Python blocks of pages. It prints one
line per finding and exits with 1 if there are any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDERS = ("coevo_gym", "agents", "curricula", "trainers", "prompts", "bench", "docs", "tests")
PARTICIPLES = frozenset(
    {
        *("counted", "drawn", "found", "gathered", "given", "held", "joined", "kept", "listed"),
        *("made", "marked", "named", "noted", "said", "sent", "shown", "taken", "told", "written"),
    }
)
"""Verbs whose participle differs from the imperative; `read`, `put`, `set`, `split` and `cut` are
imperatives, too, and may be functions."""
TERMS = ("held_out",)
"""Terms of the field that begin with a participle."""
LIMITS = re.compile(r"_?(?:MOST|LEAST|FEWEST)_|_?(?:MOST|LEAST|FEWEST)$")
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ALLOWED: dict[str, str] = {}
"""Functions that keep such a name, as ``PATH:NAME``, and the reason."""


class BadName(NamedTuple):
    """A name that breaks a rule.

    Attributes:
        path: its file, relative to the root.
        line: the line, from 1.
        name: the name.
        problem: advice.
    """

    path: str
    line: int
    name: str
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}: {self.problem}"


def bad_names(path: Path, file: str) -> Iterator[BadName]:
    """Yield the names in a file that break a rule."""
    for program in _python_blocks(path):
        yield from _bad_names_in_tree(ast.parse(program), file)


def _python_blocks(path: Path) -> Iterator[str]:
    """Yield the Python in a file. Blocks of a page keep their line numbers."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        yield text
        return
    for block in _BLOCK.finditer(text):
        yield "\n" * text.count("\n", 0, block.start(1)) + block[1]


def _bad_names_in_tree(tree: ast.Module, file: str) -> Iterator[BadName]:
    fields = set(_field_names(tree))
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if _begins_with_participle(node.name) and f"{file}:{node.name}" not in ALLOWED:
                    yield BadName(file, node.lineno, node.name, "begin with an imperative verb")
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                if name.lstrip("_") in PARTICIPLES and node not in fields:
                    yield BadName(file, node.lineno, name, "name the noun that it holds")
                elif LIMITS.match(name):
                    yield BadName(file, node.lineno, name, "call a limit MAX_… or MIN_…")
            case ast.ExceptHandler(name=str(name)):
                if name in PARTICIPLES:
                    yield BadName(file, node.lineno, name, "name the noun that it holds")


def _field_names(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the names of fields, which files and messages contain, too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                if isinstance(line, ast.AnnAssign):
                    yield line.target


def _begins_with_participle(name: str) -> bool:
    word = name.lstrip("_")
    return word.partition("_")[0] in PARTICIPLES and not word.startswith(TERMS)


def _source_files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    else:
        yield from (*path.rglob("*.py"), *path.rglob("*.md"))


def main(arguments: Sequence[str]) -> int:
    """Print the findings of the named paths, or of the whole project; return the exit code."""
    paths = [Path(one).resolve() for one in arguments]
    paths = paths or [*ROOT.glob("*.md"), *(ROOT / name for name in FOLDERS)]
    n_findings = 0
    for file in sorted({file.resolve() for path in paths for file in _source_files(path)}):
        for finding in bad_names(file, str(file.relative_to(ROOT))):
            print(finding)
            n_findings += 1
    if n_findings:
        print(f"{n_findings} names to change; the rules are in CONTRIBUTING.md.")
    return 1 if n_findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
