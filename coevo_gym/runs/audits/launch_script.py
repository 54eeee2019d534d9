r"""A parser for launch scripts: shell scripts that start a trainer with ``key=value`` overrides.

It reads what such scripts consist of: assignments, variables, sums and products, quotes, comments
and continued lines. It runs nothing. A value that only a shell could compute is unknown, and asking
for it is an error.

Example:
    >>> text = "n=16\npython3 -m train data.size=$((n * 2)) name='x' $@"
    >>> script = read_launch_script(text, "run.sh")
    >>> script.overrides["data.size"].text
    '32'
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from coevo_gym.core.errors import ConfigError

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_ASSIGNMENT = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)+)=(.*)", re.DOTALL)
_VARIABLE = re.compile(
    rf"\$(?:\{{(?P<braced>{_NAME}|[0-9@*])(?::?-(?P<default>[^}}]*))?\}}|(?P<bare>{_NAME}|[0-9@*]))"
)
_ARITHMETIC = re.compile(r"\$\(\((?P<sum>[^$()]*(?:\$\w+[^$()]*|\([^()]*\)[^$()]*)*)\)\)")
_ENDS = frozenset(";&|\n")
_BRANCHES = frozenset({"if", "for", "while", "until", "case", "elif", "else"})
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class ScriptValue(NamedTuple):
    """The value of an override or option in a launch script.

    Attributes:
        text: the value, without quotes. Variables that the script does not set are left in it.
        line: line of the script in which the command begins, from 1.
    """

    text: str
    line: int


class LaunchScript(NamedTuple):
    """The parts of a launch script that determine a run.

    Attributes:
        source: name of the script, for messages.
        overrides: Hydra's key to value, of the one command that has any.
        options: the options ``--name value`` of the other commands, by name without dashes.
        branches: the shell keywords in the script that make values depend on conditions.
    """

    source: str
    overrides: Mapping[str, ScriptValue]
    options: Mapping[str, ScriptValue]
    branches: tuple[str, ...]


class _Word(NamedTuple):
    text: str
    line: int


def read_launch_script(text: str, source: str) -> LaunchScript:
    """Read the overrides in a launch script.

    Args:
        text: the script.
        source: its name, for messages.

    Raises:
        ConfigError: if no command has overrides, several have, or a quote is not closed.
    """
    variables: dict[str, str] = {}
    launches: list[dict[str, ScriptValue]] = []
    options: dict[str, ScriptValue] = {}
    branches: list[str] = []
    for words in _commands(text, source, variables):
        branches += [word.text for word in words[:1] if word.text in _BRANCHES]
        overrides = {
            match[1]: ScriptValue(match[2], word.line)
            for word in words[1:]
            if (match := _OVERRIDE.fullmatch(word.text))
        }
        if overrides:
            launches.append(overrides)
            continue
        for word, value in pairwise(words):
            name, equals, rest = word.text.removeprefix("--").partition("=")
            if word.text.startswith("--"):
                options[name] = ScriptValue(rest if equals else value.text, word.line)
    if len(launches) != 1:
        lines = ", ".join(str(next(iter(one.values())).line) for one in launches)
        raise ConfigError(
            f"{source} has {len(launches) or 'no'} commands with overrides key=value"
            + (f" (lines {lines}). Keep one of them" if launches else ", so there is nothing to")
            + (" in a copy of the script." if launches else " audit. Pass a launch script.")
        )
    return LaunchScript(source, launches[0], options, tuple(dict.fromkeys(branches)))


def _commands(text: str, source: str, variables: dict[str, str]) -> Iterator[list[_Word]]:
    """Yield the words of each command, and store assignments in ``variables`` along the way."""
    position, line = 0, 1
    words: list[_Word] = []
    while position < len(text):
        char = text[position]
        if text.startswith("\\\n", position):
            position, line = position + 2, line + 1
        elif char in _ENDS:
            if words and not _assign(words, variables):
                yield words
            words = []
            position, line = position + 1, line + (char == "\n")
        elif char.isspace():
            position += 1
        elif char == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
        else:
            word, end = _read_word(text, position, variables, f"{source}:{line}")
            words.append(_Word(word, line))
            line += text.count("\n", position, end)
            position = end
    if words and not _assign(words, variables):
        yield words


def _assign(words: list[_Word], variables: dict[str, str]) -> bool:
    """Store a command's assignments if it consists of nothing else. Return False otherwise."""
    texts = [word.text for word in words]
    if texts[0] in ("export", "local", "declare", "readonly"):
        texts = texts[1:]
    matches = [_ASSIGNMENT.fullmatch(text) for text in texts]
    if not texts or None in matches:
        return texts != [word.text for word in words]  # `export NAME` sets no value
    variables.update((match[1], match[2]) for match in matches if match)
    return True


def _read_word(text: str, start: int, variables: Mapping[str, str], where: str) -> tuple[str, int]:
    """Return the word at ``start``, with variables replaced, and the position where it ends."""
    parts: list[str] = []
    position = start
    while position < len(text):
        char = text[position]
        if char == "'":
            end = text.find("'", position + 1)
            _require_closed(end, where)
            parts.append(text[position + 1 : end])
            position = end + 1
        elif char == '"':
            end = position + 1
            while end < len(text) and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            _require_closed(end if end < len(text) else -1, where)
            inner = re.sub(r'\\(["\\$`]|\n)', lambda m: m[1].strip(), text[position + 1 : end])
            parts.append(_expand(inner, variables))
            position = end + 1
        elif char == "\\":
            if text[position : position + 2] != "\\\n":
                parts.append(text[position + 1 : position + 2])
            elif position + 2 < len(text) and text[position + 2].isspace():
                break
            position += 2
        elif char.isspace() or char in _ENDS:
            break
        else:
            end = position + 1
            match = _ARITHMETIC.match(text, position) or _VARIABLE.match(text, position)
            if match:
                end = match.end()
            elif text.startswith("$(", position) or char == "`":
                close = ")" if char == "$" else "`"
                end = text.find(close, position + 1) + 1
                _require_closed(end - 1, where)
            parts.append(_expand(text[position:end], variables))
            position = end
    return "".join(parts), position


def _require_closed(end: int, where: str) -> None:
    if end < 0:
        raise ConfigError(f"{where}: a quote or parenthesis is not closed. Correct the script.")


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Evaluate arithmetic and variables, leaving variables that the script does not set."""

    def replace(match: re.Match[str]) -> str:
        name = match["braced"] or match["bare"]
        if name in ("@", "*"):
            return ""  # arguments of the script, which are empty
        if name in variables:
            return variables[name]
        return match[0] if match["default"] is None else _expand(match["default"], variables)

    def calculate(match: re.Match[str]) -> str:
        formula = re.sub(rf"\$?({_NAME})", lambda m: variables.get(m[1], m[0]), match["sum"])
        try:
            return str(_evaluate(ast.parse(formula.strip(), mode="eval").body))
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
            return match[0]

    return _VARIABLE.sub(replace, _ARITHMETIC.sub(calculate, text))


def _evaluate(node: ast.expr) -> int:
    """Evaluate an arithmetic expression of whole numbers.

    Raises:
        ValueError: if it contains anything else.
    """
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        calculate = _OPERATORS[type(node.op)]
        return int(calculate(_evaluate(node.left), _evaluate(node.right)))
    raise ValueError("not a formula of whole numbers")
