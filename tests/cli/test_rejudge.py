"""`nip-run rejudge`: another judge on the debates of a run; nobody else is asked, and no debate is changed."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from tests.compatibility.old import RUNS, opened
from tests.support.processes import nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

SIZE = 6
JUDGE = "+models.judge={provider: openai, model: wise, base_url: %s, timeout: 600.0}"


def served(folder: Path, server: LoopbackServer, **changes: Any) -> Path:
    """A played run whose prover and verifier are `tiny`, on the server."""
    spec_file(folder, server.base_url, size=SIZE, **changes)
    (result,) = run_json(folder, "spec.yaml")
    return folder / str(result["folder"])


def run_json(folder: Path, *words: str | Path) -> Any:
    done = nip_run_here(*words, "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rejudged(folder: Path, server: LoopbackServer, *words: str) -> list[Path]:
    """The runs that come of judging the newest one by `wise`."""
    done = run_json(folder, "rejudge", *words, JUDGE % server.base_url, "agents.verifier.model=judge")
    return [folder / one["folder"] for one in done]


def decisions(run: Path) -> dict[tuple[str, int], int]:
    return {(row["datapoint_id"], row["repeat"]): row["decision"] for row in table(run, "rollouts")}


def read_messages(run: Path) -> list[tuple[str, int, str, str, str]]:
    """Every message, without who judged it."""
    games = {row["rollout_id"]: row["datapoint_id"] for row in table(run, "rollouts")}
    rows = [{**row, "datapoint": games[row["rollout_id"]]} for row in table(run, "messages")]
    return [(r["datapoint"], r["round"], r["channel"], r["agent"], r["content"]) for r in rows]


First = tuple[Path, LoopbackServer, Path]


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[First]:
    """A folder with a played run, and its server; no test changes that run."""
    folder = tmp_path_factory.mktemp("first")
    with run_chat_server(record=1000) as server:
        yield folder, server, served(folder, server)


@pytest.mark.gate
def test_two_judges_of_the_same_debates_are_compared_with_their_agreement(first: First) -> None:
    folder, server, run = first
    (judged,) = rejudged(folder, server, run.name)
    (pair,) = run_json(folder, "compare", run.name, judged.name)["pairs"]
    verdicts = decisions(run), decisions(judged)
    equal = sum(verdicts[0][debate] == verdicts[1][debate] for debate in verdicts[0])
    assert (pair["agreement"]["debates"], pair["agreement"]["agreement"]) == (SIZE, equal / SIZE)
    text = nip_run_here("compare", run.name, judged.name, cwd=folder).stdout
    assert f"agreement of the two judges on {SIZE} debates in {SIZE} groups: {equal / SIZE:.3f} [" in text
    assert "Cohen's kappa" in text


@pytest.mark.full
def test_only_the_judge_is_asked_and_the_debates_stand(first: First) -> None:
    folder, server, run = first
    before = server.requests
    (judged,) = rejudged(folder, server, run.name)
    asked = [request["body"] for request in server.recorded_requests()[before:]]
    assert [(body if isinstance(body, dict) else json.loads(body))["model"] for body in asked] == ["wise"] * SIZE
    assert read_messages(judged) == read_messages(run)
    assert decisions(judged).keys() == decisions(run).keys()
    manifest = json.loads((judged / "manifest.json").read_text())
    assert manifest["rejudge_of"][0] == run.name
    assert {record["sample"][3] for record in journal_records(judged) if record["kind"] == "call"} == {"verifier"}


def test_a_changed_context_is_refused_and_every_key_is_named(first: First) -> None:
    folder, server, run = first
    prompts = folder / "prompts"
    prompts.mkdir()
    (prompts / "prover.jinja").write_text("Say yes.")
    (prompts / "verifier.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    before = server.requests
    changes = (
        "prompts=prompts", "seed=8", "protocol.max_message_rounds=4", "models.m.temperature=0.5",
        "agents.prover.max_response_words=3",
    )  # fmt: skip
    done = nip_run_here("rejudge", run.name, *changes, cwd=folder)
    assert done.returncode == 2
    named = ("prompts (prover.jinja)", "seed", "protocol.max_message_rounds", "models.m.temperature",
             "agents.prover.max_response_words")  # fmt: skip
    assert all(name in done.stderr for name in named), done.stderr
    assert "give it a separate one" in done.stderr
    assert server.requests == before


@pytest.mark.full
def test_the_judges_own_template_alone_may_be_another(first: First) -> None:
    folder, server, run = first
    prompts = folder / "terse"
    prompts.mkdir()
    (prompts / "verifier.jinja").write_text("Terse. you must decide in this answer: {{ accept }} / {{ reject }}")
    before = server.requests
    rejudged(folder, server, run.name, "prompts=terse")
    for request in server.recorded_requests()[before:]:
        assert "Terse." in json.dumps(request["body"])


@pytest.mark.full
def test_each_ends_with_the_verdict_of_last(first: First) -> None:
    folder, server, run = first
    (last,) = rejudged(folder, server, run.name)
    (each,) = rejudged(folder, server, run.name, "--verdict", "each")
    assert decisions(each) == decisions(last)
    rows = table(each, "rollouts")
    verdicts = [json.loads(row["verdicts"]) for row in rows]
    assert [found[-1]["decision"] for found in verdicts] == [row["decision"] for row in rows]
    assert [[one["round"] for one in found] for found in verdicts] == [list(range(0, row["rounds"], 2)) for row in rows]
    assert any(len(found) > 1 for found in verdicts)
    told = nip_run_here("show", each.name, rows[0]["rollout_id"], cwd=folder).stdout
    assert "verdicts" in told


@pytest.mark.full
def test_a_rejudged_run_is_replayed_and_shown_from_its_folder(first: First) -> None:
    folder, server, run = first
    (judged,) = rejudged(folder, server, run.name, "votes=3")
    moved = shutil.copytree(judged, folder / "alone" / "results" / "runs" / judged.name)
    before = server.requests
    (again,) = run_json(folder / "alone", moved)
    assert (again["run_id"], again["was_finished"]) == (judged.name, True)
    (replay,) = run_json(folder / "alone", moved, "--replay", judged.name)
    assert server.requests == before
    for name in ("rollouts", "messages"):
        ours, theirs = (
            [{**row, "run_id": ""} for row in table(one, name)] for one in (judged, folder / "alone" / replay["folder"])
        )
        assert ours == theirs
    assert all(len(json.loads(row["votes"])) == 3 for row in table(judged, "rollouts"))


@pytest.mark.full
def test_a_killed_rejudging_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    with run_chat_server() as server:
        run = served(tmp_path, server, rollouts={"concurrency": 1})
        before = server.requests
        server.change(latency=0.15)
        words = ("rejudge", run.name, JUDGE % server.base_url, "agents.verifier.model=judge")
        process = start_nip_run(*words, cwd=tmp_path)
        wait_until(lambda: server.requests >= before + 3)
        process.send_signal(signal.SIGKILL)
        wait_for_exit(process)
        server.change(latency=0.0)
        (result,) = run_json(tmp_path, *words)
        # What was in flight when it was killed may be asked again.
        assert server.requests - before in (SIZE, SIZE + 1)
        assert result["rollouts"] == SIZE


@pytest.mark.full
def test_a_ladder_of_judges_is_a_run_for_each(first: First) -> None:
    folder, server, run = first
    runs = rejudged(
        folder, server, run.name, "sweep={models.judge.model: [a, b], votes: [1, 3]}", "rollouts.per_datapoint=1"
    )
    assert len(set(runs)) == 4
    before = server.requests
    runs[1].joinpath("manifest.json").unlink()
    again = rejudged(
        folder, server, run.name, "sweep={models.judge.model: [a, b], votes: [1, 3]}", "rollouts.per_datapoint=1"
    )
    assert (again, server.requests) == (runs, before)
    asked = {one: len(table(one, "completions")) for one in runs}
    assert sorted(asked.values()) == [SIZE, SIZE, 3 * SIZE, 3 * SIZE]
    listed = nip_run_here(
        "sql", "SELECT rejudge_of, rank, reason FROM leaderboard WHERE rejudge_of IS NOT NULL", "--format", "csv",
        cwd=folder,
    )  # fmt: skip
    assert set(listed.stdout.splitlines()[1:]) == {f"{run.name},,judges the debates of {run.name}"}


PAIRED: dict[str, dict[str, Any]] = {
    "stances": {"stances": "both"},
    "seats": {
        "seats": "swap",
        "protocol": {"use": "debate", "max_message_rounds": 5},
        "prompts": "prompts/code_validation/debate",
        "models": {"other": {"provider": "dummy"}},
        "agents": {"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "other"}},
    },
}


@pytest.mark.full
@pytest.mark.parametrize("design", [pytest.param("stances", marks=pytest.mark.full), "seats"])
def test_each_debate_of_a_block_is_judged_once_as_it_was_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: str
) -> None:
    monkeypatch.chdir(tmp_path)  # what is wrong in files elsewhere is not shown
    path, results = spec_file(tmp_path, size=2, fine_tune=None, **PAIRED[design]), tmp_path / "results"
    run_spec(path, results, "rollouts.per_datapoint=2", run_id="first")
    own = ["+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge"]
    with redirect_stdout(StringIO()):
        assert main(["rejudge", "first", *own, "-q", "--run-id", "second", "--results", str(results)]) == 0
    rows, again = (by_play(table(results / "runs" / name, "rollouts")) for name in ("first", "second"))
    assert again.keys() == rows.keys()
    assert len(rows) == 2 * 2 * 2
    ways = {(0, None), (1, None)} if design == "stances" else {(None, False), (None, True)}
    assert {play[-2:] for play in rows} == ways
    heard = [debates_of(results / "runs" / name, plays) for name, plays in (("first", rows), ("second", again))]
    assert heard[0] == heard[1]
    spoken = [tuple(texts) for texts in heard[0].values() if texts]
    assert len({*spoken}) == len(spoken) >= len(rows) // 2
    asked = table(results / "runs" / "second", "completions")
    assert [row["agent"] for row in asked] == ["verifier"] * len(rows)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as said:
        change = "stances=null" if design == "stances" else "seats={swap: [prover0, verifier]}"  # and so the judge
        assert main(["rejudge", "first", *own, change, "-q", "--results", str(results)]) == 2
    why = ": stances. Only the judge may change" if design == "stances" else "seats of different roles"
    assert why in said.getvalue()


def by_play(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    """The id of each rollout, by all that its place in the plan is told by."""
    found = {(r["datapoint_id"], r["repeat"], r["seed"], r["stance"], r["swapped"]): r["rollout_id"] for r in rows}
    assert len(found) == len(rows)
    return found


def debates_of(run: Path, plays: dict[tuple[Any, ...], str]) -> dict[tuple[Any, ...], list[str]]:
    """What was said in each game."""
    said: dict[str, list[str]] = {}
    for row in table(run, "messages"):
        said.setdefault(row["rollout_id"], []).append(f"{row['round']} {row['agent']}: {row['content']}")
    return {play: said.get(rollout, []) for play, rollout in plays.items()}


@pytest.mark.full
def test_an_answer_without_a_verdict_is_asked_for_again(tmp_path: Path) -> None:
    with run_chat_server() as server:
        run = served(tmp_path, server)
        server.change(text="What about the empty input?")
        before = server.requests
        (judged,) = rejudged(tmp_path, server, run.name, "retry.invalid_response.attempts=2")
        assert server.requests == before + 2 * SIZE
    assert {row["outcome"] for row in table(judged, "rollouts")} == {"no_decision"}
    told = nip_run_here("show", judged.name, "p0", cwd=tmp_path).stdout
    assert "decision required" in told


@pytest.mark.parametrize("name", ["served", "finished", "replayed", "learning"])
@pytest.mark.full
def test_the_debates_of_a_0_1_0_run_are_judged_again(tmp_path: Path, name: str) -> None:
    folder = opened(tmp_path)
    run = f"{RUNS[name]}-i0" if name == "learning" else RUNS[name]
    own = ("+models.judge={provider: dummy}", "agents.verifier.model=judge")
    (result,) = run_json(folder, "rejudge", run, *own)
    judged = folder / result["folder"]
    assert result["rollouts"] > 0
    assert {row["agent"] for row in table(judged, "completions")} == {"verifier"}
    assert decisions(judged).keys() <= decisions(folder / "results" / "runs" / run).keys()


@pytest.mark.parametrize(
    ("name", "why"), [("trees", "trees"), pytest.param("learning", "training run", marks=pytest.mark.full)]
)
def test_what_has_no_debates_is_refused(tmp_path: Path, name: str, why: str) -> None:
    done = nip_run_here("rejudge", RUNS[name], cwd=opened(tmp_path))
    assert done.returncode == 2
    assert why in done.stderr


@pytest.mark.full
def test_a_budget_stops_the_judge_and_a_larger_one_goes_on(first: First) -> None:
    folder, server, run = first
    words = ("rejudge", run.name, JUDGE % server.base_url, "agents.verifier.model=judge", "votes=2")
    limit = "models.judge.max_completion_tokens=50"
    stopped = nip_run_here(*words, limit, "budget.completions=5", cwd=folder)
    assert stopped.returncode == 3
    assert f"nip-run rejudge {run.name}" in stopped.stderr
    before = server.requests
    (result,) = run_json(folder, *words, limit, "budget.completions=50")
    assert server.requests - before == 2 * SIZE - 5
    assert result["status"] == "done"
