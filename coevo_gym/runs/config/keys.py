"""Settings and their dotted keys: names, types, and parsing of text values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache, reduce
from operator import or_
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from coevo_gym.core.registry import LEARNERS, suggest
from coevo_gym.core.setting_sections import kind_value, select_settings_class, settings_classes

ARM_KEY = re.compile(r"arm\.([^.]+)\.(?:method|set\.(.+))")
"""Pattern for an arm's keys. Its groups are the arm's name and the key that the arm sets."""

CODE = ("learner.kind", "learner.loss")
"""Settings of a run or an arm that may be import paths, in addition to the sinks of a run."""


class Setting(NamedTuple):
    """The value of a setting, and its origin."""

    value: Any
    origin: str


@cache
def setting_types(model: type[BaseModel], prefix: str = "") -> Mapping[str, Any]:
    """Return the type of each setting in every kind of section, keyed by dotted key.

    If several kinds share a setting, it may have the type of any of them.
    """
    types: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        models = settings_classes(field.annotation)
        if not models:
            types[f"{prefix}{name}"] = field.annotation
        for part in models:
            for key, annotation in setting_types(part, f"{prefix}{name}.").items():
                known = types.get(key, annotation)
                types[key] = known if known == annotation else reduce(or_, (known, annotation))
    return types


def annotation_of(model: type[BaseModel], key: str) -> Any | None:
    """Return the type of a setting, or None if the key is unknown.

    An arm's settings for its method may have any type here, because the method checks them.
    """
    of_arm = ARM_KEY.fullmatch(key)
    if of_arm is None:
        return setting_types(model).get(key)
    inner = of_arm[2]
    if inner is None:
        return str
    return Any if inner.startswith("method.") else setting_types(model).get(inner)


def is_learner_key(key: str) -> bool:
    """Return True for a setting of the learner. A user-defined learner checks its own settings."""
    of_arm = ARM_KEY.fullmatch(key)
    return ((of_arm[2] or "") if of_arm else key).startswith("learner.")


def may_be_own_code(key: str) -> bool:
    """Return True for a setting that may hold one or more import paths of the user's own code."""
    return key == "sinks" or (key.endswith(CODE) and is_learner_key(key))


def parse_none_or_list(annotation: Any, value: Any) -> Any:
    """Parse ``none`` or a comma-separated list. Pydantic parses all other values."""
    if not isinstance(value, str):
        return value
    types = {get_origin(part) or part for part in (annotation, *get_args(annotation))}
    if type(None) in types and value.lower() == "none":
        return None
    if get_origin(annotation) is tuple:
        items = (item.strip(" \"'") for item in value.strip("[]() ").split(","))
        return tuple(item for item in items if item)
    return value


def insert_setting(tree: dict[str, Any], key: str, value: Any) -> None:
    """Insert a setting into nested dictionaries. An arm's overrides keep their dotted keys."""
    of_arm = ARM_KEY.fullmatch(key)
    path = ["arm", of_arm[1], "set", of_arm[2]] if of_arm and of_arm[2] else key.split(".")
    *sections, name = path
    for section in sections:
        tree = tree.setdefault(section, {})
    tree[name] = value


_MAX_LISTED = 15
"""Maximum number of a section's settings that a message lists."""


def suggest_key(model: type[BaseModel], key: str) -> str:
    """Return a sentence that suggests a known key in place of an unknown one."""
    of_arm = ARM_KEY.fullmatch(key)
    before, inner = "", key
    if key.partition(".")[0] == "method":
        return f"A method's own settings are set per arm: arm.NAME.set.{key}."
    if of_arm and of_arm[2]:
        before, inner = key.removesuffix(of_arm[2]), of_arm[2]
    known = list(setting_types(model))
    last = inner.rpartition(".")[2]
    section = inner.removesuffix(last)
    # The name of the section is left out, because it makes all keys of a section similar.
    names = {leaf.removeprefix(section): leaf for leaf in known if leaf.startswith(section)}
    if not names:
        section, names = "", {leaf: leaf for leaf in known}
    name = inner.removeprefix(section)
    close = (
        [names[match] for match in get_close_matches(name, names, n=1, cutoff=0.75)]
        or [leaf for leaf in known if leaf.rpartition(".")[2] == last]
        or [names[match] for match in get_close_matches(name, names, n=1)]
    )
    if close:
        return f"Did you mean {' or '.join(f'{before}{leaf}' for leaf in close)}?"
    if section and len(names) <= _MAX_LISTED:
        return f"{before}{section[:-1]} has the settings {', '.join(names)}."
    return "`coevo config show quickstart` lists all settings."


class SettingProblem(NamedTuple):
    """A problem in a settings tree.

    Attributes:
        keys: dotted keys of the invalid value and of its enclosing sections, innermost first.
        message: a description of the problem.
    """

    keys: tuple[str, ...]
    message: str


def setting_problems(model: type[BaseModel], error: ValidationError) -> list[SettingProblem]:
    """Return the problems that pydantic found in settings, each with its setting's dotted key."""
    return [_to_problem(model, detail) for detail in error.errors()]


def _to_problem(model: type[BaseModel], detail: ErrorDetails) -> SettingProblem:
    """Convert a pydantic error to a plain description of the invalid setting."""
    models: tuple[type[BaseModel], ...] = (model,)
    parts: list[str] = []
    kinds: tuple[type[BaseModel], ...] = ()
    for part in detail["loc"]:
        if len(models) > 1 and (chosen := select_settings_class(models, part)):
            kinds, models = models, (chosen,)
            continue
        field = models[0].model_fields.get(str(part)) if len(models) == 1 else None
        parts.append(str(part))
        models = settings_classes(field.annotation) if field else ()
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "union_tag_invalid" and len(models) > 1:
        parts.append("kind")
        of_learner = parts[-2:] == ["learner", "kind"]
        known = LEARNERS.names() if of_learner else [kind_value(one) for one in models]
        message = (
            f"there is no kind {detail['ctx']['tag']!r}. {suggest(detail['ctx']['tag'], known)}"
        )
    elif detail["type"] == "extra_forbidden" and kinds:
        having = [repr(kind_value(one)) for one in kinds if parts[-1] in one.model_fields]
        section, kind = ".".join(parts[:-1]), str(detail["loc"][len(detail["loc"]) - 2])
        message = f"{section}.kind = {kind!r} has no such setting"
        message += f"; it belongs to {', '.join(having)}" if having else ""
    keys = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return SettingProblem(tuple(keys), message)
