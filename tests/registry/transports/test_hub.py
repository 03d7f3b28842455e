"""A registry on the Hub, over the unmodified `huggingface_hub` and a server of our own that speaks its API."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import huggingface_hub
import pytest

from runner.base.errors import ReleaseError, TakenError, UsageError
from runner.registry.transports.folder import FolderTransport
from runner.registry.transports.hub import HubClient
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry
from tests.support.hub_registry import NO_FAULTS, REPOSITORY, bundle, registry
from tests.support.processes import environment, wait_until
from tests.support.servers.client import LoopbackServer
from tests.support.servers.hub_client import READ_TOKEN, WRITE_TOKEN


@pytest.mark.full
def test_a_release_comes_back_from_the_hub_as_it_was_published_and_has_the_id_that_it_has_in_a_folder(
    hub: LoopbackServer, servers: tuple[LoopbackServer, LoopbackServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundle()
    with Registry(FolderTransport(str(tmp_path / "folder"))) as folder:
        (in_folder,), _ = folder.publish([made], "Publish")
    with connect(f"hf:{REPOSITORY}") as writing:
        (on_hub,), added = writing.publish([made], "Publish the first run")
        again, nothing = writing.publish([made], "Publish it again")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with connect(f"hf:{REPOSITORY}") as reading:
        (entry,) = reading.entries()
        release = reading.unpack(entry, tmp_path / "got")
        assert list(reading.find_problems(entry)) == []
        assert reading.address == f"hf:{REPOSITORY}"
    assert on_hub.sha256 == in_folder.sha256 == entry.sha256 == made.sha256
    assert len(added.revision or "") == 40
    assert [one.already_existed for one in again] == [True]
    assert nothing.revision is None
    for file in release.files:
        assert (tmp_path / "got" / file.path).read_bytes() == made.contents[file.path]
    large = [one["path"] for one in servers[1].recorded_requests() if one["method"] == "GET"]
    assert large, "no file went through LFS"


def test_once_a_registry_is_closed_other_libraries_have_the_client_of_the_hub_again(hub: LoopbackServer) -> None:
    with connect(f"hf:{REPOSITORY}") as registry:
        list(registry.entries())
        assert isinstance(huggingface_hub.get_session(), HubClient)
    assert not isinstance(huggingface_hub.get_session(), HubClient)
    huggingface_hub.close_session()


def test_what_is_read_is_one_commit_whatever_is_published_meanwhile(hub: LoopbackServer) -> None:
    with registry("acme/moving") as first, registry("acme/moving") as later:
        _, added = first.publish([bundle(version="1")], "1")
        assert [str(one.reference) for one in later.entries()] == ["run/acme/first@1"]
        first.publish([bundle(version="2")], "2")
        later._listing.clear()
        assert [str(one.reference) for one in later.entries()] == ["run/acme/first@1"]
    with registry("acme/moving") as now, registry(f"acme/moving@{added.revision}") as then:
        assert [one.reference.version for one in now.entries()] == ["1", "2"]
        assert [one.reference.version for one in then.entries()] == ["1"]
        with pytest.raises(UsageError, match=r"is a commit, which never changes. Publish to hf:acme/moving\.$"):
            then.publish([bundle(version="3")], "3")


def test_a_version_never_changes_and_a_yank_and_a_signature_are_added_once(hub: LoopbackServer) -> None:
    with registry("acme/fixed") as one:
        one.publish([bundle()], "Publish")
        with pytest.raises(TakenError, match="a version never changes"):
            one.publish([bundle(content=b"other\n")], "Publish other content")
        entry = one.find(bundle().release.reference)
        one.add_signature(entry, b"s")
        with pytest.raises(TakenError):
            one.add_signature(entry, b"t")
        one.yank(entry.reference, "It was wrong")
    with registry("acme/fixed") as one:
        (entry,) = one.entries()
        assert (entry.yanked, entry.signed, one.read_signature(entry)) == ("It was wrong", True, b"s")


@pytest.mark.full
def test_a_registry_of_many_releases_is_listed_page_by_page(hub: LoopbackServer) -> None:
    with registry("acme/many") as one:
        one.publish([bundle(f"run-{n}") for n in range(12)], "Publish many")
    with registry("acme/many") as one:
        assert len(one.entries()) == 12


def test_a_pull_request_is_seen_once_it_is_merged(hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with registry("acme/open", pull_request=True) as one:
        _, added = one.publish([bundle("asked")], "Publish")
        assert f"{hub.root}/datasets/acme/open/discussions/" in str(added.note)
    with registry("acme/open") as main, connect(str(added.proposed_at)) as asked:
        assert [entry.reference.name for entry in main.entries()] == []
        assert [entry.reference.name for entry in asked.entries()] == ["asked"]


def test_a_private_release_goes_to_a_private_repository_only(
    hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry("acme/secret") as one:
        one.publish([bundle(visibility="private")], "Publish")
    with registry("acme/open") as one, pytest.raises(ReleaseError, match="is public, and this release is private"):
        one.publish([bundle(visibility="private")], "Publish")
    monkeypatch.delenv("HF_TOKEN")
    with registry("acme/secret") as one, pytest.raises(ReleaseError, match="or it is private"):
        one.entries()


# At once, and killed


@pytest.mark.full
def test_publishers_at_once_all_succeed_each_once(hub: LoopbackServer) -> None:
    def publish(n: int) -> None:
        with registry("acme/busy") as one:
            one.publish([bundle(f"run-{n}")], f"Publish {n}")

    with registry("acme/busy") as one:
        one.publish([bundle("before")], "Publish")
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(publish, range(4)))
    with registry("acme/busy") as one:
        assert sorted(entry.reference.name for entry in one.entries()) == ["before", *(f"run-{n}" for n in range(4))]


def test_a_commit_that_came_first_is_looked_at_and_then_the_release_follows_it(hub: LoopbackServer) -> None:
    hub.change(conflicts=2)
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("after-others")], "Publish")
    assert not done.already_existed
    with registry("acme/open") as one:
        assert done.reference in [entry.reference for entry in one.entries()]


def test_of_two_who_publish_other_content_by_one_name_one_is_told_that_it_is_taken(hub: LoopbackServer) -> None:
    with registry("acme/open") as first, registry("acme/open") as second:
        assert len(second.entries()) == len(first.entries())
        first.publish([bundle("contested", content=b"mine\n")], "Publish")
        second.publish([bundle("contested", content=b"mine\n")], "The same")
        with pytest.raises(TakenError, match="with other content"):
            second.publish([bundle("contested", content=b"theirs\n")], "Publish")


PUBLISH = """
import sys
from runner.registry.transports.locations import connect
from tests.support.hub_registry import bundle
with connect("hf:" + sys.argv[1]) as registry:
    registry.publish([bundle("killed")], "Publish")
