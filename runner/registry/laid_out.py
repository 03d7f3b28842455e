"""The files of a release that is being made, laid out as a folder: what whoever gets it will read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from runner.errors import ReleaseError
from runner.releases.bundle import Content
from runner.results.folder import RunFolder
from runner.spec.origin import DATA
from runner.storage.files import create, link_to, make_folder, make_folders


def lay_out(contents: Mapping[str, Content], target: Path) -> Path:
    """Write small contents, and link to files; returns the folder.

    Raises:
        ReleaseError: it cannot be written.
    """
    try:
        make_folders(target)
        for path, content in contents.items():
            folder = target
            for name in path.split("/")[:-1]:
                folder /= name
                make_folder(folder)
            if isinstance(content, bytes):
                with create(target / path) as file:
                    file.write(content)
            else:
                link_to(target / path, content.absolute())
    except OSError as error:
        raise ReleaseError(f"cannot write {target}: {error.strerror}") from error
    return target


def run_folder(target: Path) -> RunFolder:
    """The run folder in what was laid out. Raises as `RunFolder.got`."""
    return RunFolder.got(target / DATA)
