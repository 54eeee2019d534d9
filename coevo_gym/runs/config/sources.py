"""Functions that load settings from all sources and explain errors in them."""

from __future__ import annotations

import json
import logging
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coevo_gym.core.errors import ConfigError
from coevo_gym.core.own_code import absolute_import_path, is_import_path, origin_of
from coevo_gym.core.panel import is_panel_file
from coevo_gym.core.reading import read_file
from coevo_gym.core.registry import LEARNERS, suggest
from coevo_gym.core.setting_sections import flatten
from coevo_gym.envs.rows.source import FUNCTIONS, resolve_path
from coevo_gym.runs.config.arms import ArmError, key_permission, required_permissions
from coevo_gym.runs.config.keys import (
    ARM_KEY,
    Setting,
    annotation_of,
    insert_setting,
    is_learner_key,
    may_be_own_code,
    parse_none_or_list,
    setting_problems,
    setting_types,
    suggest_key,
)
from coevo_gym.runs.config.run_sections import rows_permissions
from coevo_gym.runs.config.tree import RunConfig
from coevo_gym.store.approvals import Permission, approve
from coevo_gym.store.folder import check_folder_name

logger = logging.getLogger(__name__)

ENVIRONMENT = "COEVO_CFG__"
Sets = Sequence[str] | Mapping[str, Any]
PATHS = ("plugins.methods", "tape.file", "warmup.demonstrations")
"""Settings that are paths; in a TOML file, a path is relative to that file."""
PANELS = ("evaluation.panel", "evaluation.final")
"""Settings that are names, or paths of panel files; in a TOML file, they are relative to it."""
ROWS = tuple(f"benchmark.rows.{name}" for name in ("file", *FUNCTIONS, "tools"))
"""Settings that are paths, or functions in a file; in a TOML file, relative to that file."""
PRESETS = Path(__file__).parents[2] / "presets"
_RUN = "the run"
"""Origin of a value from a run's own settings."""
_PG = Setting("pg", "default")
_OF_A_KEY = ("endpoint.base_url", "endpoint.api_key_env")
"""Suffixes of the settings that determine which API key is sent, and where."""


@dataclass(frozen=True)
class Resolved:
    """A config with the origin of each value.

    Attributes:
        config: the settings as a tree.
        origins: the origin of each value that is not a default, by dotted key.
    """

    config: RunConfig
    origins: Mapping[str, str]

    def rename(self, name: str) -> Resolved:
        """Return the same settings under a different run name.

        Raises:
            ConfigError: if the name is not valid for a folder.
        """
        check_folder_name(name)
        config = RunConfig.model_validate({**self.config.to_json(), "name": name})
        return Resolved(config, {**self.origins, "name": "name"})

    def list_settings(self) -> list[tuple[str, Any, str]]:
        """Return the dotted key, value and origin of every setting, in the order of the tree."""
        values = dict(flatten(self.config.to_json()))
        origins = {key: origin for key, (_, origin) in self.config.derived_settings().items()}
        origins |= self.origins
        keys = [key for key in values if key.startswith("arm.")]
        keys = [*keys, *(key for key in setting_types(RunConfig) if key in values)]
        return [(key, values[key], origins.get(key, "default")) for key in keys]


def load_config(
    source: str | Path | Mapping[str, Any] | RunConfig | None,
    *,
    sets: Sets = (),
    environ: Mapping[str, str] | None = None,
    origin: str = "the config",
) -> Resolved:
    """Resolve the settings of a run.

    A file or a run may come from another person. Its code is not run, and no API keys are sent to
    its endpoints, until the user approves this (:mod:`coevo_gym.store.approvals`). Settings that
    the user makes in other ways count as approved.

    Args:
        source: name of a preset, path to a TOML file, the content of such a file, or a config;
            None for the defaults.
        sets: ``"section.key=value"`` texts, as on the command line, or values by dotted key.
        environ: environment variables; by default those of this process.
        origin: where a mapping comes from, if that is not the caller's own code.

    Raises:
        ConfigError: if a setting is invalid; the message has its key, its origin and a suggestion.
    """
    merged = {
        **_settings_from_source(source, origin),
        **_settings_from_environment(os.environ if environ is None else environ),
        **(
            _settings_from_python(sets)
            if isinstance(sets, Mapping)
            else _settings_from_command_line(sets)
        ),
    }
    return resolve_and_approve(merged)


