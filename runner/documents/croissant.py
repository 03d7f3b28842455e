"""Describe a dataset in Croissant 1.1, a JSON-LD format that dataset search engines and loaders read.

The releases of datasets and runs have such a file. `.ci/tools/croissant.py` validates it with the format's own package.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

import orjson

from runner.base.storage.safe_files import read_bounded
from runner.documents.releases.bundle import Content, open_content

FILE = "croissant.json"
CROISSANT, RAI = "http://mlcommons.org/croissant/1.1", "http://mlcommons.org/croissant/RAI/1.0"
"""The specifications of a description."""

_TERMS = (
    "arrayShape", "citeAs", "column", "containedIn", "equivalentProperty", "extract", "field", "fileObject",
    "fileProperty", "fileSet", "format", "includes", "isArray", "isLiveDataset", "jsonPath", "key", "md5",
    "parentField", "path", "recordSet", "references", "regex", "repeated", "replace", "samplingRate", "separator",
    "source", "subField", "transform",
)  # fmt: skip
_CONTEXT: Mapping[str, Any] = dict(
    sorted(
        {
            **{term: f"cr:{term}" for term in _TERMS},
            "@language": "en",
            "@vocab": "https://schema.org/",
            "conformsTo": "dct:conformsTo",
            "cr": "http://mlcommons.org/croissant/",
            "data": {"@id": "cr:data", "@type": "@json"},
            "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
            "dct": "http://purl.org/dc/terms/",
            "description": {"@container": "@language"},
            "examples": {"@id": "cr:examples", "@type": "@json"},
            "name": {"@container": "@language"},
            "rai": "http://mlcommons.org/croissant/RAI/",
            "sc": "https://schema.org/",
        }.items()
    )
)
"""The JSON-LD context from the examples in the specification of Croissant."""

_FORMATS = {".jsonl": "application/jsonlines", ".csv": "text/csv", ".parquet": "application/x-parquet"}
_TYPES = {"text": "sc:Text", "integer": "sc:Integer", "number": "sc:Float", "boolean": "sc:Boolean", "json": "sc:Text"}
_SPDX = "https://spdx.org/licenses/"
MAX_FILE = 4 << 20
LICENSE_NOT_STATED = "not stated: nobody may assume that they may use it"


def build_croissant(
    name: str,
    description: str,
    licence: str | None,
    files: Mapping[str, Content],
    columns: Mapping[str, str],
    *,
    published: str | None = None,
    rai: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return the Croissant file of a dataset.

    `files` has the files with rows, by path; all have the same format. `columns` has the kind of each column: `text`,
    `integer`, `number`, `boolean`, or `json` for nested or mixed values. `published` is a date such as `2026-11-22`.
    `rai` has fields of Croissant's vocabulary for responsible AI, such as `dataLimitations`, each with a text.

    Raises:
        OSError: a file cannot be read.
    """
    distribution = [_describe_file(path, files[path]) for path in sorted(files)]
    document = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": [CROISSANT, RAI] if rai else CROISSANT,
        "name": name,
        "description": description or name,
        "license": LICENSE_NOT_STATED if licence is None else _license_url(licence),
        "version": "1.0.0",  # Croissant requires a version; here it never changes, because a release never changes
        **({} if published is None else {"datePublished": published}),
        **{f"rai:{name}": text for name, text in rai.items()},
        "distribution": distribution,
        "recordSet": [_describe_rows(columns, distribution[0]["@id"])],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _describe_rows(columns: Mapping[str, str], file_id: str) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": "datapoints",
        "name": "datapoints",
        "description": "One row for each datapoint.",
        **({"key": {"@id": "datapoints/id"}} if "id" in columns else {}),
        "field": [_describe_field(column, kind, file_id) for column, kind in columns.items()],
    }


def find_column_kinds(rows: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Return the kind of each column, in order of appearance.

    Nulls do not affect the kind. A column with integers and floats is `number`, one with other mixtures is `json`, and
    one with only nulls is `text`.
    """
    kinds: dict[str, str | None] = {}
    for row in rows:
        for name, value in row.items():
            kind, earlier = _kind_of(value), kinds.get(name)
            if earlier is None or kind is None:
                kinds[name] = earlier or kind
            elif kind != earlier:
                kinds[name] = "number" if {kind, earlier} == {"integer", "number"} else "json"
    return {name: kind or "text" for name, kind in kinds.items()}


def _kind_of(value: Any) -> str | None:
    if value is None:
        return None
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(type(value), "json")


def _license_url(licence: str) -> str:
    """Return the URL of an SPDX license. Other texts are returned unchanged."""
    looks_like_spdx = all(char.isalnum() or char in ".-+" for char in licence) and any(char in "-." for char in licence)
    return f"{_SPDX}{licence}" if looks_like_spdx or licence in ("MIT", "Zlib", "ISC") else licence


def _describe_file(path: str, content: Content) -> dict[str, Any]:
    with open_content(content) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        size = file.seek(0, io.SEEK_END)
    return {
        "@type": "cr:FileObject",
        "@id": quote(path),
        "name": PurePath(path).name,
        "contentUrl": path,
        "contentSize": f"{size} B",
        "encodingFormat": _FORMATS.get(PurePath(path).suffix, "application/octet-stream"),
        "sha256": sha256,
    }


def _describe_field(column: str, kind: str, file_id: str) -> dict[str, object]:
    return {
        "@type": "cr:Field",
        "@id": f"datapoints/{quote(column, safe='')}",
        "name": column,
        **({"description": "JSON: nested, or of several types."} if kind == "json" else {}),
        "dataType": _TYPES[kind],
        "source": {"fileObject": {"@id": file_id}, "extract": {"column": column}},
    }


def read_rai_fields(path: Path) -> dict[str, str]:
    """Return the fields for responsible AI in a Croissant file; none if there is no such file, or it has none."""
    try:
        data = orjson.loads(read_bounded(path, MAX_FILE))
    except (OSError, orjson.JSONDecodeError):
        return {}
    items = data.items() if isinstance(data, dict) else ()
    return {
        name.removeprefix("rai:"): text for name, text in items if name.startswith("rai:") and isinstance(text, str)
    }
