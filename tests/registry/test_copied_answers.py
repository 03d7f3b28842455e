"""Runs with forced, cached or replayed answers: unranked with the reason on boards, and not tested by `compare`."""

from __future__ import annotations

import html
import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.results.folder import RunFolder
from runner.results.leaderboard.database import Leaderboard
from tests.support.processes import nip_run_here, wait_until
from tests.support.server_process import ServerProcess
from tests.support.server_process import run_server as serving_releases
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

FORCED = "its verdicts are the labels, not answers: protocol.force_guess is 'y'"
COPIED = "not a sample of its own: 12 of its 12 verdicts come from answers that it shares with "
SHARED = "12 of 36 verdicts come from answers that it shares with "
RUNS = {
    "first": (),
    "cached": ("protocol.verifier_reward=2",),
    "copied-again": ("protocol.verifier_reward=3",),
    "forced": ("protocol.force_guess=y", "cache=null"),
    "more": ("rollouts.per_datapoint=3", "protocol.verifier_reward=4"),
    "fresh": ("protocol.verifier_reward=5", "cache=null"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with runs of one task at a server that answers equal requests equally."""
    folder = tmp_path_factory.mktemp("copied")
    with run_chat_server() as server:
        spec_file(folder, server.base_url, cache="cache.sqlite", fine_tune=None)
        for name, overrides in RUNS.items():
            run_command(folder, "spec.yaml", "--run-id", name, "-q", *overrides)
        run_command(folder, "spec.yaml", "--replay", "first", "--run-id", "replayed", "-q")
        yield folder


def run_command(folder: Path, *arguments: str, code: int = 0, variables: Mapping[str, str] = {}) -> str:
    """Run a command, and return what it printed."""
    done = nip_run_here(*arguments, cwd=folder, **variables)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def check_rows(rows: dict[str, tuple[int | None, str]], first: str) -> None:
    """Check each run's rank, and the texts of its row."""
    assert {name for name, (rank, _) in rows.items() if rank is not None} == {"first", "more", "fresh"}
    assert FORCED in rows["forced"][1]
    assert "replay of first" in rows["replayed"][1]
    for name in ("cached", "copied-again"):
        assert COPIED + first in rows[name][1]
    assert SHARED + first in rows["more"][1]
    assert "shares with" not in rows["fresh"][1]  # equal texts are not shared answers


@pytest.mark.gate
def test_local_board_ranks_no_copied_or_forced_run_and_gives_the_reason(folder: Path) -> None:
    listed = json.loads(run_command(folder, "leaderboard", "--json"))
    names = {*RUNS, "replayed"}
    rows = {row["run_id"]: (row["rank"], str(row["reason"])) for row in listed if row["run_id"] in names}
    text = run_command(folder, "leaderboard", variables={"COLUMNS": "300"})
    assert f"note: more: {SHARED}first" in text
    rows["more"] = (rows["more"][0], text)
    check_rows(rows, "first")
    for reason in (FORCED, f"{COPIED}first"):
        assert reason in text
    (row,) = json.loads(run_command(folder, "sql", "SELECT reason FROM leaderboard WHERE run_id = 'cached'", "--json"))
    assert row["reason"] == f"{COPIED}first"


@pytest.mark.full
def test_comparisons_view_gives_a_reason_instead_of_a_test(folder: Path) -> None:
    columns = "run_b, difference, p, ci_low, ci_high, detectable, reason"
    sql = f"SELECT {columns} FROM comparisons WHERE run_a = 'first'"
    rows = {row["run_b"]: row for row in json.loads(run_command(folder, "sql", sql, "--json"))}
    reasons = {
        "forced": f"forced: {FORCED}",
        "replayed": "replayed: replay of first",
        "cached": f"cached: {COPIED}first",
        "fresh": None,
    }
    for name, reason in reasons.items():
        row = rows[name]
        assert (row["reason"], row["difference"] is not None) == (reason, True)
        is_tested = [row[column] is not None for column in ("p", "ci_low", "ci_high", "detectable")]
        assert is_tested == [reason is None] * 4


@pytest.mark.gate
def test_rebuilt_or_migrated_board_is_unchanged(folder: Path) -> None:
    before = json.loads(run_command(folder, "leaderboard", "--json"))
    run_command(folder, "leaderboard", "--rebuild")
    assert json.loads(run_command(folder, "leaderboard", "--json")) == before
    with duckdb.connect(str(folder / "results" / "leaderboard.duckdb")) as board:
        board.execute("DROP VIEW leaderboard; DROP VIEW copies; DROP VIEW shared_answers; DROP VIEW flips")
        for column in ("fixed_verdicts", "journal", "answers_from", "published"):
            board.execute(f"ALTER TABLE runs DROP COLUMN {column}")
        board.execute("UPDATE format SET version = 3")
    assert json.loads(run_command(folder, "leaderboard", "--json")) == before


@pytest.mark.full
def test_registry_and_server_boards_rank_no_copied_or_forced_run(folder: Path, tmp_path: Path) -> None:
    names = [*RUNS, "replayed"]
    options = ("--as", "acme", "--licence", "MIT", "--force", "-q")
    run_command(folder, "publish", *names, "--to", "registry", *options)
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    board = json.loads(run_command(folder, "leaderboard", "--from", "registry", "--json", variables=cache))
    check_rows(
        {row["run_id"]: (row["rank"], " ".join([str(row["reason"]), *row["marks"]])) for row in board["rows"]},
        "run/acme/first@1",
    )
    for name, reason in (("forced", FORCED), ("replayed", "replay of first"), ("fresh", None)):
        (readme,) = (folder / "registry").rglob(f"{name}/*/README.md")
        text = readme.read_text().replace("\\", "")
        assert ("Boards do not rank this run" in text) == (reason is not None)
        assert reason is None or f"**Boards do not rank this run**: {reason}." in text
    with serving_releases(tmp_path / "server") as server:
        access = {"NIP_RUN_REGISTRY": server.address, "NIP_RUN_TOKEN": server.tokens["alice"]}
        run_command(folder, "publish", *names, "--to", server.address, *options, variables=access)
        rows = read_server_rows(server, tmp_path / "board.duckdb", len(names))
        check_rows(rows, "run/acme/first@1")


@pytest.mark.full
def test_server_ranks_the_run_that_was_published_first(folder: Path, tmp_path: Path) -> None:
    """Otherwise a later copy with an earlier start time could take the rank of its source."""
    runs = [RunFolder(folder / "results" / "runs" / name) for name in ("first", "cached")]
    for order in (("first", "cached"), ("cached", "first")):
        board = Leaderboard(tmp_path / order[0], lambda: runs)
        board.folder.mkdir()
        board.update(runs, (), {name: position for position, name in enumerate(order)})
        ranked = board.query("SELECT run_id FROM leaderboard WHERE rank IS NOT NULL")[1]
        assert ranked == [(order[0],)]


@pytest.mark.full
def test_board_accepts_invalid_answer_counts_of_a_stranger(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "runs" / "cached"
    shutil.copytree(folder / "results" / "runs" / "cached", copy)
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["answers_from"] = {"a": "many", "b": -5, "c": 10**30, "d": None, "e": 1.5}
    (copy / "manifest.json").write_text(json.dumps(manifest))
    board = Leaderboard(tmp_path, lambda: [RunFolder(copy)])
    board.rebuild()
    assert board.query("SELECT run_id, rank FROM leaderboard")[1] == [("cached", 1)]


def read_server_rows(server: ServerProcess, path: Path, count: int) -> dict[str, tuple[int | None, str]]:
    rows: list[Any] = []

    def is_built() -> bool:
        answer = server.request("/board.duckdb")
        if answer.status != 200:
            return False
        path.write_bytes(answer.body)
        with duckdb.connect(str(path), read_only=True) as board:
            rows[:] = board.execute("SELECT run_id, rank, marks FROM runs").fetchall()
        return len(rows) == count

    wait_until(is_built)
    return {name: (rank, " ".join(marks)) for name, rank, marks in rows}


@pytest.mark.gate
@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("other_run", "verdict"),
    [
        ("cached", "no test: 12 of 12 verdicts of first come from answers that it shares with cached: no new sample"),
        ("copied-again", "no test: 12 of 12 verdicts of first come from answers that it shares with copied-again"),
        (
            "replayed",
            "no test: replayed: a replay, the same answers and no new sample; replayed minus first is 0 points",
        ),
        ("forced", f"no test: forced: {FORCED}; forced minus first is "),
    ],
)
def test_compare_gives_the_reason_instead_of_a_test(folder: Path, other_run: str, verdict: str) -> None:
    comparison = json.loads(run_command(folder, "compare", "first", other_run, "--json"))
    (pair,) = comparison["pairs"]
    assert pair["verdict"].startswith(verdict)
    assert (pair["p"], pair["ci_low"], pair["ci_high"], pair["detectable"]) == (None, None, None, None)
    for claim in ("no evidence", "better", "worse"):
        assert claim not in run_command(folder, "compare", "first", other_run)


@pytest.mark.gate
def test_compare_does_not_test_two_copies_of_a_run(folder: Path) -> None:
    (pair,) = json.loads(run_command(folder, "compare", "cached", "copied-again", "--json"))["pairs"]
    assert pair["verdict"].startswith("no test: 12 of 12 verdicts of cached come from answers that it shares with ")


@pytest.mark.full
def test_answers_of_shards_are_recognized_in_the_merged_run_and_its_copies(folder: Path) -> None:
    for shard in ("1/2", "2/2"):
        run_command(
            folder, "spec.yaml", "--run-id", "parts", "-q", "--shard", shard, "name=parts", "cache=parts.sqlite"
        )
    run_command(folder, "spec.yaml", "--run-id", "later", "-q", "cache=parts.sqlite", "protocol.verifier_reward=6")
    (pair,) = json.loads(run_command(folder, "compare", "parts", "later", "--json"))["pairs"]
    assert "12 of 12 verdicts of parts come from answers that it shares with later" in pair["verdict"]


@pytest.mark.full
def test_stored_queries_neither_rank_nor_pool_copied_or_forced_runs(folder: Path, tmp_path: Path) -> None:
    for name in (*RUNS, "replayed"):
        shutil.copytree(folder / "results" / "runs" / name, tmp_path / "results" / "runs" / name)
    run_command(tmp_path, "leaderboard", "--rebuild")

    def query_rows(name: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(run_command(tmp_path, "sql", f"@{name}", "--json"))
        return rows

    for name in ("worst_prover", "cost_per_right_verdict"):
        assert {row["run_id"] for row in query_rows(name)} == {"first", "more", "fresh"}
    assert sorted(row["games"] for row in query_rows("protocols")) == [12, 12, 36]
    assert {row["runs"] for row in query_rows("hardest")} == {3}
    assert sorted(str(row["fixed_verdicts"]) for row in query_rows("seeds")) == ["None", "None", "None", FORCED]
    always_failed = json.loads(run_command(tmp_path, "sql", "@always_failed", "repeats=1", "--json"))
    assert {row["run_id"] for row in always_failed if row["reason"] is None} == {"first", "more", "fresh"}


@pytest.mark.full
def test_exports_of_copied_or_forced_runs_have_the_reason(folder: Path, tmp_path: Path) -> None:
    reasons = {
        "forced": FORCED,
        "cached": "12 of its 12 verdicts come from answers of other runs",
        "replayed": "replay of first",
    }
    subject = ("--subject", "verifier")
    for name, reason in reasons.items():
        out = ("--out", str(tmp_path / name))
        hub = ("--hf-dataset", "acme/claims", "--task-id", "claims")
        text = run_command(folder, "export", name, "--format", "hf-eval-results", *subject, *hub, *out, code=2)
        assert f"{name} has no accuracy of its own: {reason}" in text
        publisher = ("--organization", "Acme Evals", "--relationship", "third_party")
        run_command(folder, "export", name, "--format", "every-eval-ever", *subject, *publisher, *out)
        run_command(folder, "export", name, "--format", "inspect", *out)
        (record,) = (tmp_path / name).glob("data/*/*/*/*.json")
        assert reason in json.loads(record.read_text())["source_metadata"]["additional_details"].values()
        with zipfile.ZipFile(tmp_path / name / f"{name}.eval") as log:
            assert reason in json.loads(log.read("header.json"))["eval"]["metadata"].values()


@pytest.mark.full
def test_figures_show_no_interval_for_copied_or_forced_runs(folder: Path, tmp_path: Path) -> None:
    target = str(tmp_path / "figure.json")
    for figure in ("forest", "accuracy_by_protocol"):
        text = run_command(folder, "plot", figure, "first", "forced", "-o", target)
        assert f"forced: {FORCED}" in text
        rows = {row["system"]: row for row in json.loads(Path(target).read_text())["rows"]}
        assert rows["first"]["value"] is not None
        assert (rows["forced"]["value"], rows["forced"]["ci_low"]) == (None, None)
        assert rows["forced"]["reason"] == FORCED
    assert FORCED in run_command(folder, "plot", "forest", "forced", "-o", target, code=2)
    assert "shares with cached" in run_command(folder, "plot", "forest", "first", "cached", "-o", target)
    run_command(folder, "spec.yaml", "--run-id", "other-name", "-q", "name=other")  # the same game, from the cache
    for name, reason in (("other-name", "they are not two samples"), ("replayed", "have the same answers")):
        assert reason in run_command(folder, "plot", "outcomes", "first", name, "-o", target, code=2)


@pytest.mark.gate
def test_report_of_a_forced_run_gives_the_reason_for_no_rank(folder: Path, tmp_path: Path) -> None:
    run_command(folder, "report", "forced", "-o", str(tmp_path / "page.html"), "-q")
    assert f"No rank: {FORCED}." in html.unescape((tmp_path / "page.html").read_text("utf-8"))


@pytest.mark.full
def test_worker_processes_record_the_source_of_copied_answers(folder: Path) -> None:
    run_command(folder, "spec.yaml", "--run-id", "crew", "-q", "execution.processes=2", "protocol.verifier_reward=7")
    (pair,) = json.loads(run_command(folder, "compare", "first", "crew", "--json"))["pairs"]
    assert "12 of 12 verdicts of first come from answers that it shares with crew" in pair["verdict"]
    run_command(
        folder, "spec.yaml", "--run-id", "crew-first", "-q", "execution.processes=2", "cache=crew.sqlite", "name=crew"
    )
    run_command(folder, "spec.yaml", "--run-id", "after-crew", "-q", "cache=crew.sqlite", "protocol.verifier_reward=8")
    manifests = [
        json.loads((folder / "results" / "runs" / name / "manifest.json").read_text())
        for name in ("crew-first", "after-crew")
    ]
    assert [manifest["answers_from"] for manifest in manifests] == [{}, {manifests[0]["journal"]: 12}]


@pytest.mark.full
def test_compare_notes_a_copied_share_below_half_and_still_tests(folder: Path) -> None:
    """Two runs of 12 datapoints share the answers to 4 of them."""
    options = ["-q", "cache=few.sqlite"]
    run_command(folder, "spec.yaml", "--run-id", "few", *options, "protocol.verifier_reward=10", "dataset.limit=4")
    shutil.copy(folder / "few.sqlite", folder / "few-too.sqlite")
    run_command(folder, "spec.yaml", "--run-id", "mixed", *options, "protocol.verifier_reward=11")
    run_command(
        folder, "spec.yaml", "--run-id", "mixed-too", "-q", "cache=few-too.sqlite", "protocol.verifier_reward=12"
    )
    (pair,) = json.loads(run_command(folder, "compare", "mixed", "mixed-too", "--json"))["pairs"]
    assert pair["p"] is not None
    assert "4 of 12 verdicts of mixed come from answers that it shares with mixed-too" in pair["notes"]
    (pair,) = json.loads(run_command(folder, "compare", "first", "fresh", "--json"))["pairs"]
    assert pair["p"] is not None
    assert not any("shares" in note for note in pair["notes"])


@pytest.mark.gate
def test_compare_refuses_to_pool_a_copy_with_its_source(folder: Path) -> None:
    run_command(folder, "spec.yaml", "--run-id", "twin", "-q", "name=twin")  # the same game, from the cache
    text = run_command(folder, "compare", "first,twin", "fresh", code=2)
    assert "12 of 12 verdicts of first come from answers that it shares with twin" in text
    assert "Pool only one of them" in text


@pytest.mark.gate
def test_check_and_run_summary_warn_that_a_forced_run_has_no_rank(folder: Path) -> None:
    assert f"the run will have no rank on any leaderboard: {FORCED}" in run_command(
        folder, "check", "spec.yaml", "protocol.force_guess=y"
    )
    assert f"no rank   {FORCED}" in run_command(folder, "spec.yaml", "--run-id", "forced", *RUNS["forced"])


@pytest.mark.gate
def test_check_detects_a_protocol_file_that_forces_verdicts(folder: Path) -> None:
    shipped = Path(__file__).parents[2] / "runner" / "game" / "protocols" / "nip.yaml"
    forced = shipped.read_text().replace("verifier_first: true}", "verifier_first: true, force_guess: one}", 1)
    assert "force_guess: one" in forced
    (folder / "own.yaml").write_text(forced)
    text = run_command(folder, "check", "spec.yaml", "protocol.use=own.yaml")
    assert "its verdicts are fixed in advance, not answers: protocol.force_guess is 'one'" in text


@pytest.mark.gate
@pytest.mark.parametrize("guess", ["y", "one"])
def test_assertions_about_forced_verdicts_cannot_be_decided(tmp_path: Path, guess: str) -> None:
    spec_file(tmp_path)
    run_command(tmp_path, "spec.yaml", "-q", "--run-id", "answered")
    run_command(tmp_path, "spec.yaml", f"protocol.force_guess={guess}", "-q", "--run-id", "forced")
    comparison = json.loads(run_command(tmp_path, "compare", "forced", "--assert", "accuracy >= 0.0", "--json", code=5))
    assert [(row["ci_low"], row["held"]) for row in comparison["asserted"]] == [(None, "cannot be decided")]
    (pair,) = json.loads(run_command(tmp_path, "compare", "answered", "forced", "--json"))["pairs"]
    assert (pair["p"], pair["ci_low"]) == (None, None)
    assert "not answers: protocol.force_guess" in pair["verdict"]


@pytest.mark.full
def test_a_sweep_ranks_no_forced_run_and_pools_no_copies(folder: Path) -> None:
    (folder / "sweep").mkdir()
    shutil.copy(folder / "data.jsonl", folder / "sweep" / "data.jsonl")
    with run_chat_server() as server:
        spec_file(folder / "sweep", server.base_url, cache="cache.sqlite", fine_tune=None)
        points = "sweep={protocol.force_guess: [null, y]}"
        run_command(folder / "sweep", "spec.yaml", points, "-q")
        rows = json.loads(run_command(folder / "sweep", "sweep", "spec.yaml", points, "--json"))
        ranks = {row["point"]["protocol.force_guess"]: (row["rank"], row["reason"]) for row in rows}
        assert ranks["y"] == (None, FORCED)
        copies = "sweep={seed: [0, 1], protocol.verifier_reward: [6]}"
        run_command(folder / "sweep", "spec.yaml", copies, "-q")
        (row,) = json.loads(run_command(folder / "sweep", "sweep", "spec.yaml", copies, "--json"))
    assert row["rank"] is None
    assert "not a sample of its own" in row["reason"]
    accuracy = row["metrics"]["accuracy"]
    assert (accuracy["ci_low"], accuracy["ci_high"]) == (None, None)
    assert "not separate samples" in accuracy["reason"]


@pytest.mark.gate
def test_forced_run_cannot_be_a_reference_of_comparisons(folder: Path) -> None:
    text = run_command(folder, "spec.yaml", "until={compare: forced}", "--run-id", "decided", code=2)
    assert "has no verdicts to compare with: its verdicts are the labels" in text
    text = run_command(folder, "compare", "first", "forced", "--worst", code=2)
    assert "forced has no accuracy of its own" in text
