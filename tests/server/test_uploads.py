"""Uploads over HTTP: sent in pieces, gone on with after a cut, seen whole or not at all, and by whom they may be."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from unittest.mock import patch

import pytest

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.documents.releases.bundle import Bundle
from runner.documents.releases.manifest import CHECKSUM, MANIFEST, Release, ReleaseLink
from runner.documents.releases.reference import Kind, Reference, parse_reference
from runner.registry.transports.http.transport import HttpTransport
from runner.registry.transports.registry import Registry
from runner.registry.transports.timeouts import Timeouts
from tests.support.cutting_proxy import run_cutting_proxy
from tests.support.raw_uploads import RawUploadClient, describe_file
from tests.support.server_process import ServerProcess, registry_environment

QUICK = Timeouts(connect=5, read=20, wait=0.05, longest_wait=0.5, stall=20, first_check_wait=0.02, check_seconds=60)


def make_bundle(
    name: str = "council",
    *,
    owner: str = "acme",
    visibility: str = "public",
    data: bytes = b"x\n",
    links: tuple[ReleaseLink, ...] = (),
) -> Bundle:
    release = Release(kind=Kind.DATASET, owner=owner, name=name, version="1", visibility=visibility, links=links)
    return Bundle.of(release, {"data.txt": data})


def folders(*bundles: Bundle) -> Mapping[str, Mapping[str, bytes]]:
    found = {}
    for bundle in bundles:
        files = {}
        for path, content in bundle.files():
            assert isinstance(content, bytes)
            files[path] = content
        found[bundle.release.reference.folder] = files
    return found


@pytest.mark.gate
def test_a_blob_is_sent_in_pieces_and_only_what_was_declared_is_taken(acme: RawUploadClient) -> None:
    data = b"0123456789" * 100
    bundle = make_bundle(data=data)
    upload = acme.start_upload(folders(bundle)).json()["id"]
    assert acme.send_blob(upload, data[:400], sha256=_hash(data)).json() == {"have": 400}
    again = acme.send_blob(upload, data, offset=100)  # what does not follow
    assert (again.status_code, again.json()["code"], again.json()["have"]) == (409, "offset", 400)
    other = acme.send_blob(upload, b"y", sha256="0" * 64)  # what was not declared
    assert other.status_code == 404
    longer = acme.send_blob(upload, data + b"!", sha256=_hash(data), offset=400)
    assert (longer.status_code, "more than the declared" in longer.json()["message"]) == (422, True)
    assert acme.commit(upload).status_code == 422  # of which something is missing
    wrong = acme.send_blob(upload, b"0" * 1_000, sha256=_hash(data), offset=_have(acme, upload, data))
    assert (wrong.status_code, "does not have the declared hash" in wrong.json()["message"]) == (422, True)
    assert _have(acme, upload, data) == 0
    assert acme.list_files() == []
    assert acme.publish(folders(bundle))["state"] == "published"
    assert [path.rpartition("/")[2] for path in acme.list_files()] == ["data.txt", MANIFEST, CHECKSUM]


def _have(raw: RawUploadClient, upload: str, data: bytes) -> int:
    missing = {one["sha256"]: one["have"] for one in raw.state(upload)["missing"]}
    return int(missing[_hash(data)])


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.gate
def test_a_commit_that_is_repeated_says_the_same_and_so_does_the_same_upload_declared_again(
    acme: RawUploadClient,
) -> None:
    bundle = make_bundle()
    first = acme.publish(folders(bundle))
    assert acme.commit(first["id"]).json()["state"] == "published"
    again = acme.start_upload(folders(bundle)).json()
    assert (again["id"], again["state"], again["missing"]) == (first["id"], "published", [])
    assert len(acme.list_files()) == 3


def test_where_one_folder_is_taken_nothing_of_the_others_is_seen(server: ServerProcess, acme: RawUploadClient) -> None:
    assert acme.publish(folders(make_bundle("one")))["state"] == "published"
    said = acme.publish(folders(make_bundle("two"), make_bundle("one", data=b"other\n")))
    assert (said["status"], said["code"]) == (409, "taken")
    with RawUploadClient(server.address, server.create_token("acme")) as second:
        both = folders(make_bundle("three"), make_bundle("one"))  # another upload has put the very same there
        assert second.publish(both)["status"] == 409
    assert {path.split("/")[2] for path in acme.list_files()} == {"one"}


@pytest.mark.gate
def test_nobody_publishes_as_another_and_what_another_keeps_is_told_by_nothing(
    server: ServerProcess, acme: RawUploadClient
) -> None:
    secret = make_bundle("plan", visibility="private", data=b"what nobody knows\n")
    assert acme.publish(folders(secret))["state"] == "published"
    with (
        RawUploadClient(server.address, server.create_token("eve")) as eve,
        RawUploadClient(server.address, None) as anybody,
    ):
        there, not_there = (eve.start_upload(folders(make_bundle(name, data=b"z\n"))) for name in ("plan", "nothing"))
        assert there.status_code == not_there.status_code == 403
        assert there.json() == not_there.json()
        path = "/tree/dataset/acme/{}/1/release.json"
        assert [eve.client.get(path.format(name)).json() for name in ("plan", "no")] == [_missing(), _missing()]
        mine = make_bundle("mine", owner="eve", data=b"what nobody knows\n")
        upload = eve.start_upload(folders(mine)).json()
        assert _hash(b"what nobody knows\n") in {one["sha256"] for one in upload["missing"]}  # it is to be sent again
        theirs = acme.start_upload(folders(make_bundle("open"))).json()["id"]
        assert eve.client.get(f"/uploads/{theirs}").json() == eve.client.get(f"/uploads/{'0' * 32}").json()
        assert [anybody.start_upload(folders(make_bundle())).status_code, anybody.commit(theirs).status_code] == [
            401,
            401,
        ]
        for raw in (eve, anybody):
            assert raw.list_files() == raw.client.get("/releases").json()["releases"] == []
            asked = raw.client.post("/files", json={"paths": ["dataset/acme/plan/1/data.txt"]})
            assert asked.content == b'{"path":"dataset/acme/plan/1/data.txt","size":null}\n'
    assert len(acme.list_files()) == 3


def _missing() -> dict[str, object]:
    return {
        "code": "missing",
        "message": "no such file; check the path, or use a token that may see the release",
        "problems": [],
    }


@pytest.mark.gate
def test_a_public_release_may_not_name_a_private_one_nor_another_than_is_here(acme: RawUploadClient) -> None:
    secret = make_bundle("plan", visibility="private")
    assert acme.publish(folders(secret))["state"] == "published"
    link = ReleaseLink(role="input", release="dataset/acme/plan@1", sha256=secret.sha256)
    said = acme.publish(folders(make_bundle("open", links=(link,))))
    assert said["state"] == "refused"
    assert "names dataset/acme/plan@1, which is private" in said["problems"][0]
    other = ReleaseLink(role="input", release="dataset/acme/plan@1", sha256="0" * 64)
    said = acme.publish(folders(make_bundle("open", visibility="private", links=(other,))))
    assert "has another hash than dataset/acme/plan@1 on this server" in said["problems"][0]
    assert acme.publish(folders(make_bundle("open", visibility="private", links=(link,))))["state"] == "published"


def test_files_that_the_manifest_does_not_list_and_files_that_are_missing_are_refused_by_name(
    acme: RawUploadClient,
) -> None:
    ((folder, files),) = folders(make_bundle("listed")).items()
    more = acme.publish({folder: {**files, "more.txt": b"more\n"}})
    again = "publish the release again"
    assert (more["state"], more["problems"]) == ("refused", [f"{folder}: more.txt is not in the manifest; {again}"])
    less = acme.publish({folder: {path: data for path, data in files.items() if path != "data.txt"}})
    assert (less["state"], less["problems"]) == ("refused", [f"{folder}: data.txt is missing from the upload; {again}"])


def test_what_is_refused_can_be_sent_again_and_is_refused_again(acme: RawUploadClient) -> None:
    bad = {"dataset/acme/bad/1": {**folders(make_bundle("bad"))["dataset/acme/bad/1"], "data.txt": b"other\n"}}
    first, second = acme.publish(bad), acme.publish(bad)
    assert (
        first["problems"]
        == second["problems"]
        == ["dataset/acme/bad/1: data.txt has another hash or size than in the manifest; publish the release again"]
    )


def test_a_file_is_read_from_where_it_was_cut_off(server: ServerProcess, acme: RawUploadClient) -> None:
    data = bytes(range(256)) * 2_000
    acme.publish(folders(make_bundle(data=data)))
    path = "/tree/dataset/acme/council/1/data.txt"
    whole = acme.client.get(path)
    rest = acme.client.get(path, headers={"range": "bytes=100000-", "if-range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, data[100_000:])
    assert rest.headers["content-range"] == "bytes 100000-511999/512000"
    other = acme.client.get(path, headers={"range": "bytes=5-", "if-range": '"other"'})
    assert (other.status_code, len(other.content)) == (200, len(data))
    beyond = acme.client.get(path, headers={"range": "bytes=512000-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */512000")
    with run_cutting_proxy(server.port) as proxy, Registry(HttpTransport(proxy.address, timeouts=QUICK)) as registry:
        entry = registry.find(parse_reference("dataset/acme/council@1"))
        release, _ = registry.read_manifest(entry)
        for at in (70_000, 200_000):
            proxy.cut_after("down", at)
            assert registry.read_file(entry, release, "data.txt", 1 << 20) == data
        assert proxy.cuts == 2


@pytest.mark.sample(1)
@pytest.mark.parametrize("way", ["up", "down"])
def test_a_publish_that_is_cut_off_goes_on(server: ServerProcess, way: str) -> None:
    data = bytes(range(256)) * 2_000
    bundle = make_bundle(f"cut-{way}", data=data)
    with run_cutting_proxy(server.port) as proxy:
        token = server.create_token("acme")
        with (
            registry_environment(server, token),  # which is another address than the proxy's
            Registry(HttpTransport(proxy.address, timeouts=QUICK)) as registry,
            pytest.raises(UsageError, match="this request needs a token"),
        ):
            registry.publish([bundle], "x")
        with patch.dict(os.environ, {"NIP_RUN_REGISTRY": proxy.address, "NIP_RUN_TOKEN": token}):
            proxy.cut_after(way, 200_000 if way == "up" else 1_500)
            with Registry(HttpTransport(proxy.address, timeouts=QUICK)) as registry:
                ((published,), _) = registry.publish([bundle], "x")
        assert (published.sha256, proxy.cuts) == (bundle.sha256, 1)


def test_a_declaration_with_what_cannot_be_is_refused_before_anything_is_sent(acme: RawUploadClient) -> None:
    good = folders(make_bundle())["dataset/acme/council/1"]
    for changes, words in (
        ({"size": -1}, "greater than or equal to 0"), ({"size": 1 << 60}, "less than"),
        ({"size": 5 << 30}, "at most"), ({"sha256": "x"}, "pattern"), ({"path": "../x"}, "each part of a path"),
        ({"path": "\ud800"}, ""),
    ):  # fmt: skip
        said = {"folder": "dataset/acme/council/1", "files": [{**describe_file("release.json", b""), **changes}]}
        answer = acme.client.post(
            "/uploads", content=json.dumps({"folders": [said]}), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422, (changes, answer.text)
        assert words in answer.text
    for folder in ("dataset/acme", "x/acme/council/1", "dataset/acme/council/1/yanked/yanked", "dataset/../council/1"):
        assert acme.start_upload({folder: good}).status_code == 422
    assert acme.start_upload({}).status_code == 422
    large = [b"[" * (1 << 20)] * 17  # of which no length is told
    assert acme.client.post("/uploads", content=iter(large)).status_code == 413
    assert acme.client.post("/files", content=b"".join(large)).status_code == 413
    assert acme.client.post("/uploads", content=b"[" * 100_000).status_code == 422
    assert acme.client.get("/releases", params={"prefix": "a\0b"}).json()["releases"] == []
    assert acme.client.get("/tree/a%00b").status_code == 404


@pytest.mark.gate
def test_a_yank_and_a_signature_are_added_once_and_by_their_owner(server: ServerProcess, acme: RawUploadClient) -> None:
    with registry_environment(server, server.create_token("acme")), Registry(HttpTransport(server.address)) as registry:
        registry.publish([make_bundle()], "x")
        reference = parse_reference("dataset/acme/council@1")
        registry.add_signature(registry.find(reference), b"one")
        transport = HttpTransport(server.address)
        with pytest.raises(TakenError):
            transport.add({"dataset/acme/council/1/signature": [("release.json.sig", b"two")]}, "x")
        with pytest.raises(ReleaseError, match="refuses the upload"):
            transport.add({"dataset/acme/nothing/1/signature": [("release.json.sig", b"two")]}, "x")
        transport.close()
    with registry_environment(server, server.create_token("eve")), Registry(HttpTransport(server.address)) as registry:
        with pytest.raises(UsageError, match="may not publish as acme"):
            registry.yank(Reference(Kind.DATASET, "acme", "council", "1"), "I say so")
        assert registry.find(reference).yanked is None
