"""Hostile git repositories and servers: refused with a message, or harmless, and none of their code runs."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.documents.releases.reference import parse_reference
from runner.registry.transports.git.process import GitError, GitLimits, GitRepository
from runner.registry.transports.git.transport import GitTransport
from runner.registry.transports.registry import Registry
from tests.support import git_repositories
from tests.support.hang_guard import HANG_SECONDS
from tests.support.hostile_git import BOMB, CASES, Case, marker, release_tree
from tests.support.hostile_git_servers import SERVERS, run_git_server
from tests.support.registry_locations import bundle


@pytest.fixture(autouse=True)
def work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder for the transport's own files, and set a home without configuration."""
    for name in ("own", "home"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "own"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return tmp_path / "own"


def create_repository(row: Case, tmp_path: Path) -> Path:
    repository = git_repositories.init_bare(tmp_path / "theirs" / "registry.git")
    tree = release_tree()
    if row.plant(repository, tree) is not True:
        git_repositories.commit(repository, git_repositories.write_tree(repository, tree))
    marker(repository).unlink(missing_ok=True)  # the planted code may have run during the setup
    return repository


def open_registry(location: str, row: Case) -> Registry:
    return Registry(GitTransport(location + row.revision, limits=GitLimits(seconds=30, **(row.bounds or {}))))


def read_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.sample(4)
@pytest.mark.parametrize("row", CASES, ids=lambda row: row.name)
def test_hostile_repository_is_refused_or_harmless_to_a_reader(row: Case, tmp_path: Path) -> None:
    repository = create_repository(row, tmp_path)
    before = read_files(tmp_path / "theirs")

    def get() -> None:
        with open_registry(str(repository), row) as registry:
            entry = registry.find(parse_reference("prompts/acme/council@1"))
            registry.unpack(entry, tmp_path / "got")
            list(registry.find_problems(entry))

    if row.get:
        with pytest.raises((ReleaseError, NotFoundError), match=row.get):
            get()
        assert not (tmp_path / "got").exists()
    else:
        get()
        expected = dict(bundle().files())
        assert read_files(tmp_path / "got") == expected
    assert not marker(repository).exists()
    assert read_files(tmp_path / "theirs") == before
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["home", "own", "theirs", *(["got"] if not row.get else [])]
    )
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.full
@pytest.mark.parametrize("row", CASES, ids=lambda row: row.name)
def test_hostile_repository_runs_no_code_of_its_own_on_publish(row: Case, tmp_path: Path) -> None:
    repository = create_repository(row, tmp_path)

    def publish() -> None:
        with open_registry(str(repository), row) as registry:
            registry._transport.add({"prompts/acme/two/1": [("a.txt", b"two")]}, "two")

    if row.publish:
        with pytest.raises((ReleaseError, UsageError), match=row.publish):
            publish()
    else:
        publish()
        with (
            open_registry(str(repository), row) as registry,
            registry._transport.open("prompts/acme/two/1/a.txt") as file,
        ):
            assert file.read() == b"two"
    assert not marker(repository).exists()
    assert list((tmp_path / "own").iterdir()) == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", ["hooks", "commands in its configuration", "a checkout with filters"])
def test_planted_code_runs_with_plain_git(name: str, tmp_path: Path) -> None:
    """Without this, the tests above would prove nothing."""
    repository = create_repository(next(row for row in CASES if row.name == name), tmp_path)
    git_repositories.git(tmp_path, "clone", "-q", str(repository), "copy")
    (tmp_path / "copy" / "a").write_text("a")
    git_repositories.git(tmp_path / "copy", "add", "a")
    git_repositories.git(tmp_path / "copy", "commit", "-q", "-m", "a")
    git_repositories.git(tmp_path / "copy", "push", "-q", "origin", "HEAD:main", check=False)
    assert marker(repository).exists()


def test_listing_of_a_hundred_million_files_is_limited(tmp_path: Path) -> None:
    with (
        open_registry(str(create_repository(BOMB, tmp_path)), BOMB) as registry,
        pytest.raises(ReleaseError, match="more than 20,000 files"),
    ):
        registry.entries()


@pytest.mark.sample(5)
@pytest.mark.parametrize("name", SERVERS)
def test_a_hostile_server_is_refused_in_bounded_time_and_space(name: str, tmp_path: Path) -> None:
    answer, message = SERVERS[name]
    # Some servers end only by a time limit; the others get enough time.
    idle_seconds = 1 if "nothing arrived" in message or "is too slow" in message else HANG_SECONDS
    seconds = 4 if "is too slow" in message else HANG_SECONDS
    bounds = GitLimits(
        idle_seconds=idle_seconds, seconds=seconds, pack_bytes=8 << 20, memory_bytes=1 << 30,
        answer_bytes=1 << 20,
    )  # fmt: skip
    with run_git_server(answer) as address, Registry(GitTransport(address, limits=bounds)) as registry:
        with pytest.raises(ReleaseError, match=message) as raised:
            registry.entries()
        size = sum(path.stat().st_size for path in (tmp_path / "own").rglob("*") if path.is_file())
    assert size < 20 << 20
    assert "secret-of-ann" not in str(raised.value)
    assert list((tmp_path / "own").iterdir()) == []


def test_a_command_gets_more_time_for_each_transferred_byte() -> None:
    repository = GitRepository([], GitLimits(seconds=-1, rate=1 << 10))  # only time for transferred bytes is left
    with pytest.raises(GitError, match=r"too slow: 0 seconds for 0 bytes"):
        repository.run("rev-parse", "--git-dir")
    packs = repository.folder / "objects" / "pack"
    packs.mkdir(parents=True, exist_ok=True)
    (packs / "tmp_pack_received").write_bytes(bytes(1 << 20))
    assert repository.run("rev-parse", "--git-dir")
    repository.close()
