"""Imports run downwards, and importing the package stays light."""

from __future__ import annotations

import ast
import operator
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Container, Mapping, Set
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from hypothesis import HealthCheck, settings

from coevo_gym import _check_wings
from coevo_gym.core.errors import ConfigError
from coevo_gym.core.registry import LEARNERS, METHODS
from coevo_gym.envs.bfcl.tasks import SCHEMES
from coevo_gym.runs.config import RunConfig
from coevo_gym.runs.config.keys import setting_types

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "coevo_gym"
FLOOR_OF = {
    "core": 0,
    "envs": 1, "sandbox": 1, "provision": 1, "prompts": 1, "store": 1, "remote": 1,
    "episodes": 2,
    "agents": 3, "curricula": 3,
    "trainers": 4, "testing": 4, "serve": 4,
    "methods": 5,
    "runs": 6,
    "view": 7,
    "api": 8, "cli": 8, "__main__": 8,
}  # fmt: skip
HEAVY = {
    "torch", "transformers", "vllm", "openai", "sentence_transformers", "textworld", "pandas",
    "matplotlib", "pyarrow", "tensorboard", "wandb",
}  # fmt: skip


def floor(module: str) -> int:
    """Floor of ``coevo_gym.<room>...``; the package itself only registers, so it may be seen."""
    parts = module.split(".")
    return FLOOR_OF[parts[1]] if parts[1:] else 0


def sources() -> list[tuple[str, Path]]:
    modules = []
    for path in sorted(PACKAGE.rglob("*.py")) + [
        path
        for wing in ("agents", "curricula", "trainers", "prompts")
        for path in sorted((PACKAGE / wing).rglob("*.py"))
    ]:
        relative = path.relative_to(ROOT).with_suffix("")
        modules.append((".".join(relative.parts).removesuffix(".__init__"), path))
    return modules


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def imports(path: Path) -> list[str]:
    names = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def modules_imported(path: Path, known: Container[str]) -> set[str]:
    """As :func:`imports`; ``from room import module`` is an import of the module."""
    modules = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            full = ((f"{node.module}.{alias.name}", node.module) for alias in node.names)
            modules |= {module if module in known else room for module, room in full}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


def circles(graph: Mapping[str, Set[str]]) -> list[str]:
    """Return the nodes that are in a circle, or that lead to one."""
    left = dict(graph)
    while free := [node for node, others in left.items() if not others & left.keys()]:
        for node in free:
            del left[node]
    return sorted(left)


def test_import_cycles_are_detected() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_the_source_list_covers_the_whole_package() -> None:
    rooms = {module.split(".")[1] for module, _ in sources() if "." in module}
    assert {"agents", "curricula", "trainers", "prompts", "envs", "testing"} <= rooms


def test_no_module_imports_from_a_higher_layer() -> None:
    wrong = [
        f"{module} imports {name}"
        for module, path in sources()
        if module != "coevo_gym"
        for name in imports(path)
        if name.startswith("coevo_gym") and floor(name) > floor(module)
    ]
    assert not wrong


def test_no_modules_import_each_other_in_a_cycle() -> None:
    known = {module for module, _ in sources()}
    graph = {
        module: (modules_imported(path, known) & known) - {module}
        for module, path in sources()
        if module != "coevo_gym"  # it lends the names of all floors, when they are asked for
    }
    assert not circles(graph)


def test_packages_of_one_layer_do_not_import_each_other_in_a_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module, path in sources():
        room = module.split(".")[1:2]
        for name in imports(path) if room else ():
            other = name.split(".")[1:2] if name.startswith("coevo_gym.") else room
            if room != other and floor(module) == floor(name):
                graph.setdefault(room[0], set()).add(other[0])
    assert graph["trainers"] == {"serve"}
    assert not circles({room: graph.get(room, set()) for room in FLOOR_OF})


def pairs_in(room: str) -> dict[str, set[str]]:
    """Which of a room's modules and folders each of them imports from."""
    known = {module for module, _ in sources()}
    graph = defaultdict[str, set[str]](set)
    for module, path in sources():
        for name in (modules_imported(path, known) & known) if module.startswith(room) else ():
            mine, other = (one.removeprefix(f"{room}.").split(".")[0] for one in (module, name))
            if name.startswith(f"{room}.") and module.startswith(f"{room}.") and mine != other:
                graph[mine].add(other)
    return graph


def test_modules_of_runs_and_view_have_no_import_cycles_and_few_imports_of_each_other() -> None:
    for room in ("coevo_gym.runs", "coevo_gym.view"):
        graph = pairs_in(room)
        names = {*graph, *(other for others in graph.values() for other in others)}
        assert len(names) > 10
        assert not circles({name: graph.get(name, set()) for name in names})
    assert sum(map(len, pairs_in("coevo_gym.runs").values())) <= 66


