"""Write the generated pages, tables, examples and notebooks of the documentation.

Run by `make docs`. Pages of envs and settings come from docstrings, the page of commands from
`--help`, and a notebook from a page. Other pages have generated parts: tables of presets from the
planner, measured times from results/, and the files of examples.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from typer.main import get_command

from coevo_gym.cli import app
from coevo_gym.cli.app import choices_of, metavar_of
from coevo_gym.core.benchmark import BenchmarkSpec, benchmark_specs
from coevo_gym.core.setting_sections import kind_value, settings_classes
from coevo_gym.core.text_tables import markdown_table
from coevo_gym.core.waiting import format_duration
from coevo_gym.runs.config import RunConfig, load_config
from coevo_gym.runs.experiments.records import read_records
from coevo_gym.runs.panels.known import KnownGroup, KnownNumber, known_groups, known_numbers
from coevo_gym.runs.planning.device import CARDS, GIB, Device
from coevo_gym.runs.planning.memory import format_bytes
from coevo_gym.runs.planning.plan import plan_run
from coevo_gym.runs.planning.preset_costs import PresetCost, preset_costs

FOLDER = Path(__file__).parent / "envs"
SETTINGS = Path(__file__).parent / "settings.md"
COMMANDS = Path(__file__).parent / "commands.md"
KNOWN_NUMBERS = Path(__file__).parent / "known-numbers.md"
DOCS = Path(__file__).parent
NOTEBOOKS = (DOCS / "tutorial.md", DOCS / "howto" / "llm.md")
"""Pages that are notebooks, too."""
_BLOCK = re.compile(
    r"^```(bash|py|python)\n(.*?)^```\n(?:\n*```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE
)
"""A block of code, and below it what it prints."""
_PART = re.compile(r"^<!-- part (\S+) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
_SECTION = re.compile(r"^([A-Z][A-Za-z ]+):$", re.MULTILINE)


def env_page(spec: BenchmarkSpec) -> str:
    """One env's page: how to make it, and its docstring."""
    module, _, name = spec.env.partition(":")
    text = inspect.getdoc(getattr(import_module(module), name)) or ""
    text = _replace_roles(text)
    body = _SECTION.sub(r"## \1", text)
    body = re.sub(r"^ {4}", "", body, flags=re.MULTILINE)
    return f"""# {spec.env_id}

<!-- Written by `make docs` from the docstring of {name} -->

Play, evaluate and train on this benchmark with the observations, actions and rewards below.

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

<!-- Written by `make docs` from the models of the settings -->

Look up each setting of a run, with its type, default and meaning.

```bash
coevo config show quickstart --set seed=1
```

A setting is read from these sources, each of which overrides the ones before it: its default, a
preset or TOML file, the environment (`COEVO_CFG__SECTION__KEY`) and the command line
(`--set section.key=value`). If a section has more than one kind, its `kind` determines which
settings it accepts. [Methods and arms](methods/arms.md) lists the settings that an arm can change.

The defaults below are for the tiny policy. With `policy.kind` set to `transformers`, `vllm` or
`vllm_server`, the following settings have other defaults; `coevo config show` prints `policy.kind`
as their origin:

| setting | for a language model |
|---|---|
| `warmup.lr` | 5e-5 |
| `warmup.max_epochs` | 2 |
| `warmup.batch_decisions` | 8 |
| `warmup.batch_tokens` | 2,048, or 16,384 with `policy.model.device = "cuda"` |
| `warmup.max_grad_norm` | 1.0 |
| `learner.lr` | 1e-6, or 1e-5 with an adapter (`policy.model.lora_rank`) |
| `learner.epochs` | 1 |

A `rest` learner uses the defaults of `warmup` for `learner.imitation`. A [learner of your
own](howto/learner.md) has its own settings.
"""


def settings_page() -> str:
    """Return the page of all settings of a run."""
    return "\n".join([_SETTINGS, *_settings_section("", RunConfig())])


