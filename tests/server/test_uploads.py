"""Uploads over HTTP: pieces, resumed transfers, atomic publishing and access control."""

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

SHORT_TIMEOUTS = Timeouts(
    connect=5, read=20, wait=0.05, longest_wait=0.5, stall=20, first_check_wait=0.02, check_seconds=60
)


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


def contents_by_folder(*bundles: Bundle) -> Mapping[str, Mapping[str, bytes]]:
    contents = {}
    for bundle in bundles:
        files = {}
        for path, content in bundle.files():
            assert isinstance(content, bytes)
            files[path] = content
        contents[bundle.release.reference.folder] = files
    return contents


@pytest.mark.gate
def test_blob_is_sent_in_pieces_and_undeclared_bytes_are_refused(acme: RawUploadClient) -> None:
    data = b"0123456789" * 100
    bundle = make_bundle(data=data)
    upload = acme.start_upload(contents_by_folder(bundle)).json()["id"]
    assert acme.send_blob(upload, data[:400], sha256=_hash(data)).json() == {"have": 400}
    wrong_offset = acme.send_blob(upload, data, offset=100)  # a gap after byte 400
    assert (wrong_offset.status_code, wrong_offset.json()["code"], wrong_offset.json()["have"]) == (409, "offset", 400)
    undeclared = acme.send_blob(upload, b"y", sha256="0" * 64)  # a blob that was not declared
    assert undeclared.status_code == 404
    too_long = acme.send_blob(upload, data + b"!", sha256=_hash(data), offset=400)
    assert (too_long.status_code, "more than the declared" in too_long.json()["message"]) == (422, True)
    assert acme.commit(upload).status_code == 422  # a blob is incomplete
    wrong_hash = acme.send_blob(upload, b"0" * 1_000, sha256=_hash(data), offset=received_bytes(acme, upload, data))
    assert (wrong_hash.status_code, "does not have the declared hash" in wrong_hash.json()["message"]) == (422, True)
    assert received_bytes(acme, upload, data) == 0
    assert acme.list_files() == []
    assert acme.publish(contents_by_folder(bundle))["state"] == "published"
    assert [path.rpartition("/")[2] for path in acme.list_files()] == ["data.txt", MANIFEST, CHECKSUM]


def received_bytes(raw: RawUploadClient, upload: str, data: bytes) -> int:
    missing = {blob["sha256"]: blob["have"] for blob in raw.state(upload)["missing"]}
    return int(missing[_hash(data)])


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.gate
def test_repeated_commit_and_repeated_declaration_return_the_same_upload(
    acme: RawUploadClient,
) -> None:
    bundle = make_bundle()
    first = acme.publish(contents_by_folder(bundle))
    assert acme.commit(first["id"]).json()["state"] == "published"
    declared_again = acme.start_upload(contents_by_folder(bundle)).json()
    assert (declared_again["id"], declared_again["state"], declared_again["missing"]) == (first["id"], "published", [])
    assert len(acme.list_files()) == 3


@pytest.mark.gate
def test_upload_with_one_taken_folder_publishes_nothing(server: ServerProcess, acme: RawUploadClient) -> None:
    assert acme.publish(contents_by_folder(make_bundle("one")))["state"] == "published"
    result = acme.publish(contents_by_folder(make_bundle("two"), make_bundle("one", data=b"other\n")))
    assert (result["status"], result["code"]) == (409, "taken")
    with RawUploadClient(server.address, server.create_token("acme")) as second:
        two_folders = contents_by_folder(
            make_bundle("three"), make_bundle("one")
        )  # "one" is already published, with the same contents
        assert second.publish(two_folders)["status"] == 409
    assert {path.split("/")[2] for path in acme.list_files()} == {"one"}


