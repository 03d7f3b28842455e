"""Verification tiers: a run counts as reproduced if others ran it again with a consistent result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from runner.base.storage.log_lines import encode, log_seed
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.bundle import Bundle, Content, open_content
from runner.documents.releases.manifest import ReleaseLink
from runner.server.accounts.accounts import add_account, add_member, find_account_id
from runner.server.accounts.administration import remove_member
from runner.server.boards.copied_answers import JOURNAL
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.worker import BoardWorker
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.schema import releases as releases_table
from tests.support.server_releases import copy_bundle, insert_releases, run_bundle

pytestmark = pytest.mark.full


def make_reproduction(bundle: Bundle, original: Bundle, owner: str, name: str) -> Bundle:
    link = ReleaseLink(role="reproduces", release=str(original.release.reference), sha256=original.sha256)
    return Bundle(replace(bundle.release, owner=owner, name=name, links=(link,)), bundle.contents)


def edit_answers(bundle: Bundle) -> Bundle:
    """Return the run with changed words, id and times, as a forger would make it."""
    facts = dict(bundle.release.facts)
    run_id = str(facts["run_id"])
    new_run_id = run_id[:-4] + "beef"
    facts |= {"run_id": new_run_id, "started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:01:00Z"}
    contents: dict[str, Content] = {}
    for path, content in bundle.contents.items():
        with open_content(content) as file:
            contents[path] = file.read().replace(run_id.encode(), new_run_id.encode())
    contents[JOURNAL] = b"".join(edit_journal(contents[JOURNAL]))
    return Bundle.of(replace(bundle.release, facts=facts), contents)


def edit_journal(journal: Content) -> Iterator[bytes]:
    assert isinstance(journal, bytes)
    seed = 0
    for number, line in enumerate(journal.splitlines(keepends=True)):
        record = json.loads(line[9:])
        for choice in record.get("choices", ()):
            choice[0] = choice[0].replace("result", "outcome").replace("state", "value")
        encoded = encode(number, {name: value for name, value in record.items() if name != "seq"}, seed)
        seed = seed or log_seed(encoded, record)
        yield encoded


def test_only_new_answers_from_another_organization_count_as_a_reproduction(tmp_path: Path) -> None:
    first, second = (run_bundle(tmp_path / f"play{seed}", seed=seed, size=600) for seed in (1, 2))
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    with server.database.writing() as connection:
        add_account(connection, "lab", 0.0, is_organization=True)
        for name in ("alice", "bob"):
            add_account(connection, name, 0.0)
            add_member(connection, "lab", name)
    different_game = run_bundle(tmp_path / "others", seed=2, size=600, protocol={"max_message_rounds": 4})
    edited = edit_answers(first)
    original = copy_bundle(first, owner="alice", name="first")
    reproductions = [
        make_reproduction(second, original, "alice", "by-herself"),
        make_reproduction(second, original, "bob", "by-a-colleague"),
        make_reproduction(first, original, "mallory", "the-same-answers"),
        make_reproduction(edited, original, "mallory", "with-small-changes"),
        make_reproduction(different_game, original, "mallory", "another-game"),
    ]
    insert_releases(server, [original, *reproductions])
    worker = BoardWorker(settings)

    def tier_and_outcomes(name: str, original: str = "run/alice/first@1") -> tuple[str, dict[str, str]]:
        make_folders(tmp_path / name)
        worker.write(tmp_path / name)
        release = BoardSnapshot(tmp_path / name).release(original)
        assert release is not None
        return release["tier_words"], {
            reproduction["release"]: reproduction["outcome"] for reproduction in release["reproductions"]
        }

    tier, outcomes = tier_and_outcomes("before")
    assert tier == "recomputed", outcomes
    assert outcomes == {
        "run/alice/by-herself@1": "own", "run/bob/by-a-colleague@1": "own",
        "run/mallory/the-same-answers@1": "copy", "run/mallory/with-small-changes@1": "copy",
        "run/mallory/another-game@1": "other",
    }  # fmt: skip
    third = run_bundle(tmp_path / "play3", seed=3, size=600)
    copies = [(second, "of-alice"), (third, "of-carol"), (edit_answers(third), "of-carol-edited")]
    later = [make_reproduction(bundle, original, "mallory", name) for bundle, name in copies]
    insert_releases(server, [make_reproduction(third, original, "carol", "anew"), *later])
    tier, outcomes = tier_and_outcomes("after")
    assert outcomes["run/carol/anew@1"] == "reproduced"
    assert {outcomes[f"run/mallory/{name}@1"] for _, name in copies} == {"copy"}
    assert tier == "reproduced by 1"
    of_lab = copy_bundle(first, owner="lab")
    insert_releases(server, [of_lab, make_reproduction(second, of_lab, "bob", "by-a-member")])
    with server.database.writing() as connection:  # the publisher leaves the organization that owns the run
        is_of_lab, publisher = releases_table.c.owner == "lab", find_account_id(connection, "alice")
        connection.execute(update(releases_table).where(is_of_lab).values(publisher_id=publisher))
        remove_member(connection, "lab", "alice")
    tier, outcomes = tier_and_outcomes("left", str(of_lab.release.reference))
    assert (tier, outcomes) == ("recomputed", {"run/bob/by-a-member@1": "own"})
    worker.close()
    server.database.close()


def test_run_that_the_server_cannot_recompute_is_self_reported_and_reproduces_nothing(tmp_path: Path) -> None:
    """Without the rows of the dataset, a server cannot replay the journal, so the rollouts may be forged."""
    first, second = (run_bundle(tmp_path / f"play{seed}", seed=seed, size=600) for seed in (1, 2))
    hidden = run_bundle(tmp_path / "hidden", seed=2, size=600, dataset_licence="none")
    wrong_facts = {**second.release.facts, "accuracy": {"value": 1.0}}
    settings = Settings(folder=tmp_path / "server")
    make_folders(settings.incoming)
    server = Service.open(settings)
    original = copy_bundle(first, owner="alice", name="first")
    contradiction = replace(second, release=replace(second.release, facts=wrong_facts))
    training_facts = {**second.release.facts, "kind": "training", "parent_run_id": None}
    training = replace(second, release=replace(second.release, facts=training_facts))
    releases = [
        original,
        make_reproduction(hidden, original, "bob", "hidden"),
        make_reproduction(contradiction, original, "carol", "wrong"),
        copy_bundle(training, owner="dora", name="training"),
    ]
    insert_releases(server, releases)
    make_folders(tmp_path / "board")
    with closing(BoardWorker(settings)) as worker:
        worker.write(tmp_path / "board")
    facts = {}
    for release in releases:
        name = release.release.name
        facts[name] = BoardSnapshot(tmp_path / "board").release(str(release.release.reference))
    tiers = {name: fact and fact["tier_words"] for name, fact in facts.items()}
    assert tiers == {"first": "recomputed", **dict.fromkeys(("hidden", "wrong", "training"), "self-reported")}
    assert facts["wrong"]
    assert facts["wrong"]["accuracy"] is None
    assert facts["first"]
    assert {line["outcome"] for line in facts["first"]["reproductions"]} == {"undecided"}
    server.database.close()
