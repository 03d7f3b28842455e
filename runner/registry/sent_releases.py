"""A record, in a results folder, of the releases published from each run, by the hashes of their manifests.

It tells which releases are the user's own. Nothing in a release can tell that: a redacted run has a different identity
than the original, and anyone can copy the rest. The record itself is never published.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.reference import Kind
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

SENT = "sent"
"""Folder in a results folder with a file RUN_ID/SHA256.json for each release."""


def record_release(folder: RunFolder, release: str, sha256: str, where: str) -> None:
    """Record that a release was published from a run of a results folder.

    Raises:
        RunError: it cannot be written.
    """
    path = _records_folder(folder)
    try:
        make_folders(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    entry = {"release": release, "sha256": sha256, "where": where}
    atomic_write(path / f"{sha256}.json", json.dumps(entry, indent=2) + "\n")


def sent_hashes(folder: RunFolder) -> frozenset[str]:
    """Return the manifest hashes of the releases that were published from a run of this results folder."""
    hashes = set()
    with suppress(OSError):
        for path in _records_folder(folder).glob("*.json"):
            with suppress(RunError):
                hashes.add(str(read_json(path).get("sha256")))
    return frozenset(hashes)


def find_sent_reference(folder: RunFolder, where: str | None, version: str) -> str | None:
    """Return the reference of a run's release in a registry: this version, or else the last one that was sent."""
    references = []
    with suppress(OSError):
        for path in sorted(_records_folder(folder).glob("*.json"), key=lambda path: path.stat().st_mtime_ns):
            with suppress(RunError):
                entry = read_json(path)
                if entry.get("where") == where and str(entry.get("release")).startswith(f"{Kind.RUN}/"):
                    references.append(str(entry["release"]))
    same_version = (reference for reference in references if reference.endswith(f"@{version}"))
    return next(same_version, references[-1] if references else None)


def _records_folder(folder: RunFolder) -> Path:
    return Results.of(folder).path / SENT / folder.run_id