@pytest.mark.gate
def test_account_cannot_publish_as_another_nor_detect_its_private_releases(
    server: ServerProcess, acme: RawUploadClient
) -> None:
    private_release = make_bundle("plan", visibility="private", data=b"what nobody knows\n")
    assert acme.publish(contents_by_folder(private_release))["state"] == "published"
    with (
        RawUploadClient(server.address, server.create_token("eve")) as eve,
        RawUploadClient(server.address, None) as anybody,
    ):
        existing, missing = (
            eve.start_upload(contents_by_folder(make_bundle(name, data=b"z\n"))) for name in ("plan", "nothing")
        )
        assert existing.status_code == missing.status_code == 403
        assert existing.json() == missing.json()
        path = "/tree/dataset/acme/{}/1/release.json"
        assert [eve.client.get(path.format(name)).json() for name in ("plan", "no")] == [
            missing_file_error(),
            missing_file_error(),
        ]
        eve_bundle = make_bundle("mine", owner="eve", data=b"what nobody knows\n")
        upload = eve.start_upload(contents_by_folder(eve_bundle)).json()
        assert _hash(b"what nobody knows\n") in {
            blob["sha256"] for blob in upload["missing"]
        }  # must not reveal that the server has this blob
        acme_upload = acme.start_upload(contents_by_folder(make_bundle("open"))).json()["id"]
        assert eve.client.get(f"/uploads/{acme_upload}").json() == eve.client.get(f"/uploads/{'0' * 32}").json()
        assert [
            anybody.start_upload(contents_by_folder(make_bundle())).status_code,
            anybody.commit(acme_upload).status_code,
        ] == [
            401,
            401,
        ]
        for raw in (eve, anybody):
            assert raw.list_files() == raw.client.get("/releases").json()["releases"] == []
            response = raw.client.post("/files", json={"paths": ["dataset/acme/plan/1/data.txt"]})
            assert response.content == b'{"path":"dataset/acme/plan/1/data.txt","size":null}\n'
    assert len(acme.list_files()) == 3


def missing_file_error() -> dict[str, object]:
    return {
        "code": "missing",
        "message": "no such file; check the path, or use a token that may see the release",
        "problems": [],
    }


@pytest.mark.gate
def test_link_to_a_private_release_or_a_wrong_hash_is_refused(acme: RawUploadClient) -> None:
    private_release = make_bundle("plan", visibility="private")
    assert acme.publish(contents_by_folder(private_release))["state"] == "published"
    link = ReleaseLink(role="input", release="dataset/acme/plan@1", sha256=private_release.sha256)
    result = acme.publish(contents_by_folder(make_bundle("open", links=(link,))))
    assert result["state"] == "refused"
    assert "names dataset/acme/plan@1, which is private" in result["problems"][0]
    wrong_link = ReleaseLink(role="input", release="dataset/acme/plan@1", sha256="0" * 64)
    result = acme.publish(contents_by_folder(make_bundle("open", visibility="private", links=(wrong_link,))))
    assert "has another hash than dataset/acme/plan@1 on this server" in result["problems"][0]
    assert (
        acme.publish(contents_by_folder(make_bundle("open", visibility="private", links=(link,))))["state"]
        == "published"
    )


@pytest.mark.gate
def test_unlisted_and_missing_files_are_refused_by_name(
    acme: RawUploadClient,
) -> None:
    ((folder, files),) = contents_by_folder(make_bundle("listed")).items()
    extra_file = acme.publish({folder: {**files, "more.txt": b"more\n"}})
    advice = "publish the release again"
    assert (extra_file["state"], extra_file["problems"]) == (
        "refused",
        [f"{folder}: more.txt is not in the manifest; {advice}"],
    )
    missing_file = acme.publish({folder: {path: data for path, data in files.items() if path != "data.txt"}})
    assert (missing_file["state"], missing_file["problems"]) == (
        "refused",
        [f"{folder}: data.txt is missing from the upload; {advice}"],
    )


@pytest.mark.gate
def test_refused_upload_sent_again_is_refused_with_the_same_problems(acme: RawUploadClient) -> None:
    bad = {
        "dataset/acme/bad/1": {**contents_by_folder(make_bundle("bad"))["dataset/acme/bad/1"], "data.txt": b"other\n"}
    }
    first, second = acme.publish(bad), acme.publish(bad)
    assert (
        first["problems"]
        == second["problems"]
        == ["dataset/acme/bad/1: data.txt has another hash or size than in the manifest; publish the release again"]
    )


