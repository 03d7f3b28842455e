"""Changes that a competition's owner may make, and the exact daily limit and closing time."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from fastapi import HTTPException
from sqlalchemy import event, insert, select

from runner.base.errors import UsageError
from runner.documents.releases.bundle import open_content
from runner.documents.releases.reference import Kind
from runner.registry.bundles.runs import build_run_draft
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.results.leaderboard.results_folder import Results
from runner.server.accounts.accounts import ANYBODY, Viewer, find_account_id, viewer_of_account
from runner.server.competitions.editing import CompetitionChanges, change_competition, find_for_change, relabel
from runner.server.competitions.storage import REFUSED, WAITING, submit_run
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, competitions, releases, submissions
from runner.server.web.api.competitions import CREATION_LOCK, create
from tests.server.test_competitions import LABELS, ROWS, Contest, competition_body, write_rows
from tests.server.test_keeping import expect_server_command_error, run_server_command
from tests.support.raw_uploads import RawUploadClient
from tests.support.server_process import HttpResponse, ServerProcess, create_accounts

DAY = 24 * 3600.0
NOW = 1_800_000_000.0


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Database]:
    """A database with a competition of acme that accepts one submission a day and closes in ten days."""
    with closing(Database(f"sqlite:///{tmp_path / 'records.sqlite'}")) as database:
        create_accounts(database)
        with database.writing() as connection:
            dataset = insert_release(connection, "dataset", "acme", "claims")
            row = {"owner": "acme", "name": "cup", "title": "", "release_id": dataset, "rows_sha256": "r" * 64,
                   "group_by": None, "day_limit": 1, "created": NOW, "closes": NOW + 10 * DAY}  # fmt: skip
            connection.execute(insert(competitions), row)
        yield database


def insert_release(connection: Any, kind: str, owner: str, name: str) -> int:
    row = {"kind": kind, "owner": owner, "name": name, "version": "1", "sha256": "a" * 64, "visibility": "public",
           "publisher_id": find_account_id(connection, "alice"), "created": NOW}  # fmt: skip
    return int(connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())


def submit_release(database: Database, account: str, owner: str, name: str, now: float) -> None:
    with database.writing() as connection:
        viewer: Viewer = viewer_of_account(connection, find_account_id(connection, account))
        submit_run(connection, viewer, "r" * 64, insert_release(connection, "run", owner, name), owner=owner, now=now)


def list_states(database: Database) -> list[tuple[str, str]]:
    with database.reading() as connection:
        rows = connection.execute(select(submissions.c.state, submissions.c.why).order_by(submissions.c.id))
        return [(row.state, row.why) for row in rows]


def test_concurrent_submissions_do_not_exceed_the_daily_limit(records: Database) -> None:
    barrier = threading.Barrier(6)

    def submit(number: int) -> None:
        barrier.wait()
        submit_release(records, "alice", ("alice", "acme")[number % 2], f"run-{number}", NOW + number / 1_000)

    threads = [threading.Thread(target=submit, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(state for state, _ in list_states(records)) == [REFUSED] * 5 + [WAITING]


def test_submission_by_a_member_counts_for_the_member_and_the_organization(records: Database) -> None:
    submit_release(records, "alice", "acme", "for-us", NOW)
    submit_release(records, "bob", "acme", "for-us-too", NOW + 1)
    submit_release(records, "alice", "alice", "for-me", NOW + 2)
    submit_release(records, "bob", "bob", "of-his-own", NOW + 3)
    assert [state for state, _ in list_states(records)] == [WAITING, REFUSED, REFUSED, WAITING]
    assert "acme has 1 submission in 24 hours" in list_states(records)[1][1]
    assert "this account has 1 submission in 24 hours" in list_states(records)[2][1]


def test_closing_time_and_daily_window_are_exact(records: Database) -> None:
    for name, at in (("first", NOW), ("a-moment-early", NOW + DAY - 0.001), ("a-day-later", NOW + DAY)):
        submit_release(records, "alice", "alice", name, at)
    submit_release(records, "mallory", "mallory", "in-time", NOW + 10 * DAY - 0.001)
    submit_release(records, "bob", "bob", "too-late", NOW + 10 * DAY)
    assert [state for state, _ in list_states(records)] == [WAITING, REFUSED, WAITING, WAITING, REFUSED]


def test_closing_time_can_only_be_postponed_and_not_after_closing(records: Database) -> None:
    def change_closing(closes: float, now: float = NOW) -> None:
        with records.writing() as connection:
            competition = find_for_change(connection, None, "acme", "cup")
            change_competition(connection, competition, CompetitionChanges(closes=closes), now, by="", reason="")

    change_closing(NOW + 11 * DAY)
    with pytest.raises(UsageError, match="must stay open until"):
        change_closing(NOW + 10 * DAY)
    with pytest.raises(UsageError, match="acme/cup closed at"):
        change_closing(NOW + 20 * DAY, NOW + 11 * DAY)
    with pytest.raises(UsageError, match="more than ten years"):
        change_closing(NOW + 4_000 * DAY)


@pytest.fixture(scope="session")  # like the server's, because xdist may split a module's tests
def contest(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Contest:
    folder = tmp_path_factory.mktemp("changes")
    write_rows(folder / "rows.jsonl")
    choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(folder / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    return Contest(served, folder)


@pytest.mark.full
def test_replaced_labels_rescore_all_submissions_and_a_withdrawal_shows_its_reason(contest: Contest) -> None:
    served, competition_path = contest.served, "/api/v1/competitions/acme/spring"

    def request(account: str, method: str, path: str = "", body: dict[str, Any] | None = None) -> HttpResponse:
        return served.request(competition_path + path, method, body, token=served.tokens[account])

    for name in ("spring", "unused"):
        response = served.request("/api/v1/competitions", "POST", competition_body(name), token=served.tokens["alice"])
        assert response.status == 201, response.body
    submission = competition_path + contest.submit("mallory", "mallory", contest.run("one"))
    before = contest.score(submission)
    assert [request(who, "PATCH", "", {"title": "T"}).status for who in ("mallory", "bob", "alice")] == [403, 403, 200]
    assert request("alice", "PATCH", "", {"closes": "2026-01-01T00:00:00Z"}).status == 400
    assert request("alice", "PATCH", "", {"rows": 3}).status == 422
    assert request("alice", "PUT", "/labels", {"labels": {"x": 1}, "why": "w"}).status == 400
    swapped_labels = {id_: 1 - label for id_, label in LABELS.items()}
    assert request("alice", "PUT", "/labels", {"labels": swapped_labels, "why": "were swapped"}).json == {
        "changed": ROWS
    }
    after = contest.score(submission)
    values = [score["open"]["metrics"][0]["value"] for score in (before, after)]
    assert abs(values[0] + values[1] - 1.0) <= before["open"]["rounded_to"] + 1e-9
    assert before["relabelled"] is None
    assert after["scored"] > after["relabelled"]
    assert b"Labels were replaced at" in served.request("/competitions/acme/spring").body
    (served.folder / "one.json").write_text(json.dumps({"labels": {"p1": LABELS["p1"]}, "why": "one was right"}))
    run_server_command(served.folder, "relabel-competition", "acme/spring", "one.json")
    assert contest.score(submission)["scored"] > after["scored"]
    assert request("bob", "DELETE", "?why=x").status == 403
    assert request("alice", "DELETE", "").status == 422
    assert request("alice", "DELETE", "?why=leaked").json == {"is_gone": False}
    competition = served.request(competition_path).json
    assert (competition["why"], competition["board"], competition["rows_open"], competition["submissions"]) == (
        "leaked",
        [],
        0,
        [],
    )
    assert served.request(submission).status == 404
    assert "leaked" in contest.score(submission, "mallory")["why"]
    assert request("alice", "PUT", "/labels", {"labels": swapped_labels, "why": "w"}).status == 400
    assert b"Withdrawn at" in served.request("/competitions/acme/spring").body
    later = competition_path + contest.submit("mallory", "mallory", contest.run("one"), version="2")
    assert "was withdrawn at" in contest.score(later, "mallory")["why"]
    assert "--why" in expect_server_command_error(served.folder, "withdraw-competition", "acme/unused")
    actions = {act["did"] for act in run_server_command(served.folder, "acts")}
    assert {"add-competition", "change-competition", "relabel-competition", "withdraw-competition"} <= actions


@pytest.mark.full
def test_withdrawn_competition_without_submissions_frees_its_name(contest: Contest) -> None:
    served = contest.served
    for _ in range(2):
        body = competition_body("brief", dataset="acme/claims@1")
        assert served.request("/api/v1/competitions", "POST", body, token=served.tokens["alice"]).status == 201
        assert run_server_command(served.folder, "withdraw-competition", "acme/brief", "--why", "a test")["is_gone"]
        assert served.request("/api/v1/competitions/acme/brief").status == 404


@pytest.mark.full
def test_submission_time_is_the_time_of_the_commit_and_not_of_the_check(contest: Contest) -> None:
    served = contest.served
    response = served.request("/api/v1/competitions", "POST", competition_body("clock"), token=served.tokens["alice"])
    assert response.status == 201, response.body
    result = contest.run("timed")
    choices = PublisherChoices(owner="mallory", name="timed", version="1", licence="MIT")
    bundle = build_run_draft(result.folder, Results(contest.folder / "results"), choices).bundle()
    contents = {}
    for path, content in bundle.files():
        with open_content(content) as source:
            contents[path] = source.read()
    with RawUploadClient(served.address, served.tokens["mallory"]) as raw:
        upload = raw.start_upload({"run/mallory/timed/1": contents}).json()
        missing_by_hash = {blob["sha256"]: blob for blob in upload["missing"]}
        for data in contents.values():
            if (sha256 := _hash(data)) in missing_by_hash:
                raw.send_blob(upload["id"], data, sha256=sha256)
        assert raw.commit(upload["id"]).status_code == 202
        committed = time.time()
        assert raw.wait_for_result(upload["id"])["state"] == "published"
    with (database := served.open_database()).reading() as connection:
        submitted_at = connection.execute(
            select(submissions.c.created).order_by(submissions.c.id.desc()).limit(1)
        ).scalar_one()
        published_at = connection.execute(select(releases.c.created).where(releases.c.name == "timed")).scalar_one()
    database.close()
    assert submitted_at <= committed < published_at


def _hash(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


def test_many_labels_are_replaced_without_one_statement_for_each(records: Database) -> None:
    """Other writers wait for the transaction, so a statement for each of a million labels would stop the server."""
    ids = [f"p{index}" for index in range(500)]
    with records.writing() as connection:
        rows = [{"competition_id": 1, "datapoint_id": id_, "label": 0, "is_held": False} for id_ in ids]
        connection.execute(insert(competition_labels), rows)
    with records.writing() as connection:
        competition = find_for_change(connection, None, "acme", "cup")
        statements: list[str] = []
        event.listen(connection, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
        assert relabel(connection, competition, dict.fromkeys(ids[1:], 1), NOW, by="", reason="wrong") == 499
        changed = dict(connection.execute(select(competition_labels.c.datapoint_id, competition_labels.c.label)).all())
    assert changed == {"p0": 0, **dict.fromkeys(ids[1:], 1)}
    assert len(statements) < 10


def test_competition_is_not_created_while_another_one_is_created() -> None:
    """Each creation takes a thread and a process, so one account could stop the server with many requests at once."""
    request: Any = None
    with CREATION_LOCK, pytest.raises(HTTPException) as refused:
        create(request, ANYBODY, request)
    assert refused.value.status_code == 503
    assert refused.value.headers == {"retry-after": "5"}
    assert not CREATION_LOCK.locked()
