"""Tool schemas with notes in words about the requirements of parameters."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

_ONE_OF = re.compile(r"value in (\[.*\])", re.DOTALL)
"""A pattern for the allowed values of a parameter in the document of an API."""


def schema_note(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Add to each parameter's description if it is required, and its allowed values.

    Args:
        tool: JSON schema of a function: ``name``, ``description`` and ``parameters``.

    Returns:
        A new schema. Parameters that are neither required nor limited to some values do not change,
        nor does any part with an unexpected shape.

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
    """Return the schema of one parameter with its notes."""
    if not isinstance(schema, Mapping):
        return schema
    described, allowed = schema.get("description"), schema.get("enum")
    notes = [described] if isinstance(described, str) and described else []
    notes += ["[required]"] if required else []
    if isinstance(allowed, (list, tuple)) and allowed:
        notes.append(f"Allowed values: {', '.join(map(str, allowed))}")
    return {**schema, "description": " ".join(notes)} if notes else dict(schema)


def document_note(document: Mapping[str, Any]) -> dict[str, Any]:
    """Add notes to an API's document, which lists its parameters; see :func:`schema_note`.

    Args:
        document: a document with ``parameters``, each with ``description``, ``required`` and
            ``constraints``.

    Example:
        >>> order = {"name": "order", "required": False, "constraints": ["value in ['up', 'down']"]}
        >>> document_note({"parameters": [order]})["parameters"][0]["description"]
        'Allowed values: up, down'
    """
    parameters = document.get("parameters")
    if not isinstance(parameters, Sequence) or isinstance(parameters, str):
        return dict(document)
    return {**document, "parameters": [_noted_parameter(each) for each in parameters]}


def _noted_parameter(parameter: Any) -> Any:
    if not isinstance(parameter, Mapping):
        return parameter
    told = parameter.get("constraints")
    constraints = told if isinstance(told, (list, tuple)) else ()
    allowed = next((found for text in constraints if (found := _allowed(text))), ())
    schema = {"description": parameter.get("description"), "enum": allowed}
    noted = _noted(schema, parameter.get("required") is True).get("description")
    return {**parameter, "description": noted} if isinstance(noted, str) else dict(parameter)


def _allowed(constraint: Any) -> tuple[Any, ...]:
    """Return the values that a constraint allows; () for other constraints."""
    found = _ONE_OF.fullmatch(constraint) if isinstance(constraint, str) else None
    try:
        values = ast.literal_eval(found[1]) if found else []
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return ()
    return tuple(values) if isinstance(values, list) else ()
