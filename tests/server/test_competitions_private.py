"""What of a competition is told to whom, and what it takes: of its records alone, with nothing played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Connection, insert, select, update

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.results.metric_definitions import ACCURACY
from runner.server.accounts.accounts import ANYBODY, Scope, Viewer, add_account, add_member
from runner.server.competitions import board as boards
from runner.server.competitions.scores import HELD_PART, OPEN_PART
from runner.server.competitions.storage import (
    DAY,
    REFUSED,
    SCORED,
    WAITING,
    CompetitionRequest,
    create_competition,
    submit_run,
)
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, competitions, files, releases, submissions
from tests.support.server_releases import insert_releases

NOW = 1_000_000.0
CLOSES = NOW + 10 * DAY
ROWS = "a" * 64


class Records:
    """Those of a server with acme's competition on a dataset of its own, and of whoever submits runs to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        add_account(connection, "acme", NOW, is_organization=True)
        self.ids = {name: add_account(connection, name, NOW) for name in ("alice", "bob", "mallory")}
        for name in ("alice", "bob"):
            add_member(connection, "acme", name, is_owner=name == "alice")
        self.dataset = self.release("dataset", "acme", "claims")
        row = {
            "owner": "acme", "name": "cup", "title": "", "release_id": self.dataset, "rows_sha256": ROWS,
            "group_by": None, "day_limit": 2, "created": NOW, "closes": CLOSES,
        }  # fmt: skip
        self.cup = int(connection.execute(insert(competitions).returning(competitions.c.id), row).scalar_one())
        labels = [{"competition_id": self.cup, "datapoint_id": f"p{n}", "label": n % 2, "is_held": n < 2}
                  for n in range(6)]  # fmt: skip
        connection.execute(insert(competition_labels), labels)

    def viewer(self, name: str, scope: Scope = Scope.PUBLISH) -> Viewer:
        owners = {name, "acme"} if name in ("alice", "bob") else {name}
        return Viewer(self.ids[name], name, frozenset(owners), scope)

    def release(self, kind: str, owner: str, name: str, visibility: str = "public") -> int:
        row = {
            "kind": kind, "owner": owner, "name": name, "version": "1", "sha256": "0" * 64, "visibility": visibility,
            "publisher_id": self.ids.get(owner, 1), "created": NOW,
        }  # fmt: skip
        return int(self.connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())

    def submitted(self, who: str, name: str, at: float = NOW, *, owner: str = "", visibility: str = "public") -> str:
        """What becomes of a run at first."""
        made = self.release("run", owner or who, name, visibility)
        submit_run(self.connection, self.viewer(who), ROWS, made, owner=owner or who, now=at)
        found = self.connection.execute(select(submissions).where(submissions.c.release_id == made)).one_or_none()
        return "" if found is None else str(found.state)

    def scored(self) -> None:
        """All that wait, by one score."""
        part = {"rows": 4, "interval": "95%", "metrics": [metric(ACCURACY), metric("precision")]}
        score = orjson.dumps({OPEN_PART: part, HELD_PART: part}).decode()
        waiting = submissions.c.state == WAITING
        self.connection.execute(update(submissions).where(waiting).values(state=SCORED, score=score))

    def seen(self, viewer: Viewer, owner: str, name: str, now: float = NOW) -> dict[str, Any]:
        run = Reference(Kind.RUN, owner, name, "1")
        return boards.describe_submission(self.connection, viewer, "acme", "cup", run=run, now=now)

    def board(self, viewer: Viewer, now: float = NOW) -> dict[str, Any]:
        return boards.describe_board(self.connection, viewer, "acme", "cup", now)


def metric(name: str) -> dict[str, Any]:
    return {"metric": name, "value": 0.51, "ci_low": 0.25, "ci_high": 0.77, "n": 4, "clusters": 4}


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as connection:
        yield Records(connection)
    database.close()


def test_a_competition_of_a_private_dataset_is_told_to_its_owners_alone(records: Records) -> None:
    hidden = update(releases).where(releases.c.id == records.dataset).values(visibility="private")
    records.connection.execute(hidden)
    for viewer in (ANYBODY, records.viewer("mallory"), records.viewer("mallory", Scope.ADMIN)):
        assert boards.list_competitions(records.connection, viewer, NOW, "", 10) == []
        with pytest.raises(NotFoundError, match="this server has no competition acme/cup"):
            records.board(viewer)
    # Nor by what a run on the very same rows becomes.
    assert records.submitted("mallory", "probe") == ""
    assert len(boards.list_competitions(records.connection, records.viewer("bob"), NOW, "", 10)) == 1
    assert records.submitted("bob", "own") == WAITING


