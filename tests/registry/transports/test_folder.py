"""A registry in a folder: what is added is whole, for all who share it, and never where a link leads."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Digest, Kind, Reference
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.interface import AddResult
from runner.registry.transports.registry import Registry
from tests.registry.transports.in_folder import bundle, publish, registry
from tests.support.paths import ROOT
from tests.support.processes import environment
from tests.support.release_trees import REFERENCE, ReleaseTree, snapshot_folder


def modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.rglob("*")}


# Whole, once, and for ever


def test_the_same_release_again_is_nothing_new_and_another_is_refused(tmp_path: Path) -> None:
    assert publish(tmp_path, bundle()) == [False]
    before = snapshot_folder(tmp_path)
    assert publish(tmp_path, bundle()) == [True]
    with pytest.raises(TakenError, match="a version never changes"):
        publish(tmp_path, bundle(b"y\n"))
    with pytest.raises(TakenError, match="have the same name and version; nothing was added"):
        publish(tmp_path, bundle(version="2"), bundle(b"y\n", version="2"))
    assert snapshot_folder(tmp_path) == before


class Overtaken(FolderTransport):
    """Between what was listed and what is added somebody publishes one of the releases."""

    def __init__(self, folder: Path, quicker: Bundle) -> None:
        super().__init__(str(folder))
        self._folder, self._quicker = folder, quicker

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        publish(self._folder, self._quicker)
        return super().add(folders, message)


@pytest.mark.parametrize("quicker", ["a", "b", "c"])
def test_of_several_releases_each_is_said_to_be_added_by_whom_it_was(tmp_path: Path, quicker: str) -> None:
    made = [bundle(name=name) for name in "abc"]
    there = Overtaken(tmp_path, bundle(name=quicker))
    published, _ = Registry(there).publish(made, "Publish")
    assert {one.reference.name: one.already_existed for one in published} == {name: name == quicker for name in "abc"}


def test_a_release_that_nobody_could_get_is_not_made() -> None:
    with pytest.raises(ReleaseError, match="larger than 1024 KiB"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", facts={"x": "y" * (1 << 20)}), {})
    with pytest.raises(ReleaseError, match="cannot be written to"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", facts={"x": 1 << 70}), {})
    with pytest.raises(ReleaseError, match="cannot be written to"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", description="\ud800"), {})
    with pytest.raises(ReleaseError, match="must be 1 to 100"):
        Bundle.of(Release(kind=Kind.RUN, owner="../..", name="b", version="1"), {})


@pytest.mark.parametrize("changed", [b"another\n", b"", b"other!\n" * 100_000])
def test_a_file_that_changes_while_it_is_published_stops_it(tmp_path: Path, changed: bytes) -> None:
    file = tmp_path / "big.txt"
    file.write_bytes(b"before!\n")
    made = bundle(more={"big.txt": file})
    file.write_bytes(changed)
    with pytest.raises(ReleaseError, match=r"big\.txt changed during the publish; publish again"):
        publish(tmp_path / "registry", made)
    assert registry(tmp_path / "registry").entries() == []
    file.write_bytes(b"before!\n")
    assert publish(tmp_path / "registry", made) == [False]


def test_a_file_that_is_gone_when_it_is_published_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gone.txt"
    file.write_bytes(b"x")
    made = bundle(more={"gone.txt": file})
    file.unlink()
    with pytest.raises(ReleaseError, match=r"cannot read .*gone.txt: No such file"):
        publish(tmp_path / "registry", made)


def test_a_folder_that_is_no_whole_release_is_left_and_said(tmp_path: Path) -> None:
    ReleaseTree(tmp_path, after=lambda folder: (folder / "release.sha256").unlink()).write()
    before = snapshot_folder(tmp_path)
    with pytest.raises(TakenError, match=r"not a complete release.*copy it again, or remove the folder"):
        publish(tmp_path, bundle())
    assert {path: held for path, held in snapshot_folder(tmp_path).items() if path != ".incoming"} == before


# One release that is damaged keeps nobody from the others


@pytest.mark.parametrize("damage", [b"", b"x" * 5_000, b"a" * 64 + b"  other\n"])
def test_a_damaged_release_is_listed_and_the_others_are_read(tmp_path: Path, damage: bytes) -> None:
    publish(tmp_path, bundle(), bundle(name="other"))
    (tmp_path / REFERENCE.folder / "release.sha256").write_bytes(damage)
    there = registry(tmp_path)
    other, broken = there.entries()
    assert (other.reference.name, broken.reference.name) == ("other", "tiny")
    assert there.read_manifest(other)[0].reference == other.reference
    for ask in (lambda: there.read_manifest(there.find(REFERENCE)), lambda: there.yank(REFERENCE, "why"),
                lambda: publish(tmp_path, bundle())):  # fmt: skip
        with pytest.raises(ReleaseError, match=r"run/acme/tiny@1 in file:.*release.sha256 is"):
            ask()
    assert [line.count("release.sha256 is") for line in there.find_problems(broken)] == [1]
    assert there.find(Digest(other.sha256[:12])) == other


def test_a_copy_of_a_release_under_another_name_does_not_take_its_hash(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    subprocess.run(["cp", "-r", tmp_path / "run/acme/tiny", tmp_path / "run/acme/zzz"], check=True)
    there = registry(tmp_path)
    assert there.find(Digest(bundle().sha256)).reference == REFERENCE
    with pytest.raises(ReleaseError, match=r"its release\.json is that of run/acme/tiny@1"):
        there.read_manifest(there.find(Reference(Kind.RUN, "acme", "zzz", "1")))


def test_the_first_digits_of_two_hashes_are_no_release(tmp_path: Path) -> None:
    made = [bundle(str(number).encode(), name=f"n{number}") for number in range(20)]
    publish(tmp_path, *made)
    first = min(made, key=lambda one: one.sha256)
    with pytest.raises(UsageError, match=r"matches \d+ releases; give more digits"):
        registry(tmp_path).find(Digest(""))
    assert registry(tmp_path).find(Digest(first.sha256[:12])).sha256 == first.sha256


def test_what_is_wrong_with_a_release_is_named_file_by_file_and_in_bounds(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    folder = tmp_path / REFERENCE.folder
    (folder / "README.md").write_bytes(b"y\n")
    (folder / "data/a.txt").unlink()
    (folder / "yanked").mkdir()
    (folder / "yanked" / "more.txt").touch()
    for number in range(50):
        (folder / f"stray{number}\x1b[2J\n").touch()
    found = list(registry(tmp_path).find_problems(registry(tmp_path).find(REFERENCE)))
    assert "README.md is damaged" in found[0]
    assert "data/a.txt is missing" in found[1]
    assert len(found) == 2 + 20 + 1
    assert "\x1b" not in "".join(found)
    assert "\n" not in "".join(found)
    assert "more files" in found[-1]


def test_a_reason_is_one_line_of_text_and_any_that_is_taken_is_read_again(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    for bad in ("", "  ", "a\nb", "\x1b[2J", "\ud800", "x" * 1_001):
        with pytest.raises(UsageError):
            registry(tmp_path).yank(REFERENCE, bad)
    reason = "\U0001f600" * 1_000
    registry(tmp_path).yank(REFERENCE, reason)
    assert registry(tmp_path).find(REFERENCE).yanked == reason
    with pytest.raises(TakenError, match="yanked already"):
        registry(tmp_path).yank(REFERENCE, "again")


# Where it is written


def _link(place: Path, aside: Path) -> None:
    aside.mkdir()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(aside)


@pytest.mark.parametrize("planted", ["run", "run/acme", "run/acme/tiny", ".incoming"])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, planted: str) -> None:
    _link(tmp_path / "registry" / planted, tmp_path / "aside")
    with pytest.raises(ReleaseError, match="nip-run needs a folder here, but finds a link"):
        publish(tmp_path / "registry", bundle())
    assert list((tmp_path / "aside").iterdir()) == []


def test_a_link_in_the_place_of_a_release_is_left(tmp_path: Path) -> None:
    _link(tmp_path / "registry" / REFERENCE.folder, tmp_path / "aside")
    with pytest.raises(TakenError, match="has run/acme/tiny/1 already"):
        publish(tmp_path / "registry", bundle())
    assert list((tmp_path / "aside").iterdir()) == []


@pytest.mark.parametrize("path", ["../evil", "a/../../evil", "/evil", "a//b", ".", "a\0b"])
def test_no_path_leads_out_of_the_registry(tmp_path: Path, path: str) -> None:
    transport = FolderTransport(str(tmp_path / "registry"))
    with pytest.raises(ReleaseError, match="is not a path inside a registry"):
        transport.open(path)
    with pytest.raises(ReleaseError, match="is not a path inside a registry"):
        transport.add({"run/acme/tiny/1": [(path, b"x")]}, "")
    with pytest.raises(ReleaseError, match="is not a path inside a registry"):
        transport.add({f"{path}/1": [("a", b"x")]}, "")
    assert not list(tmp_path.rglob("*evil*"))


@pytest.mark.parametrize(("root", "folders", "files"), [(0o2775, "2775", "644"), (0o700, "700", "600"),
                                                         (0o755, "755", "644")])  # fmt: skip
def test_what_is_added_can_be_used_by_whom_the_registry_allows_whatever_the_umask(
    tmp_path: Path, root: int, folders: str, files: str
) -> None:
    shared = tmp_path / "registry"
    shared.mkdir()
    shared.chmod(root)
    before = os.umask(0o077)
    try:
        publish(shared, bundle())
        registry(shared).yank(REFERENCE, "why")
    finally:
        os.umask(before)
    found = modes(shared)
    assert {mode for path, mode in found.items() if (shared / path).is_dir()} == {folders}
    assert {mode for path, mode in found.items() if (shared / path).is_file()} == {files}
    assert len(found) > 10


def _old(folder: Path, hours: float) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a").touch()
    for path in (folder / "data" / "a", folder / "data", folder):
        os.utime(path, (time.time() - hours * 3600,) * 2)
    return folder


def test_what_killed_publishers_left_is_removed_when_it_is_old_and_not_before(tmp_path: Path) -> None:
    incoming = tmp_path / ".incoming"
    old, gone = _old(incoming / ("a" * 16), 30), _old(incoming / f"{'d' * 16}.old", 30)
    new, busy = _old(incoming / ("b" * 16), 20), _old(incoming / ("c" * 16), 30)
    (busy / "data" / "a").write_text("still being written")
    for path in (busy / "data", busy):
        os.utime(path, (time.time() - 30 * 3600,) * 2)
    others = _old(incoming / "theirs", 30)
    (incoming / ("e" * 16)).symlink_to(tmp_path)
    publish(tmp_path, bundle())
    assert not old.exists()
    assert not gone.exists()
    assert new.exists()
    assert busy.exists()
    assert others.exists()
    assert sorted(path.name for path in incoming.iterdir()) == ["b" * 16, "c" * 16, "e" * 16, "theirs"]


FULL = """
import resource, sys
from pathlib import Path
from runner.base.errors import ReleaseError
from tests.registry.transports.test_folder import bundle, publish
made = bundle(more={"big.txt": b"x" * 300_000})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
try:
    publish(Path(sys.argv[1]), made)
except ReleaseError as error:
    print(error)
"""


@pytest.mark.full
def test_a_disk_that_takes_no_more_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, env=environment(), capture_output=True, text=True,
        check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert f"cannot write {tmp_path}/run/acme/tiny/1: File too large" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [".incoming"]
    assert list((tmp_path / ".incoming").iterdir()) == []
    assert publish(tmp_path, bundle(more={"big.txt": b"x" * 300_000})) == [False]
