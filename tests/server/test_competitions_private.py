"""Access to competitions and their submission limits, tested on database records without any run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import Connection, insert, select, update

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.results.metric_definitions import ACCURACY
from runner.server.accounts.accounts import ANYBODY, Scope, Viewer, add_account, add_member, find_account_id
from runner.server.competitions import board as boards
from runner.server.competitions.scores import HELD_PART, OPEN_PART
from runner.server.competitions.storage import (
    DAY,
    MAX_COMPETITIONS,
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
    """Database records of a competition of acme, and of submissions to it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        add_account(connection, "acme", NOW, is_organization=True)
        self.ids = {name: add_account(connection, name, NOW) for name in ("alice", "bob", "mallory")}
        for name in ("alice", "bob"):
            add_member(connection, "acme", name, is_owner=name == "alice")
        self.dataset = self.add_release("dataset", "acme", "claims")
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

    def add_release(self, kind: str, owner: str, name: str, visibility: str = "public") -> int:
        row = {
            "kind": kind, "owner": owner, "name": name, "version": "1", "sha256": "0" * 64, "visibility": visibility,
            "publisher_id": self.ids.get(owner, 1), "created": NOW,
        }  # fmt: skip
        return int(self.connection.execute(insert(releases).returning(releases.c.id), row).scalar_one())

    def submit(self, account: str, name: str, now: float = NOW, *, owner: str = "", visibility: str = "public") -> str:
        """Submit a new run and return the state of its submission, or "" if there is none."""
        release_id = self.add_release("run", owner or account, name, visibility)
        submit_run(self.connection, self.viewer(account), ROWS, release_id, owner=owner or account, now=now)
        row = self.connection.execute(select(submissions).where(submissions.c.release_id == release_id)).one_or_none()
        return "" if row is None else str(row.state)

    def score_waiting(self) -> None:
        """Give all waiting submissions the same score."""
        scores = {"rows": 4, "interval": "95%", "metrics": [make_metric(ACCURACY), make_metric("precision")]}
        score = orjson.dumps({OPEN_PART: scores, HELD_PART: scores}).decode()
        waiting = submissions.c.state == WAITING
        self.connection.execute(update(submissions).where(waiting).values(state=SCORED, score=score))

    def describe_submission(self, viewer: Viewer, owner: str, name: str, now: float = NOW) -> dict[str, Any]:
        reference = Reference(Kind.RUN, owner, name, "1")
        return boards.describe_submission(self.connection, viewer, "acme", "cup", run=reference, now=now)

    def board(self, viewer: Viewer, now: float = NOW) -> dict[str, Any]:
        return boards.describe_board(self.connection, viewer, "acme", "cup", now)


def make_metric(name: str) -> dict[str, Any]:
    return {"metric": name, "value": 0.51, "ci_low": 0.25, "ci_high": 0.77, "n": 4, "clusters": 4}


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    database = Database(Settings(folder=tmp_path).database_url)
    with database.writing() as connection:
        yield Records(connection)
    database.close()


def test_competition_on_a_private_dataset_is_visible_only_to_its_owners(records: Records) -> None:
    make_private = update(releases).where(releases.c.id == records.dataset).values(visibility="private")
    records.connection.execute(make_private)
    for viewer in (ANYBODY, records.viewer("mallory"), records.viewer("mallory", Scope.ADMIN)):
        assert boards.list_competitions(records.connection, viewer, NOW, "", 10) == []
        with pytest.raises(NotFoundError, match="this server has no competition acme/cup"):
            records.board(viewer)
    # A run on the same rows must not reveal the competition either.
    assert records.submit("mallory", "probe") == ""
    assert len(boards.list_competitions(records.connection, records.viewer("bob"), NOW, "", 10)) == 1
    assert records.submit("bob", "own") == WAITING


def test_private_submission_is_on_no_board_or_count_that_others_see(records: Records) -> None:
    assert records.submit("mallory", "secret", visibility="private") == WAITING
    assert records.submit("mallory", "open") == WAITING
    records.score_waiting()
    for viewer, count in ((ANYBODY, 1), (records.viewer("alice"), 1), (records.viewer("mallory"), 2)):
        board = records.board(viewer)
        assert (len(board["board"]), board["submissions"]) == (count, [{"owner": "mallory", "count": count}])
        assert {row["submissions"] for row in board["board"]} == {count}
    with pytest.raises(NotFoundError):
        records.describe_submission(records.viewer("alice"), "mallory", "secret")
    assert records.describe_submission(records.viewer("mallory"), "mallory", "secret")["state"] == SCORED


