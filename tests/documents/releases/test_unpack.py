"""A release is unpacked completely into a new or empty folder, or not at all."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError, UsageError
from runner.registry.transports.locations import connect
from tests.support.release_trees import REFERENCE, ReleaseTree, snapshot_folder


def unpack(folder: Path, target: Path) -> None:
    with connect(str(ReleaseTree(folder / "registry").write())) as registry:
        registry.unpack(registry.find(REFERENCE), target, extra_files={".nip-run-fetched": b"{}\n"})


def create_full_folder(target: Path) -> None:
    target.mkdir()
    (target / "mine.txt").write_text("mine")


def create_folder_with_hidden_file(target: Path) -> None:
    target.mkdir()
    (target / ".mine").touch()


def create_link_to_folder(target: Path) -> None:
    (target.parent / "aside").mkdir()
    target.symlink_to("aside")


@pytest.mark.parametrize(
    "create_target",
    [
        create_full_folder,
        create_folder_with_hidden_file,
        create_link_to_folder,
        Path.touch,
        os.mkfifo,
        lambda target: target.symlink_to("nowhere"),
    ],
)
def test_existing_target_is_refused_and_unchanged(tmp_path: Path, create_target: Callable[[Path], object]) -> None:
    (tmp_path / "home").mkdir()
    create_target(tmp_path / "home" / "got")
    before = snapshot_folder(tmp_path / "home")
    with pytest.raises(UsageError, match="already exists; name a new or an empty folder"):
        unpack(tmp_path, tmp_path / "home" / "got")
    assert snapshot_folder(tmp_path / "home") == before


def test_target_below_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReleaseError, match=r"cannot write .*file/got: "):
        unpack(tmp_path, tmp_path / "file" / "got")


@pytest.mark.parametrize("empty", [True, False])
def test_release_is_unpacked_completely_into_a_new_or_empty_folder(tmp_path: Path, empty: bool) -> None:
    target = tmp_path / "a" / "b"
    if empty:
        target.mkdir(parents=True)
    unpack(tmp_path, target)
    modes = {path: entry.split()[0] for path, entry in snapshot_folder(target).items()}
    assert modes.keys() == {".nip-run-fetched", "README.md", "data", "data/a.txt", "release.json", "release.sha256"}
    assert {int(mode, 8) & 0o170111 for path, mode in modes.items() if path != "data"} == {0o100000}
    assert [path.name for path in target.parent.iterdir()] == ["b"]
    check = ["sha256sum", "-c", "--strict", "release.sha256"]
    assert subprocess.run(check, cwd=target, check=False, capture_output=True).returncode == 0
