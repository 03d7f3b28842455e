"""A registry on the Hub, over the unmodified `huggingface_hub` and a server of our own that speaks its API."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.errors import NotPublished, ReleaseError, TakenError, UsageError
from runner.releases.bundle import Bundle
from runner.releases.manifest import Release
from runner.releases.reference import Kind
from runner.transports.connect import connect
from runner.transports.folder import FolderTransport
from runner.transports.hub import HubTransport
from runner.transports.hub_http import Patience
from runner.transports.registry import Registry
from tests.support.processes import environment, until
from tests.support.servers.client import Loopback
from tests.support.servers.hub_client import READ, WRITE, running_hub

QUICK = Patience(connect=2.0, read=1.0, tries=2, wait=0.01, answer_bytes=1 << 20, answer_seconds=5.0)
PLACE = "acme/registry"
CALM: dict[str, Any] = {
    "mode": "",
    "only": "",
    "status": 0,
    "retry_after": "",
    "busy": 0,
    "conflicts": 0,
    "slow_commit": 0.0,
}


def bundle(name: str = "first", version: str = "1", content: bytes = b'{"a": 1}\n', **facts: Any) -> Bundle:
    """A release with a small file, an empty one, and two large ones of the same content, which go through LFS."""
    release = Release(kind=Kind.RUN, owner="acme", name=name, version=version, **facts)
    large = b"".join(b"%d\n" % n for n in range(5_000))
    files = {"spec.yaml": content, "data/empty.txt": b"", "data/one.jsonl": large, "data/two.jsonl": large}
    return Bundle.of(release, files)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Loopback, Loopback]]:
    made = {"acme/open": {}, "acme/closed": {"private": True}, "acme/gated": {"gated": True}}
    with running_hub(repositories=made) as both:
        yield both


@pytest.fixture
def hub(servers: tuple[Loopback, Loopback], monkeypatch: pytest.MonkeyPatch) -> Loopback:
    monkeypatch.setenv("HF_ENDPOINT", servers[0].root)
    monkeypatch.setenv("HF_TOKEN", WRITE)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    servers[0].change(**CALM)
    return servers[0]


@contextmanager
def registry(place: str, **options: Any) -> Iterator[Registry]:
    with Registry(HubTransport(place, **{"patience": QUICK, **options})) as opened:
        yield opened


@pytest.fixture(scope="module")
def published(servers: tuple[Loopback, Loopback]) -> str:
    """A repository that holds one release, and is only read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_ENDPOINT", servers[0].root)
        patch.setenv("HF_TOKEN", WRITE)
        with registry("acme/read-only") as writing:
            writing.publish([bundle()], "Publish")
    return "acme/read-only"