def test_daily_limit_holds_per_owner_and_per_account_and_none_is_accepted_after_closing(records: Records) -> None:
    assert [records.submit("mallory", f"m{n}", NOW + n) for n in range(3)] == [WAITING, WAITING, REFUSED]
    assert records.submit("mallory", "next", NOW + DAY + 0.5) == WAITING
    # Publishing as another owner, or from another account, does not raise the limit.
    assert [records.submit("bob", f"b{n}", owner=("bob", "acme", "acme")[n]) for n in range(3)] == [
        WAITING, WAITING, REFUSED,
    ]  # fmt: skip
    assert [records.submit("alice", f"a{n}", owner="acme") for n in range(2)] == [WAITING, REFUSED]
    assert records.submit("mallory", "late", CLOSES) == REFUSED
    reason = records.describe_submission(records.viewer("mallory"), "mallory", "m2")["why"]
    assert reason.startswith("mallory has 2 submissions in 24 hours")
    for viewer in (ANYBODY, records.viewer("alice")):  # only the owner sees why a submission was refused
        with pytest.raises(NotFoundError):
            records.describe_submission(viewer, "mallory", "m2")


def test_submission_refused_while_scoring_counts_toward_the_limit_and_earlier_refusals_do_not(records: Records) -> None:
    assert [records.submit("mallory", f"m{n}") for n in range(3)] == [WAITING, WAITING, REFUSED]
    refuse_waiting = (
        update(submissions).where(submissions.c.state == WAITING).values(state=REFUSED, why="lost", scored=NOW)
    )
    records.connection.execute(refuse_waiting)
    assert records.submit("mallory", "more", NOW + 1) == REFUSED
    assert records.submit("mallory", "tomorrow", NOW + DAY + 1) == WAITING


def test_competition_on_copied_rows_names_the_original_dataset(records: Records) -> None:
    def add_competition(owner: str, name: str, dataset: int, rows: str) -> None:
        row = {
            "owner": owner, "name": name, "title": "", "release_id": dataset, "rows_sha256": rows, "group_by": None,
            "day_limit": 1000, "created": NOW, "closes": CLOSES,
        }  # fmt: skip
        records.connection.execute(insert(competitions), row)

    def add_dataset_file(release_id: int, owner: str, sha256: str) -> None:
        path = f"dataset/{owner}/{release_id}/1/dataset.jsonl"
        row = {"path": path, "release_id": release_id, "part": "", "sha256": sha256, "size": 1}
        records.connection.execute(insert(files), row)

    # The same rows in other bytes, and the same bytes as a dataset without a competition yet.
    copied, later = records.add_release("dataset", "mallory", "copy"), records.add_release("dataset", "acme", "later")
    add_competition("mallory", "fake", copied, ROWS)
    add_dataset_file(later, "acme", "c" * 64)
    second_copy = records.add_release("dataset", "mallory", "again")
    add_dataset_file(second_copy, "mallory", "c" * 64)
    add_competition("mallory", "early", second_copy, "c" * 64)
    add_competition("acme", "real", later, "c" * 64)
    sources = {
        (owner, name): boards.describe_board(records.connection, ANYBODY, owner, name, NOW)["copied_from"]
        for owner, name in (("acme", "cup"), ("mallory", "fake"), ("mallory", "early"), ("acme", "real"))
    }
    assert sources == {
        ("acme", "cup"): None, ("acme", "real"): None, ("mallory", "fake"): "dataset/acme/claims@1",
        ("mallory", "early"): "dataset/acme/later@1",
    }  # fmt: skip
    run = records.add_release("run", "bob", "honest")
    submit_run(records.connection, records.viewer("bob"), ROWS, run, owner="bob", now=NOW)
    notes = sorted(
        boards.submission_notes(records.connection, [Reference(Kind.RUN, "bob", "honest", "1")], "https://x.example")
    )
    assert ["created on the rows of dataset/acme/claims@1" in note for note in notes] == [False, True]
    # A private dataset is not named to others.
    make_private = update(releases).where(releases.c.id == later).values(visibility="private")
    records.connection.execute(make_private)
    assert boards.describe_board(records.connection, ANYBODY, "mallory", "early", NOW)["copied_from"] is None


def test_held_out_scores_wait_for_closing_and_exact_scores_are_for_owners(records: Records) -> None:
    assert records.submit("mallory", "run") == WAITING
    records.score_waiting()
    before = records.describe_submission(ANYBODY, "mallory", "run", CLOSES - 1)
    assert (before["held_out"], before["in_full"]) == (None, None)
    assert [row["metric"] for row in before["open"]["metrics"]] == [ACCURACY]
    assert before["open"]["metrics"][0]["value"] == 0.5
    assert records.board(ANYBODY, CLOSES - 1)["ranked_by"] == OPEN_PART
    assert (
        records.describe_submission(records.viewer("bob"), "mallory", "run")["in_full"] is None
    )  # a member, but not an owner
    assert records.describe_submission(records.viewer("alice", Scope.READ), "mallory", "run")["in_full"] is None
    assert records.describe_submission(records.viewer("alice"), "mallory", "run")["in_full"] is not None
    after = records.describe_submission(ANYBODY, "mallory", "run", CLOSES)
    assert after["held_out"]["metrics"]
    assert records.board(ANYBODY, CLOSES)["ranked_by"] == HELD_PART


