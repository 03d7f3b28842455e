"""Hostile uploads: each row of the tables is refused with a message, none is listed, and the server keeps running."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.documents.releases.manifest import MANIFEST
from runner.documents.releases.reference import Kind, Reference
from tests.registry.hostile import LINK, ROWS, HostileRelease
from tests.server.test_uploads import contents_by_folder, make_bundle
from tests.support.raw_uploads import RawUploadClient, describe_file
from tests.support.release_trees import ReleaseTree, manifest_bytes
from tests.support.server_process import ServerProcess

UPLOAD_MESSAGES = (
    "is missing from the upload", "is not in the manifest", "has another hash or size", "the release lacks",
    "is not the hash of release.json", "release.sha256 is damaged", "bytes; at most", "at most 240 characters",
    ".path: String should match pattern", "names another release",
)  # fmt: skip
"""Messages that only a server gives, because it compares the sent files with the listed ones."""
SPECIAL_FILES = ("is a link", "is a FIFO", "is a socket")
UPLOADABLE_ROWS = [row for row in ROWS if row.message != LINK and not row.name.endswith(SPECIAL_FILES)]
"""The rows that can be uploaded: an upload cannot contain links or devices."""


def build_upload(row: HostileRelease, folder: Path) -> dict[str, bytes]:
    """Build the files that an attacker uploads for a row."""
    tree = ReleaseTree(folder)
    row.change(tree)
    tree.write()
    files = {}
    for path in sorted(tree.folder.rglob("*")) if tree.folder.is_dir() else ():
        if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < 1 << 30:
            files[path.relative_to(tree.folder).as_posix()] = path.read_bytes()
    return files


def list_missing_paths(row: HostileRelease) -> list[str]:
    """Return the paths that the row adds to the manifest."""
    tree = ReleaseTree(Path("/nowhere"))
    row.change(tree)
    manifest_files = tree.changes.get("files")
    if not isinstance(manifest_files, list):
        return []
    return [file["path"] for file in manifest_files if isinstance(file, dict) and isinstance(file.get("path"), str)]


def publish_row(row: HostileRelease, scratch: Path, raw: RawUploadClient) -> list[dict[str, Any]]:
    """Publish a row in every possible way and return the server's results."""
    files = build_upload(row, scratch)
    yank = {path: data for path, data in files.items() if path.startswith("yanked/")}
    release = {path: data for path, data in files.items() if path not in yank}
    folder = "run/acme/tiny/1"
    results = [raw.publish({folder: release, **({f"{folder}/yanked": strip_yanked_prefix(yank)} if yank else {})})]
    if row.name.startswith("path"):
        results.append(raw.publish({folder: {**release, **dict.fromkeys(list_missing_paths(row), b"evil")}}))
    return results


def strip_yanked_prefix(yank: Mapping[str, bytes]) -> dict[str, bytes]:
    return {path.removeprefix("yanked/"): data for path, data in yank.items()}


def find_mismatch(result: dict[str, Any], row: HostileRelease) -> str | None:
    message = json.dumps([result.get("message", ""), *result.get("problems", [])], ensure_ascii=False)
    if result["status"] not in (400, 202, 422) or result.get("state", "refused") not in ("refused", "open"):
        return f"{result}"
    if not any(
        expected in message or expected in json.loads(message).__str__() for expected in (row.message, *UPLOAD_MESSAGES)
    ):
        return message[:500]
    return None if len(message) < 10_000 else "the message is too long"


def collect_failures(
    rows: Iterable[HostileRelease], server: ServerProcess, raw: RawUploadClient, folder: Path
) -> dict[str, str]:
    failures = {}
    for number, row in enumerate(rows):
        for result in publish_row(row, folder / str(number), raw):
            if (failure := find_mismatch(result, row)) is not None:
                failures[row.name] = failure
    assert raw.list_files() == []
    assert "Traceback" not in server.log
    return failures


