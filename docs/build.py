"""Write docs/envs/*.md and docs/settings.md from the docstrings. Run by `make docs`."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from coevo_gym.config import RunConfig
from coevo_gym.config.keys import kind_of, variants
from coevo_gym.core.benchmark import BenchmarkSpec, benchmark_specs

FOLDER = Path(__file__).parent / "envs"
SETTINGS = Path(__file__).parent / "settings.md"
_SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


def page(spec: BenchmarkSpec) -> str:
    """One env's page: how to make it, and its docstring."""
    module, _, name = spec.env.partition(":")
    text = inspect.getdoc(getattr(import_module(module), name)) or ""
    text = re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")
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
"""


def settings_page() -> str:
    """The page of all settings of a run."""
    return "\n".join([_SETTINGS, *_section("", RunConfig())])


def _section(prefix: str, section: BaseModel) -> Iterator[str]:
    """The values of a section, then the sections in it."""
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
    """What each field is: the string below it, or its line of the class's docstring.

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
    text = re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")
    return " ".join(text.split()).replace("|", "\\|")


def _type(annotation: Any) -> str:
    """A type as a person reads it."""
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


def main() -> None:
    """Write every page."""
    FOLDER.mkdir(exist_ok=True)
    for spec in benchmark_specs():
        (FOLDER / f"{spec.name}.md").write_text(page(spec))
        print(f"docs/envs/{spec.name}.md")
    SETTINGS.write_text(settings_page())
    print("docs/settings.md")


if __name__ == "__main__":
    main()
