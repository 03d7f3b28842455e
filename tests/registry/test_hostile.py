"""Hostile releases of the table are refused with a message, and leave no files."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.base.errors import NewerFormatError, ReleaseError
from runner.documents.releases.manifest import checksum, digest, read_checksum
from runner.registry.transports.locations import connect
from tests.registry.hostile import ROWS, SECRET, HostileRelease
from tests.support.release_trees import REFERENCE, ReleaseTree, snapshot_folder

MAX_MESSAGE_LENGTH = 700
"""Maximum number of characters of a message."""


def unpack(registry: Path, target: Path) -> None:
    """Unpack the release as `get` does."""
    with connect(f"file:{registry}") as opened:
        opened.unpack(opened.find(REFERENCE), target)


def write_canaries(folder: Path) -> Path:
    """Write files around the target folder that a hostile release must not change; return the home."""
    home = folder / "home"
    for path in ("etc/passwd", ".ssh/id", ".env", "work/README.md", "work/evil", "evil", SECRET):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(path)
    return home


def test_unchanged_release_is_unpacked(tmp_path: Path) -> None:
    unpack(ReleaseTree(tmp_path / "registry").write(), tmp_path / "got")
    assert (tmp_path / "got" / "data" / "a.txt").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize("change", [b"{0}{0}", b"{0}x", b" {0}", b"{0}\n"])
def test_checksum_with_more_than_one_line_is_damaged(change: bytes) -> None:
    line = checksum(b"manifest")
    assert read_checksum(line) == digest(b"manifest")
    for data in (change.replace(b"{0}", line), line.rstrip(b"\n"), line.upper()):
        with pytest.raises(ReleaseError, match=r"release\.sha256 is damaged"):
            read_checksum(data)


def find_problem(row: HostileRelease, folder: Path, home: Path) -> str | None:
    """Return what is wrong with how a row is refused, or None."""
    tree = ReleaseTree(folder / "registry")
    row.change(tree)
    tree.write()
    (folder / SECRET).write_text("hello\n")
    before = snapshot_folder(folder)
    try:
        unpack(tree.registry, home / "work" / "got")
    except (ReleaseError, NewerFormatError) as error:
        message = str(error).replace(str(folder), "")
        if row.message not in message or len(message) > MAX_MESSAGE_LENGTH:
            return message
        return None if snapshot_folder(folder) == before else "the registry has changed"
    return "it was taken"


@pytest.mark.sample(4)
@pytest.mark.parametrize("group", ["path", "manifest", "checksum", "tree", "yank"])
def test_hostile_release_is_refused_with_a_message_and_leaves_no_files(tmp_path: Path, group: str) -> None:
    rows = [row for row in ROWS if row.name.startswith(f"{group}")]
    home = write_canaries(tmp_path)
    before = snapshot_folder(home)
    problems = {}
    for number, row in enumerate(rows):
        problem = find_problem(row, tmp_path / str(number), home)
        if problem is not None or snapshot_folder(home) != before:
            problems[row.name] = problem
    assert problems == {}
    assert len(rows) > 10


def test_rows_have_unique_names() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 200
