"""A registry in a folder: releases are added completely, with the folder's permissions, and never through a link."""

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


def read_modes(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): f"{stat.S_IMODE(path.stat().st_mode):o}" for path in folder.rglob("*")}


# Releases are complete and never change


def test_repeated_publish_adds_nothing_and_other_content_is_refused(tmp_path: Path) -> None:
    assert publish(tmp_path, bundle()) == [False]
    before = snapshot_folder(tmp_path)
    assert publish(tmp_path, bundle()) == [True]
    with pytest.raises(TakenError, match="a version never changes"):
        publish(tmp_path, bundle(b"y\n"))
    with pytest.raises(TakenError, match="have the same name and version; nothing was added"):
        publish(tmp_path, bundle(version="2"), bundle(b"y\n", version="2"))
    assert snapshot_folder(tmp_path) == before


class OvertakenFolder(FolderTransport):
    """A transport where another publisher adds one of the releases between listing and adding."""

    def __init__(self, folder: Path, quicker: Bundle) -> None:
        super().__init__(str(folder))
        self._folder, self._quicker = folder, quicker

    def add(self, folders: Mapping[str, Sequence[tuple[str, Content]]], message: str) -> AddResult:
        publish(self._folder, self._quicker)
        return super().add(folders, message)


@pytest.mark.parametrize("quicker", ["a", "b", "c"])
def test_publish_reports_which_releases_another_publisher_added(tmp_path: Path, quicker: str) -> None:
    bundles = [bundle(name=name) for name in "abc"]
    transport = OvertakenFolder(tmp_path, bundle(name=quicker))
    published, _ = Registry(transport).publish(bundles, "Publish")
    assert {release.reference.name: release.already_existed for release in published} == {
        name: name == quicker for name in "abc"
    }


