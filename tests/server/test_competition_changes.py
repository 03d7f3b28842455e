"""A competition as its owner may change it, and its limit and closing to the moment."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select

from runner.base.errors import UsageError
from runner.documents.releases.bundle import open_content
from runner.documents.releases.reference import Kind
from runner.registry.bundles.runs import build_run_draft
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.results.leaderboard.results_folder import Results
from runner.server.accounts.accounts import Viewer, find_account_id, viewer_of_account
from runner.server.competitions.editing import CompetitionChanges, change_competition, find_for_change
from runner.server.competitions.storage import REFUSED, WAITING, submit_run
from runner.server.store.database import Database
from runner.server.store.schema import competitions, releases, submissions
from tests.server.test_competitions import LABELS, ROWS, Contest, competition_body, write_rows
from tests.server.test_keeping import keep, refused
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import HttpResponse, ServerProcess, create_accounts

DAY = 24 * 3600.0
NOW = 1_800_000_000.0


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Database]:
    """Records with a competition of acme's that takes one submission a day, and closes in ten days."""
    with closing(Database(f"sqlite:///{tmp_path / 'records.sqlite'}")) as database:
        create_accounts(database)
        with database.writing() as connection:
            dataset = release(connection, "dataset", "acme", "claims")
            row = {"owner": "acme", "name": "cup", "title": "", "release_id": dataset, "rows_sha256": "r" * 64,
                   "group_by": None, "day_limit": 1, "created": NOW, "closes": NOW + 10 * DAY}  # fmt: skip
            connection.execute(insert(competitions), row)
        yield database


def release(connection: Any, kind: str, owner: str, name: str) -> int:
    row = {"kind": kind, "owner": owner, "name": name, "version": "1", "sha256": "a" * 64, "visibility": "public",
           "publisher_id": find_account_id(connection, "alice"), "created": NOW}  # fmt: skip
    return int(connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())


def submitted(database: Database, who: str, owner: str, name: str, now: float) -> None:
    with database.writing() as connection:
        viewer: Viewer = viewer_of_account(connection, find_account_id(connection, who))
        submit_run(connection, viewer, "r" * 64, release(connection, "run", owner, name), owner=owner, now=now)


def states(database: Database) -> list[tuple[str, str]]:
    with database.reading() as connection:
        found = connection.execute(select(submissions.c.state, submissions.c.why).order_by(submissions.c.id))
        return [(row.state, row.why) for row in found]


def test_of_many_submissions_at_once_the_limit_takes_just_as_many_as_it_says(records: Database) -> None:
    together = threading.Barrier(6)

    def submit(number: int) -> None:
        together.wait()
        submitted(records, "alice", ("alice", "acme")[number % 2], f"run-{number}", NOW + number / 1_000)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(state for state, _ in states(records)) == [REFUSED] * 5 + [WAITING]


def test_a_member_s_submission_counts_for_the_member_and_for_the_organisation(records: Database) -> None:
    submitted(records, "alice", "acme", "for-us", NOW)
    submitted(records, "bob", "acme", "for-us-too", NOW + 1)
    submitted(records, "alice", "alice", "for-me", NOW + 2)
    submitted(records, "bob", "bob", "of-his-own", NOW + 3)
    assert [state for state, _ in states(records)] == [WAITING, REFUSED, REFUSED, WAITING]
    assert "acme has 1 submission in 24 hours" in states(records)[1][1]
    assert "this account has 1 submission in 24 hours" in states(records)[2][1]


def test_the_moment_of_closing_and_the_moment_of_the_next_submission_are_exact(records: Database) -> None:
    for name, at in (("first", NOW), ("a-moment-early", NOW + DAY - 0.001), ("a-day-later", NOW + DAY)):
        submitted(records, "alice", "alice", name, at)
    submitted(records, "mallory", "mallory", "in-time", NOW + 10 * DAY - 0.001)
    submitted(records, "bob", "bob", "too-late", NOW + 10 * DAY)
    assert [state for state, _ in states(records)] == [WAITING, REFUSED, WAITING, WAITING, REFUSED]


def test_it_closes_later_and_never_earlier_nor_again(records: Database) -> None:
    def to(closes: float, now: float = NOW) -> None:
        with records.writing() as connection:
            one = find_for_change(connection, None, "acme", "cup")
            change_competition(connection, one, CompetitionChanges(closes=closes), now, by="", reason="")

    to(NOW + 11 * DAY)
    with pytest.raises(UsageError, match="must stay open until"):
        to(NOW + 10 * DAY)
    with pytest.raises(UsageError, match="acme/cup closed at"):
        to(NOW + 20 * DAY, NOW + 11 * DAY)
    with pytest.raises(UsageError, match="more than ten years"):
        to(NOW + 4_000 * DAY)


