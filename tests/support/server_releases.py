"""Releases inserted directly into the database and the blobs of a server: a few real runs, and copies of them."""

from __future__ import annotations

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, insert, select

from runner.documents.releases.bundle import Bundle, open_content
from runner.registry.bundles.runs import build_run_drafts
from runner.registry.draft import PublisherChoices
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.server.accounts.accounts import add_account, find_account_id
from runner.server.service import Service
from runner.server.store.schema import accounts, files, releases
from tests.support.runs import run_spec
from tests.support.specs import spec_file


def run_bundle(
    folder: Path, *, owner: str = "acme", size: int = 12, seed: int = 7, question: str = "",
    dataset_licence: str | None = None, **changes: Any,
) -> Bundle:  # fmt: skip
    """Play a small spec in this process and return the run as a release; `question` is put before each question."""
    spec = spec_file(folder, size=size, seed=seed, **changes)
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text("utf-8").splitlines()]
    lines = [json.dumps({**row, "question": question + row["question"]}) + "\n" for row in rows]
    (folder / "data.jsonl").write_text("".join(lines), "utf-8")
    result = run_spec(spec, folder / "results")
    results = Results(folder / "results")
    choices = PublisherChoices(owner=owner, licence="MIT", dataset_licence=dataset_licence)
    return build_run_drafts(RunFolder(result.folder.path), results, choices)[-1].bundle()


def copy_bundle(bundle: Bundle, **changes: Any) -> Bundle:
    """Return a release of the same files with another name, owner, version or visibility."""
    return Bundle(replace(bundle.release, **changes), bundle.contents)


def insert_releases(server: Service, bundles: Iterable[Bundle], *, at: float | None = None) -> None:
    """Add releases to a server without an upload and its checks; create the accounts of their owners."""
    with server.database.writing() as connection:
        for bundle in bundles:
            _insert_release(server, connection, bundle, time.time() if at is None else at)
        server.database.increment_revision(connection)


def _insert_release(server: Service, connection: Connection, bundle: Bundle, at: float) -> None:
    release = bundle.release
    existing = connection.execute(select(accounts.c.id).where(accounts.c.name == release.owner)).scalar()
    publisher = (
        add_account(connection, release.owner, at) if existing is None else find_account_id(connection, release.owner)
    )
    row = {
        "kind": str(release.kind), "owner": release.owner, "name": release.name, "version": release.version,
        "sha256": bundle.sha256, "visibility": release.visibility, "publisher_id": publisher, "created": at,
    }  # fmt: skip
    release_id = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
    folder = release.reference.folder
    rows = [
        {"path": f"{folder}/{path}", "release_id": release_id, "part": "", "sha256": sha256, "size": size}
        for path, sha256, size in _store_files(server, bundle)
    ]
    connection.execute(insert(files), rows)


def _store_files(server: Service, bundle: Bundle) -> Iterator[tuple[str, str, int]]:
    """Store the files of a release as blobs; yield the path, hash and size of each."""
    declared = {entry.path: entry for entry in bundle.release.files}
    for path, content in bundle.files():
        if path in declared and server.blobs.has(declared[path].sha256):
            yield path, declared[path].sha256, declared[path].size
            continue
        with open_content(content) as source, tempfile.NamedTemporaryFile(dir=server.settings.folder) as temporary:
            data = source.read()
            temporary.write(data)
            temporary.flush()
            sha256 = hashlib.sha256(data).hexdigest()
            server.blobs.put(sha256, Path(temporary.name))
        yield path, sha256, len(data)


def insert_copies(server: Service, bundles: Sequence[Bundle], count: int, *, first: int = 0) -> None:
    """Insert `count` copies of a few releases, each under its own name, for twenty owners."""
    for start in range(first, first + count, 500):
        numbers = range(start, min(start + 500, first + count))
        insert_releases(
            server, [copy_bundle(bundles[n % len(bundles)], owner=f"group{n % 20}", name=f"run-{n}") for n in numbers]
        )
