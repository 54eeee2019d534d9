"""What the documentation shows is true: its Python runs, its commands are those there are."""

from __future__ import annotations

import ast
import doctest
import importlib.util
import json
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

from coevo_gym.cli import app
from coevo_gym.core.registry import METHODS
from coevo_gym.core.setting_sections import flatten, settings_classes
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.runs.config.keys import annotation_of, setting_types
from tests.conftest import NATIVE

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "AGENTS.md", "results/README.md")
]
PAGES = sorted([*AT_THE_ROOT, *(ROOT / "docs").rglob("*.md")])
_SHELL = re.compile(r"^```(?:bash|sh)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DATA = re.compile(r"^```(json|toml)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_QUOTED = re.compile(r"^```text\n(.*?)\n```", re.DOTALL | re.MULTILINE)
_PYTHON = re.compile(r"^```python\n(.*?)^```(?:\n+```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
"""A block that runs, and the block right below it: the end of what it prints."""
_NUMBER = re.compile(r" *\d[\d.,]*")
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
WINGS = ("agents", "curricula", "prompts", "trainers")
DOCTESTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for folder in (ROOT / "coevo_gym", *(ROOT / "coevo_gym" / wing for wing in WINGS))
    for path in folder.rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_examples_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    engine: Callable[[str], None],
) -> None:
    engine(page.stem)
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {"__name__": "page"}
    for block, expected in _PYTHON.findall(page.read_text()):
        exec(compile(block, str(page), "exec", dont_inherit=True), scope)
        printed = capsys.readouterr().out
        if NATIVE:  # another processor rounds differently, so what is learned differs, too
            printed, expected = _NUMBER.sub("0", printed), _NUMBER.sub("0", expected)
        assert printed.endswith(expected)


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_a_page_begins_with_a_title_and_a_sentence(page: Path) -> None:
    text = re.sub(r"<!--.*?-->", "", page.read_text(), flags=re.DOTALL)
    title, first, *_ = [line for line in text.splitlines() if line.strip()]
    assert title.startswith("# ")
    assert re.match(r"[A-Z][\w'-]+,? ", first), f"begins with {first!r}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_of_a_page_lead_to_existing_files(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("name", DOCTESTS)