@pytest.mark.gate
def test_interrupted_download_continues_at_its_offset(server: ServerProcess, acme: RawUploadClient) -> None:
    data = bytes(range(256)) * 2_000
    acme.publish(contents_by_folder(make_bundle(data=data)))
    path = "/tree/dataset/acme/council/1/data.txt"
    complete = acme.client.get(path)
    rest = acme.client.get(path, headers={"range": "bytes=100000-", "if-range": complete.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, data[100_000:])
    assert rest.headers["content-range"] == "bytes 100000-511999/512000"
    changed = acme.client.get(path, headers={"range": "bytes=5-", "if-range": '"other"'})
    assert (changed.status_code, len(changed.content)) == (200, len(data))
    beyond = acme.client.get(path, headers={"range": "bytes=512000-"})
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */512000")
    with (
        run_cutting_proxy(server.port) as proxy,
        Registry(HttpTransport(proxy.address, timeouts=SHORT_TIMEOUTS)) as registry,
    ):
        entry = registry.find(parse_reference("dataset/acme/council@1"))
        for offset in (70_000, 200_000):
            proxy.cut_after("down", offset)
            with registry.open(entry, "data.txt") as file:
                assert file.read() == data
        assert proxy.cuts == 2


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize("direction", ["up", "down"])
def test_interrupted_publish_resumes(server: ServerProcess, direction: str) -> None:
    data = bytes(range(256)) * 2_000
    bundle = make_bundle(f"cut-{direction}", data=data)
    with run_cutting_proxy(server.port) as proxy:
        token = server.create_token("acme")
        with (
            registry_environment(server, token),  # the token is for the server's address, not the proxy's
            Registry(HttpTransport(proxy.address, timeouts=SHORT_TIMEOUTS)) as registry,
            pytest.raises(UsageError, match="this request needs a token"),
        ):
            registry.publish([bundle], "x")
        with patch.dict(os.environ, {"NIP_RUN_REGISTRY": proxy.address, "NIP_RUN_TOKEN": token}):
            proxy.cut_after(direction, 200_000 if direction == "up" else 1_500)
            with Registry(HttpTransport(proxy.address, timeouts=SHORT_TIMEOUTS)) as registry:
                ((published,), _) = registry.publish([bundle], "x")
        assert (published.sha256, proxy.cuts) == (bundle.sha256, 1)


@pytest.mark.gate
def test_invalid_declaration_is_refused_before_any_upload(acme: RawUploadClient) -> None:
    files = contents_by_folder(make_bundle())["dataset/acme/council/1"]
    for changes, message in (
        ({"size": -1}, "greater than or equal to 0"), ({"size": 1 << 60}, "less than"),
        ({"size": 5 << 30}, "at most"), ({"sha256": "x"}, "pattern"), ({"path": "../x"}, "each part of a path"),
        ({"path": "\ud800"}, ""),
    ):  # fmt: skip
        folder_request = {
            "folder": "dataset/acme/council/1",
            "files": [{**describe_file("release.json", b""), **changes}],
        }
        answer = acme.client.post(
            "/uploads", content=json.dumps({"folders": [folder_request]}), headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422, (changes, answer.text)
        assert message in answer.text
    for folder in ("dataset/acme", "x/acme/council/1", "dataset/acme/council/1/yanked/yanked", "dataset/../council/1"):
        assert acme.start_upload({folder: files}).status_code == 422
    assert acme.start_upload({}).status_code == 422
    large = [b"[" * (1 << 20)] * 17  # sent without a content length
    assert acme.client.post("/uploads", content=iter(large)).status_code == 413
    assert acme.client.post("/files", content=b"".join(large)).status_code == 413
    assert acme.client.post("/uploads", content=b"[" * 100_000).status_code == 422
    assert acme.client.get("/releases", params={"prefix": "a\0b"}).json()["releases"] == []
    assert acme.client.get("/tree/a%00b").status_code == 404


@pytest.mark.gate
def test_yank_and_signature_are_added_once_and_only_by_the_owner(server: ServerProcess, acme: RawUploadClient) -> None:
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
