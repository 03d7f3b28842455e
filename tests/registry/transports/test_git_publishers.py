"""Concurrent and killed publishers to one repository: each release is complete, and added once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from runner.base.errors import NipRunError, ReleaseError, TakenError
from runner.documents.releases.bundle import Bundle
from runner.registry.transports.git.process import GitLimits
from runner.registry.transports.git.transport import GitTransport
from runner.registry.transports.locations import connect
from tests.support import git_repositories
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import environment
from tests.support.registry_locations import bundle


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return git_repositories.init_bare(tmp_path / "served" / "registry.git")


def publish_concurrently(location: str, publishers: list[list[Bundle]]) -> list[object]:
    """Return for each publisher whether its last release already existed, or its error."""
    results: list[object] = [None] * len(publishers)
    ready = threading.Barrier(len(publishers))

    def publish(number: int) -> None:
        with connect(location) as registry:
            registry.entries()
            ready.wait(HANG_SECONDS)
            try:
                for release in publishers[number]:
                    published, _ = registry.publish([release], f"Publish {release.release.reference}")
                    results[number] = published[0].already_existed
            except NipRunError as error:
                results[number] = error

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(publishers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    return results


def list_names(location: str) -> list[str]:
    with connect(location) as registry:
        entries = registry.entries()
        assert not [problem for entry in entries for problem in registry.find_problems(entry)]
        return [entry.reference.name for entry in entries]


@pytest.mark.full
@pytest.mark.parametrize(
    ("served", "publisher_count", "releases_each"),
    [
        ("path", 3, 1),
        pytest.param("daemon", 3, 1, marks=pytest.mark.full),
        pytest.param("path", 10, 20, marks=pytest.mark.full),
    ],
)
def test_all_concurrently_published_releases_are_listed_once(
    repository: Path, served: str, publisher_count: int, releases_each: int
) -> None:
    names = [[f"p{number}-{release}" for release in range(releases_each)] for number in range(publisher_count)]

    def check(location: str) -> None:
        assert (
            publish_concurrently(location, [[bundle(name) for name in own_names] for own_names in names])
            == [False] * publisher_count
        )
        assert sorted(list_names(location)) == sorted(name for own_names in names for name in own_names)

    if served == "path":
        check(f"git:{repository}")
    else:
        with git_repositories.run_git_daemon(repository.parent) as address:
            check(f"git:{address}/registry.git")
    assert git_repositories.git(repository, "rev-list", "--count", "--no-merges", "main") == str(
        publisher_count * releases_each
    )  # a linear history
    git_repositories.git(repository, "fsck", "--strict")


def test_second_of_two_concurrent_releases_with_one_name_is_refused(repository: Path) -> None:
    results = publish_concurrently(f"git:{repository}", [[bundle(contents={"a": text})] for text in (b"one", b"two")])
    assert sorted(type(result).__name__ for result in results) == ["TakenError", "bool"]
    assert any("with other content" in str(result) for result in results)
    assert list_names(f"git:{repository}") == ["council"]


def test_concurrent_publishers_of_the_same_release_both_succeed(repository: Path) -> None:
    assert set(publish_concurrently(f"git:{repository}", [[bundle()], [bundle()]])) <= {
        False,
        True,
    }  # within one second both make the same commit
    assert list_names(f"git:{repository}") == ["council"]
    assert git_repositories.git(repository, "rev-list", "--count", "main") == "1"


@pytest.mark.full
def test_second_publisher_commits_on_top_of_the_first(repository: Path) -> None:
    waits: list[float] = []
    second = GitTransport(str(repository), sleep=waits.append)
    assert list(second.list_files()) == []
    with connect(f"git:{repository}") as first:
        first.publish([bundle()], "first")
    second.add({"prompts/acme/two/1": [("a", b"a")]}, "second")
    assert len(waits) == 1
    assert {stored.path.split("/")[2] for stored in second.list_files()} == {"council", "two"}
    with connect(f"git:{repository}") as first:
        first.publish([bundle("third")], "third")
    with pytest.raises(TakenError, match="has prompts/acme/third/1 already"):
        second.add({"prompts/acme/third/1": [("a", b"a")], "prompts/acme/fourth/1": [("a", b"a")]}, "late")
    assert not git_repositories.git(repository, "ls-tree", "-r", "main", "prompts/acme/fourth")
    second.close()
    assert git_repositories.git(repository, "log", "--format=%s", "main").splitlines() == ["third", "second", "first"]


def test_reset_branch_is_not_moved_forward_by_the_next_publish(repository: Path) -> None:
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "first")
        registry.publish([bundle("secret")], "by mistake")
        git_repositories.git(repository, "update-ref", "refs/heads/main", "main~1")
        registry.publish([bundle("third")], "third")
    assert list_names(f"git:{repository}") == ["council", "third"]


@pytest.mark.full
def test_push_to_a_branch_that_always_moves_is_given_up(repository: Path) -> None:
    git_repositories.git(repository, "config", "http.receivepack", "true")
    tree = git_repositories.write_tree(repository, {b"a": ("100644", b"a")})
    git_repositories.commit(repository, tree)
    pushed: list[str] = []

    def move(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "POST" and handler.path.endswith("git-receive-pack"):
            pushed.append(git_repositories.git(repository, "commit-tree", tree, "-m", f"{len(pushed)}"))
            git_repositories.git(repository, "update-ref", "refs/heads/main", pushed[-1])
        return False

    waits: list[float] = []
    with git_repositories.run_git_http(repository.parent, move) as address:
        transport = GitTransport(f"{address}/registry.git", limits=GitLimits(pushes=2), sleep=waits.append)
        with pytest.raises(ReleaseError, match="other publishers changed the branch main"):
            transport.add({"prompts/acme/a/1": [("a", b"a")]}, "never")
        transport.close()
    assert len(pushed) == len(waits) == 2
    assert all(0 <= seconds <= 2 for seconds in waits)
    assert git_repositories.git(repository, "rev-parse", "main") == pushed[-1]


def test_push_refused_by_a_hook_is_reported_and_adds_nothing(repository: Path) -> None:
    hook = repository / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    with (
        git_repositories.run_git_daemon(repository.parent) as address,
        connect(f"git:{address}/registry.git") as registry,
    ):
        with pytest.raises(ReleaseError, match=r"cannot push to main: .*pre-receive hook declined"):
            registry.publish([bundle()], "one")
        assert registry.entries() == []
        hook.unlink()
        registry.publish([bundle()], "one")  # repeated without the hook


_PUBLISH = """
import sys
from pathlib import Path
from runner.registry.transports.locations import connect
from tests.support.registry_locations import bundle
with connect(sys.argv[1]) as registry:
    print("there", flush=True)
    big = Path(sys.argv[2])
    registry.publish([bundle("one", {"a": big, "b": b"b"}), bundle("two", {"a": b"a"})], "x")