@pytest.fixture(scope="session")  # as the server is: tests of one module may run apart
def contest(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Contest:
    folder = tmp_path_factory.mktemp("changes")
    write_rows(folder / "rows.jsonl")
    choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(folder / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    return Contest(served, folder)


@pytest.mark.full
def test_labels_that_are_replaced_score_all_anew_and_the_end_is_told_with_why(contest: Contest) -> None:
    served, where = contest.served, "/api/v1/competitions/acme/spring"

    def asked(who: str, method: str, path: str = "", body: dict[str, Any] | None = None) -> HttpResponse:
        return served.request(where + path, method, body, token=served.tokens[who])

    for name in ("spring", "unused"):
        made = served.request("/api/v1/competitions", "POST", competition_body(name), token=served.tokens["alice"])
        assert made.status == 201, made.body
    submission = where + contest.submit("mallory", "mallory", contest.run("one"))
    before = contest.score(submission)
    assert [asked(who, "PATCH", "", {"title": "T"}).status for who in ("mallory", "bob", "alice")] == [403, 403, 200]
    assert asked("alice", "PATCH", "", {"closes": "2026-01-01T00:00:00Z"}).status == 400
    assert asked("alice", "PATCH", "", {"rows": 3}).status == 422
    assert asked("alice", "PUT", "/labels", {"labels": {"x": 1}, "why": "w"}).status == 400
    others = {id_: 1 - label for id_, label in LABELS.items()}
    assert asked("alice", "PUT", "/labels", {"labels": others, "why": "were swapped"}).json == {"changed": ROWS}
    after = contest.score(submission)
    values = [one["open"]["metrics"][0]["value"] for one in (before, after)]
    assert abs(values[0] + values[1] - 1.0) <= before["open"]["rounded_to"] + 1e-9
    assert before["relabelled"] is None
    assert after["scored"] > after["relabelled"]
    assert b"Labels were replaced at" in served.request("/competitions/acme/spring").body
    (served.folder / "one.json").write_text(json.dumps({"labels": {"p1": LABELS["p1"]}, "why": "one was right"}))
    keep(served.folder, "relabel-competition", "acme/spring", "one.json")
    assert contest.score(submission)["scored"] > after["scored"]
    assert asked("bob", "DELETE", "?why=x").status == 403
    assert asked("alice", "DELETE", "").status == 422
    assert asked("alice", "DELETE", "?why=leaked").json == {"is_gone": False}
    told = served.request(where).json
    assert (told["why"], told["board"], told["rows_open"], told["submissions"]) == ("leaked", [], 0, [])
    assert served.request(submission).status == 404
    assert "leaked" in contest.score(submission, "mallory")["why"]
    assert asked("alice", "PUT", "/labels", {"labels": others, "why": "w"}).status == 400
    assert b"Withdrawn at" in served.request("/competitions/acme/spring").body
    later = where + contest.submit("mallory", "mallory", contest.run("one"), version="2")
    assert "was withdrawn at" in contest.score(later, "mallory")["why"]
    assert "--why" in refused(served.folder, "withdraw-competition", "acme/unused")
    did = {act["did"] for act in keep(served.folder, "acts")}
    assert {"add-competition", "change-competition", "relabel-competition", "withdraw-competition"} <= did


@pytest.mark.full
def test_one_that_nobody_has_submitted_to_is_gone_and_its_name_is_free(contest: Contest) -> None:
    served = contest.served
    for _ in range(2):
        body = competition_body("brief", dataset="acme/claims@1")
        assert served.request("/api/v1/competitions", "POST", body, token=served.tokens["alice"]).status == 201
        assert keep(served.folder, "withdraw-competition", "acme/brief", "--why", "a test")["is_gone"]
        assert served.request("/api/v1/competitions/acme/brief").status == 404


@pytest.mark.full
def test_a_submission_counts_from_when_it_was_sent_and_not_from_when_it_was_checked(contest: Contest) -> None:
    served = contest.served
    made = served.request("/api/v1/competitions", "POST", competition_body("clock"), token=served.tokens["alice"])
    assert made.status == 201, made.body
    result = contest.run("timed")
    choices = PublisherChoices(owner="mallory", name="timed", version="1", licence="MIT")
    bundle = build_run_draft(result.folder, Results(contest.folder / "results"), choices).bundle()
    contents = {}
    for path, content in bundle.files():
        with open_content(content) as source:
            contents[path] = source.read()
    with RawUploadClient(served.address, served.tokens["mallory"]) as raw:
        begun = raw.start_upload({"run/mallory/timed/1": contents}).json()
        by_size = {one["sha256"]: one for one in begun["missing"]}
        for data in contents.values():
            if (sha256 := _hash(data)) in by_size:
                raw.send_blob(begun["id"], data, sha256=sha256)
        assert raw.commit(begun["id"]).status_code == 202
        committed = time.time()
        assert raw.wait_for_result(begun["id"])["state"] == "published"
    with (database := served.open_database()).reading() as connection:
        at = connection.execute(select(submissions.c.created).order_by(submissions.c.id.desc()).limit(1)).scalar_one()
        shown = connection.execute(select(releases.c.created).where(releases.c.name == "timed")).scalar_one()
    database.close()
    assert at <= committed < shown


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()
