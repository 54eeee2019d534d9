"""The manifest: settings and versions of a run, written before its first step."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from coevo_gym import __version__
from coevo_gym.agents.chat.history import MEMORY_PROMPTS
from coevo_gym.agents.lm.stored_models import files_hash
from coevo_gym.core.arithmetic import Arithmetic, freeze_arithmetic
from coevo_gym.core.benchmark import data_versions_of, get_benchmark
from coevo_gym.core.errors import ConfigError, StoreError
from coevo_gym.core.evolution import digest
from coevo_gym.core.own_code import (
    NAMESPACE,
    file_hash,
    hash_files,
    is_python_file,
    origin_hash,
    origin_of,
    package_hash,
    package_of,
)
from coevo_gym.core.registry import METHODS
from coevo_gym.core.setting_sections import flatten
from coevo_gym.core.task import Task
from coevo_gym.methods.plugins import folder_hashes
from coevo_gym.prompts.template import load_cue
from coevo_gym.runs.config import ArmConfig, Resolved, RunConfig, arm_configs, own_code_paths
from coevo_gym.runs.config.derived import LANGUAGE_MODELS
from coevo_gym.runs.config.run_sections import ExplorerModelSettings, PolicySettings
from coevo_gym.runs.planning.device import device_here
from coevo_gym.runs.policies import prompt_of
from coevo_gym.store.folder import RunFolder, read_json, write_json
from coevo_gym.store.secrets import redact_secrets

SCHEMA = 1
IDENTITY = "identity.json"
"""Name of the file with the identity of a table's run."""
_THIS, _OWN = "coevo_gym", NAMESPACE.rstrip(".")
_MAX_PATH = 1_000
"""Length below which a setting may be a path."""
_PACKAGES = ("gymnasium", "numpy", "pydantic", "torch")
_MODEL_PACKAGES = {
    "tiny": (),
    "transformers": ("transformers", "peft"),
    "vllm": ("transformers", "peft", "vllm"),
    "vllm_server": ("transformers", "peft", "vllm"),
    "openai": ("openai",),
}


def make_manifest(resolved: Resolved, *, task_sets: Mapping[str, Iterable[Task]]) -> dict[str, Any]:
    """Create the manifest: everything that determines the results of a run.

    ``task_sets`` contains the predefined tasks in use, by purpose.
    """
    config = resolved.config
    marks = {
        name: mark
        for name, arm in arm_configs(config).items()
        if (mark := comparison_caveat(config, arm))
    }
    manifest = {
        "schema": SCHEMA,
        "name": config.name,
        "model": model_id(config),
        "prompt": prompt_id(config),
        "config": config.to_json(),
        "origins": dict(resolved.origins),
        "seed": config.seed,
        **({"marks": marks} if marks else {}),
        "plugins": own_code_hashes(config),
        **({"code": code} if (code := rows_code_hash(config)) else {}),
        "task_sets": {name: task_set_hash(tasks) for name, tasks in task_sets.items()},
        "versions": package_versions(config),
        "arithmetic": [freeze_arithmetic_for(config)._asdict()],
        "git_commit": git_commit(),
    }
    safe: dict[str, Any] = redact_secrets(manifest)
    return safe


def record_interface(folder: RunFolder, arm: str, version: str, step: int) -> None:
    """Record in a run's manifest when an arm first used a version of the agent interface.

    An existing record is kept, because a resumed run reports its version again. Steps count from 1.
    A run without a manifest is skipped.
    """
    if not folder.manifest.is_file():
        return
    manifest = read_json(folder.manifest)
    known = manifest.setdefault("interfaces", {}).setdefault(arm, {})
    if version not in known:
        known[version] = step
        write_json(folder.manifest, manifest)


def comparison_caveat(config: RunConfig, arm: ArmConfig) -> str:
    """Return a caveat about comparing an arm with other arms, or "" if there is none.

    The run's own settings count as well, because they apply to the initial tasks of all arms.
    """
    marks = {
        "judged, not proven": "paper" in (config.gates.accept, arm.gates.accept),
        "experiment with unproven tasks": "noisy" in (config.explorer.kind, arm.explorer.kind),
    }
    return "; ".join(mark for mark, holds in marks.items() if holds)


