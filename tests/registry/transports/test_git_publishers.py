"""Several publishers to one repository at once, and publishers that are killed: each release is whole, and once."""

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


def at_once(place: str, publishers: list[list[Bundle]]) -> list[object]:
    """What became of each: whether its first release was there already, or the error."""
    became: list[object] = [None] * len(publishers)
    ready = threading.Barrier(len(publishers))

    def publish(number: int) -> None:
        with connect(place) as registry:
            registry.entries()
            ready.wait(HANG_SECONDS)
            try:
                for one in publishers[number]:
                    published, _ = registry.publish([one], f"Publish {one.release.reference}")
                    became[number] = published[0].already_existed
            except NipRunError as error:
                became[number] = error

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(len(publishers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
    return became


def list_names(place: str) -> list[str]:
    with connect(place) as registry:
        entries = registry.entries()
        assert not [wrong for entry in entries for wrong in registry.find_problems(entry)]
        return [entry.reference.name for entry in entries]


@pytest.mark.full
@pytest.mark.parametrize(
    ("served", "count", "each"),
    [
        ("path", 3, 1),
        pytest.param("daemon", 3, 1, marks=pytest.mark.full),
        pytest.param("path", 10, 20, marks=pytest.mark.full),
    ],
)
def test_all_that_is_published_at_once_is_there_once(repository: Path, served: str, count: int, each: int) -> None:
    names = [[f"p{number}-{one}" for one in range(each)] for number in range(count)]

    def check(place: str) -> None:
        assert at_once(place, [[bundle(name) for name in mine] for mine in names]) == [False] * count
        assert sorted(list_names(place)) == sorted(name for mine in names for name in mine)

    if served == "path":
        check(f"git:{repository}")
    else:
        with git_repositories.run_git_daemon(repository.parent) as address:
            check(f"git:{address}/registry.git")
    assert git_repositories.git(repository, "rev-list", "--count", "--no-merges", "main") == str(
        count * each
    )  # one line of commits
    git_repositories.git(repository, "fsck", "--strict")


def test_of_two_with_the_same_name_one_is_told_that_it_is_taken(repository: Path) -> None:
    became = at_once(f"git:{repository}", [[bundle(contents={"a": text})] for text in (b"one", b"two")])
    assert sorted(type(one).__name__ for one in became) == ["TakenError", "bool"]
    assert any("with other content" in str(one) for one in became)
    assert list_names(f"git:{repository}") == ["council"]


def test_two_with_the_same_release_have_both_published_it(repository: Path) -> None:
    assert set(at_once(f"git:{repository}", [[bundle()], [bundle()]])) <= {False, True}  # in one second, one commit
    assert list_names(f"git:{repository}") == ["council"]
    assert git_repositories.git(repository, "rev-list", "--count", "main") == "1"


@pytest.mark.full
def test_who_comes_second_builds_on_the_first(repository: Path) -> None:
    slept: list[float] = []
    second = GitTransport(str(repository), sleep=slept.append)
    assert list(second.list_files()) == []
    with connect(f"git:{repository}") as first:
        first.publish([bundle()], "first")
    second.add({"prompts/acme/two/1": [("a", b"a")]}, "second")
    assert len(slept) == 1
    assert {stored.path.split("/")[2] for stored in second.list_files()} == {"council", "two"}
    with connect(f"git:{repository}") as first:
        first.publish([bundle("third")], "third")
    with pytest.raises(TakenError, match="has prompts/acme/third/1 already"):
        second.add({"prompts/acme/third/1": [("a", b"a")], "prompts/acme/fourth/1": [("a", b"a")]}, "late")
    assert not git_repositories.git(repository, "ls-tree", "-r", "main", "prompts/acme/fourth")
    second.close()
    assert git_repositories.git(repository, "log", "--format=%s", "main").splitlines() == ["third", "second", "first"]


def test_a_branch_that_was_set_back_is_not_brought_forward_again(repository: Path) -> None:
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "first")
        registry.publish([bundle("secret")], "by mistake")
        git_repositories.git(repository, "update-ref", "refs/heads/main", "main~1")
        registry.publish([bundle("third")], "third")
    assert list_names(f"git:{repository}") == ["council", "third"]


@pytest.mark.full
def test_a_branch_that_moves_for_ever_is_given_up(repository: Path) -> None:
    git_repositories.git(repository, "config", "http.receivepack", "true")
    tree = git_repositories.write_tree(repository, {b"a": ("100644", b"a")})
    git_repositories.commit(repository, tree)
    pushed: list[str] = []

    def move(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "POST" and handler.path.endswith("git-receive-pack"):
            pushed.append(git_repositories.git(repository, "commit-tree", tree, "-m", f"{len(pushed)}"))
            git_repositories.git(repository, "update-ref", "refs/heads/main", pushed[-1])
        return False

    slept: list[float] = []
    with git_repositories.run_git_http(repository.parent, move) as address:
        transport = GitTransport(f"{address}/registry.git", limits=GitLimits(pushes=2), sleep=slept.append)
        with pytest.raises(ReleaseError, match="other publishers changed the branch main"):
            transport.add({"prompts/acme/a/1": [("a", b"a")]}, "never")
        transport.close()
    assert len(pushed) == len(slept) == 2
    assert all(0 <= seconds <= 2 for seconds in slept)
    assert git_repositories.git(repository, "rev-parse", "main") == pushed[-1]


def test_what_the_server_refuses_is_told_in_its_words_and_adds_nothing(repository: Path) -> None:
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
        registry.publish([bundle()], "one")  # the same again


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
    ("served", "times"),
    [("path", 1), pytest.param("path", 25, marks=pytest.mark.full), pytest.param("daemon", 25, marks=pytest.mark.full)],
)
def test_a_publish_that_is_killed_is_not_seen_and_the_same_again_finishes(
    repository: Path, tmp_path: Path, served: str, times: int
) -> None:
    big = tmp_path / "big"
    big.write_bytes(os.urandom(2 << 20))

    def kill(place: str, part: float) -> None:
        process = subprocess.Popen(
            [sys.executable, "-c", _PUBLISH, place, str(big)], env=environment(TMPDIR=str(tmp_path)),
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

    def check(place: str) -> None:
        for one in range(times):
            git_repositories.git(repository, "update-ref", "-d", "refs/heads/main", check=False)
            kill(place, (one + 0.5) / times)
            assert list_names(place) in ([], ["one", "two"])
            with connect(place) as registry:
                registry.publish([bundle("one", {"a": big, "b": b"b"}), bundle("two", {"a": b"a"})], "x")
            assert list_names(place) == ["one", "two"]
            time.sleep(0.2)  # what was pushed by the killed one may come as late
            assert git_repositories.git(repository, "rev-list", "--count", "main") == "1"
            git_repositories.git(repository, "fsck", "--strict")

    if served == "path":
        check(f"git:{repository}")
    else:
        with git_repositories.run_git_daemon(repository.parent) as address:
            check(f"git:{address}/registry.git")
