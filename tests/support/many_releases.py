"""A server's database and blobs with many releases in it, put there without publishing each: for tests of speed."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable

from sqlalchemy import Connection, insert, select

from runner.base.storage.safe_files import create
from runner.documents.releases.bundle import Bundle, open_content
from runner.documents.releases.manifest import CHECKSUM, MANIFEST
from runner.server.settings import Settings
from runner.server.store.blob_stores import open_blob_store
from runner.server.store.blobs import DiskBlobStore
from runner.server.store.database import Database
from runner.server.store.schema import accounts, files, releases


def planted(settings: Settings, account: str, bundles: Iterable[Bundle]) -> int:
    """Have a server hold these releases of an account's; how many they are."""
    database, blobs = Database(settings.database_url), open_blob_store(settings)
    assert isinstance(blobs, DiskBlobStore)
    count = 0
    with database.writing() as connection:
        publisher = connection.execute(select(accounts.c.id).where(accounts.c.name == account)).scalar_one()
        for bundle in bundles:
            count += 1
            _plant(connection, settings, publisher, bundle)
        database.increment_revision(connection)
    database.close()
    return count


def _plant(connection: Connection, settings: Settings, publisher: int, bundle: Bundle) -> None:
    release = bundle.release
    row = {
        "kind": str(release.kind), "owner": release.owner, "name": release.name, "version": release.version,
        "sha256": bundle.sha256, "visibility": release.visibility, "publisher_id": publisher, "created": time.time(),
    }  # fmt: skip
    made = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
    rows = []
    for path, content in bundle.files():
        with open_content(content) as source:
            data = source.read()
        sha256 = bundle.sha256 if path == MANIFEST else _hash(data)
        place = settings.folder / "blobs" / sha256[:2] / sha256
        if not place.is_file():
            place.parent.mkdir(parents=True, exist_ok=True)
            with create(place) as file:
                file.write(data)
        rows.append({
            "path": f"{release.reference.folder}/{path}", "release_id": made, "part": "", "sha256": sha256,
            "size": len(data),
        })  # fmt: skip
    assert {MANIFEST, CHECKSUM} <= {row["path"].rpartition("/")[2] for row in rows}
    connection.execute(insert(files), rows)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
