"""Benchmarks that other packages bring: found by an entry point, broken ones put aside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SPEC = """
from coevo_gym.core.benchmark import BenchmarkSpec, register_benchmark
SPEC = BenchmarkSpec(
    name={name!r}, env_id={env_id!r}, benchmark="tests.toy:BENCHMARK", env={env!r},
    world="tests.toy:ToyWorld", verifier="tests.toy:ToyVerifier", title="a plug-in",
)
def make(): return SPEC
def register(): register_benchmark(SPEC)
def give_nothing(): return None
def give_text(): return "webshop"
"""
ROOT = Path(__file__).parents[1]
Python = Callable[..., str]


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., None]:
    """Installs a package: a module, and the metadata that pip would have written."""

    def install(
        name: str,
        code: str | None = None,
        *,
        entry: str = "SPEC",
        env: str = "",
        benchmark: str = "",
    ) -> None:
        spec = {"name": benchmark or name, "env_id": f"{name}-v0"}
        text = SPEC.format(**spec, env=env or f"plugin_{name}:Env") if code is None else code
        (tmp_path / f"plugin_{name}.py").write_text(text)
        info = tmp_path / f"plugin_{name}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: plugin-{name}\nVersion: 1.2\n"
        )
        point = f"[coevo_gym.benchmarks]\n{name} = plugin_{name}:{entry}\n"
        (info / "entry_points.txt").write_text(point)

    return install


@pytest.fixture
def python(tmp_path: Path) -> Python:
    """Runs code where the plug-ins are installed; gives what it printed on both streams."""

    def run(code: str, *arguments: str) -> str:
        path = os.pathsep.join(map(str, (tmp_path, ROOT)))
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "COLUMNS": "400"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    return run


LIST = """
from coevo_gym.core.benchmark import benchmark_specs
print(*[spec.name for spec in benchmark_specs()])
"""


@pytest.mark.parametrize("entry", ["SPEC", "make", "register"])
def test_an_entry_point_may_name_a_spec_or_a_function(
    plugin: Callable[..., None], python: Python, entry: str
) -> None:
    plugin("kettle", entry=entry)
    assert python(LIST) == "webshop bfcl alfworld appworld kettle\n"


def test_a_plug_in_is_imported_only_when_it_is_used(
    plugin: Callable[..., None], python: Python
) -> None:
    plugin("kettle")
    plugin("slow", "raise AssertionError('nobody asked for this one')")
    code = (
        "import sys, coevo_gym, gymnasium;"
        "assert not {'plugin_kettle', 'plugin_slow'} & set(sys.modules);"
        "coevo_gym.get_benchmark('webshop');"
        "gymnasium.make('CoEvolve-WebShop-v0').reset(seed=0);"
        "assert not {'plugin_kettle', 'plugin_slow'} & set(sys.modules);"
        "coevo_gym.get_benchmark('kettle');"
        "assert 'plugin_kettle' in sys.modules; assert 'plugin_slow' not in sys.modules;"
        "assert 'kettle-v0' in gymnasium.registry; print('lazy')"
    )
    assert python(code) == "lazy\n"


def test_a_task_of_a_plug_in_is_read_from_a_file(
    plugin: Callable[..., None], python: Python, tmp_path: Path
) -> None:
    plugin("kettle")
    (tmp_path / "tasks.jsonl").write_text(
        json.dumps(
            {
                "benchmark": "kettle", "split": "train", "scenario": "s", "instruction": "Press.",
                "world": {"buttons": ["red"]}, "verifier": {"order": ["red"]},
            }
        )
    )  # fmt: skip
    code = (
        "from pathlib import Path; from coevo_gym.core.task_file import read_tasks;"
        "(task,) = read_tasks(Path('tasks.jsonl')); print(type(task.world).__name__)"
    )
    assert python(code) == "ToyWorld\n"


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ({"code": "import no_such_module_of_theirs"}, "No module named 'no_such_module_of_theirs'"),
        ({"code": "raise SystemExit(3)"}, "SystemExit: 3"),
        ({"code": "x = 1"}, "has no attribute 'SPEC'"),
        ({"code": "SPEC = 7"}, "must name a BenchmarkSpec, or a function .* got int"),
        ({"entry": "give_text"}, "must name a BenchmarkSpec, or a function .* got str"),
        ({"entry": "give_nothing"}, "must provide a benchmark named 'kettle', got no benchmark"),
        ({"benchmark": "other"}, "must provide a benchmark named 'kettle', got 'other'"),
        ({"env": "a class"}, "Field 'env' of benchmark 'kettle' must have the form 'module:Name'"),
        ({"benchmark": "Kettle"}, "lowercase letters, digits and .* got 'Kettle'"),
        ({"benchmark": "webshop"}, r"Benchmark 'webshop' is already registered \(coevo_gym"),
    ],
)  # fmt: skip
def test_a_broken_plug_in_causes_one_warning_and_the_others_work(
    plugin: Callable[..., None], python: Python, broken: dict[str, str], why: str
) -> None:
    plugin("kettle", **broken)
    plugin("pan")
    *lines, warning = python(2 * LIST).splitlines()
    names = [name for name in lines[0].split() if name != "other"]
    assert names == ["webshop", "bfcl", "alfworld", "appworld", "pan"]
    assert lines[0] == lines[1]
    assert len(lines) == 2
    assert warning.startswith(
        "Plug-in 'kettle' of plugin-kettle 1.2 cannot be loaded: plugin_kettle"
    )
    assert re.search(why, warning), warning
    asked = (
        "import coevo_gym\ntry: coevo_gym.get_benchmark('kettle')\n"
        "except coevo_gym.CoevoError as error: print(error)"
    )
    assert "of plugin-kettle 1.2 cannot be loaded" in python(asked).splitlines()[0]


def test_a_plug_in_cannot_reuse_a_registered_env_id(
    plugin: Callable[..., None], python: Python
) -> None:
    text = SPEC.format(name="kettle", env_id="CoEvolve-WebShop-v0", env="plugin_kettle:Env")
    plugin("kettle", text)
    output = python(LIST)
    assert output.startswith("webshop bfcl alfworld appworld\n")
    assert "Env 'CoEvolve-WebShop-v0' is already registered" in output


def test_envs_and_doctor_show_a_broken_plug_in(plugin: Callable[..., None], python: Python) -> None:
    plugin("kettle", "SPEC = 7")
    code = """
import contextlib, sys
from coevo_gym.cli import main
for command in (["envs"], ["doctor"], ["envs", "--json"]):
    sys.argv[:] = ["coevo", *command]
    with contextlib.suppress(SystemExit):
        main()
    print("end of", *command)
"""
    output = python(code)
    envs, doctor, listing = re.split("end of (?:doctor|envs(?: --json)?)\n", output)[:3]
    assert "a plug-in from plugin-kettle 1.2 that cannot be used" in envs
    assert "kettle: not ready" in doctor
    assert "webshop: ready" in doctor
    rows = json.loads(listing)
    assert [row["benchmark"] for row in rows][-1] == "kettle"
    assert "plugin-kettle 1.2" in rows[-1]["missing"]
