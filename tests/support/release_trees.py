"""Releases in a folder as anybody may write them there: whole by default, and wrong where a test makes them so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from runner.documents.releases.bundle import media_type
from runner.documents.releases.reference import Kind, Reference

REFERENCE = Reference(Kind.RUN, "acme", "tiny", "1")


def entry(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    said = {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "media_type": media_type(path)}
    return {**said, **changes}


def manifest_bytes(said: Any) -> bytes:
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


@dataclass
class Tree:
    """One release of a registry in a folder. What an attacker writes, all hashes included, is consistent."""

    registry: Path
    reference: Reference = REFERENCE
    files: dict[str, bytes] = field(default_factory=lambda: {"README.md": b"hello\n", "data/a.txt": b"one\ntwo\n"})
    changes: dict[str, Any] = field(default_factory=dict)
    """Of the manifest; a value `None` for `...` takes a key away."""
    manifest: bytes | None = None
    """Its bytes; None: what `said` gives."""
    checksum: bytes | None = None
    after: Callable[[Path], object] | None = None
    """Done to the release's folder when all is written."""

    @property
    def folder(self) -> Path:
        return self.registry / self.reference.folder

    def said(self) -> dict[str, Any]:
        """What the manifest says."""
        one = self.reference
        said: dict[str, Any] = {
            "format": 1, "kind": str(one.kind), "owner": one.owner, "name": one.name, "version": one.version,
            "description": "", "licence": None, "visibility": "public", "identity": {}, "sources": {}, "links": [],
            "facts": {}, "files": [entry(path, self.files[path]) for path in sorted(self.files)],
        }  # fmt: skip
        return {name: value for name, value in {**said, **self.changes}.items() if value is not ...}

    def write(self) -> Path:
        """The registry, with the release in it."""
        manifest = manifest_bytes(self.said()) if self.manifest is None else self.manifest
        checksum = f"{hashlib.sha256(manifest).hexdigest()}  release.json\n".encode()
        written = {**self.files, "release.json": manifest}
        written["release.sha256"] = checksum if self.checksum is None else self.checksum
        for path, data in written.items():
            place = self.folder / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        if self.after is not None:
            self.after(self.folder)
        return self.registry


def snapshot(folder: Path) -> dict[str, str]:
    """All that stands below a folder, by path: what it is, its mode, and its first megabyte; no link is followed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if path.is_symlink():
            held = str(path.readlink())
        elif path.is_file():
            with path.open("rb") as file:
                held = f"{path.stat().st_size} {hashlib.sha256(file.read(1 << 20)).hexdigest()}"
        else:
            held = ""
        found[str(path.relative_to(folder))] = f"{mode:o} {held}"
    return found