def _settings_section(prefix: str, section: BaseModel) -> Iterator[str]:
    """Return the values of a section, then its subsections."""
    model = type(section)
    described = {"kind": "The kind of this section.", **field_descriptions(model)}
    rows = []
    for name, field in model.model_fields.items():
        if not settings_classes(field.annotation) and f"{prefix}{name}" != _GROWTH_KIND:
            cells = (
                _format_type(field.annotation),
                _format_default(getattr(section, name)),
                described[name],
            )
            rows.append(f"| `{prefix}{name}` | {' | '.join(cells)} |")
    if rows:
        yield "| setting | type | default | description |\n|---|---|---|---|"
        yield from rows
        yield ""
    for name, field in model.model_fields.items():
        models = settings_classes(field.annotation)
        if f"{prefix}{name}.kind" == _GROWTH_KIND:
            yield _GROWTH.format(kinds=" \\| ".join(f"`{kind_value(part)}`" for part in models))
        for part in models:
            if len(models) > 1 and not kind_value(part):
                continue  # user-defined
            kind = f", kind `{kind_value(part)}`" if len(models) > 1 else ""
            yield f"##{'#' * prefix.count('.')} `{prefix}{name}`{kind}\n"
            yield f"{_to_cell(inspect.getdoc(part) or '')}\n"
            usual = getattr(section, name)
            yield from _settings_section(
                f"{prefix}{name}.", usual if isinstance(usual, part) else part()
            )


_GROWTH_KIND = "curriculum.growth.kind"
"""A setting that is documented once, because only arms can set it."""
_GROWTH = f"""### `curriculum.growth`

Each kind of growth has its own settings.

| setting | type | default | description |
|---|---|---|---|
| `{_GROWTH_KIND}` | {{kinds}} | the method's | When and where rounds explore. The method of \
an arm determines it; a run cannot set it, but an arm can (`arm.NAME.set.{_GROWTH_KIND}`). |
"""


def field_descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Describe each field by the string below it.

    Raises:
        KeyError: when a field is asked for that nothing is said about.
    """
    texts: dict[str, str] = {}
    for owner in reversed([c for c in model.__mro__ if issubclass(c, BaseModel)]):
        if owner is BaseModel:
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
        assert isinstance(body, ast.ClassDef)
        for one, after in zip(body.body, body.body[1:], strict=False):
            if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    texts[one.target.id] = _to_cell(inspect.cleandoc(text.value))
    return texts


def _to_cell(text: str) -> str:
    """Markdown on one line, as a cell of a table takes it."""
    return " ".join(_replace_roles(text).split()).replace("|", "\\|")


def _replace_roles(text: str) -> str:
    """Sphinx's roles and code as Markdown has them."""
    return re.sub(r":(?:class|meth|func|mod|data):`~?([^`]+)`", r"`\1`", text).replace("``", "`")


def _format_type(annotation: Any) -> str:
    """Format a type for readers."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _format_type(arguments[0])
    if origin is Literal:
        return " \\| ".join(f"`{value}`" for value in arguments)
    if origin in (Union, UnionType):
        return " \\| ".join(_format_type(part) for part in arguments)
    if origin is tuple:
        return f"list of {_format_type(arguments[0])}"
    if annotation is type(None):
        return "none"
    return {"str": "text", "bool": "true \\| false"}.get(
        getattr(annotation, "__name__", ""), getattr(annotation, "__name__", "table")
    )


def _format_default(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"`{item}`" for item in value)
    if value is None or value == {}:
        return "none"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


_COMMANDS = """# Commands

<!-- Written by `make docs` from the commands themselves -->

Look up each command with its options.

```bash
coevo --help
coevo train --help
```

