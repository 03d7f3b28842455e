"""Nothing bad gets in by an upload: each row of the tables is refused in words, nothing of it is seen, and the server
goes on."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.documents.releases.reference import Kind, Reference
from tests.registry.hostile import LINK, ROWS, Row
from tests.support.raw_uploads import RawUploadClient
from tests.support.release_trees import ReleaseTree, manifest_bytes
from tests.support.server_process import ServerProcess

OURS = (
    "is missing from the upload", "is not in the manifest", "has another hash or size", "the release lacks",
    "is not the hash of release.json", "release.sha256 is damaged", "bytes; at most", "at most 240 characters",
    ".path: String should match pattern", "names another release",
)  # fmt: skip
"""How a server says what a reader says otherwise: it sees what is sent beside what is listed."""
ODD = ("is a link", "is a FIFO", "is a socket")
NO_LINKS = [row for row in ROWS if row.message != LINK and not row.name.endswith(ODD)]
"""An upload has no links and no devices."""


def sent(row: Row, place: Path) -> dict[str, bytes]:
    """What an attacker sends of a row: what stands in the folder, and whatever its manifest names."""
    tree = ReleaseTree(place)
    row.change(tree)
    tree.write()
    files = {}
    for path in sorted(tree.folder.rglob("*")) if tree.folder.is_dir() else ():
        if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < 1 << 30:
            files[path.relative_to(tree.folder).as_posix()] = path.read_bytes()
    return files


def list_missing_paths(row: Row) -> list[str]:
    """The paths that its manifest names beside those that are there."""
    tree = ReleaseTree(Path("/nowhere"))
    row.change(tree)
    said = tree.changes.get("files")
    if not isinstance(said, list):
        return []
    return [one["path"] for one in said if isinstance(one, dict) and isinstance(one.get("path"), str)]


def attack(row: Row, place: Path, raw: RawUploadClient) -> list[dict[str, Any]]:
    """What the server says to each way of sending a row."""
    files = sent(row, place)
    yank = {path: data for path, data in files.items() if path.startswith("yanked/")}
    release = {path: data for path, data in files.items() if path not in yank}
    folder = "run/acme/tiny/1"
    said = [raw.publish({folder: release, **({f"{folder}/yanked": _inside(yank)} if yank else {})})]
    if row.name.startswith("path"):
        said.append(raw.publish({folder: {**release, **dict.fromkeys(list_missing_paths(row), b"evil")}}))
    return said


def _inside(yank: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix("yanked/"): data for path, data in yank.items()}


def wrong_with(said: dict[str, Any], row: Row) -> str | None:
    told = json.dumps([said.get("message", ""), *said.get("problems", [])], ensure_ascii=False)
    if said["status"] not in (400, 202, 422) or said.get("state", "refused") not in ("refused", "open"):
        return f"{said}"
    if not any(words in told or words in json.loads(told).__str__() for words in (row.message, *OURS)):
        return told[:500]
    return None if len(told) < 10_000 else "it says too much"


def refused(rows: Iterable[Row], server: ServerProcess, raw: RawUploadClient, folder: Path) -> dict[str, str]:
    wrong = {}
    for number, row in enumerate(rows):
        for said in attack(row, folder / str(number), raw):
            if (why := wrong_with(said, row)) is not None:
                wrong[row.name] = why
    assert raw.list_files() == []
    assert "Traceback" not in server.log
    return wrong


def list_blobs(server: ServerProcess) -> set[Path]:
    return {path for path in (server.folder / "blobs").rglob("*") if path.is_file()}


@pytest.mark.full
def test_some_hostile_releases_are_refused_in_words_and_nothing_of_them_is_seen(
    server: ServerProcess, acme: RawUploadClient, tmp_path: Path
) -> None:
    assert refused(NO_LINKS[::40], server, acme, tmp_path) == {}


@pytest.mark.full
def test_all_hostile_releases_are_refused_and_the_server_grows_by_nothing(
    server: ServerProcess, acme: RawUploadClient, tmp_path: Path
) -> None:
    assert len(NO_LINKS) > 200
    blobs = list_blobs(server)  # of tests that shared the server before
    refused(NO_LINKS[::10], server, acme, tmp_path / "before")
    before = server.resident_bytes()
    assert refused(NO_LINKS, server, acme, tmp_path / "all") == {}
    assert server.resident_bytes() - before < 30 << 20
    assert not list((server.folder / "incoming").iterdir())
    assert list_blobs(server) <= blobs


@pytest.mark.gate
def test_facts_that_no_list_can_show_are_refused_in_words(served: ServerProcess) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("model", {"benchmark": ["x"]}, "benchmark cannot be"), ("model", {"task": {"a": 1}}, "task cannot be"),
        ("model", {"trained": 5}, "trained cannot be"), ("model", {"models": {"a": 1}}, "a cannot be"),
        ("dataset", {"benchmark": {"a": 1}}, "benchmark cannot be"), ("dataset", {"models": 5}, "models cannot be"),
        ("dataset", {"benchmark": "W" * 9_000}, "at most 300"), ("prompts", {"protocol": 5}, "protocol cannot be"),
        ("protocol", {"models": {"a": "W" * 9_000}}, "at most 300"),
    ]  # fmt: skip
    said: dict[str, dict[str, bytes]] = {}
    for number, (kind, facts, _) in enumerate(wrong):
        tree = ReleaseTree(
            Path("/nowhere"), Reference(Kind(kind), "mallory", f"evil{number}", "1"), changes={"facts": facts}
        )
        manifest = manifest_bytes(tree.manifest_data())
        checksum = f"{hashlib.sha256(manifest).hexdigest()}  release.json\n".encode()
        said[tree.reference.folder] = {**tree.files, "release.json": manifest, "release.sha256": checksum}
    with RawUploadClient(served.address, served.tokens["mallory"]) as raw:
        answer = raw.publish(said)
        assert not [path for path in raw.list_files() if "/evil" in path]
    assert answer["state"] == "refused"
    for number, (kind, _, words) in enumerate(wrong):
        (told,) = [one for one in answer["problems"] if f"{kind}/mallory/evil{number}@1" in one]
        assert words in told
        assert len(told) < 500
