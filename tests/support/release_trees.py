"""Releases written to a folder without the program: valid by default, and invalid if a test changes them."""

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


def file_entry(path: str, data: bytes, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"path": path, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    return {**fields, "media_type": media_type(path), **changes}


def manifest_bytes(data: Any) -> bytes:
    return orjson.dumps(data, option=orjson.OPT_SORT_KEYS | orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


@dataclass
class ReleaseTree:
    """One release of a registry in a folder. Its hashes match its files, as they would if an attacker wrote it."""

    registry: Path
    reference: Reference = REFERENCE
    files: dict[str, bytes] = field(default_factory=lambda: {"README.md": b"hello\n", "data/a.txt": b"one\ntwo\n"})
    changes: dict[str, Any] = field(default_factory=dict)
    """Changes to the manifest; the value `...` removes a key."""
    manifest: bytes | None = None
    """The bytes of the manifest; None means `manifest_data`."""
    checksum: bytes | None = None
    after: Callable[[Path], object] | None = None
    """Called with the folder of the release after all files are written."""

    @property
    def folder(self) -> Path:
        return self.registry / self.reference.folder

    def manifest_data(self) -> dict[str, Any]:
        """Return the content of the manifest."""
        ref = self.reference
        data: dict[str, Any] = {
            "format": 1, "kind": str(ref.kind), "owner": ref.owner, "name": ref.name, "version": ref.version,
            "description": "", "licence": None, "visibility": "public", "identity": {}, "sources": {}, "links": [],
            "facts": {}, "files": [file_entry(path, self.files[path]) for path in sorted(self.files)],
        }  # fmt: skip
        return {name: value for name, value in {**data, **self.changes}.items() if value is not ...}

    def write(self) -> Path:
        """Write the release and return the folder of its registry."""
        manifest = manifest_bytes(self.manifest_data()) if self.manifest is None else self.manifest
        checksum = f"{hashlib.sha256(manifest).hexdigest()}  release.json\n".encode()
        written = {**self.files, "release.json": manifest}
        written["release.sha256"] = checksum if self.checksum is None else self.checksum
        for path, data in written.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        if self.after is not None:
            self.after(self.folder)
        return self.registry


def snapshot_folder(folder: Path) -> dict[str, str]:
    """Return the mode of everything below a folder by path, with the target of a link, or the size and hash of a file.

    The hash is that of the first MiB.
    """
    entries = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            with path.open("rb") as file:
                content = f"{path.stat().st_size} {hashlib.sha256(file.read(1 << 20)).hexdigest()}"
        else:
            content = ""
        entries[str(path.relative_to(folder))] = f"{mode:o} {content}"
    return entries
