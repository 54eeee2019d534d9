"""Write docs/envs/*.md, docs/settings.md, docs/commands.md and docs/howto/llm.ipynb.

Run by `make docs`. Envs and settings say what their docstrings say, commands what `--help` says,
and the notebook what docs/howto/llm.md says.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typer.main import get_command

from coevo_gym.cli import app
from coevo_gym.cli.help import choices_of, metavar_of
from coevo_gym.config import RunConfig
from coevo_gym.core.benchmark import BenchmarkSpec, benchmark_specs
from coevo_gym.core.sections import kind_of, variants

FOLDER = Path(__file__).parent / "envs"
SETTINGS = Path(__file__).parent / "settings.md"
COMMANDS = Path(__file__).parent / "commands.md"
LAPTOP = Path(__file__).parent / "howto" / "llm.md"
HOURS = "# takes hours"
"""A comment that marks the blocks of a page that neither the notebook nor the tests run."""
_BLOCK = re.compile(r"^```(bash|py)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


def page(spec: BenchmarkSpec) -> str:
    """One env's page: how to make it, and its docstring."""
    module, _, name = spec.env.partition(":")
    text = inspect.getdoc(getattr(import_module(module), name)) or ""
    text = _roles(text)
    body = _SECTION.sub(r"## \1", text)
    body = re.sub(r"^ {4}", "", body, flags=re.MULTILINE)
    return f"""# {spec.env_id}

<!-- Written by `make docs` from the docstring of {name}. -->

```python
import gymnasium as gym

import coevo_gym

env = gym.make("{spec.env_id}")
observation, info = env.reset(seed=0)
task = coevo_gym.tasks("{spec.name}", "val")[0]
observation, info = env.reset(options={{"task": task}})
for action in task.solution:
    observation, reward, terminated, truncated, info = env.step(action)
assert reward == 1.0
```

{body}
"""


_SETTINGS = """# Settings

<!-- Written by `make docs` from the models of the settings. -->

```bash
coevo config show quickstart --set seed=1
```

A setting comes from, in this order, its default, a preset or TOML file, the environment
(`COEVO_CFG__SECTION__KEY`) and the command line (`--set section.key=value`); later ones win. Where
a section may be of several kinds, its `kind` decides which settings it has. Which of them an arm
may set otherwise than the run stands in [methods and arms](methods/arms.md).

The defaults below are those of the tiny policy. With `policy.kind` `transformers` or `vllm` these
follow unless they are set; `coevo config show` prints `policy.kind` as their origin:

| setting | for a language model |
|---|---|
| `warmup.lr` | 5e-5 |
| `warmup.max_epochs` | 2 |
| `warmup.batch_decisions` | 8 |
| `warmup.batch_tokens` | 2,048, or 16,384 with `policy.model.device = "cuda"` |
| `warmup.max_grad_norm` | 1.0 |
| `learner.lr` | 1e-6, or 1e-5 with an adapter (`policy.model.lora_rank`) |
| `learner.epochs` | 1 |

A `rest` learner has the values of `warmup` for `learner.imitation`.
"""


def settings_page() -> str:
    """Return the page of all settings of a run."""
    return "\n".join([_SETTINGS, *_section("", RunConfig())])


def _section(prefix: str, section: BaseModel) -> Iterator[str]:
    """Return the values of a section, then its subsections."""
    model = type(section)
    described = {"kind": "Which kind it is.", **descriptions(model)}
    rows = []
    for name, field in model.model_fields.items():
        if not variants(field.annotation):
            cells = (_type(field.annotation), _default(getattr(section, name)), described[name])
            rows.append(f"| `{prefix}{name}` | {' | '.join(cells)} |")
    if rows:
        yield "| setting | type | default | what it is |\n|---|---|---|---|"
        yield from rows
        yield ""
    for name, field in model.model_fields.items():
        models = variants(field.annotation)
        for part in models:
            kind = f", kind `{kind_of(part)}`" if len(models) > 1 else ""
            yield f"##{'#' * prefix.count('.')} `{prefix}{name}`{kind}\n"
            yield f"{_plain(inspect.getdoc(part) or '').partition('Attributes:')[0].strip()}\n"
            usual = getattr(section, name)
            yield from _section(f"{prefix}{name}.", usual if isinstance(usual, part) else part())


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Describe each field by the string below it, or by its line in the class docstring.

    Raises:
        KeyError: when a field is asked for that nothing is said about.
    """
    found: dict[str, str] = {}
    for owner in reversed([c for c in model.__mro__ if issubclass(c, BaseModel)]):
        if owner is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        found |= _attributes(ast.get_docstring(body) or "")
        for one, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[one.target.id] = _plain(inspect.cleandoc(text.value))
    return found


def _attributes(docstring: str) -> dict[str, str]:
    section = docstring.partition("Attributes:\n")[2].partition("\n\n")[0]
    entries = re.split(r"^    (?=\w+:)", section, flags=re.MULTILINE)
    pairs = (entry.partition(":") for entry in entries if ":" in entry)
    return {name.strip(): _plain(text) for name, _, text in pairs}


def _plain(text: str) -> str:
    """Markdown on one line, as a cell of a table takes it."""
    return " ".join(_roles(text).split()).replace("|", "\\|")


def _roles(text: str) -> str:
    """Sphinx's roles and code as Markdown has them."""
    return re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _type(annotation: Any) -> str:
    """Format a type for readers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " \\| ".join(_type(part) for part in arguments)
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    if annotation is type(None):
        return "none"
    return {"str": "text", "bool": "true \\| false"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", "table")
    )


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if value is None or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


_COMMANDS = """# Commands

