"""The rows of a dataset described in Croissant 1.1 (JSON-LD of schema.org), as dataset searches and loaders read it.

`benchmarks/proofs/croissant.py` has it checked, and rows loaded by it, by the format's own package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

import orjson

from runner.documents.releases.bundle import PIECE, Content, opened

FILE = "croissant.json"

_CONTEXT: Mapping[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "arrayShape": "cr:arrayShape",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "containedIn": "cr:containedIn",
    "cr": "http://mlcommons.org/croissant/",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "dct": "http://purl.org/dc/terms/",
    "description": {"@container": "@language"},
    "equivalentProperty": "cr:equivalentProperty",
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isArray": "cr:isArray",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "name": {"@container": "@language"},
    "parentField": "cr:parentField",
    "path": "cr:path",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "sc": "https://schema.org/",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""That of the format's own examples."""

_FORMATS = {".jsonl": "application/jsonlines", ".csv": "text/csv", ".parquet": "application/x-parquet"}
_TYPES = {"text": "sc:Text", "integer": "sc:Integer", "number": "sc:Float", "boolean": "sc:Boolean", "json": "sc:Text"}
_SPDX = "https://spdx.org/licenses/"
UNSAID = "not stated: nobody may assume that they may use it"


def croissant_of(
    name: str,
    description: str,
    licence: str | None,
    files: Mapping[str, Content],
    columns: Mapping[str, str],
    *,
    published: str | None = None,
) -> bytes:
    """The description of a dataset's rows, which stand in files of one form (paths in the release).

    `columns` has for each its kind: `text`, `integer`, `number`, `boolean`, or `json` for what is nested or mixed.
    `published` is a date, as `2026-11-22`.

    Raises:
        OSError: a file cannot be read.
    """
    described = [_file(path, files[path]) for path in sorted(files)]
    said = {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.1",
        "name": name,
        "description": description or name,
        "license": UNSAID if licence is None else _licence(licence),
        "version": "1.0.0",
        **({} if published is None else {"datePublished": published}),
        "distribution": described,
        "recordSet": [
            {
                "@type": "cr:RecordSet",
                "@id": "datapoints",
                "name": "datapoints",
                "description": "One row for each datapoint.",
                **({"key": {"@id": "datapoints/id"}} if "id" in columns else {}),
                "field": [_field(column, kind, described[0]["@id"]) for column, kind in columns.items()],
            }
        ],
    }
    return orjson.dumps(said, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def column_kinds(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """What each column of rows holds, in the order in which they come; a column of nulls alone is text."""
    kinds: dict[str, str | None] = {}
    for row in rows:
        for name, value in row.items():
            kind, before = _kind(value), kinds.get(name)
            if before is None or kind is None:
                kinds[name] = before or kind
            elif kind != before:
                kinds[name] = "number" if {kind, before} == {"integer", "number"} else "json"
    return {name: kind or "text" for name, kind in kinds.items()}


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    return {bool: "boolean", int: "integer", float: "number", str: "text"}.get(type(value), "json")


def _licence(licence: str) -> str:
    """The address of a licence that has an identifier of SPDX; else what was said."""
    known = all(sign.isalnum() or sign in ".-+" for sign in licence) and any(sign in "-." for sign in licence)
    return f"{_SPDX}{licence}" if known or licence in ("MIT", "Zlib", "ISC") else licence


def _file(path: str, content: Content) -> dict[str, Any]:
    hashed, size = hashlib.sha256(), 0
    with opened(content) as file:
        while piece := file.read(PIECE):
            hashed.update(piece)
            size += len(piece)
    return {
        "@type": "cr:FileObject",
        "@id": quote(path),
        "name": PurePath(path).name,
        "contentUrl": path,
        "contentSize": f"{size} B",
        "encodingFormat": _FORMATS.get(PurePath(path).suffix, "application/octet-stream"),
        "sha256": hashed.hexdigest(),
    }


def _field(column: str, kind: str, file: str) -> dict[str, Any]:
    return {
        "@type": "cr:Field",
        "@id": f"datapoints/{quote(column, safe='')}",
        "name": column,
        **({"description": "JSON: nested, or of several types."} if kind == "json" else {}),
        "dataType": _TYPES[kind],
        "source": {"fileObject": {"@id": file}, "extract": {"column": column}},
    }