def test_examples_in_docstrings_run(name: str) -> None:
    result = doctest.testmod(import_module(name))
    assert result.failed == 0


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The script docs/build.py."""
    spec = importlib.util.spec_from_file_location("build", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date(build: ModuleType) -> None:
    made_by_tests = {"toy", "simulated"}  # benchmarks that only tests register
    for path, text in build.generated_pages().items():
        if path.parent.name != "envs" or path.stem not in made_by_tests:
            assert path.read_text() == text, f"{path.relative_to(ROOT)}: run `make docs`"


def test_a_notebook_opens_with_the_outputs_that_its_page_shows(build: ModuleType) -> None:
    page = (
        "# Title\n\n```python\nprint(1)\nprint(2)\n```\n```text\n1\n2\n```\nSo:\n\n"
        "```sh\nls\n```\n\n```bash\npwd\n```\n\nA text:\n\n```text\nalone\n```\n"
    )
    cells = [
        ("".join(cell["source"]), ["".join(one["text"]) for one in cell.get("outputs", [])])
        for cell in json.loads(build.to_notebook(page))["cells"]
    ]
    assert cells == [
        ("# Title", []),
        ("print(1)\nprint(2)", ["1\n2\n"]),
        ("So:\n\n```sh\nls\n```", []),
        ("%%bash\npwd", []),
        ("A text:\n\n```text\nalone\n```", []),
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_examples_of_a_page_use_no_undefined_name(page: Path) -> None:
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    if not blocks:
        return
    process = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--isolated", "--select", "F821", "-"],
        input="\n".join(blocks),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert process.returncode == 0, process.stdout


def commands(program: str, text: str) -> Iterator[list[str]]:
    """The calls of a program in the shell blocks of a page, word by word."""
    for block in _SHELL.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0].split("/")[-1] == program:
                yield [word for word in words[1:] if word not in ("&", "…")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_on_a_page_exist(page: Path) -> None:
    coevo = get_command(app)
    for words in commands("coevo", page.read_text()):
        check_command(coevo, words)
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for words in commands("make", page.read_text()):
        assert set(words) - set(targets) <= {word for word in words if "=" in word}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_extras_on_a_page_exist(page: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    matches = re.findall(r"pip install [^`\n]*\[([\w,-]+)\]", page.read_text())
    assert {name for names in matches for name in names.split(",")} <= {
        *project["optional-dependencies"]
    }


@pytest.mark.parametrize("page", ["README.md", "docs/install.md", "llms.txt"])
def test_install_instructions_include_the_train_and_serve_extras(page: str) -> None:
    assert "pip install -c constraints.txt -e '.[train,serve]'" in (ROOT / page).read_text()


def check_command(command: Any, words: list[str]) -> None:
    """Fail if a call names a verb, an option or a setting that there is not."""
    command_line = " ".join(words)
    while hasattr(command, "commands") and words and words[0] in command.commands:
        command, words = command.commands[words[0]], words[1:]
    if words and "list" in getattr(command, "commands", {}):
        command = command.commands["list"]  # `coevo tasks NAME` lists
    options = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts)}
    free = 0
    while words:
        word, *words = words
        if not word.startswith("-") or word == "-":
            free += 1
            continue
        name, equals, value = word.partition("=")
        assert name in {*options, "--help"}, f"coevo {command_line}: there is no {name}"
        if name != "--help" and not options[name].is_flag and not equals:
            assert words, f"coevo {command_line}: {name} needs a value"
            value, *words = words
        if name == "--set":
            check_setting(value, command_line)
    arguments = [one.nargs for one in command.params if one.param_type_name == "argument"]
    assert -1 in arguments or free <= sum(arguments), (
        f"coevo {command_line}: takes {arguments} arguments"
    )


def check_setting(text: str, command_line: str) -> None:
    """Fail if KEY=VALUE sets what is no setting."""
    key = text.partition("=")[0]
    known = (annotation_of(RunConfig, full) for full in (key, f"{key}.name", f"{key}.kind"))
    assert any(one is not None for one in known), f"coevo {command_line}: there is no setting {key}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_json_and_toml_blocks_on_a_page_are_valid(page: Path) -> None:
    for kind, text in _DATA.findall(page.read_text()):
        if kind == "json":  # one value or several, whatever lies between them
            while text := text.strip():
                text = text[json.JSONDecoder().raw_decode(text)[1] :]
            continue
        data = tomllib.loads(text)
        if data.keys() <= RunConfig.model_fields.keys():
            load_config({"extends": "quickstart", **data})


SECTIONS = [
    name for name, field in RunConfig.model_fields.items() if settings_classes(field.annotation)
]
_DOTTED = re.compile(
    rf"`(?:arm\.\w+\.set\.)?((?:{'|'.join(SECTIONS)}|method)(?:\.[a-z_]+)+)(?: ?= ?[^`]*)?`"
)
"""A dotted name in a section's namespace, also with a value."""
_IN_CODE = re.compile(rf"\b({'|'.join(SECTIONS)})=(\{{[^{{}}]*(?:\{{[^{{}}]*\}}[^{{}}]*)*\}})")
"""A section that is given as a dict, as in ``@method("mine", learner={"epochs": 1})``."""
NO_SETTINGS = {
    "benchmark.choices", "learner.save", "policy.counts", "policy.usage",
    "policy.cost_towards_caps.tokens", "policy.cost_towards_caps.usd",  # attributes of objects
    "curriculum.selector.evolved_share", "curriculum.selector.overcome",  # metrics
    "benchmark.py", "curriculum.json", "evaluation.py", "learner.json",  # files
    "rollout.n", "rollout.agent.agent_loop_config_path",  # verl's settings
}  # fmt: skip
"""Dotted names that look like settings, and are none."""
NAMING = [
    *PAGES,
    ROOT / "llms.txt",
    *sorted(
        path
        for folder in ("coevo_gym", *(f"coevo_gym/{wing}" for wing in WINGS))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md", ".toml", ".j2")
    ),
]
"""Pages, and the files with docstrings, messages, templates and prompts."""


def test_settings_named_in_pages_docstrings_and_templates_exist() -> None:
    own = {key for name in METHODS.names() for key in setting_types(METHODS.load(name).settings)}
    known = {*setting_types(RunConfig), *(f"method.{key}" for key in own)}
    parts = [key.split(".") for key in known]
    sections = {".".join(part[:n]) for part in parts for n in range(1, len(part))}
    places: dict[str, set[str]] = {}
    for path in NAMING:
        text = path.read_text(encoding="utf-8")
        keys = set(_DOTTED.findall(text)) - NO_SETTINGS
        for section, code in _IN_CODE.findall(text):
            with suppress(ValueError, SyntaxError):  # it holds more than literals
                keys |= {key for key, _ in flatten({section: ast.literal_eval(code)})}
        for key in keys:
            places.setdefault(key, set()).add(str(path.relative_to(ROOT)))
    assert len(places) > 200
    wrong = {key: places[key] for key in places.keys() - known - sections}
    assert not wrong


def test_explained_error_messages_exist_in_the_code() -> None:
    rooms = [ROOT / name for name in ("coevo_gym", *WINGS)]
    messages = [text for room in rooms for path in room.rglob("*.py") for text in texts_of(path)]
    pages = [ROOT / "docs" / name for name in ("errors.md", "troubleshooting.md")]
    quoted = [text for page in pages for text in _QUOTED.findall(page.read_text())]
    assert len(quoted) > 45
    for message in quoted:
        parts = [part.strip() for part in message.split("…") if part.strip(" .,:")]
        assert parts, f"nothing is left of {message!r}"
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        near = (text for text in messages if max(parts, key=len) in text)
        assert any(pattern.search(text) for text in near), f"nothing says: {message}"


def texts_of(path: Path) -> Iterator[str]:
    """The texts in a source file that raises something, with "…" for what is put into them."""
    source = path.read_text()
    for node in ast.walk(ast.parse(source)) if re.search("Error|raise ", source) else ():
        if isinstance(node, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
