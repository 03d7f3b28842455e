"""A registry in a git repository: revisions, commits of a publish, and the amount that is fetched."""

from __future__ import annotations

import filecmp
import gc
import os
import tempfile
import tracemalloc
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError
from runner.documents.releases.reference import Kind, Reference
from runner.registry.transports.git.process import GitLimits
from runner.registry.transports.git.transport import GitTransport
from runner.registry.transports.locations import connect
from runner.registry.transports.registry import Registry
from tests.support import git_repositories
from tests.support.registry_locations import bundle

COUNCIL = Reference(Kind.PROMPTS, "acme", "council", "1")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return git_repositories.init_bare(tmp_path / "registry.git")


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for the transport's own files, and set a home for the user's configuration."""
    (tmp_path / "own").mkdir()
    (tmp_path / "home").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "own"


def list_references(location: str) -> list[str]:
    with connect(location) as registry:
        return [str(entry.reference) for entry in registry.entries()]


# Revisions


def test_commit_or_tag_is_read_as_it_was_and_cannot_be_published_to(repository: Path) -> None:
    with connect(f"git:{repository}") as registry:
        _, added = registry.publish([bundle()], "one")
        git_repositories.git(repository, "tag", "-m", "a tag", "v1", "main")
        registry.publish([bundle("later")], "two")
    for revision in ("v1", str(added.revision)):
        assert list_references(f"git:{repository}@{revision}") == [str(COUNCIL)]
        with connect(f"git:{repository}@{revision}") as registry, pytest.raises(UsageError, match="Name a branch"):
            registry.publish([bundle("third")], "three")
    assert len(list_references(f"git:{repository}")) == 2
    with connect(f"git:{repository}@{added.revision}") as registry:
        assert registry.address == f"git:{repository}"  # the address has no revision
    with connect(f"git:{repository}@v1") as registry:
        assert registry.address == f"git:{repository}@v1"


def test_publish_to_an_empty_repository_creates_its_default_branch(repository: Path) -> None:
    git_repositories.git(repository, "symbolic-ref", "HEAD", "refs/heads/trunk")
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "one")
    assert git_repositories.git(repository, "branch", "--format=%(refname:short)") == "trunk"
    assert len(list_references(f"git:{repository}")) == 1


def test_named_branch_is_read_and_published_to(repository: Path) -> None:
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "one")
    git_repositories.git(repository, "branch", "review/new", "main")
    with connect(f"git:{repository}@review/new") as registry:
        registry.publish([bundle("more")], "two")
    assert len(list_references(f"git:{repository}@review/new")) == 2
    assert list_references(f"git:{repository}") == [str(COUNCIL)]


def test_missing_branch_is_reported_unless_the_repository_is_empty(repository: Path) -> None:
    with connect(f"git:{repository}@next") as registry:  # in an empty repository, publishing creates it
        registry.publish([bundle()], "one")
    assert git_repositories.git(repository, "branch", "--list", "--format=%(refname)") == "refs/heads/next"
    assert list_references(f"git:{repository}") == [str(COUNCIL)]
    with connect(f"git:{repository}@nxt") as registry, pytest.raises(ReleaseError, match="no branch or tag nxt"):
        registry.entries()


def test_open_registry_reads_one_revision(repository: Path) -> None:
    with connect(f"git:{repository}") as registry, connect(f"git:{repository}") as second_registry:
        assert registry.entries() == []
        second_registry.publish([bundle()], "one")
        registry._listing.clear()
        assert registry.entries() == []


@pytest.mark.parametrize("content", ["nothing", "a file", "a folder", "a bundle"])
def test_location_without_a_repository_is_reported(tmp_path: Path, repository: Path, content: str) -> None:
    path = tmp_path / "there"
    if content == "a file":
        path.write_text("x")
    elif content == "a folder":
        path.mkdir()
    elif content == "a bundle":
        git_repositories.commit(repository, git_repositories.write_tree(repository, {b"a": ("100644", b"a")}))
        git_repositories.git(repository, "bundle", "create", str(path), "--all")
    with connect(f"git:{path}") as registry, pytest.raises(ReleaseError, match="no repository is there"):
        registry.entries()


def test_repository_with_sha256_objects_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "new.git"
    path.mkdir()
    git_repositories.git(path, "init", "-q", "--bare", "--object-format=sha256", "--initial-branch=main", ".")
    commit = git_repositories.git(path, "commit-tree", git_repositories.git(path, "mktree"), "-m", "x")
    git_repositories.git(path, "update-ref", "refs/heads/main", commit)
    with connect(f"git:{path}") as registry, pytest.raises(ReleaseError, match="SHA-256"):
        registry.entries()


# Publishing


def test_a_publish_is_one_commit_of_the_user_with_its_message(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "home" / ".gitconfig").write_text("[user]\nname = Ann <b>\nemail = ann@example.org\n")
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle(), bundle("other")], "Publish two\n\nfor the board")
        registry.yank(COUNCIL, "leaks the label")
    log_lines = git_repositories.git(
        repository, "log", "--format=%an|%ae|%cn|%ce|%ai|%B", "--name-only", "main"
    ).splitlines()
    assert git_repositories.git(repository, "rev-list", "--count", "main") == "2"
    assert log_lines[0].startswith("Ann b|ann@example.org|Ann b|ann@example.org|")
    assert "+0000" in log_lines[0]
    assert log_lines[0].endswith("|Yank prompts/acme/council@1: leaks the label")
    assert "for the board" in log_lines
    changed = git_repositories.git(repository, "show", "--format=", "--name-status", "main").splitlines()
    assert changed == ["A\tprompts/acme/council/1/yanked/yanked.json"]
    git_repositories.git(repository, "fsck", "--strict")


def test_commit_without_a_configured_user_has_no_name_of_the_machine(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GIT_AUTHOR_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_NAME", "GIT_COMMITTER_EMAIL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EMAIL", "root@the-machine")
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "one")
    assert git_repositories.git(repository, "log", "--format=%an <%ae> %cn <%ce>") == " ".join(
        ["nip-run <nip-run@localhost>"] * 2
    )


def test_other_files_of_the_repository_are_kept_and_ignored(repository: Path) -> None:
    tree: git_repositories.Tree = {
        b"README.md": ("100755", b"# Board\r\n"), b"link": ("120000", b"README.md"), b"module": ("160000", "33" * 20),
        b".github": ("40000", {b"ci.yaml": ("100644", b"on: push\n")}),
        b"docs": ("40000", {b"release.sha256": ("100644", b"x")}),
        b".gitattributes": ("100644", b"* text eol=crlf\n*.jinja filter=lfs\n"), b".gitmodules": ("100644", b""),
    }  # fmt: skip
    git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    before = git_repositories.git(repository, "ls-tree", "-r", "main")
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle(contents={"a.jinja": b"one\ntwo\r\n"})], "one")
    after = git_repositories.git(repository, "ls-tree", "-r", "main").splitlines()
    assert sorted(line for line in after if "prompts/" not in line) == sorted(before.splitlines())
    with connect(f"git:{repository}") as registry:
        assert isinstance(registry._transport, GitTransport)
        assert {stored.path.partition("/")[0] for stored in registry._transport.list_files()} == {"prompts"}
        entry = registry.find(COUNCIL)
        assert registry.open(entry, "a.jinja").read() == b"one\ntwo\r\n"
        assert list(registry.find_problems(entry)) == []


def test_pull_request_to_an_empty_repository_publishes_nothing(repository: Path) -> None:
    with connect(f"git:{repository}", pull_request=True) as registry, pytest.raises(UsageError, match="has no commit"):
        registry.publish([bundle()], "one")
    assert git_repositories.git(repository, "branch", "--all") == ""


@pytest.mark.full
def test_pull_request_is_a_new_branch_that_can_be_merged(repository: Path, tmp_path: Path) -> None:
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "one")
    with connect(f"git:{repository}", pull_request=True) as registry:
        _, added = registry.publish([bundle("new")], "two")
        assert len(registry.entries()) == 1
    (branch,) = [
        name
        for name in git_repositories.git(repository, "branch", "--format=%(refname:short)").splitlines()
        if name != "main"
    ]
    assert branch.startswith("publish/prompts-acme-new-1-")
    assert added.note == f"the release is on branch {branch}; open a pull request from {branch} into main, and merge it"
    assert git_repositories.git(repository, "rev-parse", branch) == added.revision
    assert added.proposed_at == f"git:{repository}@{branch}"
    assert len(list_references(added.proposed_at)) == 2
    with connect(f"git:{repository}", pull_request=True) as registry:  # repeated, as after a lost connection
        assert registry.publish([bundle("new")], "two")[1] == added
    with connect(f"git:{repository}") as registry:  # another publisher continues
        registry.publish([bundle("third")], "three")
    git_repositories.git(tmp_path, "clone", "-q", str(repository), "copy")
    git_repositories.git(tmp_path / "copy", "merge", "-q", "--no-edit", f"origin/{branch}")
    git_repositories.git(tmp_path / "copy", "push", "-q", "origin", "HEAD:main")
    assert len(list_references(f"git:{repository}")) == 3


@pytest.mark.full
def test_pull_request_branch_gets_another_name_if_it_is_taken(repository: Path) -> None:
    def propose_release() -> str:
        with connect(f"git:{repository}", pull_request=True) as registry:
            return str(registry.publish([bundle("new")], "two")[1].note).split()[5].rstrip(";")

    with connect(f"git:{repository}") as registry:
        registry.publish([bundle()], "one")
    name = propose_release()
    git_repositories.git(repository, "update-ref", f"refs/heads/{name}", "main")
    second_name = propose_release()
    assert second_name.startswith(f"{name}-")
    assert git_repositories.git(repository, "rev-parse", name) == git_repositories.git(repository, "rev-parse", "main")
    assert len(list_references(f"git:{repository}@{second_name}")) == 2


def test_publish_of_unreadable_files_adds_nothing(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "fifo").mkdir()
    with connect(f"git:{repository}") as registry, pytest.raises(ReleaseError, match="cannot read"):
        registry._transport.add({"prompts/acme/a/1": [("a", b"a"), ("b", tmp_path / "gone")]}, "x")
    with connect(f"git:{repository}") as registry, pytest.raises(ReleaseError, match="cannot read"):
        registry._transport.add({"prompts/acme/a/1": [("b", tmp_path / "fifo")]}, "x")
    assert list_references(f"git:{repository}") == []
    assert git_repositories.git(repository, "for-each-ref") == ""


# Fetching


@pytest.mark.full
@pytest.mark.parametrize("size", [3, pytest.param(200, marks=pytest.mark.full)])
def test_large_file_is_streamed_in_bounded_memory(repository: Path, tmp_path: Path, size: int) -> None:
    """This holds for the memory of nip-run and of git."""
    large = tmp_path / "journal.jsonl"
    with large.open("wb") as file:
        for _ in range(size):
            file.write(os.urandom(1 << 20))
    release = bundle(contents={"journal.jsonl": large})
    transport = GitTransport(str(repository), limits=GitLimits(memory_bytes=240 << 20))
    tracemalloc.start()
    try:
        with Registry(transport) as registry:
            registry.publish([release], "large")
            registry.unpack(registry.find(COUNCIL), tmp_path / "got")
        assert tracemalloc.get_traced_memory()[1] < 3 << 20
    finally:
        tracemalloc.stop()
    assert filecmp.cmp(tmp_path / "got" / "journal.jsonl", large, shallow=False)


@pytest.mark.full
def test_large_files_are_fetched_only_for_the_unpacked_release(tmp_path: Path, work_folder: Path) -> None:
    repository = git_repositories.init_bare(tmp_path / "served" / "registry.git", "uploadpack.allowFilter=true")
    with connect(f"git:{repository}") as registry:
        for name in ("one", "two", "three"):
            registry.publish([bundle(name, {"a.bin": os.urandom(400_000), "b.bin": os.urandom(200_000)})], name)

    def count_fetched_bytes() -> int:
        return sum(path.stat().st_size for path in work_folder.rglob("*.pack"))

    requests: list[str] = []

    def record_request(handler: BaseHTTPRequestHandler) -> bool:
        requests.append(handler.path)
        return False

    with (
        git_repositories.run_git_http(tmp_path / "served", record_request) as address,
        connect(f"git:{address}/registry.git") as registry,
    ):
        entries = registry.entries()
        assert [registry.read_manifest(entry)[0].size for entry in entries] == [600_000] * 3
        assert count_fetched_bytes() < 100_000
        before = len(requests)
        registry.unpack(entries[0], tmp_path / "got")
        assert 600_000 < count_fetched_bytes() < 700_000
        assert len(requests) - before <= 3  # one fetch gets all files
    assert (tmp_path / "got" / "a.bin").stat().st_size == 400_000


@pytest.mark.full
def test_only_one_commit_is_fetched_and_its_folder_is_removed_at_the_end(repository: Path, work_folder: Path) -> None:
    with connect(f"git:{repository}") as registry:
        for version in ("1", "2", "3"):
            registry.publish([bundle(version=version)], version)
    registry = connect(f"git:{repository}")
    registry.entries()
    (work,) = work_folder.iterdir()
    assert git_repositories.git(work / "registry.git", "rev-list", "--all", "--count") == "1"
    assert work.stat().st_mode & 0o777 == 0o700
    del registry
    gc.collect()
    assert list(work_folder.iterdir()) == []


def test_two_files_can_be_read_at_once(repository: Path) -> None:
    with connect(f"git:{repository}") as registry:
        registry.publish([bundle(contents={"a": b"a" * 3_000_000, "b": b"b" * 3_000_000})], "x")
        entry = registry.find(COUNCIL)
        with registry.open(entry, "a") as a, registry.open(entry, "b") as b:
            assert (a.read(5), b.read(5), a.read(2)) == (b"aaaaa", b"bbbbb", b"aa")
            assert len(a.read()) == 3_000_000 - 7
            assert a.read() == b""
        with pytest.raises(NotFoundError):
            registry._transport.open("prompts/acme/council/1/c")


def test_publish_refuses_an_existing_folder_of_the_same_name(repository: Path) -> None:
    git_repositories.commit(
        repository,
        git_repositories.write_tree(
            repository,
            {
                b"prompts": (
                    "40000",
                    {b"acme": ("40000", {b"a": ("40000", {b"1": ("40000", {b"x": ("100644", b"")})})})},
                )
            },
        ),
    )
    with connect(f"git:{repository}") as registry, pytest.raises(TakenError, match="has prompts/acme/a/1 already"):
        registry.publish([bundle("a")], "x")