def test_a_release_comes_back_from_the_hub_as_it_was_published_and_has_the_id_that_it_has_in_a_folder(
    hub: Loopback, servers: tuple[Loopback, Loopback], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundle()
    with Registry(FolderTransport(str(tmp_path / "folder"))) as folder:
        (in_folder,), _ = folder.publish([made], "Publish")
    with connect(f"hf:{PLACE}") as writing:
        (on_hub,), added = writing.publish([made], "Publish the first run")
        again, nothing = writing.publish([made], "Publish it again")
    monkeypatch.setenv("HF_TOKEN", READ)
    with connect(f"hf:{PLACE}") as reading:
        (entry,) = reading.entries()
        release = reading.unpack(entry, tmp_path / "got")
        assert list(reading.wrong(entry)) == []
        assert reading.where == f"hf:{PLACE}"
    assert on_hub.sha256 == in_folder.sha256 == entry.sha256 == made.sha256
    assert len(added.revision or "") == 40
    assert [one.was_there for one in again] == [True]
    assert nothing.revision is None
    for file in release.files:
        assert (tmp_path / "got" / file.path).read_bytes() == made.contents[file.path]
    large = [one["path"] for one in servers[1].recorded() if one["method"] == "GET"]
    assert large, "no file went through LFS"


def test_what_is_read_is_one_commit_whatever_is_published_meanwhile(hub: Loopback) -> None:
    with registry("acme/moving") as first, registry("acme/moving") as later:
        _, added = first.publish([bundle(version="1")], "1")
        assert [str(one.reference) for one in later.entries()] == ["run/acme/first@1"]
        first.publish([bundle(version="2")], "2")
        later._listing.forget()
        assert [str(one.reference) for one in later.entries()] == ["run/acme/first@1"]
    with registry("acme/moving") as now, registry(f"acme/moving@{added.revision}") as then:
        assert [one.reference.version for one in now.entries()] == ["1", "2"]
        assert [one.reference.version for one in then.entries()] == ["1"]
        with pytest.raises(UsageError, match=r"is one commit, to read; publish to hf:acme/moving$"):
            then.publish([bundle(version="3")], "3")


def test_a_version_never_changes_and_a_yank_and_a_signature_are_added_once(hub: Loopback) -> None:
    with registry("acme/fixed") as one:
        one.publish([bundle()], "Publish")
        with pytest.raises(TakenError, match="a version never changes"):
            one.publish([bundle(content=b"other\n")], "Publish other content")
        entry = one.find(bundle().release.reference)
        one.add_signature(entry, [("release.json.sig", b"s")])
        with pytest.raises(TakenError):
            one.add_signature(entry, [("release.json.sig", b"t")])
        one.yank(entry.reference, "It was wrong")
    with registry("acme/fixed") as one:
        (entry,) = one.entries()
        assert (entry.yanked, entry.signed, one.signature(entry)) == ("It was wrong", True, {"release.json.sig": b"s"})


def test_a_registry_of_many_releases_is_listed_page_by_page(hub: Loopback) -> None:
    with registry("acme/many") as one:
        one.publish([bundle(f"run-{n}") for n in range(12)], "Publish many")
    with registry("acme/many") as one:
        assert len(one.entries()) == 12


def test_a_pull_request_is_seen_once_it_is_merged(hub: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ)
    with registry("acme/open", pull_request=True) as one:
        _, added = one.publish([bundle("asked")], "Publish")
        assert f"{hub.root}/datasets/acme/open/discussions/" in str(added.note)
    with registry("acme/open") as main, registry(f"acme/open@{added.revision}") as asked:
        assert [entry.reference.name for entry in main.entries()] == []
        assert [entry.reference.name for entry in asked.entries()] == ["asked"]


def test_a_private_release_goes_to_a_private_repository_only(hub: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    with registry("acme/secret") as one:
        one.publish([bundle(visibility="private")], "Publish")
    with registry("acme/open") as one, pytest.raises(ReleaseError, match="is public, and this release is private"):
        one.publish([bundle(visibility="private")], "Publish")
    monkeypatch.delenv("HF_TOKEN")
    with registry("acme/secret") as one, pytest.raises(ReleaseError, match="or it is private"):
        one.entries()


# At once, and killed


def test_publishers_at_once_all_succeed_each_once(hub: Loopback) -> None:
    def publish(n: int) -> None:
        with registry("acme/busy") as one:
            one.publish([bundle(f"run-{n}")], f"Publish {n}")

    with registry("acme/busy") as one:
        one.publish([bundle("before")], "Publish")
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(publish, range(4)))
    with registry("acme/busy") as one:
        assert sorted(entry.reference.name for entry in one.entries()) == ["before", *(f"run-{n}" for n in range(4))]


def test_a_commit_that_came_first_is_looked_at_and_then_the_release_follows_it(hub: Loopback) -> None:
    hub.change(conflicts=2)
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("after-others")], "Publish")
    assert not done.was_there
    with registry("acme/open") as one:
        assert done.reference in [entry.reference for entry in one.entries()]


def test_of_two_who_publish_other_content_by_one_name_one_is_told_that_it_is_taken(hub: Loopback) -> None:
    with registry("acme/open") as first, registry("acme/open") as second:
        assert len(second.entries()) == len(first.entries())
        first.publish([bundle("contested", content=b"mine\n")], "Publish")
        second.publish([bundle("contested", content=b"mine\n")], "The same")
        with pytest.raises(TakenError, match="with other content"):
            second.publish([bundle("contested", content=b"theirs\n")], "Publish")


PUBLISH = """
import sys
from runner.transports.connect import connect
from tests.transports.test_hub import bundle
with connect("hf:" + sys.argv[1]) as registry:
    registry.publish([bundle("killed")], "Publish")
"""


@pytest.mark.sample(1)
@pytest.mark.parametrize("at", [pytest.param("hang", id="before-the-commit"), pytest.param("slow", id="after-it")])
def test_a_publish_that_is_killed_leaves_all_or_nothing_and_the_same_call_finishes(hub: Loopback, at: str) -> None:
    place = "acme/open" if at == "hang" else "acme/killed-late"
    variables = {"HF_ENDPOINT": hub.root, "HF_TOKEN": WRITE}
    path = f"/api/datasets/{place}/commit/main"
    with registry(place) as one:
        one.publish([bundle("earlier")], "Publish")
    before = hub.stats()["paths"][path]
    hub.change(slow_commit=20.0)
    if at == "hang":  # the upload is done, and the commit is refused until the publisher is dead
        hub.change(conflicts=1_000, slow_commit=0.0)
    with subprocess.Popen([sys.executable, "-c", PUBLISH, place], env=environment(**variables)) as process:
        try:
            until(lambda: hub.stats()["paths"][path] > before, 60.0)
        finally:
            process.kill()
    hub.change(**CALM)
    with registry(place) as one:
        assert ("killed" in {entry.reference.name for entry in one.entries()}) == (at == "slow")
        (done,), _ = one.publish([bundle("killed")], "Publish")
        assert list(one.wrong(one.find(done.reference))) == []