def read_manifest(folder: RunFolder) -> tuple[dict[str, Any], RunConfig]:
    """Read a run's manifest and the config in it.

    Raises:
        StoreError: if the manifest is missing, damaged, or from a later version.
    """
    manifest = read_json(folder.manifest)
    return manifest, config_in(manifest, str(folder.manifest))


def config_in(manifest: Any, where: str) -> RunConfig:
    """Return the config stored in a run's manifest.

    Error messages contain ``where``, the place that the manifest was read from.

    Raises:
        StoreError: if the manifest is damaged, or from a later version.
    """
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if schema != SCHEMA:
        raise StoreError(
            f"{where} has schema {schema!r}, but this version of coevo_gym reads schema {SCHEMA}."
        )
    try:
        return RunConfig.model_validate(manifest["config"])
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{where} has no readable config: {error}") from error


def freeze_arithmetic_for(config: RunConfig) -> Arithmetic:
    """Lock in and return the arithmetic that a policy uses in this process.

    Imports PyTorch, whose choice of kernels cannot be changed afterwards.
    """
    device = device_here(config.policy) if config.policy.kind in LANGUAGE_MODELS else None
    return freeze_arithmetic(gpu=device.name if device is not None and device.is_gpu else "")


def arithmetic_in(manifest: Mapping[str, Any]) -> Arithmetic:
    """Return the arithmetic that a run used last.

    Raises:
        StoreError: if the manifest is damaged.
    """
    try:
        last = manifest["arithmetic"][-1]
        return Arithmetic(*(last[name] for name in Arithmetic._fields))
    except (LookupError, TypeError) as error:
        stored = manifest.get("arithmetic")
        raise StoreError(
            f"The entry 'arithmetic' in the manifest is not valid: {stored!r}."
        ) from error


def check_and_record_arithmetic(
    folder: RunFolder, manifest: dict[str, Any], here: Arithmetic, *, ignore: bool = False
) -> list[str]:
    """Compare this process's arithmetic with the run's last one, and record any change.

    Returns:
        One sentence if results may differ, or [].

    Raises:
        ConfigError: if it rounds differently from the run's last arithmetic and ``ignore`` is
            False.
    """
    before = arithmetic_in(manifest)
    if before == here:
        return []
    remarks = []
    if not here.computes_same_bits_as(before):
        meaning = (
            f"{folder.path.name} was computed with {before}, but this process has {here}. They "
            "round differently, so the rest of the run would differ from that of an uninterrupted "
            "run, as if random numbers had been drawn again."
        )
        if not ignore:
            raise ConfigError(
                f"{meaning} To continue anyway, run: coevo resume {folder.path} --ignore-arithmetic"
            )
        remarks.append(meaning)
    manifest["arithmetic"] = [*manifest["arithmetic"], here._asdict()]
    write_json(folder.manifest, manifest)
    return remarks


def check_changes(
    manifest: Mapping[str, Any], config: RunConfig, task_sets: Mapping[str, Iterable[Task]]
) -> list[str]:
    """Return one sentence for each relevant change since a run was started.

    Raises:
        StoreError: if the tasks or the user's functions that judge them have changed, because the
            resumed run would be a different run.
    """
    for name, tasks in task_sets.items():
        if manifest["task_sets"].get(name) != task_set_hash(tasks):
            raise StoreError(
                f"The {name} tasks differ from those that this run started with: the benchmark's "
                "data or a task file named in the settings has changed. Restore the old data (see "
                "`coevo doctor`), or start a new run."
            )
    if manifest.get("code", "") != rows_code_hash(config):
        raise StoreError(
            f"The functions of {config.benchmark.name} differ from those that this run started "
            "with. Restore them, or start a new run."
        )
    now = package_versions(config)
    harmless = {"python"} if arithmetic_in(manifest).kind == "portable" else {}
    changes = [
        f"{package} was {before} and is now {now.get(package, 'missing')}, so results may differ."
        for package, before in manifest["versions"].items()
        if now.get(package) != before and package not in harmless
    ]
    if manifest.get("prompt", {}) != prompt_id(config):
        changes.append("The prompt file has changed, so the policy will see a different prompt.")
    before, files = manifest.get("plugins", {}), own_code_hashes(config)
    changes += [
        f"{Path(config.plugins.methods or '') / name} has changed, so its code may act differently."
        for name in sorted({**before, **files})
        if before.get(name) != files.get(name)
    ]
    return changes