def test_a_private_submission_is_in_no_board_and_no_count_of_others(records: Records) -> None:
    assert records.submitted("mallory", "secret", visibility="private") == WAITING
    assert records.submitted("mallory", "open") == WAITING
    records.scored()
    for viewer, count in ((ANYBODY, 1), (records.viewer("alice"), 1), (records.viewer("mallory"), 2)):
        found = records.board(viewer)
        assert (len(found["board"]), found["submissions"]) == (count, [{"owner": "mallory", "count": count}])
        assert {row["submissions"] for row in found["board"]} == {count}
    with pytest.raises(NotFoundError):
        records.seen(records.viewer("alice"), "mallory", "secret")
    assert records.seen(records.viewer("mallory"), "mallory", "secret")["state"] == SCORED


def test_so_many_are_taken_a_day_of_an_owner_and_of_an_account_and_none_after_closing(records: Records) -> None:
    assert [records.submitted("mallory", f"m{n}", NOW + n) for n in range(3)] == [WAITING, WAITING, REFUSED]
    assert records.submitted("mallory", "next", NOW + DAY + 0.5) == WAITING
    # An account has no more as another owner, nor an owner by another account.
    assert [records.submitted("bob", f"b{n}", owner=("bob", "acme", "acme")[n]) for n in range(3)] == [
        WAITING, WAITING, REFUSED,
    ]  # fmt: skip
    assert [records.submitted("alice", f"a{n}", owner="acme") for n in range(2)] == [WAITING, REFUSED]
    assert records.submitted("mallory", "late", CLOSES) == REFUSED
    why = records.seen(records.viewer("mallory"), "mallory", "m2")["why"]
    assert why.startswith("mallory has 2 submissions in 24 hours")
    for viewer in (ANYBODY, records.viewer("alice")):  # why one is refused is its own owners'
        with pytest.raises(NotFoundError):
            records.seen(viewer, "mallory", "m2")


def test_what_is_refused_as_it_is_scored_counts_and_what_is_refused_before_does_not(records: Records) -> None:
    assert [records.submitted("mallory", f"m{n}") for n in range(3)] == [WAITING, WAITING, REFUSED]
    refused = update(submissions).where(submissions.c.state == WAITING).values(state=REFUSED, why="lost", scored=NOW)
    records.connection.execute(refused)
    assert records.submitted("mallory", "more", NOW + 1) == REFUSED
    assert records.submitted("mallory", "tomorrow", NOW + DAY + 1) == WAITING


def test_a_competition_on_a_copy_of_rows_names_whose_they_were_first(records: Records) -> None:
    def made(owner: str, name: str, dataset: int, rows: str) -> None:
        row = {
            "owner": owner, "name": name, "title": "", "release_id": dataset, "rows_sha256": rows, "group_by": None,
            "day_limit": 1000, "created": NOW, "closes": CLOSES,
        }  # fmt: skip
        records.connection.execute(insert(competitions), row)

    def table(release: int, owner: str, sha256: str) -> None:
        path = f"dataset/{owner}/{release}/1/dataset.jsonl"
        row = {"path": path, "release_id": release, "part": "", "sha256": sha256, "size": 1}
        records.connection.execute(insert(files), row)

    # The same rows, said in other bytes; and the same bytes as of rows that no competition is on yet.
    copy, later = records.release("dataset", "mallory", "copy"), records.release("dataset", "acme", "later")
    made("mallory", "fake", copy, ROWS)
    table(later, "acme", "c" * 64)
    again = records.release("dataset", "mallory", "again")
    table(again, "mallory", "c" * 64)
    made("mallory", "early", again, "c" * 64)
    made("acme", "real", later, "c" * 64)
    found = {
        (owner, name): boards.describe_board(records.connection, ANYBODY, owner, name, NOW)["copied_from"]
        for owner, name in (("acme", "cup"), ("mallory", "fake"), ("mallory", "early"), ("acme", "real"))
    }
    assert found == {
        ("acme", "cup"): None, ("acme", "real"): None, ("mallory", "fake"): "dataset/acme/claims@1",
        ("mallory", "early"): "dataset/acme/later@1",
    }  # fmt: skip
    run = records.release("run", "bob", "honest")
    submit_run(records.connection, records.viewer("bob"), ROWS, run, owner="bob", now=NOW)
    told = sorted(
        boards.submission_notes(records.connection, [Reference(Kind.RUN, "bob", "honest", "1")], "https://x.example")
    )
    assert ["created on the rows of dataset/acme/claims@1" in one for one in told] == [False, True]
    # What is private to others is named to nobody else.
    hidden = update(releases).where(releases.c.id == later).values(visibility="private")
    records.connection.execute(hidden)
    assert boards.describe_board(records.connection, ANYBODY, "mallory", "early", NOW)["copied_from"] is None


