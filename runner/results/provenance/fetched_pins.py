"""Pins of files in the folder of a fetched release, where others get them from the release instead of git.

A file is unchanged if its hash equals the hash in the release's manifest, whose own hash is recorded in the folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.base.errors import NipRunError
from runner.base.hashing import file_hash
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.fetched_files import fetched_folder, read_marker
from runner.documents.releases.manifest import MANIFEST, RELEASE, FileSource, Release, digest

MAX_MANIFEST = 16 << 20


def release_source(path: Path, files: Sequence[Path], *, edits_are_kept: bool) -> FileSource | None:
    """Return the release that contains these files; None if they are not in a fetched folder, or were changed.

    In the result, `commit` is the hash of the release's manifest. With `edits_are_kept`, the files may be edited, since
    the run saves them.
    """
    folder = fetched_folder([files[0].parent])
    fetched_from = None if folder is None else read_marker(folder)
    if folder is None or fetched_from is None:
        return None
    try:
        data = read_bounded(folder / MANIFEST, MAX_MANIFEST)
        if digest(data) != fetched_from["sha256"]:
            return None
        release = Release.from_bytes(data)
        edited = [file for file in files if not _is_as_published(file.resolve(), folder, release)]
    except (NipRunError, OSError, ValueError):
        return None
    if str(release.reference) != fetched_from["release"] or (edited and not edits_are_kept):
        return None
    resolved = path.resolve()
    return FileSource(
        repository=f"{RELEASE}{fetched_from['release']}",
        commit=fetched_from["sha256"],
        path=resolved.relative_to(folder).as_posix() if resolved.is_relative_to(folder) else resolved.name,
        clean=True,
        why=f"{fetched_from['release']} with {comma_join(file.name for file in edited)} edited" if edited else None,
    )


def _is_as_published(file: Path, folder: Path, release: Release) -> bool:
    """Return whether a file is unchanged. Raise ValueError if the release has no such file."""
    entry = release.file(file.relative_to(folder).as_posix())
    if entry is None:
        raise ValueError(file)
    return file_hash(file) == entry.sha256
