"""sdist → wheel → empty venv: what a user installs is complete."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest

import coevo_gym

ROOT = Path(__file__).parents[1]
PROMPTS = ROOT / "prompts"
USE = """
import importlib, pathlib, sys
sys.path[1:1] = {extra!r}
import coevo_gym
for wing in ("agents.scripted", "curricula.session", "trainers.rollouts", "prompts"):
    importlib.import_module("coevo_gym." + wing)
for benchmark in ("alfworld", "appworld", "bfcl", "webshop"):
    assert coevo_gym.prompts.load_prompt(benchmark).header.name == benchmark
package = pathlib.Path(coevo_gym.__file__).parent
assert {site!r} in str(package), package
for file in ("py.typed", "prompts/__init__.py", "envs/webshop/builtin_words.json",
             "envs/webshop/engine/templates/shop.html", "envs/appworld/engine/engine.txt",
             "envs/alfworld/engine/engine.txt", "envs/bfcl/engine/engine.txt",
             "envs/appworld/builtin_world/main.py", "envs/bfcl/splits.json",
             "cli/new/skeletons/method.py", "envs/rows/prompt.j2",
             "cli/new/skeletons/benchmark/pyproject.toml",
             "cli/new/skeletons/benchmark/coevo_newbench/prompt.j2",
             "trainers/adapters/pins/sb3.txt"):
    assert (package / file).read_text() is not None
for file in {prompts!r}:
    assert (package / "prompts" / file).read_text(), file
import gymnasium
print(gymnasium.make("CoEvolve-WebShop-v0").reset(seed=0)[0][:7])
"""


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_built_from_the_sdist_works_in_an_empty_venv(tmp_path: Path) -> None:
    build = ("-m", "build", "--no-isolation", "--outdir", tmp_path)
    run(sys.executable, *build, "--sdist", ROOT, cwd=tmp_path)
    sdist = next(tmp_path.glob("*.tar.gz"))
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    run("tar", "xzf", sdist, "-C", unpacked, cwd=tmp_path)
    run(sys.executable, *build, "--wheel", next(unpacked.iterdir()), cwd=tmp_path)
    wheel = next(tmp_path.glob("*.whl"))
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    site = run(
        python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
    ).strip()
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel, cwd=tmp_path)
    top = {path.name for path in Path(site).iterdir()}
    assert not top & {"agents", "curricula", "trainers", "prompts", "tests"}
    texts = (file for kind in ("*.j2", "*.toml") for file in PROMPTS.rglob(kind))
    prompts = [str(file.relative_to(PROMPTS)) for file in texts]
    assert {"coevolve/judge.j2", "seal/cues.toml", "seal/hints.toml"} <= {*prompts}
    own = [path for path in sys.path if path.endswith("site-packages")]  # the dependencies
    assert (
        run(python, "-c", USE.format(extra=own, site=site, prompts=prompts), cwd=tmp_path).strip()
        == "WebShop"
    )


def test_the_citation_file_matches_the_project_metadata() -> None:
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cited["title"] == project["name"].replace("-", "_")
    assert cited["version"] == project["version"] == coevo_gym.__version__
    assert cited["license"] == project["license"]
    assert cited["authors"] == project["authors"]
    papers = {paper.get("url"): paper["title"] for paper in cited["references"]}
    for name, url in project["urls"].items():
        kind, _, paper = name.partition(": ")
        assert kind == "Paper", f"{name}: is it in CITATION.cff, README.md and docs/errors.md, too?"
        assert paper in papers[url]
