"""A tool's schema with what its parameters ask for said in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def schema_note(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Say in a parameter's description whether it is required, and what it may be.

    Args:
        tool: JSON schema of a function: ``name``, ``description`` and ``parameters``.

    Returns:
        A new schema. Parameters that are neither required nor limited to some values are as they
        were, and so is whatever has another shape than expected.

    Example:
        >>> mode = {"type": "string", "enum": ["r", "w"], "description": "How to open it."}
        >>> tool = {"name": "open", "parameters": {"properties": {"mode": mode}}}
        >>> schema_note(tool)["parameters"]["properties"]["mode"]["description"]
        'How to open it. Allowed values: r, w'

    Source: SEAL, Appendix D.2: required and enum, nothing else.
    """
    parameters = tool.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if not isinstance(parameters, Mapping) or not isinstance(properties, Mapping):
        return dict(tool)
    listed = parameters.get("required")
    required = listed if isinstance(listed, (list, tuple)) else ()
    noted = {name: _noted(schema, name in required) for name, schema in properties.items()}
    return {**tool, "parameters": {**parameters, "properties": noted}}


def _noted(schema: Any, required: bool) -> Any:
    """The schema of one parameter with its notes."""
    if not isinstance(schema, Mapping):
        return schema
    described, allowed = schema.get("description"), schema.get("enum")
    notes = [described] if isinstance(described, str) and described else []
    notes += ["[required]"] if required else []
    if isinstance(allowed, (list, tuple)) and allowed:
        notes.append(f"Allowed values: {', '.join(map(str, allowed))}")
    return {**schema, "description": " ".join(notes)} if notes else dict(schema)