"""


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("at", [pytest.param("hang", id="before-the-commit"), pytest.param("slow", id="after-it")])
def test_a_publish_that_is_killed_leaves_all_or_nothing_and_the_same_call_finishes(
    hub: LoopbackServer, at: str
) -> None:
    place = "acme/open" if at == "hang" else "acme/killed-late"
    variables = {"HF_ENDPOINT": hub.root, "HF_TOKEN": WRITE_TOKEN}
    path = f"/api/datasets/{place}/commit/main"
    with registry(place) as one:
        one.publish([bundle("earlier")], "Publish")
    before = hub.stats()["paths"][path]
    hub.change(slow_commit=3600.0)
    if at == "hang":  # the upload is done, and the commit is refused until the publisher is dead
        hub.change(conflicts=1_000, slow_commit=0.0)
    with subprocess.Popen([sys.executable, "-c", PUBLISH, place], env=environment(**variables)) as process:
        try:
            wait_until(lambda: hub.stats()["paths"][path] > before)
        finally:
            process.kill()
    hub.change(**NO_FAULTS)
    with registry(place) as one:
        assert ("killed" in {entry.reference.name for entry in one.entries()}) == (at == "slow")
        (done,), _ = one.publish([bundle("killed")], "Publish")
        assert list(one.find_problems(one.find(done.reference))) == []


def test_where_the_answer_to_a_commit_is_lost_the_same_call_finds_it_done(hub: LoopbackServer) -> None:
    hub.change(mode="lost_answer")
    with registry("acme/open") as one, pytest.raises(ReleaseError, match=r"broke .* run the same command again"):
        one.publish([bundle("lost")], "Publish")
    hub.change(**NO_FAULTS)
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("lost")], "Publish")
        assert done.already_existed


@pytest.mark.full
def test_a_gitignore_of_the_repository_leaves_no_file_out(hub: LoopbackServer) -> None:
    hub.change(mode="ignore")
    with registry("acme/open") as one:
        (done,), _ = one.publish([bundle("not-ignored")], "Publish")
        assert list(one.find_problems(one.find(done.reference))) == []