def list_blobs(server: ServerProcess) -> set[Path]:
    return {path for path in (server.folder / "blobs").rglob("*") if path.is_file()}


@pytest.mark.full
def test_sample_of_hostile_releases_is_refused_and_never_listed(
    server: ServerProcess, acme: RawUploadClient, tmp_path: Path
) -> None:
    assert collect_failures(UPLOADABLE_ROWS[::40], server, acme, tmp_path) == {}


@pytest.mark.full
def test_all_hostile_releases_are_refused_and_leave_no_memory_or_files(
    server: ServerProcess, acme: RawUploadClient, tmp_path: Path
) -> None:
    assert len(UPLOADABLE_ROWS) > 200
    blobs = list_blobs(server)  # left by earlier tests on this server
    collect_failures(UPLOADABLE_ROWS[::10], server, acme, tmp_path / "before")
    before = server.resident_bytes()
    assert collect_failures(UPLOADABLE_ROWS, server, acme, tmp_path / "all") == {}
    assert server.resident_bytes() - before < 30 << 20
    assert not list((server.folder / "incoming").iterdir())
    assert list_blobs(server) <= blobs


@pytest.mark.gate
def test_facts_of_the_wrong_type_or_size_are_refused_with_the_reason(served: ServerProcess) -> None:
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("model", {"benchmark": ["x"]}, "benchmark cannot be"), ("model", {"task": {"a": 1}}, "task cannot be"),
        ("model", {"trained": 5}, "trained cannot be"), ("model", {"models": {"a": 1}}, "a cannot be"),
        ("dataset", {"benchmark": {"a": 1}}, "benchmark cannot be"), ("dataset", {"models": 5}, "models cannot be"),
        ("dataset", {"benchmark": "W" * 9_000}, "at most 300"), ("prompts", {"protocol": 5}, "protocol cannot be"),
        ("protocol", {"models": {"a": "W" * 9_000}}, "at most 300"),
    ]  # fmt: skip
    contents: dict[str, dict[str, bytes]] = {}
    for number, (kind, facts, _) in enumerate(cases):
        tree = ReleaseTree(
            Path("/nowhere"), Reference(Kind(kind), "mallory", f"evil{number}", "1"), changes={"facts": facts}
        )
        manifest = manifest_bytes(tree.manifest_data())
        checksum = f"{hashlib.sha256(manifest).hexdigest()}  release.json\n".encode()
        contents[tree.reference.folder] = {**tree.files, "release.json": manifest, "release.sha256": checksum}
    with RawUploadClient(served.address, served.tokens["mallory"]) as client:
        result = client.publish(contents)
        assert not [path for path in client.list_files() if "/evil" in path]
    assert result["state"] == "refused"
    for number, (kind, _, message) in enumerate(cases):
        (own_problem,) = [problem for problem in result["problems"] if f"{kind}/mallory/evil{number}@1" in problem]
        assert message in own_problem
        assert len(own_problem) < 500


def test_file_that_the_server_already_has_cannot_be_declared_with_a_false_size(server: ServerProcess) -> None:
    """With a false size, the answer to a request for many files could not be read, also by readers of other files."""
    with RawUploadClient(server.address, server.create_token("mallory")) as raw:
        hostile = contents_by_folder(make_bundle("hostile", owner="mallory"))
        ((folder, files),) = hostile.items()
        assert raw.publish(contents_by_folder(make_bundle("carrier", owner="mallory", data=files[MANIFEST])))["state"]
        declared = [describe_file(path, data) for path, data in files.items()]
        for file in declared:
            file["size"] += 100 * (file["path"] == MANIFEST)
        upload = raw.client.post("/uploads", json={"folders": [{"folder": folder, "files": declared}]}).json()["id"]
        for data in files.values():
            raw.send_blob(upload, data)
        assert raw.commit(upload).status_code == 422
        assert raw.publish(hostile)["state"] == "published"
