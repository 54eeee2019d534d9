"""The data of an export, read as its pages read it."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

_DATA = re.compile(r'(id="coevo-export">|window\.coevoExport = "|takeExport\("[^"]+", ")([^<"]*)')


def read_data(file: Path) -> Any:
    """Return the part in a page or in a file of data: its answers, texts, files and lists."""
    (groups,) = _DATA.findall(file.read_text())
    part: dict[str, Any] = {"answers": {}, "texts": []}
    for line in zlib.decompress(base64.b64decode(groups[1])).decode().split("\n")[:-1]:
        entry = json.loads(line)
        if "path" in entry:
            part["answers"][entry["path"]] = entry["answer"]
            part["texts"] += entry["texts"]
        else:
            part |= entry
    return part


def replace_data(page: str, text: str) -> str:
    """Return a page with other data in it."""
    return _DATA.sub(lambda match: match[1] + text, page)


def restore_texts(value: Any, texts: list[str]) -> Any:
    """Return an answer with its texts, without what is only there for filters."""
    if isinstance(value, list):
        return [restore_texts(one, texts) for one in value]
    if not isinstance(value, dict):
        return value
    if "$t" in value:
        return texts[value["$t"]]
    return {key: restore_texts(one, texts) for key, one in value.items() if not key.startswith("_")}
