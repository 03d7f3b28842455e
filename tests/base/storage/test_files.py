"""Files are written to new or own files only, never through links or other planted files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import JournalError, RunError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.journal import Journal
from runner.base.storage.locks import is_locked, locked
from runner.base.storage.log_lines import read_journal
from runner.base.storage.safe_files import (
    append_to,
    create,
    create_only,
    make_folder,
    open_to_read,
    read_bounded,
    remove_folder,
)

FOREIGN_CONTENT = b"somebody else's"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file that must not change."""
    (tmp_path / "ours").mkdir()
    path = tmp_path / "target"
    path.write_bytes(FOREIGN_CONTENT)
    return path


def plant_link(kind: str, target: Path, path: Path) -> None:
    """Create a link to the target, or a FIFO, at a path."""
    if kind == "link":
        path.symlink_to(target)
    elif kind == "dangling link":
        path.symlink_to(target.with_name("made"))
    elif kind == "hard link":
        path.hardlink_to(target)
    elif kind == "FIFO":
        os.mkfifo(path)


def take_lock(path: Path) -> None:
    with locked(path, "it"):
        pass


WRITERS: dict[str, Callable[[Path], object]] = {
    "journal": Journal,
    "lock": take_lock,
    "log": append_to,
}
"""Functions that open a file that may exist."""


@pytest.mark.parametrize("kind", ["link", "dangling link", "FIFO"])
@pytest.mark.parametrize("name", WRITERS)
def test_append_refuses_links_and_fifos(tmp_path: Path, target: Path, name: str, kind: str) -> None:
    path = tmp_path / "ours" / "file"
    plant_link(kind, target, path)
    message = (
        "not a regular file" if kind == "FIFO" else "this is a link, which nip-run does not follow here; remove it"
    )
    with pytest.raises((OSError, RunError), match=message):
        WRITERS[name](path)
    assert not is_locked(path)
    assert target.read_bytes() == FOREIGN_CONTENT
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["ours", "target"]


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "FIFO"])
def test_atomic_write_does_not_follow_a_planted_temporary_file(tmp_path: Path, target: Path, kind: str) -> None:
    path = tmp_path / "ours" / "manifest.json"
    plant_link(kind, target, path.with_name("manifest.json.new"))
    atomic_write(path, b"ours")
    assert path.read_bytes() == b"ours"
    assert not path.is_symlink()
    assert target.read_bytes() == FOREIGN_CONTENT
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["manifest.json", "ours", "target"]


def test_atomic_write_replaces_a_link(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "ours" / "manifest.json"
    path.symlink_to(target)
    atomic_write(path, b"ours")
    assert (path.read_bytes(), path.is_symlink(), target.read_bytes()) == (b"ours", False, FOREIGN_CONTENT)


def test_atomic_write_fails_if_a_folder_has_the_name(tmp_path: Path) -> None:
    (tmp_path / "file.new" / "inside").mkdir(parents=True)
    with pytest.raises(RunError, match=r"cannot write .*file: Is a directory"):
        atomic_write(tmp_path / "file", b"ours")
    assert (tmp_path / "file.new" / "inside").is_dir()


def test_atomic_write_replaces_the_temporary_file_of_a_killed_process(tmp_path: Path) -> None:
    (tmp_path / "file.new").write_bytes(b"half of it")
    atomic_write(tmp_path / "file", b"ours")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"ours")]


def test_new_file_is_not_written_through_a_hard_link(tmp_path: Path, target: Path) -> None:
    path = tmp_path / "ours" / "file"
    path.hardlink_to(target)
    with create(path) as file:
        file.write(b"ours")
    assert (path.read_bytes(), target.read_bytes()) == (b"ours", FOREIGN_CONTENT)


@pytest.mark.parametrize("kind", ["link", "dangling link", "hard link", "FIFO"])
def test_create_only_refuses_existing_files(tmp_path: Path, target: Path, kind: str) -> None:
    path = tmp_path / "ours" / "file"
    plant_link(kind, target, path)
    with pytest.raises(FileExistsError):
        create_only(path, os.O_WRONLY)
    assert target.read_bytes() == FOREIGN_CONTENT


def test_link_to_a_folder_is_not_used_as_a_folder(tmp_path: Path) -> None:
    outside, path = tmp_path / "there", tmp_path / "parts"
    (outside / "precious").mkdir(parents=True)
    path.symlink_to(outside)
    with pytest.raises(OSError, match="nip-run needs a folder here, but finds a link; remove that"):
        make_folder(path)
    with pytest.raises(OSError, match="nip-run needs a folder here"):
        remove_folder(path)
    assert (outside / "precious").is_dir()


def test_folder_is_removed_without_following_links_in_it(tmp_path: Path) -> None:
    outside, path = tmp_path / "there", tmp_path / "parts"
    (outside / "precious").mkdir(parents=True)
    make_folder(path)
    make_folder(path)
    (path / "planted").symlink_to(outside)
    remove_folder(path)
    remove_folder(path)
    assert (path.exists(), (outside / "precious").is_dir()) == (False, True)


def test_a_lock_that_cannot_be_created_names_its_path_and_another_results_folder(tmp_path: Path) -> None:
    (tmp_path / "results").write_text("a file, so that no lock can be created in it")
    with pytest.raises(RunError, match=r"results/\.lock: .*\. Check the permissions of its folder, .*--results DIR"):
        take_lock(tmp_path / "results" / ".lock")


# Reading


@pytest.mark.parametrize("reader", [lambda path: read_bounded(path, 10), open_to_read, read_json])
def test_reading_a_fifo_or_device_fails_at_once(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", Path("/dev/zero")):
        with pytest.raises((OSError, RunError), match="not a regular file"):
            reader(path)


def test_reading_a_journal_that_is_a_fifo_fails_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "journal.jsonl")
    with pytest.raises(JournalError, match="not a regular file"):
        list(read_journal(tmp_path / "journal.jsonl"))


def test_read_bounded_follows_links_and_refuses_larger_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 2048)
    (tmp_path / "link").symlink_to(path)
    assert read_bounded(tmp_path / "link", 2048) == b"x" * 2048
    with pytest.raises(OSError, match="larger than 1 KiB"):
        read_bounded(path, 1024)
