"""Pages whose data say a stranger's text in every place, whatever the records would let through."""

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

OURS = frozenset(("slug", "id", "run_id", "pieces", "lists", "outcome", "format", "role", "kind"))
"""Names of data that a page goes by, and words that are ours."""
NAMED = frozenset(("columns", "rewards", "confidence"))
"""Objects of a game whose names are a stranger's."""


def full_of(text: str, run: Path) -> bytes:
    """The report of a run in whose data every text that is not ours ends in this one."""
    data: dict[str, bytes] = {}
    made = runs_site([RunFolder(run)], data.__setitem__)

    def ends(said: str) -> str:
        return f"{said[:40]} {text}"

    def piece(name: str, found: bytes) -> bytes:
        inside = json.loads(gzip.decompress(found))
        said = in_all(inside, ends, names=NAMED if "games" in name else frozenset())
        return gzip.compress(json.dumps(said).encode(), mtime=0) if has_half(text) else compress_json(said)

    pieces = {name: piece(name, found) for name, found in data.items()}
    about = json.loads(json.dumps(made.about))
    if not has_half(text):
        about = in_all(about, ends, names=frozenset())
    return b"".join(as_one_file(replace(made, about=about), pieces))


def in_all(data: Any, ends: Callable[[str], str], *, names: frozenset[str], name: str = "") -> Any:
    """Data with every text changed; equal texts stay equal, so that what refers to another still does."""
    if isinstance(data, str):
        return ends(data)
    if isinstance(data, list):
        return [in_all(one, ends, names=names, name=name) for one in data]
    if not isinstance(data, Mapping):
        return data
    return {
        ends(key) if name in names else key: value if key in OURS else in_all(value, ends, names=names, name=key)
        for key, value in data.items()
    }


def has_half(text: str) -> bool:
    """Whether it has half of a pair, which strict JSON cannot say but by an escape."""
    return text.encode("utf-8", "ignore").decode() != text
