"""A site as a folder for a web server: `index.html`, its data, and a list of those, so that it can be made again.

Only what an earlier report wrote is replaced or removed.
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

_LISTED = "pieces.json"
_PIECE = re.compile(r"[A-Za-z0-9-]{1,100}\.json\.gz")


class SiteFolder:
    """A folder with `index.html` and its data, which `site_folder` makes or makes again."""

    def __init__(self, directory: Path, before: Collection[str]) -> None:
        self._directory, self._before = directory, before
        self._names: dict[str, None] = {}

    def keep(self, name: str, piece: bytes) -> None:
        """Keep a piece of data for the site.

        Raises:
            RunError: it cannot be written.
        """
        self._names[f"{name}.json.gz"] = None
        atomic_write(self._directory / "data" / f"{name}.json.gz", piece)

    def put(self, site: Site) -> bytes:
        """Write the page of a site whose data were kept; what an earlier page had and this one has not is removed.

        Raises:
            RunError: it cannot be written.
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
    """A folder for a site. Only what an earlier site wrote there is replaced or removed: `data/pieces.json` lists it.

    Raises:
        UsageError: it has an `index.html` that no report wrote.
        RunError, OSError: it cannot be written.
    """
    before = _listed(directory)
    if before is None and (directory / "index.html").exists():
        raise UsageError(f"{directory / 'index.html'} is no page of nip-run report; name another folder")
    make_folders(directory / "data")
    if before is None:
        _write_list(directory, ())
    yield SiteFolder(directory, before or ())


def _listed(directory: Path) -> list[str] | None:
    """The pieces of data of the site in a folder; None where there is none."""
    try:
        told = read_json(directory / "data" / _LISTED)["pieces"]
        return [name for name in told if isinstance(name, str) and _PIECE.fullmatch(name)]
    except (RunError, KeyError, TypeError):
        return None


def _write_list(directory: Path, names: Iterable[str]) -> None:
    atomic_write(directory / "data" / _LISTED, json.dumps({"by": "nip-run report", "pieces": sorted(names)}))
