"""Registries of all transports behave alike: releases are fetched unchanged, and a version is added once."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import NotFoundError, ReleaseError, TakenError
from runner.documents.releases.bundle import Bundle, Content
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.documents.releases.reference import Kind, Reference, parse_reference
from runner.registry.transports.locations import connect
from tests.support import registry_locations
from tests.support.registry_locations import LOCATIONS, SIMILAR_LOCATIONS

CONTENTS = {
    "README.md": b"# Council\n",
    "empty.txt": b"",
    "data/journal.jsonl": os.urandom(100_000) * 12,  # larger than a file in a commit, and than a buffer
    "data/inputs/odd.bin": bytes(range(256)) * 400 + b"\r\n\r\n",
}


def bundle(name: str = "council", contents: Mapping[str, Content] | None = None, **fields: Any) -> Bundle:
    """Build a release of a kind whose files a server does not check."""
    return registry_locations.bundle(name, contents, **{"kind": Kind.DATASET, **fields})


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.full if name in SIMILAR_LOCATIONS else ()) for name in LOCATIONS]
)
def location(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with LOCATIONS[request.param](tmp_path) as location:
        yield location


@pytest.mark.full
def test_release_is_fetched_byte_by_byte_as_published(location: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(CONTENTS["data/journal.jsonl"])
    expected = bundle(contents={**CONTENTS, "data/journal.jsonl": journal})
    with connect(location) as registry:
        assert registry.entries() == []
        published, _ = registry.publish([expected], "Publish the council")
        assert [(result.sha256, result.already_existed) for result in published] == [(expected.sha256, False)]
        assert [entry.sha256 for entry in registry.entries()] == [
            expected.sha256
        ]  # the publisher's own registry object lists it
    with connect(location) as registry:  # and a new one does
        entry = registry.find(parse_reference("dataset/acme/council@1"))
        _, manifest = registry.read_manifest(entry)
        assert (manifest, entry.sha256) == (expected.manifest, expected.sha256)
        assert registry.find(parse_reference(f"sha256:{expected.sha256[:12]}")) == entry
        registry.unpack(entry, tmp_path / "got")
        assert list(registry.find_problems(entry)) == []
    files = {path.relative_to(tmp_path / "got").as_posix(): path.read_bytes() for path in _list_files(tmp_path / "got")}
    assert files == {**CONTENTS, MANIFEST: expected.manifest, CHECKSUM: files[CHECKSUM]}


def _list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.gate
def test_repeated_publish_adds_nothing_and_other_content_is_refused(location: str) -> None:
    with connect(location) as registry:
        registry.publish([bundle()], "one")
        published, added = registry.publish([bundle()], "again")
        assert [release.already_existed for release in published] == [True]
        assert added.revision is None
        with pytest.raises(TakenError, match="with other content"):
            registry.publish([bundle("new"), bundle(contents={"verifier.jinja": b"Other.\n"})], "other")
        assert [str(entry.reference) for entry in registry.entries()] == ["dataset/acme/council@1"]


@pytest.mark.full
def test_several_releases_are_published_at_once_and_listed_in_order(location: str) -> None:
    several = [bundle("b", version=version) for version in ("1.10", "1.2")] + [bundle("a", kind=Kind.PROTOCOL)]
    with connect(location) as registry:
        registry.publish(several, "three")
    with connect(location) as registry:
        listed = [str(entry.reference) for entry in registry.entries()]
        assert listed == ["dataset/acme/b@1.2", "dataset/acme/b@1.10", "protocol/acme/a@1"]
        assert registry.find(parse_reference("dataset/acme/b@latest")).reference.version == "1.10"
        with pytest.raises(NotFoundError, match=r"did you mean 'dataset/acme/b'"):
            registry.find(parse_reference("dataset/acme/bb"))


@pytest.mark.gate
@pytest.mark.sample(1)
def test_yanked_release_is_skipped_and_has_its_reason(location: str) -> None:
    first, second = (Reference(Kind.DATASET, "acme", "council", version) for version in "12")
    with connect(location) as registry:
        registry.publish([bundle(), bundle(version="2")], "two")
        registry.yank(second, "leaks the label")
        with pytest.raises(TakenError, match="leaks the label"):
            registry.yank(second, "again")
    with connect(location) as registry:
        assert [entry.yanked for entry in registry.entries()] == [None, "leaks the label"]
        assert registry.find(parse_reference("dataset/acme/council")).reference == first
        assert registry.find(second).yanked == "leaks the label"
        assert list(registry.find_problems(registry.find(second))) == []


@pytest.mark.full
def test_signature_is_stored_next_to_the_manifest_and_only_once(location: str) -> None:
    with connect(location) as registry:
        registry.publish([bundle()], "one")
        entry = registry.find(parse_reference("dataset/acme/council"))
        assert not entry.signed
        with pytest.raises(ReleaseError, match="ask the publisher to sign"):
            registry.read_signature(entry)
        registry.add_signature(entry, b"signed")
    with connect(location) as registry:
        entry = registry.find(parse_reference("dataset/acme/council"))
        assert entry.signed
        assert registry.read_signature(entry) == b"signed"
        with pytest.raises(TakenError):
            registry.add_signature(entry, b"other")


@pytest.mark.gate
def test_missing_file_is_reported(location: str) -> None:
    with connect(location) as registry:
        registry.publish([bundle()], "one")
        with pytest.raises(NotFoundError, match=r"no (?:such )?file"):
            registry._transport.open("dataset/acme/council/1/nothing.txt")
        with pytest.raises(ReleaseError):
            registry.open(registry.find(parse_reference("dataset/acme/council")), "verifier.jinja/deeper")


@pytest.mark.gate
@pytest.mark.sample(1)
def test_address_of_a_registry_opens_the_same_registry(location: str) -> None:
    with connect(location) as registry:
        registry.publish([bundle()], "one")
    with connect(registry.address) as reopened:
        assert reopened.address == registry.address
        assert len(reopened.entries()) == 1
