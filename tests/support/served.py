"""What a server holds, put straight into its database and its blobs: a few real runs, and as many copies as wanted."""

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
from runner.registry.draft import Naming
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.server.accounts.accounts import add_account, find_account_id
from runner.server.service import Service
from runner.server.store.schema import accounts, files, releases
from tests.support.runs import played
from tests.support.specs import spec_file


def run_bundle(
    folder: Path, *, owner: str = "acme", size: int = 12, seed: int = 7, question: str = "", **changes: Any
) -> Bundle:
    """A run of a small spec as a release, played in this process; `question` stands before that of each datapoint."""
    spec = spec_file(folder, size=size, seed=seed, **changes)
    rows = [json.loads(line) for line in (folder / "data.jsonl").read_text("utf-8").splitlines()]
    lines = [json.dumps({**row, "question": question + row["question"]}) + "\n" for row in rows]
    (folder / "data.jsonl").write_text("".join(lines), "utf-8")
    result = played(spec, folder / "results")
    results = Results(folder / "results")
    return build_run_drafts(RunFolder(result.folder.path), results, Naming(owner=owner, licence="MIT"))[-1].bundle()


def copy_of(bundle: Bundle, **changes: Any) -> Bundle:
    """The same files under another name, owner, version or visibility."""
    return Bundle(replace(bundle.release, **changes), bundle.contents)


def put(server: Service, bundles: Iterable[Bundle], *, at: float | None = None) -> None:
    """Show releases as a publish does once they are checked; accounts that are wanted are made."""
    with server.database.writing() as connection:
        for bundle in bundles:
            _put(server, connection, bundle, time.time() if at is None else at)
        server.database.increment_revision(connection)


def _put(server: Service, connection: Connection, bundle: Bundle, at: float) -> None:
    release = bundle.release
    there = connection.execute(select(accounts.c.id).where(accounts.c.name == release.owner)).scalar()
    publisher = (
        add_account(connection, release.owner, at) if there is None else find_account_id(connection, release.owner)
    )
    row = {
        "kind": str(release.kind), "owner": release.owner, "name": release.name, "version": release.version,
        "sha256": bundle.sha256, "visibility": release.visibility, "publisher_id": publisher, "created": at,
    }  # fmt: skip
    made = connection.execute(insert(releases).returning(releases.c.id), row).scalar_one()
    rows = [
        {"path": f"{release.reference.folder}/{path}", "release_id": made, "part": "", "sha256": sha256, "size": size}
        for path, sha256, size in _kept(server, bundle)
    ]
    connection.execute(insert(files), rows)


def _kept(server: Service, bundle: Bundle) -> Iterator[tuple[str, str, int]]:
    known = {entry.path: entry for entry in bundle.release.files}
    for path, content in bundle.files():
        if path in known and server.blobs.has(known[path].sha256):
            yield path, known[path].sha256, known[path].size
            continue
        with open_content(content) as source, tempfile.NamedTemporaryFile(dir=server.settings.folder) as beside:
            data = source.read()
            beside.write(data)
            beside.flush()
            sha256 = hashlib.sha256(data).hexdigest()
            server.blobs.put(sha256, Path(beside.name))
        yield path, sha256, len(data)


def many(server: Service, bundles: Sequence[Bundle], count: int, *, first: int = 0) -> None:
    """So many releases: copies of a few runs, each under a name of its own, of twenty owners."""
    for begin in range(first, first + count, 500):
        made = range(begin, min(begin + 500, first + count))
        put(server, [copy_of(bundles[n % len(bundles)], owner=f"group{n % 20}", name=f"run-{n}") for n in made])
