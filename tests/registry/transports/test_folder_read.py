"""Reading a registry in a folder, and paths that are not registries."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.documents.releases.reference import parse_reference
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.locations import connect, connect_to_read
from tests.registry.transports.in_folder import bundle, publish, registry
from tests.support.release_trees import REFERENCE


@pytest.mark.parametrize(
    "create",
    [lambda p: p.symlink_to("/etc/passwd"), os.mkfifo, Path.mkdir, lambda p: (p / "x").mkdir(parents=True)],
)
def test_only_a_regular_file_is_opened(tmp_path: Path, create: Callable[[Path], object]) -> None:
    create(tmp_path / "run")
    with pytest.raises(ReleaseError, match="cannot read"):
        FolderTransport(str(tmp_path)).open("run")
    assert list(FolderTransport(str(tmp_path)).list_files()) == []


def test_the_registry_itself_may_be_a_link(tmp_path: Path) -> None:
    publish(tmp_path / "real", bundle())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert [entry.sha256 for entry in connect(str(tmp_path / "link")).entries()] == [bundle().sha256]


@pytest.mark.parametrize("scheme", ["file:", "", "git:", "git:file://"])
def test_location_has_one_address_in_every_spelling(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "way").symlink_to("elsewhere/deep")
    paths = {
        "reg": "reg", "./reg/": "reg", "a/../reg": "reg", "a//b/./../../reg/.": "reg", "~/reg": "reg",
        str(tmp_path / "reg"): "reg", f"//{tmp_path}/reg": "reg", "../../" + "../" * 20 + f"{tmp_path}/reg": "reg",
        "way": "way", "way/reg": "way/reg", "way/../reg": "elsewhere/reg",
    }  # fmt: skip
    for text, expected in paths.items():
        if scheme == "git:file://" and not text.startswith("/"):
            continue
        with connect(scheme + text) as opened:
            assert opened.address.partition(":")[::2] == (
                scheme.partition(":")[0] or "file",
                str(tmp_path / expected),
            ), text
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "on").symlink_to("loop/deeper")
    for text in ("loop/../reg", "on/..", f"{'n' * 300}/../reg"):
        with pytest.raises(UsageError, match="cannot resolve the path"):
            connect(f"{scheme}{tmp_path}/{text}")
    with pytest.raises(UsageError, match="home directory"):
        connect(f"{scheme.removesuffix('file://')}~nobody-of-this-name/reg")


def test_list_files_visits_only_paths_with_the_prefix(tmp_path: Path) -> None:
    publish(tmp_path, bundle(), bundle(name="tiny2"), bundle(version="2"))
    (tmp_path / "run/acme/tiny2/1/release.sha256").write_bytes(b"damaged")
    transport = FolderTransport(str(tmp_path))
    assert {stored.path for stored in transport.list_files("run/acme/tiny/1/")} == {
        f"run/acme/tiny/1/{name}" for name in ("README.md", "data/a.txt", "release.json", "release.sha256")
    }
    assert {stored.path.split("/")[2] for stored in transport.list_files("run/acme/tiny")} == {"tiny", "tiny2"}
    assert list(transport.list_files("run/acme/no/")) == list(transport.list_files("no")) == []
    (tmp_path / "run/acme/tiny2").rename(tmp_path / "run/acme/tiny3")
    (tmp_path / "run/acme/tiny2").symlink_to("tiny")
    assert list(transport.list_files("run/acme/tiny2/")) == []


def test_hidden_files_of_a_running_copy_are_ignored(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    (tmp_path / REFERENCE.folder / ".release.json.a1B2c3").write_bytes(b"half")
    assert list(registry(tmp_path).find_problems(registry(tmp_path).find(REFERENCE))) == []


def test_empty_registry_is_reported_as_empty(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nothing is published there"):
        connect_to_read(str(tmp_path)).find(REFERENCE)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("registri", "there is no such folder; did you mean 'registry'"),
        ("registry/run/acme/tiny/1/README.md", "because it is a file"),
        (".", "the folder has other files, but no release; did you mean '.*/registry'"),
        ("registry/run/acme/tiny/1", "the folder has other files, but no release; check the path$"),
    ],
)
def test_path_that_is_not_a_registry_is_not_reported_as_empty(tmp_path: Path, path: str, message: str) -> None:
    publish(tmp_path / "registry", bundle())
    with pytest.raises(ReleaseError, match=message):
        connect_to_read(str(tmp_path / path))


def test_publish_to_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ReleaseError, match="because it is a file"):
        publish(tmp_path / "file", bundle())


def test_yanked_releases_are_found_only_by_version(tmp_path: Path) -> None:
    publish(tmp_path, bundle())
    registry(tmp_path).yank(REFERENCE, "it is wrong")
    with pytest.raises(NotFoundError, match=f"{REFERENCE}, because: it is wrong. To use the newest anyway"):
        registry(tmp_path).find(parse_reference("run/acme/tiny"))
    assert registry(tmp_path).find(REFERENCE).yanked == "it is wrong"