`-h` is short for `--help` in every command. `coevo --install-completion` sets up [tab
completion](install.md#tab-completion).

Every listing takes `--json`. The exit code is 0 on success, 1 if the command failed, 2 for invalid
arguments or settings, 3 if something is not installed, and 130 after an interruption. Progress is
printed to standard error, and results to standard output. [Error messages](errors.md) lists common
errors and their solutions.
"""


def commands_page() -> str:
    """Return the page of all commands."""
    return "\n".join([_COMMANDS, *_command_section(get_command(app), ("coevo",))])


def _command_section(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Describe a verb and its parameters, or the verbs of a group."""
    if hasattr(command, "commands"):
        if len(path) > 1:
            yield f"## {' '.join(path)}\n\n{_help_to_markdown(command.help)}\n"
        for name, inner in command.commands.items():
            yield from _command_section(inner, (*path, name))
        if len(path) > 1 and command.params:
            yield from _parameter_table(command, path)
        return
    yield f"{'#' * len(path)} {' '.join(path)}\n\n{_help_to_markdown(command.help)}\n"
    yield from _parameter_table(command, path)


def _parameter_table(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    """Return a table row for each parameter of a verb."""
    rows = []
    for parameter in command.params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        what = _to_cell(getattr(parameter, "help", None) or "")
        cells = (f"`{_format_parameter(parameter)}`", what + _choices_sentence(command, parameter))
        rows.append(f"| {' | '.join(cells)} | {_parameter_default(parameter)} |")
    if rows:
        yield f"| {' '.join(path)} … | description | default |\n|---|---|---|"
        yield from rows
        yield ""


def _format_parameter(parameter: Any) -> str:
    """Format a parameter with its value."""
    if parameter.param_type_name == "argument":
        return metavar_of(parameter)
    spellings = ", ".join((*parameter.opts, *parameter.secondary_opts))
    return spellings if parameter.is_flag else f"{spellings} {metavar_of(parameter)}"


def _choices_sentence(command: Any, parameter: Any) -> str:
    """Return a sentence with the choices of a closed set, else nothing."""
    words = ", ".join(f"`{word}`" for word in choices_of(command, parameter))
    return f" One of {words}." if words else ""


def _parameter_default(parameter: Any) -> str:
    """Return the default of a parameter."""
    if parameter.required:
        return "required"
    if isinstance(default := getattr(parameter, "show_default", None), str):
        return default
    if parameter.default in (None, False, (), []) or callable(parameter.default):
        return ""
    return f"`{parameter.default}`"


def _help_to_markdown(text: str) -> str:
    """Convert a help text to Markdown, with the examples at its end as commands."""
    prose, mark, examples = _replace_roles(inspect.cleandoc(text or "")).partition("For example:")
    lines = [" ".join(line.split()) for line in examples.split("\n\n")]
    block = "\n".join(line for line in lines if line)
    code = f"\n\n```bash\n{block}\n```" if mark else ""
    return f"{prose.strip()}{code}"


_KNOWN_NUMBERS = """# Known numbers

<!-- Written by `make docs` from known_numbers.jsonl and known_groups.jsonl in runs/panels -->

Look up published results on the four benchmarks, each with its source, the tasks that it is about,
how these were played, and what is unclear. Print them below your own results with:

```bash
coevo panel table EVALUATION --known
```

The first section shows [the same number in several
places](#the-same-number-in-several-places): before you compare your result with one of them, look
how far they are apart. Chance alone moves them, too: at a success of 75%, one evaluation of 128
tasks has a standard error of 3.8 points, and the difference between two has one of 5.4.

There are {count} numbers, in percent, and ± is a printed standard deviation. They were collected in
November 2026. Code, READMEs and files were read themselves, but most tables of papers were read in
notes and issue threads that quote them, so check a number in its source before you cite it. The
notes of a row are in the list below its table. If a source does not say which split was played, the
split is \"not said\".
"""
_BENCHMARK_TITLES = {
    "alfworld": "ALFWorld",
    "webshop": "WebShop",
    "bfcl": "BFCL, multi-turn",
    "appworld": "AppWorld",
}


def known_numbers_page() -> str:
    """Return the page of the published numbers."""
    parts = [
        _KNOWN_NUMBERS.format(count=len(known_numbers())).strip(),
        "## The same number in several places",
        "The numbers in a row are meant to be the same. The reasons are those that we know.",
        markdown_table(
            ("number", "values", "points apart", "why they differ"),
            [_known_group_cells(group, rows) for group, rows in known_groups()],
        ),
    ]
    for benchmark, title in _BENCHMARK_TITLES.items():
        notes: dict[str, int] = {}
        rows = [_known_row(row, notes) for row in known_numbers(benchmark)]
        heads = ("method", "model", "value", "split", "tasks", "source", "notes")
        parts += [
            f"## {title}",
            markdown_table(heads, rows),
            "\n".join(f"{number}. {_escape(note)}" for note, number in notes.items()),
        ]
    return "\n\n".join(parts) + "\n"


def _known_group_cells(group: KnownGroup, rows: Sequence[KnownNumber]) -> list[str]:
    """Return the cells of numbers that are meant to be the same."""
    sources = [re.split(r",| arXiv| \(", row.source)[0] for row in rows]
    values = []
    for row, source in zip(rows, sources, strict=True):
        same = [one for one, other in zip(rows, sources, strict=True) if other == source]
        if len({one.method for one in same}) > 1:
            source = f"{source}, {row.method}"
        elif len(same) > 1:
            source = row.source
        values.append(f"{row.printed} ({source})")
    apart = max(row.value for row in rows) - min(row.value for row in rows)
    return [group.title, "<br>".join(values), f"{apart:.1f}", group.reasons]


def _known_row(row: KnownNumber, notes: dict[str, int]) -> list[str]:
    """Return the cells of a published number; new notes are added to ``notes``."""
    protocol = f"Protocol: {row.protocol}." if row.protocol else ""
    texts = [text for text in (protocol, *row.caveats, f"Taken from {row.read_in}.") if text]
    numbers = [str(notes.setdefault(text, len(notes) + 1)) for text in texts]
    metric = "" if row.metric == "success" else f" ({row.metric})"
    n = " or ".join(f"{n:,}" for n in row.n_tasks) or "not said"
    cells = (row.method, row.model, f"{row.printed}{metric}", row.split, n, row.source)
    return [*map(_escape, cells), ", ".join(numbers)]


def _escape(text: str) -> str:
    """Return a text that contains no HTML tags."""
    return text.replace("<", "&lt;")


def to_notebook(page: str) -> str:
    """Return a page as a Jupyter notebook: shell and Python blocks become cells that run.

    Their outputs are those that the page shows, so the notebook is the same on every machine.
    """
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str, **more: Any) -> None:
        if text.strip():
            source = _split_lines(text.strip("\n"))
            number = {"id": f"cell-{len(cells)}", "metadata": {}}
            cells.append({"cell_type": kind, **number, "source": source, **more})

    place = 0
    for block in _BLOCK.finditer(page):
        add("markdown", page[place : block.start()])
        text = f"%%bash\n{block[2]}" if block[1] == "bash" else block[2]
        stream = {"name": "stdout", "output_type": "stream", "text": _split_lines(block[3] or "")}
        add("code", text, execution_count=None, outputs=[stream] if block[3] else [])
        place = block.end()
    add("markdown", page[place:])
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def _split_lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def fill_parts(page: str) -> str:
    """Return a page with its generated parts: from ``<!-- part NAME -->`` to ``<!-- end -->``.

    A name that ends in ``.py`` is a file in docs/, which the part shows.
    """

    def part(match: re.Match[str]) -> str:
        name = match[1]
        if name.endswith(".py"):
            lines = f"\n```py\n{(DOCS / name).read_text()}```\n"
        else:
            lines = "\n".join(PARTS[name]())
        return f"<!-- part {name} -->\n{lines}\n<!-- end -->"

    return _PART.sub(part, page)


def _table_lines(*heads: str, rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table, which stands apart from comments around it."""
    yield ""
    yield f"| {' | '.join(heads)} |"
    yield "|---" * len(heads) + "|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def _presets_on_a_cpu() -> Iterator[str]:
    """Yield a table of the presets that run on a CPU."""
    rows = [
        (
            f"`{cost.name}`",
            cost.about,
            f"{cost.env_steps:,}",
            format_bytes(cost.memory) if cost.model else "–",
            format_bytes(cost.disk) if cost.model else "–",
            _format_requests(cost),
        )
        for cost in preset_costs()
        if cost.device == "CPU"
    ]
    heads = ("env steps per arm", "memory", "disk", "paid requests")
    yield from _table_lines("preset", "description", *heads, rows=rows)


def _presets_on_a_gpu() -> Iterator[str]:
    """Yield a table of the presets that need a GPU."""
    rows = [
        (
            f"`{cost.name}`",
            cost.about,
            f"{cost.device}: {format_bytes(cost.memory)}",
            format_bytes(cost.disk),
            cost.describe_work(),
            _format_requests(cost),
        )
        for cost in preset_costs()
        if cost.device != "CPU"
    ]
    heads = ("smallest GPU: memory", "disk", "work per arm", "paid requests")
    yield from _table_lines("preset", "description", *heads, rows=rows)


def _format_requests(cost: PresetCost) -> str:
    asked = (f"{calls:,} to {model.split(' at ')[0]}" for model, calls in cost.requests.items())
    return ", ".join(asked) or "none"


def _presets_by_card() -> Iterator[str]:
    """Yield a table of the GPUs that each preset with a language model fits."""
    by_size: dict[int, list[str]] = {}
    for key in sorted(CARDS, key=lambda key: CARDS[key].memory):
        by_size.setdefault(CARDS[key].memory, []).append(key)
    heads = [
        f"{' '.join(f'`{key}`' for key in keys)}<br>{format_bytes(size)}"
        for size, keys in by_size.items()
    ]
    rows = [
        (f"`{cost.name}`", *(cost.fits[keys[0]] for keys in by_size.values()))
        for cost in preset_costs()
        if cost.fits
    ]
    yield from _table_lines("preset", *heads, rows=rows)


def _memory_on_a_cpu() -> Iterator[str]:
    """Yield a table of the memory that training takes on a CPU, by model."""
    device = Device("CPU", 64 * GIB, is_gpu=False)
    rows = []
    for path in ("smollm2", "Qwen/Qwen2.5-1.5B-Instruct", "Qwen/Qwen3-4B-Instruct-2507"):
        cells = []
        for rank in (0, 32):
            sets = {"policy.model.path": path, "policy.model.lora_rank": rank}
            model = plan_run(
                load_config("webshop_smollm2", sets=sets, environ={}).config, device
            ).model
            assert model is not None
            cells.append(format_bytes(max(model.peaks.values()) + device.reserve))
        rows.append((f"`{path}`", *cells))
    yield from _table_lines("model", "all weights", "LoRA, rank 32", rows=rows)


MEASURED = (
    ("tiny policy", "WebShop's built-in shop", "rbc_webshop"),
    ("tiny policy", "ALFWorld, official games", "rbc_alfworld"),
    ("SmolLM2-135M, bf16", "WebShop's built-in shop", "lm_first"),
)
"""Policy, benchmark, and file in results/ of a measured table; its row `static` counts."""


def _measured_on_a_cpu() -> Iterator[str]:
    """Yield a table of seconds per training episode, from the cells that are kept in results/."""
    rows = []
    for policy, where, folder in MEASURED:
        records = read_records(DOCS.parent / "results" / f"{folder}.jsonl")
        cells = [one for name, one in records.items() if name.startswith("static-")]
        seconds, episodes = {"rollout": 0.0, "update": 0.0}, 0
        for cell in cells:
            times = cell.measures["seconds"]
            seconds = {key: value + times[key] for key, value in seconds.items()}
            episodes += cell.summary["arms"]["static"]["episodes"]
        each = {key: value / episodes for key, value in seconds.items()}
        whole = sum(seconds.values()) / len(cells)
        rows.append(
            (
                policy,
                where,
                _format_seconds(each["rollout"]),
                _format_seconds(each["update"]),
                f"{format_duration(whole)} for {round(episodes / len(cells)):,} episodes",
                f"[`{folder}`](../results/README.md), {len(cells)} cells",
            )
        )
    heads = ("rollout per episode", "update per episode", "one arm", "measured in")
    yield from _table_lines("policy", "benchmark", *heads, rows=rows)


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds > 1 else f"{1000 * seconds:.2g} ms"


PARTS: dict[str, Callable[[], Iterator[str]]] = {
    "presets-on-a-cpu": _presets_on_a_cpu,
    "presets-on-a-gpu": _presets_on_a_gpu,
    "presets-by-card": _presets_by_card,
    "memory-on-a-cpu": _memory_on_a_cpu,
    "measured-on-a-cpu": _measured_on_a_cpu,
}
"""Generated parts of pages, by name."""


def generated_pages() -> dict[Path, str]:
    """Return the text of every generated file, by path."""
    return {
        **{FOLDER / f"{spec.name}.md": env_page(spec) for spec in benchmark_specs()},
        SETTINGS: settings_page(),
        COMMANDS: commands_page(),
        KNOWN_NUMBERS: known_numbers_page(),
        **{path.with_suffix(".ipynb"): to_notebook(path.read_text()) for path in NOTEBOOKS},
        **{
            path: fill_parts(text)
            for path in sorted(DOCS.rglob("*.md"))
            if _PART.search(text := path.read_text())
        },
    }


def main() -> None:
    """Write every file that has changed."""
    FOLDER.mkdir(exist_ok=True)
    for file, text in generated_pages().items():
        if not file.is_file() or file.read_text() != text:
            file.write_text(text)
            print(file.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
