"""Record which releases were published from each run of a results folder, by the hashes of the releases.

`runner.registry.publishing.publish` writes the records, and `runner.registry.lineage.lineage` reads them to know which
releases are the user's own. A release itself does not show that, because redaction may change a run's identity, and
anyone can copy the other facts. The records are never published.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.reference import Kind
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

SENT = "sent"
"""The folder in a results folder that has a file RUN_ID/SHA256.json for each release."""


def record_release(folder: RunFolder, release: str, sha256: str, address: str) -> None:
    """Record that a release was published from a run of a results folder.

    Raises:
        RunError: the record cannot be written.
    """
    path = _records_folder(folder)
    with os_errors_as(RunError, f"cannot write {path}"):
        make_folders(path)
    entry = {"release": release, "sha256": sha256, "where": address}
    atomic_write(path / f"{sha256}.json", json.dumps(entry, indent=2) + "\n")


def sent_hashes(folder: RunFolder) -> frozenset[str]:
    """Return the hashes of the releases that were published from a run."""
    return frozenset(str(record.get("sha256")) for record in _read_records(folder))


def find_sent_reference(folder: RunFolder, address: str | None, version: str) -> str | None:
    """Return the reference of a run's release in a registry: with this version, or else the last published one."""
    references = [str(record.get("release")) for record in _read_records(folder) if record.get("where") == address]
    references = [reference for reference in references if reference.startswith(f"{Kind.RUN}/")]
    same_version = (reference for reference in references if reference.endswith(f"@{version}"))
    return next(same_version, references[-1] if references else None)


def _read_records(folder: RunFolder) -> Iterator[Mapping[str, Any]]:
    """Yield the records of a run, the oldest first. Damaged records are skipped."""
    with suppress(OSError):
        for path in sorted(_records_folder(folder).glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with suppress(RunError):
                yield read_json(path)


def _records_folder(folder: RunFolder) -> Path:
    return Results.of(folder).path / SENT / folder.run_id
