"""Writes a site as a folder for a web server: `index.html`, the data files, and a list of the data files.

The list lets a later report replace the site. A report replaces or removes only files that an earlier report wrote.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from runner.base.errors import RunError, UsageError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.pages.site import Site, as_index

_LIST_FILE = "pieces.json"
_PIECE = re.compile(r"[A-Za-z0-9-]{1,100}\.json\.gz")


class SiteFolder:
    """A folder with `index.html` and its data. `site_folder` opens it."""

    def __init__(self, directory: Path, before: Collection[str]) -> None:
        self._directory, self._before = directory, before
        self._names: dict[str, None] = {}

    def store(self, name: str, piece: bytes) -> None:
        """Store a piece of data for the site.

        Raises:
            RunError: the file cannot be written.
        """
        self._names[f"{name}.json.gz"] = None
        atomic_write(self._directory / "data" / f"{name}.json.gz", piece)

    def put(self, site: Site) -> bytes:
        """Write the page of a site after its data is stored, remove data files of an earlier page, and return the page.

        Raises:
            RunError: the file cannot be written.
        """
        page = as_index(site)
        atomic_write(self._directory / "index.html", page)
        for name in self._before:
            if name not in self._names:
                with suppress(OSError):
                    (self._directory / "data" / name).unlink()
        _write_list(self._directory, self._names)
        return page


@contextmanager
def site_folder(directory: Path) -> Iterator[SiteFolder]:
    """Open a folder for a site. Only files listed in `data/pieces.json` by an earlier report are replaced or removed.

    Raises:
        UsageError: the folder has an `index.html` that no report wrote.
        RunError, OSError: a file cannot be written.
    """
    before = _listed_pieces(directory)
    if before is None and (directory / "index.html").exists():
        raise UsageError(f"{directory / 'index.html'} was not written by nip-run report; choose another folder")
    make_folders(directory / "data")
    if before is None:
        _write_list(directory, ())
    yield SiteFolder(directory, before or ())


def _listed_pieces(directory: Path) -> list[str] | None:
    """Return the names of the data files of the site in a folder, or None if the folder has no site."""
    try:
        pieces = read_json(directory / "data" / _LIST_FILE)["pieces"]
        return [name for name in pieces if isinstance(name, str) and _PIECE.fullmatch(name)]
    except (RunError, KeyError, TypeError):
        return None


def _write_list(directory: Path, names: Iterable[str]) -> None:
    atomic_write(directory / "data" / _LIST_FILE, json.dumps({"by": "nip-run report", "pieces": sorted(names)}))
