"""A release is unpacked into a folder that is not there, or is empty: all of it, or nothing, and nothing else."""

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


def _full(target: Path) -> None:
    target.mkdir()
    (target / "mine.txt").write_text("mine")


def _hidden(target: Path) -> None:
    target.mkdir()
    (target / ".mine").touch()


def _linked(target: Path) -> None:
    (target.parent / "aside").mkdir()
    target.symlink_to("aside")


@pytest.mark.parametrize(
    "there", [_full, _hidden, _linked, Path.touch, os.mkfifo, lambda target: target.symlink_to("nowhere")]
)
def test_what_stands_in_the_place_is_left_as_it_is(tmp_path: Path, there: Callable[[Path], object]) -> None:
    (tmp_path / "home").mkdir()
    there(tmp_path / "home" / "got")
    before = snapshot_folder(tmp_path / "home")
    with pytest.raises(UsageError, match="already exists; name a new or an empty folder"):
        unpack(tmp_path, tmp_path / "home" / "got")
    assert snapshot_folder(tmp_path / "home") == before


def test_a_file_above_the_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReleaseError, match=r"cannot write .*file/got: "):
        unpack(tmp_path, tmp_path / "file" / "got")


@pytest.mark.parametrize("empty", [True, False])
def test_all_of_it_comes_into_an_empty_folder_or_a_new_one_as_plain_files(tmp_path: Path, empty: bool) -> None:
    target = tmp_path / "a" / "b"
    if empty:
        target.mkdir(parents=True)
    unpack(tmp_path, target)
    found = {path: held.split()[0] for path, held in snapshot_folder(target).items()}
    assert found.keys() == {".nip-run-fetched", "README.md", "data", "data/a.txt", "release.json", "release.sha256"}
    assert {int(mode, 8) & 0o170111 for path, mode in found.items() if path != "data"} == {0o100000}
    assert [path.name for path in target.parent.iterdir()] == ["b"]
    check = ["sha256sum", "-c", "--strict", "release.sha256"]
    assert subprocess.run(check, cwd=target, check=False, capture_output=True).returncode == 0
