"""Write the files of a draft to a folder, because redaction and the checks of `publish` read runs from folders."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.base.errors import ReleaseError, os_errors_as
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.log_lines import JOURNAL
from runner.base.storage.safe_files import create, hard_link, link_to, make_folder, make_folders
from runner.documents.fetched_files import MARKER, marker_bytes
from runner.documents.releases.bundle import Content, open_content
from runner.documents.releases.manifest import Release
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.results.folder import RunFolder
from runner.spec.origin import DATA

ROLLOUTS = f"{DATA}/{ROLLOUTS_FILE}"
LOGS = (f"{DATA}/{JOURNAL}", f"{DATA}/{STAGE_LOG}")
_MIN_LINKED_BYTES = 1 << 20


def write_draft_folder(contents: Mapping[str, Content], target: Path) -> Path:
    """Write contents to a folder, and return the folder. Files on disk are not copied, but linked symbolically.

    Raises:
        ReleaseError: the folder cannot be written.
    """
    return _write(contents, target, lambda _: True)


def write_fetched_folder(release: Release, contents: Mapping[str, Content], target: Path) -> Path:
    """Write a folder like the folder that `nip-run get` writes, and return it. Logs and rollouts are symbolic links.

    Raises:
        ReleaseError: the folder cannot be written.
    """
    contents_with_marker = {MARKER: marker_bytes(str(release.reference), "0" * 64, "nowhere yet"), **contents}
    return _write(contents_with_marker, target, lambda path: path == ROLLOUTS or path in LOGS)


def _write(contents: Mapping[str, Content], target: Path, is_symlink: Callable[[str], bool]) -> Path:
    with os_errors_as(ReleaseError, f"cannot write {target}"):
        make_folders(target)
        for path, content in contents.items():
            folder = target
            for name in path.split("/")[:-1]:
                folder /= name
                make_folder(folder)
            if isinstance(content, Path) and is_symlink(path):
                link_to(target / path, content.absolute())
            elif not (isinstance(content, Path) and _hard_link(content, target / path)):
                with open_content(content) as source, create(target / path) as file:
                    shutil.copyfileobj(source, file)
    return target


def _hard_link(content: Path, target: Path) -> bool:
    """Hard-link a file if it is large and the file system allows it; return whether it was linked."""
    status = content.lstat()
    return stat.S_ISREG(status.st_mode) and status.st_size >= _MIN_LINKED_BYTES and hard_link(content, target)


def run_folder(target: Path) -> RunFolder:
    """Return the run in a folder that `write_draft_folder` wrote. Raises as `RunFolder.from_release`."""
    return RunFolder.from_release(target / DATA)
