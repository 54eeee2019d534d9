"""The lines that an agent may be shown: cues by label, and hints by class of error."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from string import Formatter
from typing import Any

from coevo_gym.core.task import FrozenModel
from coevo_gym.core.trajectory import View
from coevo_gym.prompts.template import FOLDER

_ROOM = FOLDER / "seal"
_MOST_TOOLS = 12
"""Maximum names of tools in a hint."""
_TAIL = 1_000
"""Number of characters at the end of an observation in which to look for an error."""


class Hint(FrozenModel):
    """A hint to show after an action that failed; see ``prompts/seal/hints.toml``.

    Attributes:
        name: the name of its class of errors.
        kinds: kinds of error that it applies to; any if empty.
        words: words of which the error's text must contain one, in any case; no condition if empty.
        pattern: a pattern that the error's text must contain, too; its groups are words of the
            text.
        text: the text to show.
        more: an addition, shown if all names in it are known.
    """

    name: str
    kinds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    pattern: str = ""
    text: str
    more: str = ""


@lru_cache(maxsize=1)
def hints() -> tuple[Hint, ...]:
    """Return all hints in the order in which they are tried; the last one is the fallback."""
    return tuple(Hint.model_validate(hint) for hint in _read("hints.toml")["hints"])


@lru_cache(maxsize=1)
def cues() -> Mapping[str, str]:
    """Return the cue of each label that stands for a failure."""
    return {label: str(text) for label, text in _read("cues.toml").items()}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_ROOM / name).read_text(encoding="utf-8"))


def hint_after(view: View) -> str:
    """Return the line for an agent whose last action failed; "" if it did not fail.

    The line depends on the view: the kind of the error, its text, and the available tools. It
    contains only names from the error or from a tool's own schema.
    """
    kind = view.info.get("error_kind", "")
    if not kind:
        return ""
    hint, words = _class_of(kind, _error_in(view))
    return f"(Hint: {' '.join(filter(None, (hint.text, _more(hint, words, view))))})"


@lru_cache(maxsize=1024)
def _class_of(kind: str, error: str) -> tuple[Hint, Mapping[str, str]]:
    """Return the hint for an error, and the words of the error that its pattern matches."""
    lowered = error.lower()
    for hint in hints()[:-1]:
        if hint.kinds and kind not in hint.kinds:
            continue
        if hint.words and not any(word in lowered for word in hint.words):
            continue
        if found := re.search(hint.pattern, error):
            words = {name: word for name, word in found.groupdict().items() if word}
            return hint, {name: word.replace("'", "") for name, word in words.items()}
    return hints()[-1], {}


def _error_in(view: View) -> str:
    """Return the text of the error: the env's own, or else the end of the observation."""
    told = [text for key, text in view.info.items() if key.endswith(".reason") and text]
    return str(told[0]) if told else view.observation[-_TAIL:]


def _more(hint: Hint, found: Mapping[str, str], view: View) -> str:
    """Return the addition of a hint, if all names in it are known."""
    if not hint.more:
        return ""
    words = dict(found)
    wanted = {field for _, field, _, _ in Formatter().parse(hint.more) if field}
    offered = {name: tool for text in tools_of(view).values() for name, tool in _named(text)}
    if offered:
        words["tools"] = ", ".join([*offered][:_MOST_TOOLS])
    schema = offered.get(words.get("tool", ""))
    if schema is None:
        words.pop("tool", None)
    else:
        required, properties = schema.get("required", ()), schema.get("properties", ())
        words |= {"required": ", ".join(required), "parameters": ", ".join(properties)}
    return hint.more.format_map(words) if wanted <= words.keys() else ""


def tools_of(view: View) -> dict[str, str]:
    """Return the texts of info that hold the schemas of tools, by key."""
    texts = view.info.items()
    return {key: text for key, text in texts if key.endswith(".tools") and isinstance(text, str)}


@lru_cache(maxsize=256)
def _named(text: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return name and parameters of each tool in a text of schemas; none for other texts."""
    try:
        functions = [tool["function"] for tool in json.loads(text)]
        return tuple((str(each["name"]), dict(each.get("parameters", {}))) for each in functions)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
