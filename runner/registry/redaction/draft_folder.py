"""The files of a release that is being made, laid out as a folder: what whoever gets it will read."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.base.errors import ReleaseError
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.journal import JOURNAL
from runner.base.storage.safe_files import create, link_to, make_folder, make_folders, same_file
from runner.documents.fetched_files import MARKER, marker
from runner.documents.releases.bundle import Content, opened
from runner.documents.releases.manifest import Release
from runner.registry.records import ROLLOUTS_FILE
from runner.results.folder import RunFolder
from runner.spec.origin import DATA

ROLLOUTS = f"{DATA}/{ROLLOUTS_FILE}"
_LARGE = 1 << 20
LOGS = (f"{DATA}/{JOURNAL}", f"{DATA}/{STAGE_LOG}")


def lay_out(contents: Mapping[str, Content], target: Path) -> Path:
    """Write small contents, and link to files; returns the folder.

    Raises:
        ReleaseError: it cannot be written.
    """
    return _written(contents, target, lambda _: True)


def as_got(release: Release, contents: Mapping[str, Content], target: Path) -> Path:
    """The folder that `get` would leave, marker and all; only what no spec names, and may be large, is a link.

    Raises:
        ReleaseError: it cannot be written.
    """
    marked = {MARKER: marker(str(release.reference), "0" * 64, "nowhere yet"), **contents}
    return _written(marked, target, lambda path: path == ROLLOUTS or path in LOGS)


def _written(contents: Mapping[str, Content], target: Path, is_linked: Callable[[str], bool]) -> Path:
    try:
        make_folders(target)
        for path, content in contents.items():
            folder = target
            for name in path.split("/")[:-1]:
                folder /= name
                make_folder(folder)
            if isinstance(content, Path) and is_linked(path):
                link_to(target / path, content.absolute())
                continue
            if isinstance(content, Path) and _is_same_file(content, target / path):
                continue
            with opened(content) as source, create(target / path) as file:
                shutil.copyfileobj(source, file)
    except OSError as error:
        raise ReleaseError(f"cannot write {target}: {error.strerror}") from error
    return target


def _is_same_file(content: Path, target: Path) -> bool:
    """Whether a large file now has a second name there, so that it need not be written once more; it is only read."""
    said = content.lstat()
    if not stat.S_ISREG(said.st_mode) or said.st_size < _LARGE:
        return False
    return same_file(content, target)


def run_folder(target: Path) -> RunFolder:
    """The run folder in what was laid out. Raises as `RunFolder.got`."""
    return RunFolder.got(target / DATA)