def test_where_the_answer_to_a_commit_is_lost_the_same_call_finds_it_done(hub: Loopback) -> None:
    hub.change(mode="lost_answer")
    with registry("acme/open") as one, pytest.raises(ReleaseError, match=r"broke .* run the same command again"):
        one.publish([bundle("lost")], "Publish")
    hub.change(**CALM)
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("lost")], "Publish")
        assert done.was_there


def test_a_gitignore_of_the_repository_leaves_no_file_out(hub: Loopback) -> None:
    hub.change(mode="ignore")
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("not-ignored")], "Publish")
        assert list(one.wrong(one.find(done.reference))) == []


# What goes wrong, and what is said of it


@pytest.mark.parametrize(
    ("place", "token", "message"),
    [
        (
            "acme/none",
            None,
            "no dataset repository .*/datasets/acme/none, or it is private; .* see that HF_TOKEN is set",
        ),
        ("acme/closed", None, "or it is private; .* see that HF_TOKEN is set"),
        ("acme/gated", None, "it is gated .*ask for access at .*/datasets/acme/gated"),
        ("acme/open", "hf_" + "x" * 30, "the token is refused .HTTP 401.*give another one in HF_TOKEN"),
        ("acme/open@nowhere", WRITE, "it has no such branch, tag or commit; look at what stands behind @"),
        ("acme/open@" + "a" * 40, WRITE, "it has no such branch, tag or commit"),
    ],
)
def test_what_may_not_be_read_is_said_with_what_to_do(
    hub: Loopback, monkeypatch: pytest.MonkeyPatch, place: str, token: str | None, message: str
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    with registry(place) as one, pytest.raises(ReleaseError, match=f"^hf:acme.*: cannot look up .*{message}"):
        one.entries()


def test_who_may_only_read_is_told_so_and_nothing_is_published(hub: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ)
    for place in ("acme/open", "acme/not-mine"):
        with (
            registry(place) as one,
            pytest.raises(ReleaseError, match=r"not allowed .HTTP 403.*see that the token may"),
        ):
            one.publish([bundle("forbidden")], "Publish")


def test_a_name_that_a_registry_does_not_have_is_no_fault_of_the_hub(hub: Loopback, published: str) -> None:
    with registry(published) as one:
        with pytest.raises(NotPublished, match=r"has no run/acme/frist.*first"):
            one.find(bundle("frist").release.reference)
        with pytest.raises(NotPublished, match="no such file"):
            one._transport.open("run/acme/first/1/none")


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"status": 429, "retry_after": "86400"}, "too many requests from here .HTTP 429.; it asks to wait 86,400 s"),
        ({"status": 429}, "too many requests from here .HTTP 429.; run the same command again later"),
        ({"status": 503}, "is not able to answer .HTTP 503."),
        ({"status": 500}, "is not able to answer .HTTP 500."),
        ({"status": 418}, "HTTP 418 .as was asked for."),
        ({"mode": "hang"}, "does not answer; try again later"),
        ({"mode": "drop"}, "the connection to 127.0.0.1:[0-9]+ broke"),
        ({"mode": "endless_answer"}, "its answer is longer than 1,048,576 bytes"),
        ({"mode": "not_json"}, "does not answer as the Hub does .JSONDecodeError"),
        ({"mode": "deep_json"}, "does not answer as the Hub does .RecursionError"),
        ({"mode": "no_commit"}, "does not answer as the Hub does .ValueError: its commit is 'main'"),
        ({"mode": "other_shape"}, "cannot list its files: it does not answer as the Hub does"),
        ({"mode": "no_files"}, "cannot list its files: it does not answer as the Hub does"),
        ({"mode": "dotdot"}, "it lists a file 'run/../../evil'"),
        ({"mode": "endless_pages"}, "lists more than 300 files, and no more are read"),
    ],
)  # fmt: skip
def test_a_hub_that_fails_or_misbehaves_is_given_up_soon_with_what_it_did(
    hub: Loopback, published: str, options: dict[str, Any], message: str
) -> None:
    hub.change(**options)
    begun = time.monotonic()
    with registry(published, most_files=300) as one, pytest.raises(ReleaseError, match=message):
        one.entries()
    assert time.monotonic() - begun < 15


def test_a_hub_that_is_busy_for_a_moment_is_asked_again(hub: Loopback, published: str) -> None:
    hub.change(busy=1, retry_after="0")
    with registry(published) as one:
        assert len(one.entries()) == 1


