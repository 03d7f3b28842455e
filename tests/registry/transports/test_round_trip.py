"""A registry is the same wherever it lives: what is published comes back byte by byte, once, and with one identity."""

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
    "data/journal.jsonl": os.urandom(100_000) * 12,  # larger than what comes with a commit, and than what is held whole
    "data/inputs/odd.bin": bytes(range(256)) * 400 + b"\r\n\r\n",
}


def bundle(name: str = "council", contents: Mapping[str, Content] | None = None, **said: Any) -> Bundle:
    """Of a kind whose files may hold anything: a server looks at what is in those of others."""
    return registry_locations.bundle(name, contents, **{"kind": Kind.DATASET, **said})


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.full if name in SIMILAR_LOCATIONS else ()) for name in LOCATIONS]
)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with LOCATIONS[request.param](tmp_path) as where:
        yield where


@pytest.mark.full
def test_a_release_comes_back_byte_by_byte(where: str, tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    journal.write_bytes(CONTENTS["data/journal.jsonl"])
    made = bundle(contents={**CONTENTS, "data/journal.jsonl": journal})
    with connect(where) as registry:
        assert registry.entries() == []
        published, _ = registry.publish([made], "Publish the council")
        assert [(one.sha256, one.already_existed) for one in published] == [(made.sha256, False)]
        assert [entry.sha256 for entry in registry.entries()] == [made.sha256]  # seen by who published it
    with connect(where) as registry:  # and by everybody else
        entry = registry.find(parse_reference("dataset/acme/council@1"))
        release, manifest = registry.read_manifest(entry)
        assert (manifest, entry.sha256) == (made.manifest, made.sha256)
        assert registry.find(parse_reference(f"sha256:{made.sha256[:12]}")) == entry
        assert registry.read_file(entry, release, "README.md", 100) == CONTENTS["README.md"]
        registry.unpack(entry, tmp_path / "got")
        assert list(registry.find_problems(entry)) == []
    got = {path.relative_to(tmp_path / "got").as_posix(): path.read_bytes() for path in _files(tmp_path / "got")}
    assert got == {**CONTENTS, MANIFEST: made.manifest, CHECKSUM: got[CHECKSUM]}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_the_same_again_is_nothing_and_another_is_refused_for_ever(where: str) -> None:
    with connect(where) as registry:
        registry.publish([bundle()], "one")
        published, added = registry.publish([bundle()], "again")
        assert [one.already_existed for one in published] == [True]
        assert added.revision is None
        with pytest.raises(TakenError, match="with other content"):
            registry.publish([bundle("new"), bundle(contents={"verifier.jinja": b"Other.\n"})], "other")
        assert [str(entry.reference) for entry in registry.entries()] == ["dataset/acme/council@1"]


@pytest.mark.full
def test_several_releases_are_one_publish_and_are_listed_in_order(where: str) -> None:
    several = [bundle("b", version=version) for version in ("1.10", "1.2")] + [bundle("a", kind=Kind.PROTOCOL)]
    with connect(where) as registry:
        registry.publish(several, "three")
    with connect(where) as registry:
        listed = [str(entry.reference) for entry in registry.entries()]
        assert listed == ["dataset/acme/b@1.2", "dataset/acme/b@1.10", "protocol/acme/a@1"]
        assert registry.find(parse_reference("dataset/acme/b@latest")).reference.version == "1.10"
        with pytest.raises(NotFoundError, match=r"did you mean 'dataset/acme/b'"):
            registry.find(parse_reference("dataset/acme/bb"))


@pytest.mark.sample(1)
def test_a_yanked_release_is_passed_over_and_says_why(where: str) -> None:
    first, second = (Reference(Kind.DATASET, "acme", "council", version) for version in "12")
    with connect(where) as registry:
        registry.publish([bundle(), bundle(version="2")], "two")
        registry.yank(second, "leaks the label")
        with pytest.raises(TakenError, match="leaks the label"):
            registry.yank(second, "again")
    with connect(where) as registry:
        assert [entry.yanked for entry in registry.entries()] == [None, "leaks the label"]
        assert registry.find(parse_reference("dataset/acme/council")).reference == first
        assert registry.find(second).yanked == "leaks the label"
        assert list(registry.find_problems(registry.find(second))) == []


@pytest.mark.full
def test_a_signature_stands_beside_the_manifest_and_is_given_once(where: str) -> None:
    with connect(where) as registry:
        registry.publish([bundle()], "one")
        entry = registry.find(parse_reference("dataset/acme/council"))
        assert not entry.signed
        with pytest.raises(ReleaseError, match="ask the publisher to sign"):
            registry.read_signature(entry)
        registry.add_signature(entry, b"signed")
    with connect(where) as registry:
        entry = registry.find(parse_reference("dataset/acme/council"))
        assert entry.signed
        assert registry.read_signature(entry) == b"signed"
        with pytest.raises(TakenError):
            registry.add_signature(entry, b"other")


def test_what_is_not_there_is_said(where: str) -> None:
    with connect(where) as registry:
        registry.publish([bundle()], "one")
        with pytest.raises(NotFoundError, match=r"no (?:such )?file"):
            registry._transport.open("dataset/acme/council/1/nothing.txt")
        with pytest.raises(ReleaseError):
            registry.open(registry.find(parse_reference("dataset/acme/council")), "verifier.jinja/deeper")


@pytest.mark.sample(1)
def test_the_place_leads_to_itself_again(where: str) -> None:
    with connect(where) as registry:
        registry.publish([bundle()], "one")
    with connect(registry.address) as again:
        assert again.address == registry.address
        assert len(again.entries()) == 1