<!-- Written by `make docs` from the commands themselves. -->

```bash
coevo --help
coevo train --help
```

`-h` is short for `--help`. `coevo --install-completion` sets up tab completion for your shell: it
completes verbs and options, and the names of presets, benchmarks, runs and evaluations.

Every listing takes `--json`. Exit codes: 0 done, 1 the work failed, 2 a mistake in what was asked
for, 3 something is not installed, 130 interrupted. Progress goes to the error stream, results to
the output. What goes wrong and what to do is in [error messages](errors.md).
"""


def commands_page() -> str:
    """Return the page of all commands."""
    return "\n".join([_COMMANDS, *_command(get_command(app), ("coevo",))])


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Describe a verb and its parameters, or the verbs of a group."""
    if hasattr(command, "commands"):
        if len(path) > 1:
            yield f"## {' '.join(path)}\n\n{_prose(command.help)}\n"
        for name, inner in command.commands.items():
            yield from _command(inner, (*path, name))
        if len(path) > 1 and command.params:
            yield from _parameters(command, path)
        return
    yield f"{'#' * len(path)} {' '.join(path)}\n\n{_prose(command.help)}\n"
    yield from _parameters(command, path)


def _parameters(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Return a table row for each parameter of a verb."""
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        what = _plain(getattr(parameter, "help", None) or "")
        cells = (f"`{_spelling(parameter)}`", what + _choices(command, parameter))
        rows.append(f"| {' | '.join(cells)} | {_usual(parameter)} |")
    if rows:
        yield f"| {' '.join(path)} … | what it is | default |\n|---|---|---|"
        yield from rows
        yield ""


def _spelling(parameter: Any) -> str:
    """Format a parameter with its value."""
    if parameter.param_type_name == "argument":
        return metavar_of(parameter)
    spellings = ", ".join((*parameter.opts, *parameter.secondary_opts))
    return spellings if parameter.is_flag else f"{spellings} {metavar_of(parameter)}"


def _choices(command: Any, parameter: Any) -> str:
    """Return a sentence with the choices of a closed set, else nothing."""
    words = ", ".join(f"`{word}`" for word in choices_of(command, parameter))
    return f" One of {words}." if words else ""


def _usual(parameter: Any) -> str:
    """Return the default of a parameter."""
    if parameter.required:
        return "needed"
    if isinstance(told := getattr(parameter, "show_default", None), str):
        return told
    if parameter.default in (None, False, (), []) or callable(parameter.default):
        return ""
    return f"`{parameter.default}`"


def _prose(text: str) -> str:
    """Convert a help text to Markdown, with the examples at its end as commands."""
    said, mark, examples = _roles(inspect.cleandoc(text or "")).partition("For example:")
    lines = [" ".join(line.split()) for line in examples.split("\n\n")]
    block = "\n".join(line for line in lines if line)
    shown = f"\n\n```bash\n{block}\n```" if mark else ""
    return f"{said.strip()}{shown}"


def notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: shell and Python blocks become cells that run."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text.strip():
            source = text.strip("\n").splitlines(keepends=True)
            number = {"id": f"cell-{len(cells)}", "metadata": {}}
            cells.append({"cell_type": kind, **number, "source": source, **more})

    place = 0
    for block in _BLOCK.finditer(page):
        if HOURS in block[2]:
            continue
        add("markdown", page[place : block.start()])
        text = f"%%bash\n{block[2]}" if block[1] == "bash" else block[2]
        add("code", text, execution_count=None, outputs=[])
        place = block.end()
    add("markdown", page[place:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for spec in benchmark_specs():
        (FOLDER / f"{spec.name}.md").write_text(page(spec))
        print(f"docs/envs/{spec.name}.md")
    pages = {
        SETTINGS: settings_page(),
        COMMANDS: commands_page(),
        LAPTOP.with_suffix(".ipynb"): notebook(LAPTOP.read_text()),
    }
    for file, text in pages.items():
        file.write_text(text)
        print(f"docs/{file.relative_to(FOLDER.parent)}")


if __name__ == "__main__":
    main()
