"""Competitions on a running server: public rows, secret labels, and the scores of submitted runs."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from runner.base.errors import UsageError
from runner.documents.releases.reference import Kind
from runner.registry.bundles.runs import build_run_draft
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from runner.results.leaderboard.results_folder import Results
from runner.results.metric_definitions import Show, metrics_shown
from runner.runs.finished.result import FinishedRun
from runner.server.competitions.scores import build_published_score, rounding_step
from runner.server.store.schema import competitions, submissions
from runner.server.web.api.competitions import ChangeCompetitionRequest, CreateCompetitionRequest, parse_request_file
from tests.support.cookie_client import CookieClient
from tests.support.processes import nip_run, wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.runs import run_spec
from tests.support.server_process import ServerProcess
from tests.support.specs import spec_file

ROWS = 40
HELD_OUT_ROWS = 16
LABELS = {f"p{index}": int(index % 3 == 0) for index in range(ROWS)}
CUP_PATH, LATE = "/api/v1/competitions/acme/cup", "/api/v1/competitions/acme/late"


@dataclass
class Contest:
    """Competitions on one dataset, and runs on its rows."""

    served: ServerProcess
    folder: Path
    finished_runs: dict[str, FinishedRun] = field(default_factory=dict)
    publish_notes: list[str] = field(default_factory=list)
    """The server's note after each publish."""

    def run(self, name: str, *overrides: str, labelled: bool = False, limit: int | None = None) -> FinishedRun:
        if name not in self.finished_runs:
            spec = spec_file(
                self.folder / name, dataset={"path": str(self.folder / "rows.jsonl"), "limit": limit}, fine_tune=None
            )
            if labelled:
                write_rows(self.folder / name / "labelled.jsonl", LABELS)
                overrides = (*overrides, f"dataset.path={self.folder / name}/labelled.jsonl")
            self.finished_runs[name] = run_spec(spec, self.folder / "results", *overrides, run_id=name)
        return self.finished_runs[name]

    def submit(self, account: str, owner: str, result: FinishedRun, **changes: Any) -> str:
        """Publish the run and return the path of its submission below a competition."""
        choices = PublisherChoices(owner=owner, licence="MIT", **{"name": result.run_id, "version": "1", **changes})
        draft = build_run_draft(result.folder, Results(self.folder / "results"), choices)
        with self.served.registry(account) as registry:
            _, added = registry.publish([draft.bundle()], "a test")
        self.publish_notes.append(added.note or "")
        return f"/submissions/{owner}/{draft.release.name}/{draft.release.version}"

    def score(self, path: str, account: str | None = None) -> dict[str, Any]:
        token = None if account is None else self.served.tokens[account]
        responses: list[Any] = []

        def is_there() -> bool:
            responses.append(self.served.request(path, token=token).json)
            return bool(responses[-1].get("state") != "waiting")

        wait_until(is_there)
        score: dict[str, Any] = responses[-1]
        return score


def write_rows(path: Path, labels: dict[str, int] | None = None) -> None:
    rows = [
        {"id": id_, "label": None if labels is None else labels[id_], "question": f"Is {id_} right?", "solution": id_}
        for id_ in LABELS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def competition_body(name: str, **changes: Any) -> dict[str, Any]:
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3 * 24 * 3600))
    base = {"dataset": "acme/claims@1", "name": name, "labels": LABELS, "closes": closes, "day_limit": 3}
    return {**base, **changes}


