"""Check the wording of docstrings, settings, messages, help texts and docs; `make lint` runs it.

    python docs/wording.py [FILE_OR_FOLDER …]
    python docs/wording.py --measure

Ruff's D401 checks that functions begin with an imperative verb. This script checks the rest of the
rules in CONTRIBUTING.md: how other texts may begin, and words that a reader has to decipher. It
prints one line per finding and exits with 1 if there are any. With `--measure`, it prints how far
the guides read like one person talking to another: see `Flow`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
CODE = ("coevo_gym", "agents", "curricula", "trainers", "prompts", "bench", "docs")
PAGES = ("README.md", "CONTRIBUTING.md", "AGENTS.md", "docs")
GENERATED = ("docs/commands.md", "docs/settings.md", "docs/envs")
"""Pages that are written from docstrings and help texts, which are checked themselves."""
GUIDES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("index", "tutorial", "concepts", "curricula", "agents")),
    *("docs/compare.md", "docs/learner.md", "docs/howto"),
)
"""Pages that are read from top to bottom, and folders of such pages."""

OPENING = re.compile(r"(?:What|Who|Whose|Whom|Whether|How|Of|Those|So often)(?!\w)", re.IGNORECASE)
"""Openings that leave a reader without a subject."""
BARE = re.compile(r"See :\w+:`[^`]*`\.?$")
"""A docstring that only points elsewhere."""
PRONOUNS = frozenset({"somebody", "someone", "whoever", "nobody"})
"""Words that only guides may use: elsewhere, a text names who acts."""
WORDS = re.compile(
    rf"\b(?:{'|'.join(sorted(PRONOUNS))}|told apart|mend(?:s|ed|ing)?|lies in|lie in|flies|doors?"
    r"|likewise|begun anew|begins anew|made known|makes known|comes about|in vain|the likes)\b",
    re.IGNORECASE,
)
"""Words for which there is a plainer one."""
ALLOWED: dict[str, frozenset[str]] = {}
"""Words allowed in a file, by its path: names of things in a benchmark, quotations."""
EXEMPT = {("trainers/adapters/trl.py", "what")}
"""Files and openings of texts that are read by models."""
_ENTRY = re.compile(r"^\s+(?:\*\*)?[\w, *]+(?: \([^)]*\))?: (?P<text>\S.*)$")
_SECTION = re.compile(r"^\s*(Attributes|Args|Returns|Yields|Raises):\s*$")
_CODE = re.compile(r"```.*?```|`[^`\n]*`|<!-- prompt .*?<!-- end -->", re.DOTALL)


class Finding(NamedTuple):
    """A text that breaks a rule.

    Attributes:
        path: its file, relative to the root.
        line: the line, from 1.
        problem: the rule, with the words in question.
    """

    path: str
    line: int
    problem: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.problem}"


class Text(NamedTuple):
    """A text that a reader sees.

    Attributes:
        line: its first line, from 1.
        text: the text.
        opens: True if the rules for openings hold for it.
        whole: True for a whole docstring.
    """

    line: int
    text: str
    opens: bool
    whole: bool = False


def texts_of(source: str) -> Iterator[Text]:
    """Yield docstrings, attribute docs, comments, messages and help texts of a module."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstring_texts(node)
        elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            yield from _message_texts(node.exc.args)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from _message_texts([node.value], opens=True)
    for number, line in enumerate(source.splitlines(), start=1):
        if line.lstrip().startswith("#"):
            yield Text(number, line.lstrip(" #:"), opens=False)


def _docstring_texts(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef,
) -> Iterator[Text]:
    """Yield the docstring of a node with the entries of its sections, and docs of attributes."""
    for i, one in enumerate(node.body):
        if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)):
            continue
        if not isinstance(one.value.value, str):
            continue
        is_attribute = i > 0 and isinstance(node.body[i - 1], ast.Assign | ast.AnnAssign)
        if i > 0 and not is_attribute:
            continue
        yield Text(one.lineno, one.value.value.strip(), opens=True, whole=True)
        inside = False
        for offset, line in enumerate(one.value.value.splitlines()):
            if _SECTION.match(line):
                inside = True
            elif inside and (entry := _ENTRY.match(line)):
                yield Text(one.lineno + offset, entry["text"], opens=True)


def _message_texts(values: Sequence[ast.expr], *, opens: bool = False) -> Iterator[Text]:
    """Yield the text of string arguments, with … for values that are filled in."""
    for value in values:
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else "…"
            for part in ast.walk(value)
            if (isinstance(part, ast.Constant) and isinstance(part.value, str))
            or isinstance(part, ast.FormattedValue)
        ]
        if parts:
            yield Text(value.lineno, "".join(parts), opens=opens)