def resolve_and_approve(merged: Mapping[str, Setting]) -> Resolved:
    """Build a config from settings with dotted keys, and approve code and API keys set by the user.

    Code and API keys that are named only in a file or a run are not approved.

    Raises:
        ConfigError: if a setting is invalid; the message has its key and its origin.
    """
    merged = dict(merged)
    for key, setting in merged.items():
        if may_be_own_code(key):
            value = _resolve_paths(Path.cwd(), setting.value, key)
            merged[key] = setting._replace(value=value)
            if _is_trusted_origin(setting.origin):
                approve(*(Permission(origin_of(path)) for path in _import_paths(value)))
    if merged.get("learner.kind", _PG).value in LEARNERS.built_in:
        for key, setting in merged.items():
            if (
                is_learner_key(key)
                and not ARM_KEY.fullmatch(key)
                and key not in setting_types(RunConfig)
            ):
                raise _unknown_key_error(key, setting.origin)
    tree: dict[str, Any] = {}
    for key, setting in merged.items():
        insert_setting(tree, key, setting.value)
    for section, name in (key.split(".") for key in PATHS):
        if isinstance(path := tree.get(section, {}).get(name), str):
            tree[section][name] = str(Path(path).expanduser().resolve())
    for key in PANELS:
        if key in merged and merged[key].value:
            section, name = key.split(".")
            tree[section][name] = _resolve_paths(Path.cwd(), merged[key].value, key)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain_errors(error, merged))) from None
    folder = merged.get("plugins.methods")
    if (
        folder is not None
        and config.plugins.methods is not None
        and _is_trusted_origin(folder.origin)
    ):
        approve(Permission(config.plugins.methods))
    rows = [setting for key, setting in merged.items() if key.startswith("benchmark.rows.")]
    if all(_is_trusted_origin(setting.origin) for setting in rows):
        approve(*rows_permissions(config.benchmark.rows))
    try:
        needed = required_permissions(config)
    except ArmError as error:
        where, problem = error.key, error.problem
        if where in merged:
            value, origin = merged[where]
            raise ConfigError(f"{where} = {value!r} (from {origin}): {problem}") from error
        raise
    if all(
        _is_trusted_origin(one.origin) for key, one in merged.items() if key.endswith(_OF_A_KEY)
    ):
        parts = config.policy, config.explorer.model, config.analyst.model  # in use or not
        unused = (key_permission(part.endpoint) for part in parts)
        approve(*(one for one in (*needed, *unused) if one is not None and one.host))
    return Resolved(config, {key: setting.origin for key, setting in merged.items()})


def _is_trusted_origin(origin: str) -> bool:
    """Return True if a value is from the user or this package, rather than from a file or a run."""
    return origin != _RUN and not _looks_like_path(origin)


def _looks_like_path(source: str) -> bool:
    """Return True if a source is a path, rather than the name of a preset."""
    return source.endswith(".toml") or os.sep in source


def preset_names() -> list[str]:
    """List the names of the presets that come with the package."""
    return sorted(path.stem for path in PRESETS.glob("*.toml"))


def describe_preset(name: str) -> str:
    """Return a preset's description, which states its goal and requirements."""
    return str(_read_toml(PRESETS / f"{name}.toml")["about"])


def _settings_from_source(
    source: str | Path | Mapping[str, Any] | RunConfig | None, origin: str
) -> dict[str, Setting]:
    if source is None:
        return {}
    if isinstance(source, RunConfig):
        data = source.to_json()
        settings = dict(_settings_of(data, "", _RUN))
        # Derived settings are derived again from the new settings.
        for key, (value, _) in source.derived_settings().items():
            if key in settings and settings[key].value == value:
                del settings[key]
        return settings
    if isinstance(source, Mapping):
        return _merge_with_preset(dict(source), origin)
    return _settings_from_file(str(source))


def _settings_from_python(sets: Mapping[str, Any]) -> dict[str, Setting]:
    """Return settings with dotted keys, parsing strings as on the command line."""
    return dict(_parse_setting(key, value, "sets") for key, value in sets.items())


def _settings_from_file(source: str) -> dict[str, Setting]:
    is_file = _looks_like_path(source)
    path = Path(source) if is_file else PRESETS / f"{source}.toml"
    if not is_file and not path.is_file():
        raise ConfigError(
            f"There is no preset {source!r}. {suggest(source, preset_names())} "
            "To use your own file, give a path that ends in .toml."
        )
    data = _read_toml(path)
    origin = str(path) if is_file else f"preset {source}"
    settings = _merge_with_preset(data, origin)
    for key, own in settings.items() if is_file else ():
        is_path = key in (*PATHS, *PANELS, *ROWS) or may_be_own_code(key)
        if is_path and own.origin == origin and own.value:
            settings[key] = own._replace(value=_resolve_paths(path.parent, own.value, key))
    if "name" not in data:
        settings["name"] = Setting(path.stem, origin)
    return settings


def _resolve_paths(folder: Path, value: Any, key: str) -> Any:
    """Return a setting with its relative paths resolved against a folder."""
    if isinstance(value, (list, tuple)):
        return [_resolve_paths(folder, one, key) for one in value]
    if key in ROWS:
        return resolve_path(folder, value)
    if key in PANELS and not is_panel_file(value):
        return value
    if may_be_own_code(key):
        return absolute_import_path(folder, value) if is_import_path(value) else value
    return str(folder / Path(value).expanduser())


