"""Files of results, and the packages that the measurements need. It imports no packages itself."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

NOT_RUN = "not run"
NEEDS = (
    *("accelerate", "gymnasium", "jinja2", "numpy", "peft", "pydantic", "rapidfuzz"),
    *("safetensors", "tokenizers", "torch", "transformers"),
)
"""Packages that all parts need."""


def missing_packages() -> list[str]:
    """Return the needed packages that are not installed."""
    return [name for name in NEEDS if find_spec(name) is None]


def write_texts(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files to a folder; each one is replaced at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        part = folder / f".{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(folder / name)
