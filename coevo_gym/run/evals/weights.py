"""The hash of a language model's files, by which it is known again."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coevo_gym.agents.lm.models import resolve_model


def files_hash(model: str) -> str:
    """Hash of all files of a model on this machine, weights and tokenizer alike.

    Args:
        model: its name or path.

    Returns:
        sha256, hex; "" for the id of a hub, which may stand for other files tomorrow.

    Raises:
        ModelNotFetched, ModelNotFound: if there is no such model.
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