def test_a_hub_that_is_not_there_is_said_with_its_host(hub: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with (
        registry("acme/open") as one,
        pytest.raises(ReleaseError, match=r"cannot reach 127.0.0.1:9 .*is HF_ENDPOINT rig"),
    ):
        one.entries()
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.example")
    with pytest.raises(UsageError, match="must begin with https://"):
        HubTransport("acme/open")


def test_who_said_that_nothing_is_to_be_asked_of_the_hub_is_told_so(
    hub: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ReleaseError, match="HF_HUB_OFFLINE is set; take it away"):
        HubTransport("acme/open")


def test_an_upload_that_is_refused_is_said_and_leaves_nothing(hub: Loopback) -> None:
    hub.change(mode="refuse_upload")
    with registry("acme/open") as one, pytest.raises(ReleaseError, match=r"cannot publish there: .*no room"):
        one.publish([bundle("refused")], "Publish")
    with registry("acme/open") as one:
        assert "refused" not in [entry.reference.name for entry in one.entries()]


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("other_bytes", "spec.yaml is damaged: its bytes are not those of its hash"),
        ("longer", "spec.yaml is damaged: it is longer than the 9 bytes"),
        ("shorter", "spec.yaml is damaged: it has 8 of 9 bytes"),
        ("endless", "spec.yaml is damaged: it is longer than the 9 bytes"),
        ("cut", "spec.yaml: the connection to 127.0.0.1:[0-9]+ broke"),
        ("packed", "spec.yaml: it answers in the encoding 'deflate', which nobody asked for"),
        ("elsewhere", "cannot read run/acme/first/1/spec.yaml"),
    ],
)
def test_a_file_that_is_not_what_was_published_is_found_and_named_and_nothing_is_left(
    hub: Loopback, servers: tuple[Loopback, Loopback], published: str, tmp_path: Path, mode: str, message: str
) -> None:
    with registry(published) as one:
        (entry,) = one.entries()
        hub.change(mode=mode, only="spec.yaml", elsewhere=servers[1].root)
        with pytest.raises(ReleaseError, match=rf"run/acme/first@1 in hf:{published}.*{message}"):
            one.unpack(entry, tmp_path / "got")
        assert not list(tmp_path.iterdir())
        hub.change(**CALM)
        one.unpack(entry, tmp_path / "got")  # no wrong byte was kept


@pytest.mark.parametrize(
    "place", ["", "acme", "acme/", "a/b/c", "../x", "acme/x@", "acme/..", "acme/x@../y", "-/x", "acme/x y"]
)
def test_no_other_shape_names_a_repository(place: str) -> None:
    with pytest.raises(UsageError, match="no repository of the Hub is called"):
        HubTransport(place)


# The token, and who else is told


def test_the_token_goes_to_no_other_host_whoever_sends_us_there(
    hub: Loopback, servers: tuple[Loopback, Loopback], published: str
) -> None:
    storage = servers[1]
    with registry("acme/private-files") as one:
        one.publish([bundle("sent", visibility="private")], "Publish")  # uploads to the storage
        assert list(one.wrong(one.entries()[0])) == []  # and downloads from it
        (entry,) = one.entries()
        hub.change(mode="elsewhere", elsewhere=storage.root)
        with pytest.raises(ReleaseError):
            one.read(entry)
    hub.change(mode="pages_elsewhere", elsewhere=storage.root)
    with registry(published) as one, pytest.raises(ReleaseError):
        one.entries()
    came = storage.recorded()
    assert {one["method"] for one in came} >= {"PUT", "GET"}
    assert any("/tree/" in one["path"] for one in came)
    assert any("release.json" in one["path"] for one in came)
    assert not [one for one in came if "authorization" in one["headers"] or WRITE in str(one)]
    assert [one for one in hub.recorded() if WRITE in one["headers"].get("authorization", "")]


def test_a_token_that_a_hub_writes_into_its_error_is_not_shown(hub: Loopback, published: str) -> None:
    hub.change(mode="echo")
    with registry(published) as one, pytest.raises(ReleaseError, match="secret removed") as failed:
        one.entries()
    assert WRITE not in str(failed.value)


def test_the_hub_is_told_nothing_of_this_machine_but_versions_and_nothing_is_kept_on_disk(
    hub: Loopback, published: str, tmp_path: Path
) -> None:
    variables = {
        "HF_ENDPOINT": hub.root, "HF_TOKEN": WRITE, "HOME": str(tmp_path / "home"), "HF_HOME": str(tmp_path / "cache"),
    }  # fmt: skip
    (tmp_path / "home").mkdir()
    code = (
        f"from runner.transports.connect import connect\n"
        f"r = connect('hf:{published}')\nprint(len(r.entries()), list(r.wrong(r.entries()[0])))"
    )
    known = len(hub.recorded())
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(**variables), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("1 []\n", "")
    agents = {one["headers"]["user-agent"] for one in hub.recorded()[known:]}
    assert len(agents) == 1
    assert agents.pop().split("/")[0] == "nip-run"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
