"""The folder of a server: named from anywhere, for who runs it alone, and without pages that its own faults left."""

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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_a_database_named_from_here_are_meant_from_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(folder=Path("registry"))
    assert settings.database_url == f"sqlite:///{tmp_path}/registry/registry.sqlite"
    assert Settings(folder=Path(), database="sqlite+pysqlite:///a.sqlite").database == (
        f"sqlite+pysqlite:///{tmp_path}/a.sqlite"
    )
    for said in ("sqlite:////srv/a.sqlite", "postgresql+psycopg://nip@db/registry", "postgresql+psycopg:///registry"):
        assert Settings(folder=Path(), database=said).database == said


def test_what_a_server_holds_is_its_owners_alone(served: ServerProcess) -> None:
    for name in (".", "blobs", "incoming", "boards", "registry.sqlite", "registry.sqlite-wal"):
        path = served.folder / name
        assert not path.exists() or not mode(path) & 0o077, name
    assert mode(served.folder / "registry.sqlite") == 0o600


def test_what_an_earlier_server_left_open_to_others_is_closed_and_what_is_made_then(tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    (folder / "blobs").mkdir(parents=True)
    (folder / "registry.sqlite").write_bytes(b"")
    outside = tmp_path / "outside"
    outside.write_bytes(b"")
    (folder / "link").symlink_to(outside)
    for path, open_to in ((folder, 0o755), (folder / "blobs", 0o775), (folder / "registry.sqlite", 0o644)):
        path.chmod(open_to)
    outside.chmod(0o644)
    with restrict_access(folder):
        (folder / "new").write_bytes(b"")
    assert [mode(folder / name) for name in (".", "blobs", "registry.sqlite", "new")] == [0o700, 0o700, 0o600, 0o600]
    assert mode(outside) == 0o644


def test_a_page_that_the_server_itself_could_not_make_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wanted = [Reference(Kind.RUN, "alice", "first", "1")]
    nowhere = Settings(folder=tmp_path, database=f"sqlite:///{tmp_path}/nowhere/registry.sqlite")
    with pytest.raises(RunError, match=r"cannot use the database .*make the database's folder writable"):
        write_page(tmp_path, nowhere, wanted, ANYBODY, tmp_path)
    settings = Settings(folder=tmp_path)
    Database(settings.database_url).close()
    assert write_page(tmp_path, settings, wanted, ANYBODY, tmp_path) is not None
    assert not (tmp_path / PAGE_FILE).exists()
