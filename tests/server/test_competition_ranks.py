"""A competition ranks no fixed verdicts, replays or copies, and shows the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner import run
from runner.documents.releases.reference import Kind
from runner.registry.components.drafts import build_component_draft
from runner.registry.draft import PublisherChoices
from tests.server.test_competitions import LABELS, Contest, competition_body, write_rows
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.full

COMPETITION_PATH = "/api/v1/competitions/acme/fair"


def test_fixed_verdicts_replays_and_copies_have_no_rank_but_a_reason(served: ServerProcess, tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl")
    lines = (tmp_path / "rows.jsonl").read_text().replace("right?", "fair?")
    (tmp_path / "rows.jsonl").write_text(lines)
    choices = PublisherChoices(owner="acme", name="fair-claims", version="1", licence="MIT")
    served.publish("alice", build_component_draft(tmp_path / "rows.jsonl", Kind.DATASET, choices, None).bundle())
    body = competition_body("fair", dataset="acme/fair-claims@1", labels=LABELS)
    assert served.request("/api/v1/competitions", "POST", body, token=served.tokens["alice"]).status == 201
    contest = Contest(served, tmp_path)
    honest = contest.run("honest")
    replayed = run(honest.folder.spec, tmp_path / "results", replay="honest", run_id="again")
    submissions = [
        contest.submit("bob", "bob", honest),
        contest.submit("mallory", "mallory", honest, name="mine"),
        contest.submit("bob", "bob", contest.run("forced", "protocol.force_guess=zero")),
        contest.submit("mallory", "mallory", replayed),
        contest.submit("alice", "alice", contest.run("other", "seed=8")),
    ]
    for path in submissions:
        assert contest.score(COMPETITION_PATH + path)["state"] == "scored"
    rows = {row["release"]: row for row in served.request(COMPETITION_PATH).json["board"]}
    assert {name for name, row in rows.items() if row["rank"] is not None} == {"run/bob/honest@1", "run/alice/other@1"}
    assert rows["run/bob/honest@1"]["reason"] is None
    assert rows["run/mallory/mine@1"]["reason"] == (
        "not a sample of its own: 40 of its 40 verdicts come from answers that it shares with run/bob/honest@1"
    )
    assert rows["run/bob/forced@1"]["reason"] == (
        "its verdicts are fixed in advance, not answers: protocol.force_guess is 'zero'"
    )
    assert rows["run/mallory/again@1"]["reason"] == "its answers are a replay of another run"
    assert [row["rank"] is None for row in rows.values()] == [False, False, True, True, True]
    page = served.request("/competitions/acme/fair").body.decode()
    method = "rank: 95 % confidence set of ranks, from unpaired tests (by the published numbers) of all pairs"
    assert served.request(COMPETITION_PATH).json["rank_method"] == method
    assert method in page
    for name in ("mine", "forced", "again"):
        assert str(rows[f"run/{'bob' if name == 'forced' else 'mallory'}/{name}@1"]["reason"]).partition(":")[0] in page
