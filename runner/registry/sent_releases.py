"""What a results folder knows of its own publishing: the releases made of each run, by the hashes of their manifests.

It stands beside the runs and in no release. A published run may be cleaned, and then has another identity than here;
whatever else it says of itself, anybody can copy.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from runner.base.errors import RunError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

SENT = "sent"
"""Where in a results folder: RUN_ID/SHA256.json below it."""


def record(folder: RunFolder, release: str, sha256: str, where: str) -> None:
    """Write down that a release was made of a run of a results folder.

    Raises:
        RunError: it cannot be written.
    """
    path = _place(folder)
    try:
        make_folders(path)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    said = {"release": release, "sha256": sha256, "where": where}
    atomic_write(path / f"{sha256}.json", json.dumps(said, indent=2) + "\n")


def sent_as(folder: RunFolder) -> frozenset[str]:
    """The hashes of the manifests of the releases that were made of a run here."""
    found = set()
    with suppress(OSError):
        for path in _place(folder).glob("*.json"):
            with suppress(RunError):
                found.add(str(read_json(path).get("sha256")))
    return frozenset(found)


def _place(folder: RunFolder) -> Path:
    return Results.of(folder).path / SENT / folder.run_id
