"""Reuse of identical cells: finished runs and evaluations that another table has, too.

A cell is identical only if everything that its result depends on is: all settings, the seed, the
tasks, the versions of packages, the source code of this package and of the user's own, the data of
the benchmark and the files of local models. Its folder then becomes a link to the other one.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from coevo_gym.agents.lm.stored_models import files_hash
from coevo_gym.core.benchmark import data_versions_of, get_benchmark
from coevo_gym.core.errors import StoreError
from coevo_gym.core.own_code import NAMESPACE, file_hash, is_python_file, origin_of
from coevo_gym.core.registry import METHODS
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import Task
from coevo_gym.runs.config import RunConfig, arm_configs, own_code_paths
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.config.run_sections import ExplorerModelSettings, PolicySettings
from coevo_gym.runs.manifest import rows_code_hash
from coevo_gym.store.eval_folder import EVALS, EvalFolder
from coevo_gym.store.folder import RunFolder, read_json, write_json

_THIS, _OWN = "coevo_gym", NAMESPACE.rstrip(".")
_NOT_CODE = frozenset({"__pycache__", ".git", ".venv", "node_modules"})
"""Folders that are not part of a package's source."""
IDENTITY = "identity.json"
"""Name of the file with the identity of a table's run."""
_MAX_PATH = 1_000
"""Length below which a setting may be a path."""
ASIDE = ("git_commit",)
"""Values of an evaluation that may differ, because the hashes of the source code say more."""


def benchmark_hashes(config: RunConfig, tasks: Iterable[Task]) -> dict[str, str]:
    """Return what an evaluation depends on besides its settings, its model and its tasks.

    Returns:
        Hashes of the source code of this package, of a third-party benchmark's package and of the
        functions of rows, and versions of the data that the tasks are made from.
    """
    benchmark = get_benchmark(config.benchmark.name)
    hashes = {name: _package_hash(name) for name in (_THIS, _package_of(benchmark))}
    if code := rows_code_hash(config):
        hashes["functions of rows"] = code
    task = next((one for one in tasks if one.origin == "native"), None)
    data = {} if task is None else data_versions_of(benchmark, task)
    return {**hashes, **{f"data {name}": version for name, version in data.items()}}


def training_hashes(config: RunConfig) -> dict[str, str]:
    """Return hashes of what a run depends on besides its settings and its benchmark.

    Returns:
        Hashes of the packages of third-party methods, of the folders of the user's own methods,
        learners and losses, of all files that the settings name, and of the files of local models;
        "" for a model on a hub, whose files may change.
    """
    arms = arm_configs(config).values()
    packages = {_package_of(METHODS.load(arm.method).assemble) for arm in arms} - {_THIS, _OWN}
    folders = set() if config.plugins.methods is None else {Path(config.plugins.methods)}
    for origin in map(origin_of, own_code_paths(config)):
        if is_python_file(origin):
            folders.add(Path(origin).parent)
        else:
            packages.add(origin.partition(".")[0])
    models: list[PolicySettings | ExplorerModelSettings] = [config.policy, *_models_asked(config)]
    paths = {one.model.path for one in models if one.kind in LANGUAGE_MODELS}
    return {
        **{name: _package_hash(name) for name in sorted(packages)},
        **{str(path): _hash_files(sorted(path.glob("*.py")), path) for path in sorted(folders)},
        **dict(_hashes_of_named_files(config)),
        **{f"model {path}": files_hash(path) for path in sorted(paths)},
    }


