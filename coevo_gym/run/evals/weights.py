"""Hash of a language model's files, which identifies the model."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coevo_gym.agents.lm.models import resolve_model


def files_hash(model: str) -> str:
    """Return a hash of all files of a local model, including its tokenizer.

    Args:
        model: name or path of the model.

    Returns:
        SHA-256 in hex; "" for the id of a hub, whose files may change.

    Raises:
        ModelNotFetched, ModelNotFound: if the model is missing.
    """
    folder = Path(resolve_model(model))
    if not folder.is_dir():
        return ""
    state = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        state.update(f"{path.relative_to(folder)} {content}\n".encode())
    return state.hexdigest()