def test_the_package_does_not_import_the_command_line() -> None:
    for module in ("__init__.py", "api.py"):
        assert not [name for name in imports(PACKAGE / module) if ".cli" in name]


def test_agents_and_curricula_and_separate_benchmarks_do_not_import_each_other() -> None:
    shared = {path.stem for path in (PACKAGE / "envs").glob("*.py")} | {"workers"}
    wrong = []
    for module, path in sources():
        room = module.split(".")[1] if "." in module else ""
        for name in imports(path):
            other = name.split(".")[1] if name.startswith("coevo_gym.") else ""
            if {room, other} == {"agents", "curricula"}:
                wrong.append(f"{module} imports {name}")
            if room == other == "envs":
                mine, theirs = module.split(".")[2:3], name.split(".")[2:3]
                if mine != theirs and not set(theirs) <= shared:
                    wrong.append(f"{module} imports {name}")
            if room == "curricula" and name.split(".")[0] == "torch":
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_method_names_appear_only_in_the_methods_package() -> None:
    """Code that names a method elsewhere would depend on that one method."""
    words = {
        *RunConfig.model_fields,
        *(w for a in setting_types(RunConfig).values() for w in literals(a)),
    }
    words |= {*LEARNERS.built_in}
    words |= {*SCHEMES}  # splits of BFCL, one of which is named for where it was published
    names = set(METHODS.built_in) - words  # some are kinds of a part, too
    assert {"coevolve", "static"} <= names
    systems = re.compile(r"coevolve|role_?agent|agent_?evolver", re.IGNORECASE)
    wrong = []
    for module, path in sources():
        if module.split(".")[1:2] == ["methods"]:
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and node.value in names:
                wrong.append(f"{module}:{node.lineno} {node.value!r}")
            wrong += [
                f"{module} {value}"
                for field in ("id", "name", "attr", "arg", "asname", "module")
                if isinstance(value := getattr(node, field, None), str) and systems.search(value)
            ]
    assert not wrong


def literals(annotation: Any) -> list[Any]:
    """All values of the Literals in a type."""
    if get_origin(annotation) is Literal:
        return list(get_args(annotation))
    return [value for part in get_args(annotation) for value in literals(part)]


def test_no_line_is_longer_than_100_characters() -> None:
    lines = ((path, *line) for _, path in sources() for line in enumerate(path.open(), 1))
    assert [f"{path}:{n}" for path, n, line in lines if len(line.rstrip("\n")) > 100] == []


def test_only_known_modules_above_episodes_step_an_env() -> None:
    """These modules are envs themselves, or test envs."""
    stepping = {
        module
        for module, path in sources()
        if module != "coevo_gym" and floor(module) > floor("coevo_gym.episodes")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute)
        and re.search(r"\benv(\.unwrapped)?\.step$", ast.unparse(node))
    }
    assert stepping == {
        "coevo_gym.curricula.session.sampler",
        "coevo_gym.curricula.session.vector_sampler",
        "coevo_gym.serve.client_env",
        "coevo_gym.testing.benchmark",
        "coevo_gym.testing.contract",
    }


def test_usd_fields_exist_only_in_core_spend_and_in_known_rows() -> None:
    """The other classes are rows that are stored or displayed."""
    counting = {
        f"{module}.{node.name}"
        for module, path in sources()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ClassDef)
        for field in node.body
        if isinstance(field, ast.AnnAssign)
        and re.fullmatch(r"usd|\w+_usd|usd_(?!per_)\w+", ast.unparse(field.target))
    }
    in_one_place = {name for name in counting if name.startswith("coevo_gym.core.spend.")}
    assert in_one_place == {f"coevo_gym.core.spend.{name}" for name in ("Usage", "Cost")}
    assert counting - in_one_place == {
        "coevo_gym.runs.evals.tables.table.CellResult",
        "coevo_gym.runs.evals.tables.table.TableResult",
        "coevo_gym.runs.table.TableRow",
        "coevo_gym.store.eval_folder.EvalLine",
        "coevo_gym.view.model.run_progress.ProgressView",
        "coevo_gym.view.model.rounds.RoundRow",
    }
    tree = parsed(PACKAGE / "core" / "spend.py")
    types = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert types == {"Usage", "Cost", "Prices", "Caps", "Scopes", "Meter"}


def test_no_public_class_name_is_used_twice() -> None:
    """Skeletons and scripts for other interpreters are exempt."""
    homes = defaultdict(set)
    for module, path in sources():
        if {"skeletons", "inside", "builtin_world"} & set(module.split(".")):
            continue
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(module)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


