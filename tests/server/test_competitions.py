"""Competitions over a real server: rows that all read, labels that nobody does, runs that are scored by them."""

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
from tests.support.processes import nip_run, wait_until
from tests.support.raw_uploads import RawUploadClient
from tests.support.runs import run_spec
from tests.support.server_process import ServerProcess
from tests.support.specs import spec_file

ROWS = 40
HELD = 16
LABELS = {f"p{index}": int(index % 3 == 0) for index in range(ROWS)}
CUP, LATE = "/api/v1/competitions/acme/cup", "/api/v1/competitions/acme/late"


@dataclass
class Contest:
    """Competitions on one dataset, and runs on its rows."""

    served: ServerProcess
    folder: Path
    made: dict[str, FinishedRun] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    """What whoever published was told each time."""

    def run(self, name: str, *overrides: str, labelled: bool = False, limit: int | None = None) -> FinishedRun:
        if name not in self.made:
            spec = spec_file(
                self.folder / name, dataset={"path": str(self.folder / "rows.jsonl"), "limit": limit}, fine_tune=None
            )
            if labelled:
                write_rows(self.folder / name / "labelled.jsonl", LABELS)
                overrides = (*overrides, f"dataset.path={self.folder / name}/labelled.jsonl")
            self.made[name] = run_spec(spec, self.folder / "results", *overrides, run_id=name)
        return self.made[name]

    def submit(self, who: str, owner: str, result: FinishedRun, **said: Any) -> str:
        """The path of its score, below a competition's."""
        choices = PublisherChoices(owner=owner, licence="MIT", **{"name": result.run_id, "version": "1", **said})
        draft = build_run_draft(result.folder, Results(self.folder / "results"), choices)
        with self.served.registry(who) as registry:
            _, added = registry.publish([draft.bundle()], "a test")
        self.told.append(added.note or "")
        return f"/submissions/{owner}/{draft.release.name}/{draft.release.version}"

    def score(self, where: str, who: str | None = None) -> dict[str, Any]:
        token = None if who is None else self.served.tokens[who]
        answers: list[Any] = []

        def is_there() -> bool:
            answers.append(self.served.request(where, token=token).json)
            return bool(answers[-1].get("state") != "waiting")

        wait_until(is_there)
        found: dict[str, Any] = answers[-1]
        return found


def write_rows(path: Path, labels: dict[str, int] | None = None) -> None:
    rows = [
        {"id": id_, "label": None if labels is None else labels[id_], "question": f"Is {id_} right?", "solution": id_}
        for id_ in LABELS
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def competition_body(name: str, **said: Any) -> dict[str, Any]:
    closes = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3 * 24 * 3600))
    base = {"dataset": "acme/claims@1", "name": name, "labels": LABELS, "closes": closes, "day_limit": 3}
    return {**base, **said}


