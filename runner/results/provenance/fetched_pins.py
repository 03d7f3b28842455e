"""Files in a folder that `get` left, pinned by the release that they came with.

A file is what the release holds where its bytes have the hash that the release's manifest gives it, and the manifest
has the hash that the folder's marker names. The files of a spec may be edited: a run keeps them as they were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.base.errors import NipRunError
from runner.base.hashing import file_hash
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.fetched_files import fetched_folder, got_from
from runner.documents.releases.manifest import MANIFEST, RELEASE, FileSource, Release, digest

MAX_MANIFEST = 16 << 20


def got_source(path: Path, files: Sequence[Path], *, edits_are_kept: bool) -> FileSource | None:
    """The release that all of these files came with; None where they are in no got folder, or not those of its release.

    `commit` is then the hash of the release's manifest. With `edits_are_kept` they may have been edited.
    """
    folder = fetched_folder([files[0].parent])
    said = None if folder is None else got_from(folder)
    if folder is None or said is None:
        return None
    try:
        data = read_bounded(folder / MANIFEST, MAX_MANIFEST)
        if digest(data) != said["sha256"]:
            return None
        release = Release.from_bytes(data)
        edited = [file for file in files if not _is_as_published(file.resolve(), folder, release)]
    except (NipRunError, OSError, ValueError):
        return None
    if str(release.reference) != said["release"] or (edited and not edits_are_kept):
        return None
    at = path.resolve()
    return FileSource(
        repository=f"{RELEASE}{said['release']}",
        commit=said["sha256"],
        path=at.relative_to(folder).as_posix() if at.is_relative_to(folder) else at.name,
        clean=True,
        why=f"{said['release']} with {comma_join(file.name for file in edited)} edited" if edited else None,
    )


def _is_as_published(file: Path, folder: Path, release: Release) -> bool:
    """Raises ValueError: it is no file of the release."""
    entry = release.file(file.relative_to(folder).as_posix())
    if entry is None:
        raise ValueError(file)
    return file_hash(file) == entry.sha256