def _hashes_of_named_files(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Yield the settings that name existing files, such as prompts and tapes, with their hashes."""
    for key, value in flatten(config.to_json()):
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, str) and entry and len(entry) < _MAX_PATH:
                path = Path(entry).expanduser()
                if path.is_file():
                    yield f"file {key}", file_hash(path)


def run_identity(config: RunConfig, task_sets: Mapping[str, Sequence[Task]]) -> dict[str, str]:
    """Return what the result of a run depends on, in addition to its manifest."""
    tasks = (task for some in task_sets.values() for task in some)
    return {**benchmark_hashes(config, tasks), **training_hashes(config)}


def write_run_identity(
    folder: RunFolder, config: RunConfig, task_sets: Mapping[str, Sequence[Task]]
) -> None:
    """Store the identity of a run that begins, so that other tables can use its result."""
    write_json(folder.path / IDENTITY, run_identity(config, task_sets))


def forget_changed_identity(
    folder: RunFolder, config: RunConfig, task_sets: Mapping[str, Sequence[Task]]
) -> None:
    """Delete the identity of a run that is resumed with other software, data or model files."""
    path = folder.path / IDENTITY
    if path.is_file() and read_json(path) != run_identity(config, task_sets):
        path.unlink()


def _models_asked(config: RunConfig) -> Iterator[ExplorerModelSettings]:
    for arm in arm_configs(config).values():
        if arm.explorer.kind == "model":
            yield arm.explorer.model
        if arm.questions_per_step:
            yield arm.analyst.model


def find_identical_evaluation(wanted: Mapping[str, Any], but: EvalFolder) -> EvalFolder | None:
    """Return a finished evaluation in ``evals/`` with these settings and software, or None.

    Args:
        wanted: settings that the results depend on, from
            :func:`~coevo_gym.runs.evals.evaluation.identity`.
        but: folder that is not looked at.
    """
    if wanted["model"] and not wanted["weights"] and "endpoint" not in wanted["settings"]:
        return None  # the files of a model on a hub may change
    for folder in _evaluations():
        if folder.path == but.path or folder.path.is_symlink():
            continue
        try:
            there = folder.read_config()
            same = _without_aside(there) == _without_aside(wanted)
            if same and len(folder.read_results()) == wanted["n_tasks"] * wanted["samples"]:
                return folder
        except StoreError:  # damaged
            continue
    return None


def _evaluations() -> Iterator[EvalFolder]:
    """Yield the finished evaluations in ``evals/``, first those outside of tables."""
    for pattern in ("*/summary.json", "*/*/summary.json"):
        for path in sorted(EVALS.glob(pattern)):
            folder = EvalFolder(path.parent)
            if folder.config.is_file():
                yield folder


def _without_aside(identity: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in identity.items() if key not in ASIDE}


def link_cell(path: Path, target: Path) -> bool:
    """Make the folder of a cell a link to an identical one. Return False if it exists already.

    The link is relative, so ``runs/`` or ``evals/`` may be moved as a whole.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()
    try:
        path.symlink_to(os.path.relpath(target.resolve(), path.parent.resolve()))
    except OSError:  # it exists, or the file system has no links
        return False
    return True


def remove_dead_link(path: Path) -> None:
    """Remove the link of a cell whose target was deleted, so that the cell is run."""
    if path.is_symlink() and not path.exists():
        path.unlink()


def linked_folder(path: Path) -> str:
    """Return the folder that a cell's link points to, or "" for a folder of its own.

    The path is relative to the current folder if possible.
    """
    if not path.is_symlink():
        return ""
    target, here = path.resolve(), Path.cwd().resolve()
    return str(target.relative_to(here) if target.is_relative_to(here) else target)


def _package_of(thing: object) -> str:
    """Return the name of the top-level package that defines an object's class or a function."""
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return str(module).partition(".")[0]


@cache
def _package_hash(name: str) -> str:
    """Return a hash of all files of an installed package or module."""
    spec = None if name in sys.builtin_module_names else find_spec(name)
    if spec is None:
        return ""
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    if folders:
        return _hash_files(
            [file for folder in folders for file in _files_below(folder)], folders[0]
        )
    return _hash_files([Path(spec.origin)], Path(spec.origin).parent) if spec.origin else ""


def _files_below(folder: Path) -> list[Path]:
    """Return all source files below a folder, also behind links, sorted."""
    files: list[Path] = []
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(set(folders) - _NOT_CODE)
        files += [Path(root) / name for name in names if not name.endswith((".pyc", ".swp"))]
    return sorted(files)


def _hash_files(files: Iterable[Path], root: Path) -> str:
    state = hashlib.sha256()
    for file in files:
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        state.update(f"{os.path.relpath(file, root)} {content}\n".encode())
    return state.hexdigest()[:16]