def findings(path: Path) -> Iterator[Finding]:
    """Yield the findings of a Python file or a Markdown page."""
    name = path.resolve().relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    allowed = ALLOWED.get(name, frozenset()) | (PRONOUNS if name.startswith(GUIDES) else set())
    if path.suffix == ".py":
        texts = texts_of(source)
    else:  # code keeps its line breaks, so that lines are counted right
        plain = _CODE.sub(lambda code: "\n" * code[0].count("\n"), source)
        texts = (Text(i, line, opens=False) for i, line in enumerate(plain.splitlines(), start=1))
    for line, text, opens, whole in texts:
        if whole and BARE.match(text):
            yield Finding(name, line, "only points elsewhere: say what it does")
        match = OPENING.match(text) if opens else None
        if match and (name, match[0].lower()) not in EXEMPT:
            yield Finding(name, line, f"begins with {match[0]!r}: begin with a verb or a noun")
        for match in WORDS.finditer(text):
            if match[0].lower() not in allowed:
                at = line + text[: match.start()].count("\n")
                yield Finding(name, at, f"{match[0]!r}: use a plainer word")


class Flow(NamedTuple):
    """Measures of how the prose of a guide moves from one sentence to the next.

    Attributes:
        linked: share of the sentences, other than the first of a paragraph, that begin with a link
            word or a pronoun, such as "So" or "It".
        determined: share of all sentences that begin with a determiner, such as "The" or "Each".
        examples: examples per 1,000 words.
        shows: 1 if the page has a picture or shows the output of a block, else 0.
    """

    linked: float
    determined: float
    examples: float
    shows: float


_LINKS = re.compile(
    r"(?:so|but|and|or|then|yet|because|since|therefore|still|instead|otherwise|meanwhile|however"
    r"|also|now|next|later|here|there|for example|for instance|that(?:'s| is) (?:why|how|where)"
    r"|which|it|its|it's|they|them|their|they're|he|she|his|her|this|that|that's|both|neither)\b",
    re.IGNORECASE,
)
_DETERMINERS = re.compile(r"(?:the|an?|each|every|all|no|this|these)\b", re.IGNORECASE)
_EXAMPLES = re.compile(r"\b(?:for example|for instance|such as|like|e\.g\.)(?!\w)", re.IGNORECASE)
_PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_OUTPUT = re.compile(r"^```\n+```text$", re.MULTILINE)
_NO_PROSE = re.compile(r"^(?:#|\||<|>|$)")
_ITEM = re.compile(r"^(?:[-*]|\d+\.) +")
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*]*[A-Z`x])")


def paragraphs(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page, without markup; code becomes `x`."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", page, flags=re.DOTALL | re.MULTILINE)
    prose = re.sub(r"<!--.*?-->", "", _PICTURE.sub("", prose), flags=re.DOTALL)
    prose = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", re.sub(r"`[^`]*`", "x", prose))
    lines: list[str] = []
    for line in (*(line.strip() for line in prose.splitlines()), ""):
        if lines and (_NO_PROSE.match(line) or _ITEM.match(line)):
            yield " ".join(lines)
            lines = []
        if not _NO_PROSE.match(line):
            lines.append(_ITEM.sub("", line).replace("**", ""))


def measure(page: str) -> Flow:
    """Measure the flow of a page."""
    texts = [_END.split(text) for text in paragraphs(page)]
    sentences = [sentence.lstrip("\"'(*") for text in texts for sentence in text]
    following = [sentence.lstrip("\"'(*") for text in texts for sentence in text[1:]]
    words = sum(len(sentence.split()) for sentence in sentences)
    return Flow(
        linked=sum(bool(_LINKS.match(one)) for one in following) / max(len(following), 1),
        determined=sum(bool(_DETERMINERS.match(one)) for one in sentences) / max(len(sentences), 1),
        examples=1000 * sum(len(_EXAMPLES.findall(one)) for one in sentences) / max(words, 1),
        shows=float(bool(_PICTURE.search(page) or _OUTPUT.search(page))),
    )


def measure_guides() -> dict[str, Flow]:
    """Return the flow of each guide, by its path, and their average."""
    flows = {
        path.relative_to(ROOT).as_posix(): measure(path.read_text(encoding="utf-8"))
        for path in files(ROOT / name for name in GUIDES)
    }
    return {**flows, "average": Flow(*map(mean, zip(*flows.values(), strict=True)))}


def print_guides() -> None:
    """Print a table of the flow of each guide."""
    print(f"{'page':<28} linked  determiners  examples/1,000  picture or output")
    for name, flow in measure_guides().items():
        print(
            f"{name:<28} {flow.linked:>6.0%}  {flow.determined:>11.0%}"
            f"  {flow.examples:>14.1f}  {flow.shows:>17.0%}"
        )


def files(paths: Iterable[Path]) -> list[Path]:
    """Return the files under paths, each once, without those that are generated."""
    pages = set()
    for path in paths:
        under = [path] if path.is_file() else [*path.rglob("*.py"), *path.rglob("*.md")]
        pages |= {one.resolve() for one in under if "skeletons" not in one.parts}
    skipped = tuple((ROOT / name).as_posix() for name in GENERATED)
    return sorted(one for one in pages if not one.as_posix().startswith(skipped))


def main(arguments: Sequence[str]) -> int:
    """Print the findings of the named paths, or of the whole project; return the exit code."""
    if list(arguments) == ["--measure"]:
        print_guides()
        return 0
    paths = [Path(one) for one in arguments] or [ROOT / name for name in (*CODE, *PAGES)]
    problems = sorted({finding for path in files(paths) for finding in findings(path)})
    for finding in problems:
        print(finding)
    if problems:
        print(f"{len(problems)} texts to reword; the rules are in CONTRIBUTING.md.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
