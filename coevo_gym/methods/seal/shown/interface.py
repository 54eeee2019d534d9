"""The agent's interface beyond the env's own text, as its failures require."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from coevo_gym.core.evolution import digest
from coevo_gym.core.task import FrozenDict
from coevo_gym.core.trajectory import Cue, View
from coevo_gym.methods.seal.schema import document_note, schema_note
from coevo_gym.methods.seal.shown.texts import Hint, cues, hint_after, hints, tools_of
from coevo_gym.methods.seal.utilities import FAILURES

_DOCUMENT = re.compile(r'\{\s*"app_name"')
"""A pattern for the start of the document of an API, as it is printed."""
_MOST_DOCUMENTS = 32
HEADING = "Keep in mind (from recent mistakes):"
"""Line above the cues."""
REQUIRED = "Parameters marked [required] must be given."
"""The meaning of the note, at the end of the description of each document that has one. The prompt
of a benchmark with schemas states it above them."""
_INDENTS = (None, 1, 2, 4)


@dataclass(frozen=True)
class FailureInterface:
    """Notes in the schemas of tools, a hint after each error, and the cues that go with them.

    The interface depends on the view, the files of texts, and the labels that are on. So it is the
    same for all tasks, regardless of their solutions and verdicts.

    Attributes:
        schema_notes: mark required parameters and allowed values in schemas.
        error_hints: show a line after an action that failed.
        on: labels whose cues are told.

    Source: phi_schema, phi_err and phi_cap of SEAL (arXiv 2605.24426), Eq. 8 and 9.
    """

    schema_notes: bool = False
    error_hints: bool = False
    on: tuple[str, ...] = ()

    @cached_property
    def version(self) -> str:
        """Return the hash of the switches, and of the texts that they show."""
        found = digest(
            {
                "schema_notes": self.schema_notes,
                "hints": [hint.model_dump(mode="json") for hint in self._hints],
                "cues": [[cue.id, cue.heading, cue.text] for cue in self.cues],
            }
        )
        return f"seal:{found}"

    @property
    def cues(self) -> tuple[Cue, ...]:
        """Return a line for each label that is on, in a fixed order."""
        texts = cues()
        told = (label for label in FAILURES if label in self.on and label in texts)
        return tuple(Cue(texts[label], "system", label, heading=HEADING) for label in told)

    @property
    def says(self) -> tuple[str, ...]:
        """Return a description of the interface, in words for people."""
        parts = (
            (self.schema_notes, "Schemas say what is required, and which values are allowed."),
            (self.error_hints, f"A hint after an error, one of {len(hints())}."),
        )
        return (*(text for shown, text in parts if shown), *(cue.text for cue in self.cues))

    @property
    def _hints(self) -> tuple[Hint, ...]:
        return hints() if self.error_hints else ()

    def show(self, view: View) -> View:
        """Return a view with notes and a hint; see :class:`~coevo_gym.core.seams.Interface`."""
        observation, noted = view.observation, dict[str, str]()
        if self.schema_notes:
            noted = {key: noted_tools(text) for key, text in tools_of(view).items()}
            observation = noted_documents(observation)
        if self.error_hints and (hint := hint_after(view)):
            observation = f"{observation}\n{hint}" if observation else hint
        if observation == view.observation and not noted:
            return view
        info = FrozenDict({**view.info, **noted}) if noted else view.info
        return replace(view, observation=observation, info=info)


@lru_cache(maxsize=256)
def noted_tools(text: str) -> str:
    """Return the schemas of tools, a JSON list, with their notes; return other text unchanged."""
    try:
        tools = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(tools, list):
        return text
    return json.dumps([_noted_tool(tool) for tool in tools], ensure_ascii=False)


def _noted_tool(tool: Any) -> Any:
    if isinstance(tool, Mapping) and isinstance(tool.get("function"), Mapping):
        return {**tool, "function": schema_note(tool["function"])}
    return tool


def _explained(noted: dict[str, Any]) -> dict[str, Any]:
    """Return a document whose description explains its notes, if a note says ``[required]``."""
    described = noted.get("description")
    if "[required]" not in json.dumps(noted.get("parameters")) or not isinstance(described, str):
        return noted
    return {**noted, "description": f"{described} {REQUIRED}".strip()}


def noted_documents(text: str) -> str:
    """Return a text with notes in the documents of APIs that were printed in it as JSON.

    A document that is printed in another way than Python prints JSON stays as it is.
    """
    parts, end = [], 0
    for start, stop in _documents_in(text):
        if start >= end:
            parts += [text[end:start], _noted_document(text[start:stop])]
            end = stop
    return "".join([*parts, text[end:]]) if parts else text


def _documents_in(text: str) -> Iterator[tuple[int, int]]:
    """Yield the positions of JSON objects that begin as documents do."""
    decoder = json.JSONDecoder()
    for number, found in enumerate(_DOCUMENT.finditer(text)):
        if number >= _MOST_DOCUMENTS:
            return
        try:
            yield found.start(), decoder.raw_decode(text, found.start())[1]
        except (ValueError, RecursionError):
            continue


@lru_cache(maxsize=256)
def _noted_document(text: str) -> str:
    document = json.loads(text)
    for indent in _INDENTS:
        if json.dumps(document, indent=indent) == text:
            return json.dumps(_explained(document_note(document)), indent=indent)
    return text