def test_release_that_could_not_be_read_is_not_built() -> None:
    with pytest.raises(ReleaseError, match="larger than 1024 KiB"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", facts={"x": "y" * (1 << 20)}), {})
    with pytest.raises(ReleaseError, match="cannot be written to"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", facts={"x": 1 << 70}), {})
    with pytest.raises(ReleaseError, match="cannot be written to"):
        Bundle.of(Release(kind=Kind.RUN, owner="a", name="b", version="1", description="\ud800"), {})
    with pytest.raises(ReleaseError, match="must consist of 1 to 100"):
        Bundle.of(Release(kind=Kind.RUN, owner="../..", name="b", version="1"), {})


@pytest.mark.parametrize("changed", [b"another\n", b"", b"other!\n" * 100_000])
def test_file_that_changes_during_the_publish_is_an_error(tmp_path: Path, changed: bytes) -> None:
    file = tmp_path / "big.txt"
    file.write_bytes(b"before!\n")
    release = bundle(more={"big.txt": file})
    file.write_bytes(changed)
    with pytest.raises(ReleaseError, match=r"big\.txt changed during the publish; publish again"):
        publish(tmp_path / "registry", release)
    assert registry(tmp_path / "registry").entries() == []
    file.write_bytes(b"before!\n")
    assert publish(tmp_path / "registry", release) == [False]


def test_file_removed_before_the_publish_is_named(tmp_path: Path) -> None:
    file = tmp_path / "gone.txt"
    file.write_bytes(b"x")
    release = bundle(more={"gone.txt": file})
    file.unlink()
    with pytest.raises(ReleaseError, match=r"cannot read .*gone.txt: No such file"):
        publish(tmp_path / "registry", release)


def test_publish_leaves_an_incomplete_release_folder_unchanged(tmp_path: Path) -> None:
    ReleaseTree(tmp_path, after=lambda folder: (folder / "release.sha256").unlink()).write()
    before = snapshot_folder(tmp_path)
    with pytest.raises(TakenError, match=r"not a complete release.*copy it again, or remove the folder"):
        publish(tmp_path, bundle())
    assert {path: content for path, content in snapshot_folder(tmp_path).items() if path != ".incoming"} == before


# Damaged releases do not affect others


@pytest.mark.parametrize("damage", [b"", b"x" * 5_000, b"a" * 64 + b"  other\n"])
def test_a_damaged_release_is_listed_and_the_others_are_read(tmp_path: Path, damage: bytes) -> None:
    publish(tmp_path, bundle(), bundle(name="other"))
    (tmp_path / REFERENCE.folder / "release.sha256").write_bytes(damage)
    opened = registry(tmp_path)
    intact, broken = opened.entries()
    assert (intact.reference.name, broken.reference.name) == ("other", "tiny")
    assert opened.read_manifest(intact)[0].reference == intact.reference
    for call in (lambda: opened.read_manifest(opened.find(REFERENCE)), lambda: opened.yank(REFERENCE, "why"),
                lambda: publish(tmp_path, bundle())):  # fmt: skip
        with pytest.raises(ReleaseError, match=r"run/acme/tiny@1 in file:.*release.sha256 is"):
            call()
    assert [line.count("release.sha256 is") for line in opened.find_problems(broken)] == [1]
    assert opened.find(Digest(intact.sha256[:12])) == intact


def test_a_copy_of_a_release_under_another_name_does_not_take_its_hash(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    subprocess.run(["cp", "-r", tmp_path / "run/acme/tiny", tmp_path / "run/acme/zzz"], check=True)
    opened = registry(tmp_path)
    assert opened.find(Digest(bundle().sha256)).reference == REFERENCE
    with pytest.raises(ReleaseError, match=r"its release\.json is that of run/acme/tiny@1"):
        opened.read_manifest(opened.find(Reference(Kind.RUN, "acme", "zzz", "1")))


def test_ambiguous_hash_prefix_is_refused(tmp_path: Path) -> None:
    bundles = [bundle(str(number).encode(), name=f"n{number}") for number in range(20)]
    publish(tmp_path, *bundles)
    first = min(bundles, key=lambda release: release.sha256)
    with pytest.raises(UsageError, match=r"matches \d+ releases; give more digits"):
        registry(tmp_path).find(Digest(""))
    assert registry(tmp_path).find(Digest(first.sha256[:12])).sha256 == first.sha256


def test_problems_of_a_release_are_named_by_file_and_limited(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    folder = tmp_path / REFERENCE.folder
    (folder / "README.md").write_bytes(b"y\n")
    (folder / "data/a.txt").unlink()
    (folder / "yanked").mkdir()
    (folder / "yanked" / "more.txt").touch()
    for number in range(50):
        (folder / f"stray{number}\x1b[2J\n").touch()
    problems = list(registry(tmp_path).find_problems(registry(tmp_path).find(REFERENCE)))
    assert "README.md is damaged" in problems[0]
    assert "data/a.txt is missing" in problems[1]
    assert len(problems) == 2 + 20 + 1
    assert "\x1b" not in "".join(problems)
    assert "\n" not in "".join(problems)
    assert "more files" in problems[-1]


def test_yank_reason_must_be_one_line_and_is_read_back(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    for invalid in ("", "  ", "a\nb", "\x1b[2J", "\ud800", "x" * 1_001):
        with pytest.raises(UsageError):
            registry(tmp_path).yank(REFERENCE, invalid)
    reason = "\U0001f600" * 1_000
    registry(tmp_path).yank(REFERENCE, reason)
    assert registry(tmp_path).find(REFERENCE).yanked == reason
    with pytest.raises(TakenError, match="yanked already"):
        registry(tmp_path).yank(REFERENCE, "again")


# Paths, links and permissions


def _create_link(path: Path, target: Path) -> None:
    target.mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("link", ["run", "run/acme", "run/acme/tiny", ".incoming"])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, link: str) -> None:
    _create_link(tmp_path / "registry" / link, tmp_path / "aside")
    with pytest.raises(ReleaseError, match="nip-run needs a folder here, but finds a link"):
        publish(tmp_path / "registry", bundle())
    assert list((tmp_path / "aside").iterdir()) == []


@pytest.mark.parametrize("link", ["run", "run/acme", "run/acme/tiny"])
def test_files_behind_a_link_are_not_listed(tmp_path: Path, link: str) -> None:
    _create_link(tmp_path / "registry" / link, tmp_path / "aside")
    (tmp_path / "aside" / "one.txt").write_text("1")
    transport = FolderTransport(str(tmp_path / "registry"))
    assert list(transport.list_files(f"{link}/")) == []
    assert list(transport.list_files(f"{link}/one.txt")) == []


def test_publish_does_not_replace_a_link(tmp_path: Path) -> None:
    _create_link(tmp_path / "registry" / REFERENCE.folder, tmp_path / "aside")
    with pytest.raises(TakenError, match="has run/acme/tiny/1 already"):
        publish(tmp_path / "registry", bundle())
    assert list((tmp_path / "aside").iterdir()) == []


@pytest.mark.parametrize("path", ["../evil", "a/../../evil", "/evil", "a//b", ".", "a\0b"])
def test_path_outside_the_registry_is_refused(tmp_path: Path, path: str) -> None:
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
def test_published_files_have_the_permissions_of_the_registry_not_of_the_umask(
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
    modes_by_path = read_modes(shared)
    assert {mode for path, mode in modes_by_path.items() if (shared / path).is_dir()} == {folders}
    assert {mode for path, mode in modes_by_path.items() if (shared / path).is_file()} == {files}
    assert len(modes_by_path) > 10


def _create_old_folder(folder: Path, hours: float) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a").touch()
    for path in (folder / "data" / "a", folder / "data", folder):
        os.utime(path, (time.time() - hours * 3600,) * 2)
    return folder


def test_publish_removes_only_old_folders_of_killed_publishers(tmp_path: Path) -> None:
    incoming = tmp_path / ".incoming"
    old_folder, renamed = (
        _create_old_folder(incoming / ("a" * 16), 30),
        _create_old_folder(incoming / f"{'d' * 16}.old", 30),
    )
    new_folder, busy_folder = (
        _create_old_folder(incoming / ("b" * 16), 20),
        _create_old_folder(incoming / ("c" * 16), 30),
    )
    (busy_folder / "data" / "a").write_text("still being written")
    for path in (busy_folder / "data", busy_folder):
        os.utime(path, (time.time() - 30 * 3600,) * 2)
    unknown = _create_old_folder(incoming / "theirs", 30)
    (incoming / ("e" * 16)).symlink_to(tmp_path)
    publish(tmp_path, bundle())
    assert not old_folder.exists()
    assert not renamed.exists()
    assert new_folder.exists()
    assert busy_folder.exists()
    assert unknown.exists()
    assert sorted(path.name for path in incoming.iterdir()) == ["b" * 16, "c" * 16, "e" * 16, "theirs"]


PUBLISH_ON_A_FULL_DISK = """
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
def test_full_disk_is_reported_and_no_files_are_left(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH_ON_A_FULL_DISK, str(tmp_path)], cwd=ROOT, env=environment(),
        capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert f"cannot write {tmp_path}/run/acme/tiny/1: File too large" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [".incoming"]
    assert list((tmp_path / ".incoming").iterdir()) == []
    assert publish(tmp_path, bundle(more={"big.txt": b"x" * 300_000})) == [False]