def model_id(config: RunConfig) -> str:
    """Return a short name for the policy: its kind, then its model or a hash of its settings."""
    policy = config.policy
    if policy.kind == "tiny":
        return f"tiny-{digest(policy.tiny.model_dump(mode='json'))[:8]}"
    return (
        f"{policy.kind}:{policy.endpoint.model if policy.kind == 'openai' else policy.model.path}"
    )


def prompt_id(config: RunConfig) -> dict[str, Any]:
    """Return the name, version and hash of a policy's prompts, or {} if it has none."""
    prompt = prompt_of(config.policy, config.benchmark.name)
    if prompt is None:
        return {}
    identity = {"name": prompt.header.name, "version": prompt.header.version, "hash": prompt.hash}
    if (chat := config.policy.chat).memory == "model":
        identity["memory"] = load_cue(MEMORY_PROMPTS[chat.history]).hash
    return identity


def own_code_hashes(config: RunConfig) -> dict[str, str]:
    """Return the content hashes of the user's own code: methods, learners and losses.

    Keys are the names of files with methods, the paths of other files, and the names of modules.
    """
    folder = config.plugins.methods
    methods = {} if folder is None else folder_hashes(folder)
    return methods | {
        origin: origin_hash(origin) for origin in map(origin_of, own_code_paths(config))
    }


def rows_code_hash(config: RunConfig) -> str:
    """Return a hash of the functions behind a benchmark of rows, or "" for another benchmark."""
    code: str = getattr(get_benchmark(config.benchmark.name), "code", "")
    return digest(code) if code else ""


def task_set_hash(tasks: Iterable[Task]) -> str:
    """Return a hash of the tasks' ids in order."""
    return hashlib.sha256("\n".join(task.id for task in tasks).encode()).hexdigest()


def package_versions(config: RunConfig) -> dict[str, str]:
    """Return the versions of the packages that a run depends on."""
    packages = {"coevo_gym": __version__, "python": platform.python_version()}
    for package in _PACKAGES + _MODEL_PACKAGES[config.policy.kind]:
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            continue
    return packages


def git_commit() -> str:
    """Return the checkout's commit, with ``+`` if files were changed, or "" outside a checkout."""
    git, root = shutil.which("git"), Path(__file__).resolve().parents[2]
    if git is None or not (root / ".git").exists():
        return ""
    outputs = []
    for command in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        done = subprocess.run(  # noqa: S603 (a fixed command)
            [git, "-C", str(root), *command],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        outputs.append(done.stdout.strip())
    commit, changes = outputs
    return f"{commit}+" if commit and changes else commit


# The parts of an identity that a manifest lacks, so that another table can use a result.


def benchmark_hashes(config: RunConfig, tasks: Iterable[Task]) -> dict[str, str]:
    """Return what an evaluation depends on besides its settings, its model and its tasks.

    Returns:
        Hashes of the source code of this package, of a third-party benchmark's package and of the
        functions of rows, and versions of the data that the tasks are made from.
    """
    benchmark = get_benchmark(config.benchmark.name)
    hashes = {name: package_hash(name) for name in (_THIS, package_of(benchmark))}
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
    packages = {package_of(METHODS.load(arm.method).assemble) for arm in arms} - {_THIS, _OWN}
    folders = set() if config.plugins.methods is None else {Path(config.plugins.methods)}
    for origin in map(origin_of, own_code_paths(config)):
        if is_python_file(origin):
            folders.add(Path(origin).parent)
        else:
            packages.add(origin.partition(".")[0])
    models: list[PolicySettings | ExplorerModelSettings] = [config.policy, *_models_asked(config)]
    paths = {one.model.path for one in models if one.kind in LANGUAGE_MODELS}
    return {
        **{name: package_hash(name) for name in sorted(packages)},
        **{str(path): hash_files(sorted(path.glob("*.py")), path) for path in sorted(folders)},
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