@pytest.fixture(scope="session")  # as the server is: tests of one module may run apart
def contest(served: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Contest:
    folder = tmp_path_factory.mktemp("contest")
    write_rows(folder / "rows.jsonl")
    choices = PublisherChoices(owner="acme", name="claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(folder / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    alice = served.tokens["alice"]
    held = [f"p{index}" for index in range(HELD)]
    for body in (competition_body("cup", held_out=held), competition_body("late")):
        made = served.request("/api/v1/competitions", "POST", body, token=alice)
        assert made.status == 201, made.body
    with (records := served.open_database()).writing() as connection:
        connection.execute(update(competitions).where(competitions.c.name == "late").values(closes=time.time() - 5))
    records.close()
    return Contest(served, folder)


def metrics_of(result: FinishedRun) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in result.metrics["metrics"] if row["agent"] is None}


@pytest.mark.full
def test_a_submission_has_the_scores_of_the_same_run_with_labels(contest: Contest) -> None:
    unlabelled = contest.run("first")
    assert metrics_of(unlabelled)["accuracy"]["reason"] == "no labels"
    where = CUP + contest.submit("mallory", "mallory", unlabelled)
    score = contest.score(where)
    full = contest.score(where, "alice")["in_full"]
    assert score["in_full"] is None
    assert score["held_out"] is None
    for part, is_mine in (("open", False), ("held_out", True)):
        ids = [id_ for index, id_ in enumerate(LABELS) if (index < HELD) is is_mine]
        chosen = "id IN (" + ", ".join(f"'{id_}'" for id_ in ids) + ")"
        same = metrics_of(contest.run(f"labelled-{part.replace('_', '-')}", f"dataset.filter={chosen}", labelled=True))
        found = {row["metric"]: row for row in full[part]["metrics"]}
        assert found == {name: same[name] for name in metrics_shown(Show.COMPETITION) if name in same}
        assert found["accuracy"]["n"] == len(ids)
    (accuracy,) = score["open"]["metrics"]
    assert accuracy == build_published_score(full["open"])["metrics"][0]
    exact = full["open"]["metrics"][0]
    assert abs(accuracy["value"] - exact["value"]) <= rounding_step(ROWS - HELD) / 2 + 1e-9
    assert accuracy["ci_low"] <= exact["ci_low"] < exact["ci_high"] <= accuracy["ci_high"]


@pytest.mark.full
def test_only_runs_on_just_these_rows_are_submissions(contest: Contest) -> None:
    before = contest.served.request(CUP).json["submissions"]
    few = contest.submit("bob", "bob", contest.run("few", limit=10))
    known = contest.submit("bob", "bob", contest.run("known", labelled=True))
    assert [contest.served.request(CUP + where).status for where in (few, known)] == [404, 404]
    assert contest.served.request(CUP).json["submissions"] == before


@pytest.mark.full
def test_after_closing_none_is_taken_and_its_own_owner_alone_is_told(contest: Contest) -> None:
    where = contest.submit("bob", "bob", contest.run("after-closing"))
    assert contest.served.request(LATE + where).status == 404
    found = contest.score(LATE + where, "bob")
    assert found["state"] == "refused"
    assert "closed at" in found["why"]
    assert "after-closing@1 was published, but acme/late did not accept it: acme/late closed at " in contest.told[-1]
    assert contest.served.request(LATE).json["submissions"] == []


@pytest.mark.full
def test_the_limit_of_a_day_holds_over_versions_organisations_and_private_runs(contest: Contest) -> None:
    bob = contest.served.tokens["bob"]
    result = contest.run("often")
    with (records := contest.served.open_database()).writing() as connection:
        connection.execute(submissions.delete().where(submissions.c.owner.in_(("bob", "acme"))))
    records.close()
    taken = [
        contest.submit("bob", "bob", result, name="often-a"),
        contest.submit("bob", "bob", result, name="often-b", visibility="private"),
        contest.submit("bob", "acme", result, name="often-c"),
    ]
    assert [contest.score(CUP + where, "bob")["state"] for where in taken] == ["scored"] * 3
    over = contest.submit("bob", "acme", result, name="often-d", version="2")
    found = contest.served.request(CUP + over, token=bob).json
    assert found["state"] == "refused"
    assert found["open"] is None
    limit = "this account has 3 submissions in 24 hours, and the limit is 3; publish the next one from "
    assert limit in found["why"]
    alice = contest.submit("alice", "acme", result, name="often-e")
    assert contest.score(CUP + alice, "alice")["state"] == "scored"
    board = contest.served.request(CUP).json
    assert {one["owner"]: one["count"] for one in board["submissions"]}["bob"] == 1
    assert contest.served.request(CUP + taken[1]).status == 404
    assert taken[1].split("/")[3] not in json.dumps(board)


@pytest.mark.full
def test_a_label_is_in_no_byte_that_anybody_is_sent(contest: Contest) -> None:
    where = contest.submit("mallory", "mallory", contest.run("leaking"))
    contest.score(CUP + where)
    with RawUploadClient(
        contest.served.address, None
    ) as reader:  # run/bob/known was played by who has labels, and says them
        paths = [path for path in reader.list_files() if not path.startswith("run/bob/known/")]
    answers = [contest.served.request(f"/api/v1/tree/{path}").body for path in paths]
    answers += [contest.served.request(path).body for path in ("/api/v1/competitions", CUP, LATE, CUP + where)]
    answers.append(contest.served.log.encode())
    assert any(b'"p1"' in answer for answer in answers)
    labelled = [f'"p1"{between}{LABELS["p1"]}'.encode() for between in (":", ": ", ',"label":', ', "label": ')]
    assert not [answer for answer in answers if any(one in answer for one in labelled)]
    rows = [json.loads(line) for answer in answers if b'"datapoint_id"' in answer for line in answer.splitlines()]
    assert {row.get("y") for row in rows if "datapoint_id" in row} == {None}


@pytest.mark.full
def test_the_part_that_is_held_out_is_told_once_it_is_closed(contest: Contest) -> None:
    where = CUP + contest.submit("mallory", "mallory", contest.run("last"))
    before = contest.score(where)
    with (records := contest.served.open_database()).writing() as connection:
        closed = update(competitions).where(competitions.c.name == "cup")
        connection.execute(closed.values(closes=time.time() - 5))
    records.close()
    after, board = contest.score(where), contest.served.request(CUP).json
    assert before["held_out"] is None
    assert after["held_out"]["rows"] == HELD
    assert board["ranked_by"] == "held_out"
    assert board["is_closed"]
    by_release = {row["release"]: row for row in board["board"]}
    (held,) = (row for row in after["held_out"]["metrics"] if row["metric"] == "accuracy")
    assert by_release[after["release"]]["accuracy"] == held["value"]
    assert by_release[after["release"]]["rank"] == 1
    unranked = [row["reason"] for row in board["board"] if row["rank"] is None]
    assert all("answers" in reason for reason in unranked), "runs of other tests, with the same answers"
    assert [
        [row["metric"] for row in one["metrics"]] for one in (before["open"], after["open"], after["held_out"])
    ] == [["accuracy"]] * 3


@pytest.mark.full
def test_only_an_owner_makes_a_competition_and_every_row_has_a_label(contest: Contest) -> None:
    def asked(who: str, **said: Any) -> tuple[int, str]:
        answer = contest.served.request(
            "/api/v1/competitions",
            "POST",
            competition_body(**{"name": "mine", **said}),
            token=contest.served.tokens[who],
        )
        return answer.status, answer.json["message"]

    assert asked("mallory")[0] == 403
    assert asked("bob")[0] == 403  # a member of acme, and no owner
    assert asked("alice", dataset="acme/none@1")[0] == 404
    assert asked("alice", name="cup") == (409, "a competition acme/cup already exists; choose another name")
    status, said = asked("alice", labels={**LABELS, "q": 1})
    assert (status, said.partition(";")[0]) == (400, "labels without a row: q")
    status, said = asked("alice", labels={"p1": 1})
    assert status == 400
    assert said.startswith("rows without a label: p0, p10, p11 and 36 more")
    assert asked("alice", held_out=list(LABELS))[0] == 400
    for closes in ("2020-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"):
        assert asked("alice", closes=closes)[0] == 400
    refused: list[dict[str, Any]] = [
        {"title": "\0"},
        {"title": "\ud800"},
        {"labels": {"\0": 1}},
        {"held_share": 1.0},
        {"closes": "2020-01-01"},
    ]
    for one in refused:
        assert asked("alice", **one)[0] == 422


def test_a_key_that_is_misspelled_is_refused_with_the_nearest_right_one() -> None:
    for shape, key, right in (
        (CreateCompetitionRequest, "day_limt", "day_limit"),
        (ChangeCompetitionRequest, "titel", "title"),
    ):
        with pytest.raises(UsageError, match=f"unknown key '{key}'; did you mean '{right}'"):
            parse_request_file(shape, json.dumps({**competition_body("third"), key: 1}).encode(), "cup.json")


@pytest.mark.full
def test_who_keeps_the_server_makes_one_by_a_command(contest: Contest, tmp_path: Path) -> None:
    (tmp_path / "cup.json").write_text(json.dumps(competition_body("third")), "utf-8")
    words = ("server", "add-competition", contest.served.folder)
    done = nip_run(*words, "alice", "cup.json", "--json", cwd=tmp_path)
    made = json.loads(done.stdout)
    told = ("competition", "dataset", "day_limit", "rows_open", "rows_held_out", "page")
    assert [made[name] for name in told] == [
        "acme/third", "dataset/acme/claims@1", 3, 40, 0, "/competitions/acme/third",
    ]  # fmt: skip
    page = contest.served.request("/competitions/acme/third")
    assert page.status == 200
    assert b">acme/claims@1</a>: 40 scored immediately" in page.body
    assert b"/competitions/acme/third" in contest.served.request("/competitions").body
    done = nip_run(*words, "bob", "cup.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "only an owner of acme can create competitions" in done.stderr


@pytest.mark.full
def test_a_run_about_listed_answers_is_refused_with_the_reason(contest: Contest) -> None:
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
    where = contest.submit("mallory", "mallory", result)
    score = contest.score(f"/api/v1/competitions/acme/choices{where}", "mallory")
    assert score["state"] == "refused"
    assert "this run's verdicts choose from listed answers" in score["why"]