def test_the_part_that_is_held_out_and_what_is_not_rounded_wait_for_who_may_have_them(records: Records) -> None:
    assert records.submitted("mallory", "run") == WAITING
    records.scored()
    before = records.seen(ANYBODY, "mallory", "run", CLOSES - 1)
    assert (before["held_out"], before["in_full"]) == (None, None)
    assert [one["metric"] for one in before["open"]["metrics"]] == [ACCURACY]
    assert before["open"]["metrics"][0]["value"] == 0.5
    assert records.board(ANYBODY, CLOSES - 1)["ranked_by"] == OPEN_PART
    assert records.seen(records.viewer("bob"), "mallory", "run")["in_full"] is None  # a member, and no owner
    assert records.seen(records.viewer("alice", Scope.READ), "mallory", "run")["in_full"] is None
    assert records.seen(records.viewer("alice"), "mallory", "run")["in_full"] is not None
    after = records.seen(ANYBODY, "mallory", "run", CLOSES)
    assert after["held_out"]["metrics"]
    assert records.board(ANYBODY, CLOSES)["ranked_by"] == HELD_PART


def test_a_board_says_that_tests_are_unpaired_and_of_many_submissions_against_the_first_only(records: Records) -> None:
    records.connection.execute(update(competitions).values(day_limit=1000))
    for number in range(51):
        records.submitted("mallory", f"m{number}")
        records.scored()
        if number == 49:
            assert records.board(ANYBODY)["rank_method"].endswith(
                "unpaired tests (by the published numbers) of all pairs"
            )
    assert records.board(ANYBODY)["rank_method"] == (
        "rank: 95 % confidence set of ranks, from unpaired tests (by the published numbers) of each row with the first "
        "only, because there are 51"
    )


@pytest.mark.full
def test_rows_with_labels_that_all_can_read_make_no_competition(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Service.open(Settings(folder=tmp_path / "server"))
    rows = "".join(f'{{"id": "p{n}", "label": {n % 2}, "question": "q", "solution": "s"}}\n' for n in range(4))
    (tmp_path / "rows.jsonl").write_text(rows, "utf-8")
    choices = PublisherChoices(owner="acme", name="known", version="1", licence="MIT")
    with server.database.writing() as connection:
        records = Records(connection)
    insert_releases(server, [build_component_draft(tmp_path / "rows.jsonl", Kind.DATASET, choices, None).bundle()])
    wanted = CompetitionRequest(dataset="acme/known@1", name="mine", labels={"p0": 1}, day_limit=1, closes=CLOSES)
    with pytest.raises(ReleaseError, match="has labels, which everyone can read"):
        create_competition(server.settings, server.database, records.viewer("alice"), wanted, NOW)
    server.database.close()


def test_who_may_not_see_a_dataset_is_told_of_none_and_who_does_not_own_it_makes_nothing(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path)
    database = Database(settings.database_url)
    with database.writing() as connection:
        records = Records(connection)
        records.release("dataset", "acme", "plan", "private")
    for dataset, words in (
        ("acme/plan@1", "this server has no dataset/acme/plan@1"),
        ("acme/no@1", "has no dataset/acme/no@1"),
    ):
        wanted = CompetitionRequest(dataset=dataset, name="mine", labels={"p": 1}, day_limit=1, closes=NOW + 1)
        with pytest.raises(NotFoundError, match=words):
            create_competition(settings, database, records.viewer("mallory"), wanted, NOW)
    wanted = CompetitionRequest(dataset="acme/claims@1", name="mine", labels={"p": 1}, day_limit=1, closes=NOW + 1)
    with pytest.raises(PermissionError, match="only an owner of acme"):
        create_competition(settings, database, records.viewer("bob"), wanted, NOW)
    with pytest.raises(UsageError, match="closing time has passed"):
        create_competition(settings, database, records.viewer("alice"), wanted, NOW + 1)
    database.close()
