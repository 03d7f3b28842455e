"""Pages whose data contain a hostile text in every field, including fields that no record could fill with it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.pages.packing import compress_json
from runner.pages.report.run_site import runs_site
from runner.pages.site import as_one_file
from runner.results.folder import RunFolder

FIXED_KEYS = frozenset(("slug", "id", "run_id", "pieces", "lists", "outcome", "format", "role", "kind"))
"""Keys whose values the script of a page depends on. They are never user input."""
KEYED_BY_NAME = frozenset(("columns", "rewards", "confidence", "costs"))
"""Objects in the data of a game whose keys are user input."""


def build_hostile_report(text: str, run: Path) -> bytes:
    """Return the report of a run after appending `text` to every text in its data that could be user input."""
    data: dict[str, bytes] = {}
    site = runs_site([RunFolder(run)], data.__setitem__)

    def append_text(original: str) -> str:
        return f"{original[:40]} {text}"

    def change_piece(name: str, compressed: bytes) -> bytes:
        content = json.loads(gzip.decompress(compressed))
        changed = change_texts(content, append_text, names=KEYED_BY_NAME if "games" in name else frozenset())
        return (
            gzip.compress(json.dumps(changed).encode(), mtime=0) if has_lone_surrogate(text) else compress_json(changed)
        )

    pieces = {name: change_piece(name, compressed) for name, compressed in data.items()}
    metadata = json.loads(json.dumps(site.about))
    if not has_lone_surrogate(text):
        metadata = change_texts(metadata, append_text, names=frozenset())
    return b"".join(as_one_file(replace(site, about=metadata), pieces))


def change_texts(data: Any, ends: Callable[[str], str], *, names: frozenset[str], name: str = "") -> Any:
    """Apply `ends` to every text in the data. Equal texts stay equal, so references between them stay valid."""
    if isinstance(data, str):
        return ends(data)
    if isinstance(data, list):
        return [change_texts(item, ends, names=names, name=name) for item in data]
    if not isinstance(data, Mapping):
        return data
    return {
        ends(key) if name in names else key: value
        if key in FIXED_KEYS
        else change_texts(value, ends, names=names, name=key)
        for key, value in data.items()
    }


def has_lone_surrogate(text: str) -> bool:
    """Return whether a text has a lone surrogate, which strict JSON can only represent as an escape."""
    return text.encode("utf-8", "ignore").decode() != text