def test_board_names_its_rank_method_which_changes_above_50_submissions(records: Records) -> None:
    records.connection.execute(update(competitions).values(day_limit=1000))
    for number in range(51):
        records.submit("mallory", f"m{number}")
        records.score_waiting()
        if number == 49:
            assert records.board(ANYBODY)["rank_method"].endswith(
                "unpaired tests (by the published numbers) of all pairs"
            )
    assert records.board(ANYBODY)["rank_method"] == (
        "rank: 95 % confidence set of ranks, from unpaired tests (by the published numbers) of each row with the first "
        "only, because there are 51"
    )


@pytest.mark.full
def test_dataset_with_public_labels_cannot_have_a_competition(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    server = Service.open(Settings(folder=tmp_path / "server"))
    rows = "".join(f'{{"id": "p{n}", "label": {n % 2}, "question": "q", "solution": "s"}}\n' for n in range(4))
    (tmp_path / "rows.jsonl").write_text(rows, "utf-8")
    choices = PublisherChoices(owner="acme", name="known", version="1", licence="MIT")
    with server.database.writing() as connection:
        records = Records(connection)
    insert_releases(server, [build_component_draft(tmp_path / "rows.jsonl", Kind.DATASET, choices, None).bundle()])
    request = CompetitionRequest(dataset="acme/known@1", name="mine", labels={"p0": 1}, day_limit=1, closes=CLOSES)
    with pytest.raises(ReleaseError, match="has labels, which everyone can read"):
        create_competition(server.settings, server.database, records.viewer("alice"), request, NOW)
    server.database.close()


def test_number_of_competitions_of_an_owner_is_limited(tmp_path: Path) -> None:
    """Each run on public rows is a submission to all competitions on these rows, so many would delay all scores."""
    settings = Settings(folder=tmp_path)
    make_folders(settings.incoming)
    server = Service.open(settings)
    (tmp_path / "rows.jsonl").write_text('{"id": "p", "label": null, "question": "?"}\n')
    choices = PublisherChoices(owner="alice", name="rows", version="1", licence="MIT")
    insert_releases(server, [build_component_draft(tmp_path / "rows.jsonl", Kind.DATASET, choices, None).bundle()])
    with server.database.writing() as connection:
        account_id = find_account_id(connection, "alice")
        row = {"owner": "alice", "title": "", "release_id": 1, "rows_sha256": ROWS, "day_limit": 1, "created": NOW,
               "closes": NOW + 2 * DAY}  # fmt: skip
        connection.execute(insert(competitions), [{**row, "name": f"c{number}"} for number in range(MAX_COMPETITIONS)])
    viewer = Viewer(account_id, "alice", frozenset({"alice"}), Scope.PUBLISH)
    request = CompetitionRequest(dataset="alice/rows@1", name="new", labels={"p": 1}, day_limit=1, closes=NOW + 9 * DAY)
    with pytest.raises(UsageError, match="alice has 100 competitions that are open"):
        create_competition(settings, server.database, viewer, request, NOW)
    assert create_competition(settings, server.database, viewer, request, NOW + 2 * DAY) == "alice/new"
    server.database.close()


def test_creating_a_competition_needs_ownership_and_hides_private_datasets(tmp_path: Path) -> None:
    settings = Settings(folder=tmp_path)
    database = Database(settings.database_url)
    with database.writing() as connection:
        records = Records(connection)
        records.add_release("dataset", "acme", "plan", "private")
    for dataset, message in (
        ("acme/plan@1", "this server has no dataset/acme/plan@1"),
        ("acme/no@1", "has no dataset/acme/no@1"),
    ):
        request = CompetitionRequest(dataset=dataset, name="mine", labels={"p": 1}, day_limit=1, closes=NOW + 1)
        with pytest.raises(NotFoundError, match=message):
            create_competition(settings, database, records.viewer("mallory"), request, NOW)
    request = CompetitionRequest(dataset="acme/claims@1", name="mine", labels={"p": 1}, day_limit=1, closes=NOW + 1)
    with pytest.raises(PermissionError, match="only an owner of acme"):
        create_competition(settings, database, records.viewer("bob"), request, NOW)
    with pytest.raises(UsageError, match="closing time has passed"):
        create_competition(settings, database, records.viewer("alice"), request, NOW + 1)
    database.close()
