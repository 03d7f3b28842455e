"""What a server vouches for: a run is reproduced where others have played it anew, and it came out the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.storage.log_lines import encode, log_seed
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.bundle import Bundle, Content, open_content
from runner.documents.releases.manifest import ReleaseLink
from runner.server.accounts.accounts import add_account, add_member
from runner.server.boards.copied_answers import JOURNAL
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.worker import BoardWorker
from runner.server.service import Service
from runner.server.settings import Settings
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

pytestmark = pytest.mark.full


def make_reproduction(bundle: Bundle, original: Bundle, owner: str, name: str) -> Bundle:
    link = ReleaseLink(role="reproduces", release=str(original.release.reference), sha256=original.sha256)
    return Bundle(replace(bundle.release, owner=owner, name=name, links=(link,)), bundle.contents)


def with_small_changes(bundle: Bundle) -> Bundle:
    """The same run with a word of each answer changed, under another id and at another time, as one who forges does."""
    facts = dict(bundle.release.facts)
    own = str(facts["run_id"])
    other = own[:-4] + "beef"
    facts |= {"run_id": other, "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:00Z"}
    contents: dict[str, Content] = {}
    for path, content in bundle.contents.items():
        with open_content(content) as file:
            contents[path] = file.read().replace(own.encode(), other.encode())
    contents[JOURNAL] = b"".join(_changed(contents[JOURNAL]))
    return Bundle.of(replace(bundle.release, facts=facts), contents)


def _changed(journal: Content) -> Iterator[bytes]:
    assert isinstance(journal, bytes)
    seed = 0
    for number, line in enumerate(journal.splitlines(keepends=True)):
        record = json.loads(line[9:])
        for choice in record.get("choices", ()):
            choice[0] = choice[0].replace("result", "outcome").replace("state", "value")
        made = encode(number, {name: value for name, value in record.items() if name != "seq"}, seed)
        seed = seed or log_seed(made, record)
        yield made


def test_a_run_is_reproduced_by_others_and_not_by_its_own_people_or_its_own_answers(tmp_path: Path) -> None:
    first, second = (run_bundle(tmp_path / f"play{seed}", seed=seed, size=600) for seed in (1, 2))
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    with server.database.writing() as connection:
        add_account(connection, "lab", 0.0, is_organization=True)
        for name in ("alice", "bob"):
            add_account(connection, name, 0.0)
            add_member(connection, "lab", name)
    others = run_bundle(tmp_path / "others", seed=2, size=600, protocol={"max_message_rounds": 4})
    edited = with_small_changes(first)
    original = copy_bundle(first, owner="alice", name="first")
    plays = [
        make_reproduction(second, original, "alice", "by-herself"),
        make_reproduction(second, original, "bob", "by-a-colleague"),
        make_reproduction(first, original, "mallory", "the-same-answers"),
        make_reproduction(edited, original, "mallory", "with-small-changes"),
        make_reproduction(others, original, "mallory", "another-game"),
    ]
    insert_releases(server, [original, *plays])
    worker = BoardWorker(settings)

    def told(name: str) -> tuple[str, dict[str, str]]:
        make_folders(tmp_path / name)
        worker.write(tmp_path / name)
        said = BoardSnapshot(tmp_path / name).release("run/alice/first@1")
        assert said is not None
        return said["tier_words"], {one["release"]: one["outcome"] for one in said["reproductions"]}

    tier, outcomes = told("before")
    assert tier == "recomputed", outcomes
    assert outcomes == {
        "run/alice/by-herself@1": "own", "run/bob/by-a-colleague@1": "own",
        "run/mallory/the-same-answers@1": "copy", "run/mallory/with-small-changes@1": "copy",
        "run/mallory/another-game@1": "other",
    }  # fmt: skip
    insert_releases(server, [make_reproduction(second, original, "carol", "anew")])
    tier, outcomes = told("after")
    assert outcomes["run/carol/anew@1"] == "reproduced"
    assert tier == "reproduced by 1"
    server.database.close()