def _import_paths(value: Any) -> list[str]:
    """Return the import paths in the value of a setting, or in a list of values."""
    values = value if isinstance(value, list) else [value]
    return [one for one in values if is_import_path(one)]


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        text = read_file(path).decode()
    except OSError as error:
        raise ConfigError(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text: {error.reason}.") from error
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for excessive numbers and tables
        raise ConfigError(f"{path} is not valid TOML: {error}.") from error


def _merge_with_preset(data: Mapping[str, Any], origin: str) -> dict[str, Setting]:
    """Return a file's settings, merged into those of the preset that it extends."""
    own = {name: value for name, value in data.items() if name not in ("about", "extends")}
    extended = data.get("extends")
    if extended is not None and extended not in preset_names():
        hint = suggest(str(extended), preset_names())
        raise ConfigError(f"{origin} extends {extended!r}, which is not a preset. {hint}")
    inherited = {} if extended is None else _settings_from_file(extended)
    return inherited | dict(_settings_of(own, "", origin))


def _settings_of(
    data: Mapping[str, Any], prefix: str, origin: str
) -> Iterator[tuple[str, Setting]]:
    """Yield the settings in a parsed file, each with its dotted key."""
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and _is_section(key):
            yield from _settings_of(value, f"{key}.", origin)
            continue
        key, setting = _parse_setting(key, value, origin)
        yield key, setting._replace(value=_check_type(key, setting.value, origin))


def _is_section(key: str) -> bool:
    """Return True if settings can be nested under a key."""
    section = re.sub(r"^arm\.[^.]+\.set\.?", "", key)
    if section != key:  # checked once the method is known
        return True
    is_arm = re.fullmatch(r"arm(\.[^.]+)?", key) is not None
    return is_arm or any(leaf.startswith(f"{key}.") for leaf in setting_types(RunConfig))


def _settings_from_environment(environ: Mapping[str, str]) -> dict[str, Setting]:
    settings = {}
    for name in sorted(environ):
        if name.startswith(ENVIRONMENT):
            path = name.removeprefix(ENVIRONMENT).lower().replace("__", ".")
            key, setting = _parse_setting(path, environ[name], f"environment variable {name}")
            settings[key] = setting
    return settings


def _settings_from_command_line(sets: Sequence[str]) -> dict[str, Setting]:
    settings = {}
    for item in sets:
        key, equals, text = item.partition("=")
        if not equals:
            raise ConfigError(f"--set must have the form section.key=value, got {item!r}.")
        key, setting = _parse_setting(key.strip(), text.strip(), "command line")
        settings[key] = setting
    return settings


def _parse_setting(key: str, value: Any, origin: str) -> tuple[str, Setting]:
    """Return the full key, the parsed value and the origin of a setting."""
    key = _full_key(key)
    return key, Setting(_parse_value(key, value, origin), origin)


def _full_key(key: str) -> str:
    """Return a setting's full dotted key. A section's key stands for its name or kind."""
    known = setting_types(RunConfig)
    return next((full for full in (f"{key}.name", f"{key}.kind") if full in known), key)


def _parse_value(key: str, value: Any, origin: str) -> Any:
    """Parse a value given as text according to the type of its setting."""
    annotation = annotation_of(RunConfig, key)
    if annotation is None:
        if is_learner_key(key):
            return value
        raise _unknown_key_error(key, origin)
    return parse_none_or_list(annotation, value)


def _unknown_key_error(key: str, origin: str) -> ConfigError:
    hint = suggest_key(RunConfig, key)
    return ConfigError(f"There is no setting {key!r} (from {origin}). {hint}")


def _check_type(key: str, value: Any, origin: str) -> Any:
    """Check the type of a value read from a file, and return the value. "3" is not accepted for 3.

    Values from the command line and the environment are always text, so pydantic parses them.
    """
    annotation: Any = annotation_of(RunConfig, key)
    if key.endswith(".kind") or annotation is None:
        return value  # the section's own message lists the kinds, and a learner checks its own keys
    try:
        text = json.dumps(value, default=str)
        TypeAdapter(annotation).validate_json(text, strict=True)
    except ValidationError as error:
        problem = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{key} = {value!r} (from {origin}): {problem}") from None
    return value


def _explain_errors(error: ValidationError, merged: Mapping[str, Setting]) -> Iterator[str]:
    """Yield one line per problem, with the key, its value and its origin.

    A problem with a value that the user did not set is a consequence of another problem, and is
    omitted if that problem is reported.
    """
    consequences = []
    has_key = False
    for problem in setting_problems(RunConfig, error):
        key = next((k for k in problem.keys if k in merged), None)
        # A section's own check names its key first, with or without the section.
        section = f"{problem.keys[0]}." if problem.keys else ""
        starts = {k: (k, f"{k.removeprefix(section)} ") for k in merged}
        key = key or next((k for k in merged if problem.message.startswith(starts[k])), None)
        if key is None:
            consequences.append(problem.message)
        else:
            has_key = True
            value, origin = merged[key]
            yield f"{key} = {value!r} (from {origin}): {problem.message}"
    if not has_key:
        yield from consequences