@pytest.mark.parametrize("page", ["docs/code-map.md", "AGENTS.md", "CONTRIBUTING.md"])
def test_definitions_named_on_a_page_exist_in_the_named_file(page: str) -> None:
    """A page names a definition as `file:Name` or as `Name` (`file.py`)."""
    text = (ROOT / page).read_text()
    pairs = re.findall(r"`([\w./]+\.\w+):(\w+)`", text)
    pairs += [(file, name) for name, file in re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", text)]
    assert len(pairs) > 3
    for file, name in pairs:
        if not file.endswith(".py"):
            assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{file}:{name}"
            continue
        wing = file.split("/")[0] in ("agents", "curricula", "prompts", "trainers")
        module = file.removesuffix(".py").replace("/", ".")
        owner = import_module(f"coevo_gym.{module}" if wing else module)
        assert operator.attrgetter(name)(owner), f"{file}:{name}"


def test_each_row_of_a_where_things_are_table_names_a_definition() -> None:
    for page in ("docs/code-map.md", "AGENTS.md"):
        text = (ROOT / page).read_text().partition("## Where things are")[2].partition("\n## ")[0]
        table = text[text.index("| for example |" if page == "AGENTS.md" else "| where is") :]
        rows = [line for line in table.splitlines()[2:] if line.startswith("|")]
        assert rows
        assert not [row for row in rows if not re.search(r"`[\w./]+\.\w+:\w+` \|$", row)]


def test_no_code_waits_with_select() -> None:
    """`select` fails on descriptors of 1,024 and more, see `coevo_gym.sandbox.readable`."""
    waiting = [
        f"{path}:{node.lineno}"
        for folder in (PACKAGE, ROOT / "tests", ROOT / "bench")
        for path in sorted(folder.rglob("*.py"))
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Attribute) and node.attr in ("select", "SelectSelector")
        if isinstance(node.value, ast.Name) and node.value.id in ("select", "selectors")
    ]
    assert not waiting


def test_importing_the_package_loads_no_heavy_dependency() -> None:
    code = "import sys, coevo_gym; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert not HEAVY & set(done.stdout.split())


@pytest.mark.parametrize(
    ("missing", "needs", "modules"),
    [
        ("torch", "Training needs PyTorch", "grpo ppo rest sft update adapters.verl.rows"),
        ("torch", "A language model needs PyTorch", "transformers_policy vllm_policy"),
        ("transformers", "A language model needs PyTorch", "transformers_policy vllm_policy"),
        ("peft", "A language model needs PyTorch", "transformers_policy vllm_policy"),
    ],
)
def test_the_error_for_a_missing_package_names_the_extra_to_install(
    missing: str, needs: str, modules: str
) -> None:
    package = "coevo_gym." + ("trainers" if needs.startswith("Training") else "agents.lm")
    code = f"import sys, {package}, pytest; sys.modules[{missing!r}] = None\n" + "".join(
        f"with pytest.raises(ImportError, match=r'^{needs}.*pip install .*train'):\n"
        f"    import {package}.{module}\n"
        for module in modules.split()
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_no_module_has_an_isort_comment() -> None:
    assert not [module for module, path in sources() if "isort:" in path.read_text()]


def test_gym_make_imports_the_package_named_in_the_env_id() -> None:
    code = (
        "import gymnasium as gym; env = gym.make('coevo_gym:CoEvolve-WebShop-v0');"
        "print(env.reset(seed=0)[0][:7])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    assert done.stdout.strip() == "WebShop"


def test_a_checkout_without_symbolic_links_is_an_error_with_the_fix(tmp_path: Path) -> None:
    for wing in ("agents", "prompts", "trainers"):
        (tmp_path / wing).mkdir()
    (tmp_path / "curricula").write_text("../curricula")
    with pytest.raises(ConfigError, match=r"curricula should be a symb.*core.symlinks true"):
        _check_wings(tmp_path)


def test_no_test_sets_a_deadline_or_reads_a_stopwatch() -> None:
    assert settings.default is not None
    assert settings.default.deadline is None
    assert HealthCheck.too_slow in settings.default.suppress_health_check
    stopwatch = re.compile(r"time\.(perf_counter|process_time|thread_time|monotonic)(_ns)?")
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.keyword) and node.arg == "deadline":
                assert path.name == "conftest.py", f"{path.name}:{node.value.lineno} sets one"
            if isinstance(node, ast.Call) and stopwatch.fullmatch(ast.unparse(node.func)):
                pytest.fail(f"{path.name}:{node.lineno} reads {ast.unparse(node.func)}")
