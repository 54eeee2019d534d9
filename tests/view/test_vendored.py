"""What others wrote lies in the package as they gave it out, with its licence."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import coevo_gym

VENDOR = Path(coevo_gym.__file__).parent / "view" / "static" / "vendor"
_ROW = re.compile(
    r"^\| `([\w-]+\.js)` \|.*`([\w-]+\.LICENSE)`\) \| `([0-9a-f]{64})` \|$", re.MULTILINE
)


def test_every_vendored_file_has_the_documented_hash_and_licence() -> None:
    rows = _ROW.findall((VENDOR / "README.md").read_text())
    assert {file for file, _, _ in rows} == {path.name for path in VENDOR.glob("*.js")}
    for file, licence, digest in rows:
        assert hashlib.sha256((VENDOR / file).read_bytes()).hexdigest() == digest, file
        assert "copyright" in (VENDOR / licence).read_text().lower(), licence
