"""Metadata of exported tasks: JSON-LD in the Croissant format, version 1.0.

The format extends the vocabulary of schema.org's ``Dataset`` with files and their hashes, and with
sets of records and their fields (http://mlcommons.org/croissant/1.0).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from coevo_gym.export.rows import FileColumn

CONFORMS_TO = "http://mlcommons.org/croissant/1.0"
MEDIA_TYPES = {".jsonl": "application/jsonlines", ".parquet": "application/x-parquet"}
_OF_CROISSANT = (
    "citeAs", "column", "equivalentProperty", "extract", "field", "fileObject", "fileProperty",
    "fileSet", "format", "includes", "isLiveDataset", "jsonPath", "key", "md5", "parentField",
    "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "sc": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "dct": "http://purl.org/dc/terms/",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    **{term: f"cr:{term}" for term in _OF_CROISSANT},
}
"""Meaning of the terms below, from the first appendix of the format's specification."""


def croissant(
    name: str,
    description: str,
    *,
    terms: str,
    made_by: str,
    published: date,
    files: Mapping[str, bytes],
    tables: Mapping[str, Sequence[FileColumn]],
) -> dict[str, Any]:
    """Return the metadata of a data set.

    Args:
        name: name of the data set.
        description: description for readers.
        terms: terms for sharing the data set.
        made_by: creator of the data set.
        published: publication date.
        files: contents of the data files, by name.
        tables: columns to describe, by file name.
    """
    return {
        "@context": dict(_CONTEXT),
        "@type": "sc:Dataset",
        "conformsTo": CONFORMS_TO,
        "name": name,
        "description": description,
        "license": {"@type": "sc:CreativeWork", "name": "Terms", "description": terms},
        "creator": {"@type": "sc:Organization", "name": made_by},
        "datePublished": published.isoformat(),
        "url": "croissant.json",
        "version": "1.0.0",
        "distribution": [_file(file, data) for file, data in files.items()],
        "recordSet": [_records(file, columns) for file, columns in tables.items()],
    }


def _file(name: str, data: bytes) -> dict[str, Any]:
    return {
        "@type": "cr:FileObject",
        "@id": name,
        "name": name,
        "contentUrl": name,
        "contentSize": f"{len(data)} B",
        "encodingFormat": MEDIA_TYPES[name[name.rindex(".") :]],
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def _records(file: str, columns: Sequence[FileColumn]) -> dict[str, Any]:
    """Return the description of a file with one record per task."""
    id = f"rows-of-{file.replace('.', '-')}"
    has_id = any(column.name == "id" for column in columns)
    return {
        "@type": "cr:RecordSet",
        "@id": id,
        "name": id,
        "description": f"The tasks, as {file} has them.",
        **({"key": {"@id": f"{id}/id"}} if has_id else {}),
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{id}/{column.name}",
                "name": column.name,
                "description": column.about,
                "dataType": "sc:Integer" if column.number else "sc:Text",
                **({"repeated": True} if column.repeated else {}),
                "source": {
                    "fileObject": {"@id": file},
                    "extract": {"column": column.name},
                },
            }
            for column in columns
        ],
    }
