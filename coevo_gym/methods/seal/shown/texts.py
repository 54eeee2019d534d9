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
"""Names of tools in a hint."""
_TAIL = 1_000
"""Characters at the end of an observation in which an error is looked for."""


class Hint(FrozenModel):
    """What is said after an action that failed; see ``prompts/seal/hints.toml``.

    Attributes:
        name: of its class of errors.
        kinds: kinds of error that it is for; any without kinds.
        words: one of these must be in the error's text, in whatever case; any without words.
        pattern: what the error's text must hold, too; its groups are words of the text.
        text: what is said.
        more: what is added where all that it names is known.
    """

    name: str
    kinds: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    pattern: str = ""
    text: str
    more: str = ""


@lru_cache(maxsize=1)
def hints() -> tuple[Hint, ...]:
    """All hints, in the order in which they are tried; the last one is for all other errors."""
    return tuple(Hint.model_validate(hint) for hint in _read("hints.toml")["hints"])


@lru_cache(maxsize=1)
def cues() -> Mapping[str, str]:
    """The cue of each label that tells of a failure."""
    return {label: str(text) for label, text in _read("cues.toml").items()}


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((_ROOM / name).read_text(encoding="utf-8"))


def hint_after(view: View) -> str:
    """The line for an agent whose last action has failed; "" if it has not.

    It goes by what the view holds: the kind of the error, its text, and the tools on offer. Of
    these it names what the error or a tool's own schema names.
    """
    kind = view.info.get("error_kind", "")
    if not kind:
        return ""
    hint, words = _class_of(kind, _error_in(view))
    return f"(Hint: {' '.join(filter(None, (hint.text, _more(hint, words, view))))})"


@lru_cache(maxsize=1024)
def _class_of(kind: str, error: str) -> tuple[Hint, Mapping[str, str]]:
    """The hint for an error, and the words of the error that its pattern picks out."""
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
    """The text of the error: what the env says of it, or else the end of the observation."""
    told = [text for key, text in view.info.items() if key.endswith(".reason") and text]
    return str(told[0]) if told else view.observation[-_TAIL:]


def _more(hint: Hint, found: Mapping[str, str], view: View) -> str:
    """What a hint adds, if all that it names is known."""
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
    """The texts of info that hold the schemas of tools, by key."""
    texts = view.info.items()
    return {key: text for key, text in texts if key.endswith(".tools") and isinstance(text, str)}


@lru_cache(maxsize=256)
def _named(text: str) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Name and parameters of each tool in a text of schemas; none if it holds something else."""
    try:
        functions = [tool["function"] for tool in json.loads(text)]
        return tuple((str(each["name"]), dict(each.get("parameters", {}))) for each in functions)
    except (ValueError, TypeError, KeyError, RecursionError):
        return ()
