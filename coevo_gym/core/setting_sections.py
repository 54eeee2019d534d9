"""Sections of settings, which are nested pydantic models. Some sections have several kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel


def settings_classes(annotation: Any) -> tuple[type[BaseModel], ...]:
    """Return the settings classes in a field's annotation, one per ``kind``. Return () if none."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (annotation,)
    if get_origin(annotation) is Annotated:
        return settings_classes(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        alternatives = [settings_classes(part) for part in get_args(annotation)]
        return (
            tuple(model for models in alternatives for model in models) if all(alternatives) else ()
        )
    return ()


def kind_value(model: type[BaseModel]) -> str:
    """Return the value of ``kind`` that selects a settings class."""
    return str(model.model_fields["kind"].default)


def select_settings_class(models: Sequence[type[BaseModel]], kind: Any) -> type[BaseModel] | None:
    """Return the settings class that the given value of ``kind`` selects, or None."""
    if len(models) == 1:
        return models[0]
    return next((model for model in models if kind_value(model) == kind), None)


def add_default_kinds(model: type[BaseModel], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings tree with the default ``kind`` added to sections that omit it."""
    tree = dict(data)
    for name, field in model.model_fields.items():
        models, section = settings_classes(field.annotation), tree.get(name)
        if not models or not isinstance(section, Mapping):
            continue
        if len(models) > 1 and "kind" not in section:
            section = {"kind": field.get_default(call_default_factory=True).kind, **section}
        chosen = select_settings_class(models, section.get("kind"))
        tree[name] = add_default_kinds(chosen, section) if chosen else section
    return tree


def overlay_settings(
    model: type[BaseModel], base: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the settings tree with the given changes applied.

    If a section changes its kind, it keeps only settings that the new kind also has.
    """
    tree = dict(base)
    for name, value in changes.items():
        field = model.model_fields.get(name)
        models = settings_classes(field.annotation) if field else ()
        if models and isinstance(value, Mapping):
            tree[name] = overlay_section(models, tree.get(name, {}), value)
        else:
            tree[name] = value
    return tree


def overlay_section(
    models: Sequence[type[BaseModel]], base: Mapping[str, Any], changes: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a section with the given changes applied; ``models`` are the classes of its kinds."""
    kind = changes.get("kind", base.get("kind"))
    chosen = select_settings_class(models, kind)
    if chosen is None:
        return {**base, **changes}
    if kind != base.get("kind"):
        base = {key: item for key, item in base.items() if key in chosen.model_fields}
    return overlay_settings(chosen, base, changes)


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a settings tree with its dotted key."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def unflatten(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Convert settings with dotted keys to nested sections. This is the inverse of :func:`flatten`.

    Example:
        >>> unflatten({"learner.lr": 0.1, "learner.epochs": 2})
        {'learner': {'lr': 0.1, 'epochs': 2}}
    """
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *path, last = key.split(".")
        section = tree
        for part in path:
            section = section.setdefault(part, {})
        section[last] = value
    return tree
