"""What a server vouches for: a run is reproduced where others have played it anew, and it came out the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.releases.bundle import Bundle
from runner.releases.manifest import Link
from runner.server.boards.shown import Shown
from runner.server.boards.worker import Worker
from runner.server.people.accounts import add_account, add_member
from runner.server.service import Server
from runner.server.settings import Settings
from runner.storage.files import make_folders
from tests.support.served import copy_of, put, run_bundle

pytestmark = pytest.mark.full


def anew(bundle: Bundle, original: Bundle, owner: str, name: str) -> Bundle:
    link = Link(role="reproduces", release=str(original.release.reference), sha256=original.sha256)
    return Bundle(replace(bundle.release, owner=owner, name=name, links=(link,)), bundle.contents)


def test_a_run_is_reproduced_by_others_and_not_by_its_own_people_or_its_own_answers(tmp_path: Path) -> None:
    first, second = (run_bundle(tmp_path / f"play{seed}", seed=seed, size=600) for seed in (1, 2))
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Server.of(settings)
    with server.database.writing() as connection:
        add_account(connection, "lab", 0.0, organisation=True)
        for name in ("alice", "bob"):
            add_account(connection, name, 0.0)
            add_member(connection, "lab", name)
    original = copy_of(first, owner="alice", name="first")
    plays = [
        anew(second, original, "alice", "by-herself"),
        anew(second, original, "bob", "by-a-colleague"),
        anew(first, original, "mallory", "the-same-answers"),
    ]
    put(server, [original, *plays])
    worker = Worker(settings)

    def told(name: str) -> tuple[str, dict[str, str]]:
        make_folders(tmp_path / name)
        worker.write(tmp_path / name)
        said = Shown(tmp_path / name).release("run/alice/first@1")
        assert said is not None
        return said["tier_words"], {one["release"]: one["outcome"] for one in said["reproductions"]}

    tier, outcomes = told("before")
    assert tier == "recomputed"
    assert outcomes == {
        "run/alice/by-herself@1": "own", "run/bob/by-a-colleague@1": "own",
        "run/mallory/the-same-answers@1": "copy",
    }  # fmt: skip
    put(server, [anew(second, original, "carol", "anew")])
    tier, outcomes = told("after")
    assert outcomes["run/carol/anew@1"] == "reproduced"
    assert tier == "reproduced by 1"
    server.database.close()