"""


@pytest.mark.gate
@pytest.mark.parametrize(
    ("served", "repetitions"),
    [("path", 1), pytest.param("path", 25, marks=pytest.mark.full), pytest.param("daemon", 25, marks=pytest.mark.full)],
)
def test_killed_publish_is_complete_or_absent_and_can_be_repeated(
    repository: Path, tmp_path: Path, served: str, repetitions: int
) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(2 << 20))

    def kill(location: str, part: float) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", _PUBLISH, location, str(big)], env=environment(TMPDIR=str(tmp_path)),
            stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        try:
            process.wait(0.05 + part)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()

    def check(location: str) -> None:
        for number in range(repetitions):
            git_repositories.git(repository, "update-ref", "-d", "refs/heads/main", check=False)
            kill(location, (number + 0.5) / repetitions)
            assert list_names(location) in ([], ["one", "two"])
            with connect(location) as registry:
                registry.publish([bundle("one", {"a": big, "b": b"b"}), bundle("two", {"a": b"a"})], "x")
            assert list_names(location) == ["one", "two"]
            time.sleep(0.2)  # a push of the killed publisher may still arrive
            assert git_repositories.git(repository, "rev-list", "--count", "main") == "1"
            git_repositories.git(repository, "fsck", "--strict")

    if served == "path":
        check(f"git:{repository}")
    else:
        with git_repositories.run_git_daemon(repository.parent) as address:
            check(f"git:{address}/registry.git")
