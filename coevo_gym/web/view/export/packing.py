"""Compressed data of an export: responses by path, with each long or repeated text stored once."""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from coevo_gym.web.view.filters import LISTS
from coevo_gym.web.view.safe import Censor

_SHORT = 40
"""Minimum length of a text that is stored separately."""


class DataFile:
    """A data file with some of the responses.

    Each response becomes a line of JSON without secrets: its ``path``, the ``answer``, in which
    ``{"$t": 3}`` refers to the fourth text of the part, and the line's new ``texts``. The lines are
    compressed as they are added, so the size is known at any time.

    Args:
        censor: filter that removes secrets.

    Attributes:
        paths: paths of the responses so far, in order.
        size: uncompressed size of the lines in bytes.
        packed: compressed size of the lines in the file, in bytes.
    """

    def __init__(self, censor: Censor) -> None:
        self.paths: list[str] = []
        self.size = 0
        self._censor, self._deflate = censor, zlib.compressobj()
        self._packed = bytearray()
        self._places: dict[str, int] = {}
        self._new: dict[str, int] = {}

    @property
    def packed(self) -> int:
        """Return the compressed size of the lines in bytes, after base64 encoding."""
        return len(self._packed) * 4 // 3

    def add(self, path: str, value: Any, room: float = math.inf) -> bool:
        """Add a response unless it might exceed the remaining room in the file."""
        self._new = {}
        answer = self._folded(value)
        line = self._line({"path": path, "answer": answer, "texts": list(self._new)})
        if len(line) * 4 / 3 > room:
            return False
        self._places |= self._new
        self.paths.append(path)
        self._write(line)
        return True

    def to_text(self, **more: Any) -> str:
        """Finish the part, and return it as base64 (see ``web/static/viewer/exported.js``).

        Args:
            more: further data of the part, besides its responses.
        """
        self._write(self._line(more))
        self._packed += self._deflate.flush()
        return base64.b64encode(self._packed).decode()

    def _line(self, value: Any) -> bytes:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return f"{self._censor.clean(text)}\n".encode("utf-8", "replace")

    def _write(self, line: bytes) -> None:
        self.size += len(line)
        self._packed += self._deflate.compress(line)

    def _folded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {key: self._folded(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._folded(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    def _text(self, text: str) -> Any:
        if len(text) < _SHORT:
            return text
        place = self._places.get(text, self._new.get(text))
        if place is None:
            place = self._new[text] = len(self._places) + len(self._new)
        return {"$t": place}


def lists() -> dict[str, Any]:
    """Return the filters and sorts of every kind of list."""
    return {name: listing.to_json() for name, listing in LISTS.items()}
