"""The folder of a server: absolute paths, owner-only permissions, and no cached pages of its own errors."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from runner.base.errors import RunError
from runner.documents.releases.reference import Kind, Reference
from runner.server.accounts.accounts import ANYBODY
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.permissions import restrict_access
from runner.server.web.pages.run_cache import PAGE_FILE, write_page
from tests.support.server_process import ServerProcess


def file_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_relative_folder_and_database_become_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(folder=Path("registry"))
    assert settings.database_url == f"sqlite:///{tmp_path}/registry/registry.sqlite"
    assert Settings(folder=Path(), database="sqlite+pysqlite:///a.sqlite").database == (
        f"sqlite+pysqlite:///{tmp_path}/a.sqlite"
    )
    for url in ("sqlite:////srv/a.sqlite", "postgresql+psycopg://nip@db/registry", "postgresql+psycopg:///registry"):
        assert Settings(folder=Path(), database=url).database == url


def test_server_files_are_readable_only_by_their_owner(served: ServerProcess) -> None:
    for name in (".", "blobs", "incoming", "boards", "registry.sqlite", "registry.sqlite-wal"):
        path = served.folder / name
        assert not path.exists() or not file_mode(path) & 0o077, name
    assert file_mode(served.folder / "registry.sqlite") == 0o600


def test_old_and_new_files_of_a_server_lose_access_for_others(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    (folder / "blobs").mkdir(parents=True)
    (folder / "registry.sqlite").write_bytes(b"")
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    (folder / "link").symlink_to(outside)
    for path, old_mode in ((folder, 0o755), (folder / "blobs", 0o775), (folder / "registry.sqlite", 0o644)):
        path.chmod(old_mode)
    outside.chmod(0o644)
    with restrict_access(folder):
        (folder / "new").write_bytes(b"")
    assert [file_mode(folder / name) for name in (".", "blobs", "registry.sqlite", "new")] == [
        0o700,
        0o700,
        0o600,
        0o600,
    ]
    assert file_mode(outside) == 0o644


def test_page_that_failed_because_of_the_server_is_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    references = [Reference(Kind.RUN, "alice", "first", "1")]
    broken_settings = Settings(folder=tmp_path, database=f"sqlite:///{tmp_path}/nowhere/registry.sqlite")
    with pytest.raises(RunError, match=r"cannot use the database .*make the database's folder writable"):
        write_page(tmp_path, broken_settings, references, ANYBODY, tmp_path)
    settings = Settings(folder=tmp_path)
    Database(settings.database_url).close()
    assert write_page(tmp_path, settings, references, ANYBODY, tmp_path) is not None
    assert not (tmp_path / PAGE_FILE).exists()