@pytest.fixture(scope="session")  # like the server's, because xdist may split a module's tests
def contest(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Contest:
    folder = tmp_path_factory.mktemp("contest")
    write_rows(folder / "rows.jsonl")
    choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(folder / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    alice = served.tokens["alice"]
    held_out_ids = [f"p{index}" for index in range(HELD_OUT_ROWS)]
    for body in (competition_body("cup", held_out=held_out_ids), competition_body("late")):
        response = served.request("/api/v1/competitions", "POST", body, token=alice)
        assert response.status == 201, response.body
    with (records := served.open_database()).writing() as connection:
        connection.execute(update(competitions).where(competitions.c.name == "late").values(closes=time.time() - 5))
    records.close()
    return Contest(served, folder)


def metrics_of(result: FinishedRun) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in result.metrics["metrics"] if row["agent"] is None}


@pytest.mark.full
def test_submission_scores_equal_those_of_the_same_run_with_labels(contest: Contest) -> None:
    unlabelled = contest.run("first")
    assert metrics_of(unlabelled)["accuracy"]["reason"] == "no labels"
    path = CUP_PATH + contest.submit("mallory", "mallory", unlabelled)
    score = contest.score(path)
    full = contest.score(path, "alice")["in_full"]
    assert score["in_full"] is None
    assert score["held_out"] is None
    for part, is_mine in (("open", False), ("held_out", True)):
        ids = [id_ for index, id_ in enumerate(LABELS) if (index < HELD_OUT_ROWS) is is_mine]
        filter_sql = "id IN (" + ", ".join(f"'{id_}'" for id_ in ids) + ")"
        labelled = metrics_of(
            contest.run(f"labelled-{part.replace('_', '-')}", f"dataset.filter={filter_sql}", labelled=True)
        )
        metrics = {row["metric"]: row for row in full[part]["metrics"]}
        assert metrics == {name: labelled[name] for name in metrics_shown(Show.COMPETITION) if name in labelled}
        assert metrics["accuracy"]["n"] == len(ids)
    (accuracy,) = score["open"]["metrics"]
    assert accuracy == build_published_score(full["open"])["metrics"][0]
    exact = full["open"]["metrics"][0]
    assert abs(accuracy["value"] - exact["value"]) <= rounding_step(ROWS - HELD_OUT_ROWS) / 2 + 1e-9
    assert accuracy["ci_low"] <= exact["ci_low"] < exact["ci_high"] <= accuracy["ci_high"]


@pytest.mark.full
def test_runs_on_fewer_or_labelled_rows_are_not_submissions(contest: Contest) -> None:
    before = contest.served.request(CUP_PATH).json["submissions"]
    short_run = contest.submit("bob", "bob", contest.run("few", limit=10))
    labelled_run = contest.submit("bob", "bob", contest.run("known", labelled=True))
    assert [contest.served.request(CUP_PATH + path).status for path in (short_run, labelled_run)] == [404, 404]
    assert contest.served.request(CUP_PATH).json["submissions"] == before


@pytest.mark.full
def test_submission_after_closing_is_refused_and_only_its_owner_sees_the_reason(contest: Contest) -> None:
    path = contest.submit("bob", "bob", contest.run("after-closing"))
    assert contest.served.request(LATE + path).status == 404
    submission = contest.score(LATE + path, "bob")
    assert submission["state"] == "refused"
    assert "closed at" in submission["why"]
    assert (
        "after-closing@1 was published, but acme/late did not accept it: acme/late closed at "
        in contest.publish_notes[-1]
    )
    assert contest.served.request(LATE).json["submissions"] == []


@pytest.mark.full
def test_daily_limit_counts_versions_organization_runs_and_private_runs(contest: Contest) -> None:
    bob = contest.served.tokens["bob"]
    result = contest.run("often")
    with (records := contest.served.open_database()).writing() as connection:
        connection.execute(submissions.delete().where(submissions.c.owner.in_(("bob", "acme"))))
    records.close()
    accepted = [
        contest.submit("bob", "bob", result, name="often-a"),
        contest.submit("bob", "bob", result, name="often-b", visibility="private"),
        contest.submit("bob", "acme", result, name="often-c"),
    ]
    assert [contest.score(CUP_PATH + path, "bob")["state"] for path in accepted] == ["scored"] * 3
    excess = contest.submit("bob", "acme", result, name="often-d", version="2")
    submission = contest.served.request(CUP_PATH + excess, token=bob).json
    assert submission["state"] == "refused"
    assert submission["open"] is None
    limit = "this account has 3 submissions in 24 hours, and the limit is 3; publish the next one from "
    assert limit in submission["why"]
    alice = contest.submit("alice", "acme", result, name="often-e")
    assert contest.score(CUP_PATH + alice, "alice")["state"] == "scored"
    board = contest.served.request(CUP_PATH).json
    assert {row["owner"]: row["count"] for row in board["submissions"]}["bob"] == 1
    assert contest.served.request(CUP_PATH + accepted[1]).status == 404
    assert accepted[1].split("/")[3] not in json.dumps(board)


def test_page_of_a_competition_on_a_private_dataset_is_shown_to_its_signed_in_owners(contest: Contest) -> None:
    choices = PublisherChoices(owner="acme", name="private-claims", version="1", licence="MIT", visibility="private")
    draft = build_component_draft(contest.folder / "rows.jsonl", Kind.DATASET, choices, None)
    contest.served.publish("alice", draft.bundle())
    body = competition_body("private-cup", dataset="acme/private-claims@1")
    created = contest.served.request("/api/v1/competitions", "POST", body, token=contest.served.tokens["alice"])
    path = created.json["page"].removeprefix(contest.served.address)
    for account, status in ((None, 404), ("mallory", 404), ("bob-reads", 200)):
        browser = CookieClient(contest.served)
        if account is not None:
            assert browser.sign_in(contest.served.tokens[account]).status == 303
        response = browser.request(path)
        assert response.status == status
        assert (b"acme/private-claims@1" in response.body) == (status == 200)
    assert response.headers["cache-control"] == "private, no-store"
    assert b'href="/dataset/' not in response.body


@pytest.mark.full
def test_no_response_or_log_line_contains_a_label(contest: Contest) -> None:
    submission_path = contest.submit("mallory", "mallory", contest.run("leaking"))
    contest.score(CUP_PATH + submission_path)
    with RawUploadClient(
        contest.served.address, None
    ) as reader:  # run/bob/known was made from rows with labels and contains them
        paths = [path for path in reader.list_files() if not path.startswith("run/bob/known/")]
    bodies = [contest.served.request(f"/api/v1/tree/{path}").body for path in paths]
    bodies += [
        contest.served.request(path).body
        for path in ("/api/v1/competitions", CUP_PATH, LATE, CUP_PATH + submission_path)
    ]
    bodies.append(contest.served.log.encode())
    assert any(b'"p1"' in body for body in bodies)
    patterns = [f'"p1"{between}{LABELS["p1"]}'.encode() for between in (":", ": ", ',"label":', ', "label": ')]
    assert not [body for body in bodies if any(pattern in body for pattern in patterns)]
    rows = [json.loads(line) for body in bodies if b'"datapoint_id"' in body for line in body.splitlines()]
    assert {row.get("y") for row in rows if "datapoint_id" in row} == {None}


@pytest.mark.full
def test_held_out_scores_are_shown_and_ranked_after_closing(contest: Contest) -> None:
    path = CUP_PATH + contest.submit("mallory", "mallory", contest.run("last"))
    before = contest.score(path)
    with (records := contest.served.open_database()).writing() as connection:
        closed = update(competitions).where(competitions.c.name == "cup")
        connection.execute(closed.values(closes=time.time() - 5))
    records.close()
    after, board = contest.score(path), contest.served.request(CUP_PATH).json
    assert before["held_out"] is None
    assert after["held_out"]["rows"] == HELD_OUT_ROWS
    assert board["ranked_by"] == "held_out"
    assert board["is_closed"]
    by_release = {row["release"]: row for row in board["board"]}
    (accuracy,) = (row for row in after["held_out"]["metrics"] if row["metric"] == "accuracy")
    assert by_release[after["release"]]["accuracy"] == accuracy["value"]
    assert by_release[after["release"]]["rank"] == 1
    unranked = [row["reason"] for row in board["board"] if row["rank"] is None]
    assert all("answers" in reason for reason in unranked), "runs of other tests, with the same answers"
    assert [
        [row["metric"] for row in part["metrics"]] for part in (before["open"], after["open"], after["held_out"])
    ] == [["accuracy"]] * 3


@pytest.mark.full
def test_only_owners_create_competitions_and_labels_must_cover_every_row(contest: Contest) -> None:
    def create(account: str, **changes: Any) -> tuple[int, str]:
        response = contest.served.request(
            "/api/v1/competitions",
            "POST",
            competition_body(**{"name": "mine", **changes}),
            token=contest.served.tokens[account],
        )
        return response.status, response.json["message"]

    assert create("mallory")[0] == 403
    assert create("bob")[0] == 403  # a member of acme, but not an owner
    assert create("alice", dataset="acme/none@1")[0] == 404
    assert create("alice", name="cup") == (409, "a competition acme/cup already exists; choose another name")
    status, message = create("alice", labels={**LABELS, "q": 1})
    assert (status, message.partition(";")[0]) == (400, "labels without a row: q")
    status, message = create("alice", labels={"p1": 1})
    assert status == 400
    assert message.startswith("rows without a label: p0, p10, p11 and 36 more")
    assert create("alice", held_out=list(LABELS))[0] == 400
    for closes in ("2020-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"):
        assert create("alice", closes=closes)[0] == 400
    invalid_changes: list[dict[str, Any]] = [
        {"title": "\0"},
        {"title": "\ud800"},
        {"labels": {"\0": 1}},
        {"held_share": 1.0},
        {"closes": "2020-01-01"},
    ]
    for invalid in invalid_changes:
        assert create("alice", **invalid)[0] == 422


def test_misspelled_key_is_refused_with_the_closest_valid_key() -> None:
    for request_class, key, suggestion in (
        (CreateCompetitionRequest, "day_limt", "day_limit"),
        (ChangeCompetitionRequest, "titel", "title"),
    ):
        with pytest.raises(UsageError, match=f"unknown key '{key}'; did you mean '{suggestion}'"):
            parse_request_file(request_class, json.dumps({**competition_body("third"), key: 1}).encode(), "cup.json")


@pytest.mark.full
def test_administrator_creates_a_competition_from_the_command_line(contest: Contest, tmp_path: Path) -> None:
    (tmp_path / "cup.json").write_text(json.dumps(competition_body("third")), "utf-8")
    arguments = ("server", "add-competition", contest.served.folder)
    process = nip_run(*arguments, "alice", "cup.json", "--json", cwd=tmp_path)
    created = json.loads(process.stdout)
    keys = ("competition", "dataset", "day_limit", "rows_open", "rows_held_out", "page")
    assert [created[name] for name in keys] == [
        "acme/third", "dataset/acme/claims@1", 3, 40, 0, "/competitions/acme/third",
    ]  # fmt: skip
    page = contest.served.request("/competitions/acme/third")
    assert page.status == 200
    assert b">acme/claims@1</a>: 40 scored immediately" in page.body
    assert b"/competitions/acme/third" in contest.served.request("/competitions").body
    process = nip_run(*arguments, "bob", "cup.json", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert "only an owner of acme can create competitions" in process.stderr


@pytest.mark.full
def test_run_with_listed_answers_is_refused_with_the_reason(contest: Contest) -> None:
    folder, alice = contest.folder / "listed", contest.served.tokens["alice"]
    spec = spec_file(
        folder, dataset={"path": "choices.jsonl", "answers": "answers"}, protocol=None, fine_tune=None,
        prompts="prompts/question_answering/open_consultancy",
    )  # fmt: skip
    spec.write_text(json.dumps({**json.loads(spec.read_text()), "protocol": {"use": "open_consultancy"}}))
    rows = [{"id": id_, "label": None, "question": f"Is {id_} right?", "answers": ["yes", "no"]} for id_ in LABELS]
    (folder / "choices.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    choices = PublisherChoices(owner="acme", name="choices", version="1", licence="MIT")
    contest.served.publish(
        "alice", build_component_draft(folder / "choices.jsonl", Kind.DATASET, choices, None).bundle()
    )
    body = competition_body("choices", dataset="acme/choices@1")
    assert contest.served.request("/api/v1/competitions", "POST", body, token=alice).status == 201
    result = run_spec(spec, contest.folder / "results", run_id="listed")
    path = contest.submit("mallory", "mallory", result)
    score = contest.score(f"/api/v1/competitions/acme/choices{path}", "mallory")
    assert score["state"] == "refused"
    assert "this run's verdicts choose from listed answers" in score["why"]
