"""A registry on the Hub, with the unmodified `huggingface_hub` and a local server with the Hub's API."""

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
def test_release_on_the_hub_is_fetched_unchanged_with_the_hash_that_it_has_in_a_folder(
    hub: LoopbackServer, servers: tuple[LoopbackServer, LoopbackServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = bundle()
    with Registry(FolderTransport(str(tmp_path / "folder"))) as folder:
        (in_folder,), _ = folder.publish([expected], "Publish")
    with connect(f"hf:{REPOSITORY}") as writing:
        (on_hub,), added = writing.publish([expected], "Publish the first run")
        repeated, nothing_added = writing.publish([expected], "Publish it again")
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with connect(f"hf:{REPOSITORY}") as reading:
        (entry,) = reading.entries()
        release = reading.unpack(entry, tmp_path / "got")
        assert list(reading.find_problems(entry)) == []
        assert reading.address == f"hf:{REPOSITORY}"
    assert on_hub.sha256 == in_folder.sha256 == entry.sha256 == expected.sha256
    assert len(added.revision or "") == 40
    assert [release.already_existed for release in repeated] == [True]
    assert nothing_added.revision is None
    for file in release.files:
        assert (tmp_path / "got" / file.path).read_bytes() == expected.contents[file.path]
    large = [request["path"] for request in servers[1].recorded_requests() if request["method"] == "GET"]
    assert large, "no file went through LFS"


def test_closed_registry_restores_the_http_client_of_huggingface_hub(hub: LoopbackServer) -> None:
    with connect(f"hf:{REPOSITORY}") as registry:
        list(registry.entries())
        assert isinstance(huggingface_hub.get_session(), HubClient)
    assert not isinstance(huggingface_hub.get_session(), HubClient)
    huggingface_hub.close_session()


def test_open_registry_reads_one_commit(hub: LoopbackServer) -> None:
    with registry("acme/moving") as first, registry("acme/moving") as later:
        _, added = first.publish([bundle(version="1")], "1")
        assert [str(entry.reference) for entry in later.entries()] == ["run/acme/first@1"]
        first.publish([bundle(version="2")], "2")
        later._listing.clear()
        assert [str(entry.reference) for entry in later.entries()] == ["run/acme/first@1"]
    with registry("acme/moving") as current, registry(f"acme/moving@{added.revision}") as pinned:
        assert [entry.reference.version for entry in current.entries()] == ["1", "2"]
        assert [entry.reference.version for entry in pinned.entries()] == ["1"]
        with pytest.raises(UsageError, match=r"is a commit, which never changes. Publish to hf:acme/moving\.$"):
            pinned.publish([bundle(version="3")], "3")


def test_version_is_immutable_and_yank_and_signature_are_added_once(hub: LoopbackServer) -> None:
    with registry("acme/fixed") as opened:
        opened.publish([bundle()], "Publish")
        with pytest.raises(TakenError, match="a version never changes"):
            opened.publish([bundle(content=b"other\n")], "Publish other content")
        entry = opened.find(bundle().release.reference)
        opened.add_signature(entry, b"s")
        with pytest.raises(TakenError):
            opened.add_signature(entry, b"t")
        opened.yank(entry.reference, "It was wrong")
    with registry("acme/fixed") as opened:
        (entry,) = opened.entries()
        assert (entry.yanked, entry.signed, opened.read_signature(entry)) == ("It was wrong", True, b"s")


@pytest.mark.full
def test_many_releases_are_listed_in_pages(hub: LoopbackServer) -> None:
    with registry("acme/many") as opened:
        opened.publish([bundle(f"run-{n}") for n in range(12)], "Publish many")
    with registry("acme/many") as opened:
        assert len(opened.entries()) == 12


def test_pull_request_is_listed_only_at_its_own_revision(hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READ_TOKEN)
    with registry("acme/open", pull_request=True) as opened:
        _, added = opened.publish([bundle("asked")], "Publish")
        assert f"{hub.root}/datasets/acme/open/discussions/" in str(added.note)
    with registry("acme/open") as main, connect(str(added.proposed_at)) as proposed:
        assert [entry.reference.name for entry in main.entries()] == []
        assert [entry.reference.name for entry in proposed.entries()] == ["asked"]


def test_private_release_is_published_only_to_a_private_repository(
    hub: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with registry("acme/secret") as opened:
        opened.publish([bundle(visibility="private")], "Publish")
    with registry("acme/open") as opened, pytest.raises(ReleaseError, match="is public, and this release is private"):
        opened.publish([bundle(visibility="private")], "Publish")
    monkeypatch.delenv("HF_TOKEN")
    with registry("acme/secret") as opened, pytest.raises(ReleaseError, match="or it is private"):
        opened.entries()


# Concurrent and killed publishers


@pytest.mark.full
def test_concurrent_publishers_all_succeed(hub: LoopbackServer) -> None:
    def publish(n: int) -> None:
        with registry("acme/busy") as opened:
            opened.publish([bundle(f"run-{n}")], f"Publish {n}")

    with registry("acme/busy") as opened:
        opened.publish([bundle("before")], "Publish")
    with ThreadPoolExecutor(max_workers=4) as pool:
        list(pool.map(publish, range(4)))
    with registry("acme/busy") as opened:
        assert sorted(entry.reference.name for entry in opened.entries()) == ["before", *(f"run-{n}" for n in range(4))]


def test_publish_is_repeated_after_a_conflicting_commit(hub: LoopbackServer) -> None:
    hub.change(conflicts=2)
    with registry("acme/open") as opened:
        (published,), _ = opened.publish([bundle("after-others")], "Publish")
    assert not published.already_existed
    with registry("acme/open") as opened:
        assert published.reference in [entry.reference for entry in opened.entries()]


def test_second_of_two_releases_with_one_name_and_other_content_is_refused(hub: LoopbackServer) -> None:
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
@pytest.mark.parametrize("mode", [pytest.param("hang", id="before-the-commit"), pytest.param("slow", id="after-it")])
def test_killed_publish_is_complete_or_absent_and_can_be_repeated(hub: LoopbackServer, mode: str) -> None:
    repository = "acme/open" if mode == "hang" else "acme/killed-late"
    variables = {"HF_ENDPOINT": hub.root, "HF_TOKEN": WRITE_TOKEN}
    path = f"/api/datasets/{repository}/commit/main"
    with registry(repository) as opened:
        opened.publish([bundle("earlier")], "Publish")
    before = hub.stats()["paths"][path]
    hub.change(slow_commit=3600.0)
    if mode == "hang":  # the commit is refused until the publisher is dead
        hub.change(conflicts=1_000, slow_commit=0.0)
    with subprocess.Popen([sys.executable, "-c", PUBLISH, repository], env=environment(**variables)) as process:
        try:
            wait_until(lambda: hub.stats()["paths"][path] > before)
        finally:
            process.kill()
    hub.change(**NO_FAULTS)
    with registry(repository) as opened:
        assert ("killed" in {entry.reference.name for entry in opened.entries()}) == (mode == "slow")
        (published,), _ = opened.publish([bundle("killed")], "Publish")
        assert list(opened.find_problems(opened.find(published.reference))) == []


def test_repeated_publish_after_a_lost_answer_finds_the_release(hub: LoopbackServer) -> None:
    hub.change(mode="lost_answer")
    with registry("acme/open") as opened, pytest.raises(ReleaseError, match=r"broke .* run the same command again"):
        opened.publish([bundle("lost")], "Publish")
    hub.change(**NO_FAULTS)
    with registry("acme/open") as opened:
        (published,), _ = opened.publish([bundle("lost")], "Publish")
        assert published.already_existed


@pytest.mark.full
def test_gitignore_of_the_repository_excludes_no_file(hub: LoopbackServer) -> None:
    hub.change(mode="ignore")
    with registry("acme/open") as opened:
        (published,), _ = opened.publish([bundle("not-ignored")], "Publish")
        assert list(opened.find_problems(opened.find(published.reference))) == []
