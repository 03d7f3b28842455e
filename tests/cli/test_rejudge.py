"""`nip-run rejudge`: another judge for the debates of a run; only the judge is called, and no debate changes."""

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
from tests.compatibility.old import RUNS, copy_old_files
from tests.support.processes import nip_run_here, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

SIZE = 6
JUDGE = "+models.judge={provider: openai, model: wise, base_url: %s, timeout: 600.0}"


def play_on_server(folder: Path, server: LoopbackServer, **changes: Any) -> Path:
    """Play a run with `tiny` as prover and verifier on the server, and return its folder."""
    spec_file(folder, server.base_url, size=SIZE, **changes)
    (result,) = run_json(folder, "spec.yaml")
    return folder / str(result["folder"])


def run_json(folder: Path, *arguments: str | Path) -> Any:
    process = nip_run_here(*arguments, "--json", cwd=folder)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def rejudge_with_wise_judge(folder: Path, server: LoopbackServer, *arguments: str) -> list[Path]:
    """Judge a run with the model `wise`, and return the folders of the new runs."""
    rows = run_json(folder, "rejudge", *arguments, JUDGE % server.base_url, "agents.verifier.model=judge")
    return [folder / row["folder"] for row in rows]


def read_decisions(run: Path) -> dict[tuple[str, int], int]:
    return {(row["datapoint_id"], row["repeat"]): row["decision"] for row in table(run, "rollouts")}


def read_messages(run: Path) -> list[tuple[str, int, str, str, str]]:
    """Return every message without the ids of its run and rollout."""
    games = {row["rollout_id"]: row["datapoint_id"] for row in table(run, "rollouts")}
    rows = [{**row, "datapoint": games[row["rollout_id"]]} for row in table(run, "messages")]
    return [(r["datapoint"], r["round"], r["channel"], r["agent"], r["content"]) for r in rows]


FirstRun = tuple[Path, LoopbackServer, Path]


@pytest.fixture(scope="module")
def first_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstRun]:
    """Return a folder, its server, and a run there that no test changes."""
    folder = tmp_path_factory.mktemp("first")
    with run_chat_server(record=1000) as server:
        yield folder, server, play_on_server(folder, server)


@pytest.mark.gate
def test_two_judges_of_the_same_debates_are_compared_with_their_agreement(first_run: FirstRun) -> None:
    folder, server, run = first_run
    (judged,) = rejudge_with_wise_judge(folder, server, run.name)
    (pair,) = run_json(folder, "compare", run.name, judged.name)["pairs"]
    verdicts = read_decisions(run), read_decisions(judged)
    equal = sum(verdicts[0][debate] == verdicts[1][debate] for debate in verdicts[0])
    assert (pair["agreement"]["debates"], pair["agreement"]["agreement"]) == (SIZE, equal / SIZE)
    text = nip_run_here("compare", run.name, judged.name, cwd=folder).stdout
    assert f"agreement of the two judges on {SIZE} debates in {SIZE} groups: {equal / SIZE:.3f} [" in text
    assert "Cohen's kappa" in text


@pytest.mark.full
def test_rejudge_calls_only_the_judge_and_keeps_the_debates(first_run: FirstRun) -> None:
    folder, server, run = first_run
    before = server.requests
    (judged,) = rejudge_with_wise_judge(folder, server, run.name, "--again")
    bodies = [request["body"] for request in server.recorded_requests()[before:]]
    assert [(body if isinstance(body, dict) else json.loads(body))["model"] for body in bodies] == ["wise"] * SIZE
    assert read_messages(judged) == read_messages(run)
    assert read_decisions(judged).keys() == read_decisions(run).keys()
    manifest = json.loads((judged / "manifest.json").read_text())
    assert manifest["rejudge_of"][0] == run.name
    assert {record["sample"][3] for record in journal_records(judged) if record["kind"] == "call"} == {"verifier"}


def test_rejudge_refuses_changes_beyond_the_judge_and_names_each_key(first_run: FirstRun) -> None:
    folder, server, run = first_run
    prompts = folder / "prompts"
    prompts.mkdir()
    (prompts / "prover.jinja").write_text("Say yes.")
    (prompts / "verifier.jinja").write_text("Say {{ accept }} or {{ reject }}.")
    before = server.requests
    changes = (
        "prompts=prompts", "seed=8", "protocol.max_message_rounds=4", "models.m.temperature=0.5",
        "agents.prover.max_response_words=3",
    )  # fmt: skip
    process = nip_run_here("rejudge", run.name, *changes, cwd=folder)
    assert process.returncode == 2
    changed_keys = ("prompts (prover.jinja)", "seed", "protocol.max_message_rounds", "models.m.temperature",
             "agents.prover.max_response_words")  # fmt: skip
    assert all(name in process.stderr for name in changed_keys), process.stderr
    assert "give it a separate one" in process.stderr
    assert server.requests == before


@pytest.mark.full
def test_rejudge_accepts_another_template_for_the_judge(first_run: FirstRun) -> None:
    folder, server, run = first_run
    prompts = folder / "terse"
    prompts.mkdir()
    (prompts / "verifier.jinja").write_text("Terse. you must decide in this answer: {{ accept }} / {{ reject }}")
    before = server.requests
    rejudge_with_wise_judge(folder, server, run.name, "prompts=terse")
    for request in server.recorded_requests()[before:]:
        assert "Terse." in json.dumps(request["body"])


@pytest.mark.full
def test_verdict_each_ends_with_the_same_decision_as_verdict_last(first_run: FirstRun) -> None:
    folder, server, run = first_run
    (last,) = rejudge_with_wise_judge(folder, server, run.name)
    (each,) = rejudge_with_wise_judge(folder, server, run.name, "--verdict", "each")
    assert read_decisions(each) == read_decisions(last)
    rows = table(each, "rollouts")
    verdicts = [json.loads(row["verdicts"]) for row in rows]
    assert [game_verdicts[-1]["decision"] for game_verdicts in verdicts] == [row["decision"] for row in rows]
    assert [[verdict["round"] for verdict in game_verdicts] for game_verdicts in verdicts] == [
        list(range(0, row["rounds"], 2)) for row in rows
    ]
    assert any(len(game_verdicts) > 1 for game_verdicts in verdicts)
    output = nip_run_here("show", each.name, rows[0]["rollout_id"], cwd=folder).stdout
    assert "verdicts" in output


@pytest.mark.full
def test_copied_rejudged_run_is_resumed_and_replayed_without_calls(first_run: FirstRun) -> None:
    folder, server, run = first_run
    (judged,) = rejudge_with_wise_judge(folder, server, run.name, "votes=3")
    copied_run = shutil.copytree(judged, folder / "alone" / "results" / "runs" / judged.name)
    before = server.requests
    (resumed,) = run_json(folder / "alone", copied_run)
    assert (resumed["run_id"], resumed["was_finished"]) == (judged.name, True)
    (replay,) = run_json(folder / "alone", copied_run, "--replay", judged.name)
    assert server.requests == before
    for name in ("rollouts", "messages"):
        expected_rows, replayed_rows = (
            [{**row, "run_id": ""} for row in table(run_folder, name)]
            for run_folder in (judged, folder / "alone" / replay["folder"])
        )
        assert expected_rows == replayed_rows
    assert all(len(json.loads(row["votes"])) == 3 for row in table(judged, "rollouts"))


@pytest.mark.full
def test_killed_rejudge_resumes_without_repeating_calls(tmp_path: Path) -> None:
    with run_chat_server() as server:
        run = play_on_server(tmp_path, server, rollouts={"concurrency": 1})
        before = server.requests
        server.change(latency=0.15)
        arguments = ("rejudge", run.name, JUDGE % server.base_url, "agents.verifier.model=judge")
        process = start_nip_run(*arguments, cwd=tmp_path)
        wait_until(lambda: server.requests >= before + 3)
        process.send_signal(signal.SIGKILL)
        wait_for_exit(process)
        server.change(latency=0.0)
        (result,) = run_json(tmp_path, *arguments)
        # The call in flight at the kill may be repeated.
        assert server.requests - before in (SIZE, SIZE + 1)
        assert result["rollouts"] == SIZE


@pytest.mark.full
def test_sweep_over_judges_creates_one_run_per_judge(first_run: FirstRun) -> None:
    folder, server, run = first_run
    runs = rejudge_with_wise_judge(
        folder, server, run.name, "sweep={models.judge.model: [a, b], votes: [1, 3]}", "rollouts.per_datapoint=1"
    )
    assert len(set(runs)) == 4
    before = server.requests
    runs[1].joinpath("manifest.json").unlink()
    repeated = rejudge_with_wise_judge(
        folder, server, run.name, "sweep={models.judge.model: [a, b], votes: [1, 3]}", "rollouts.per_datapoint=1"
    )
    assert (repeated, server.requests) == (runs, before)
    calls_by_run = {judged_run: len(table(judged_run, "completions")) for judged_run in runs}
    assert sorted(calls_by_run.values()) == [SIZE, SIZE, 3 * SIZE, 3 * SIZE]
    listed = nip_run_here(
        "sql", "SELECT rejudge_of, rank, reason FROM leaderboard WHERE rejudge_of IS NOT NULL", "--format", "csv",
        cwd=folder,
    )  # fmt: skip
    assert set(listed.stdout.splitlines()[1:]) == {f"{run.name},,judges the debates of {run.name}"}


BLOCK_DESIGNS: dict[str, dict[str, Any]] = {
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
def test_each_debate_of_a_block_is_judged_once_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, design: str
) -> None:
    monkeypatch.chdir(tmp_path)  # error messages quote only files in the current folder
    path, results = spec_file(tmp_path, size=2, fine_tune=None, **BLOCK_DESIGNS[design]), tmp_path / "results"
    run_spec(path, results, "rollouts.per_datapoint=2", run_id="first")
    judge_options = ["+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge"]
    with redirect_stdout(StringIO()):
        assert main(["rejudge", "first", *judge_options, "-q", "--run-id", "second", "--results", str(results)]) == 0
    ids, rejudged_ids = (
        rollout_ids_by_game(table(results / "runs" / name, "rollouts")) for name in ("first", "second")
    )
    assert rejudged_ids.keys() == ids.keys()
    assert len(ids) == 2 * 2 * 2
    expected_designs = {(0, None), (1, None)} if design == "stances" else {(None, False), (None, True)}
    assert {play[-2:] for play in ids} == expected_designs
    debates = [
        read_debates(results / "runs" / name, games) for name, games in (("first", ids), ("second", rejudged_ids))
    ]
    assert debates[0] == debates[1]
    transcripts = [tuple(texts) for texts in debates[0].values() if texts]
    assert len({*transcripts}) == len(transcripts) >= len(ids) // 2
    calls = table(results / "runs" / "second", "completions")
    assert [row["agent"] for row in calls] == ["verifier"] * len(ids)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as stderr:
        change = (
            "stances=null" if design == "stances" else "seats={swap: [prover0, verifier]}"
        )  # would also swap the judge
        assert main(["rejudge", "first", *judge_options, change, "-q", "--results", str(results)]) == 2
    reason = ": stances. Only the judge may change" if design == "stances" else "seats of different roles"
    assert reason in stderr.getvalue()


def rollout_ids_by_game(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], str]:
    """Return the id of each rollout by the values that identify its place in the plan."""
    ids = {(r["datapoint_id"], r["repeat"], r["seed"], r["stance"], r["swapped"]): r["rollout_id"] for r in rows}
    assert len(ids) == len(rows)
    return ids


def read_debates(run: Path, rollout_ids: dict[tuple[Any, ...], str]) -> dict[tuple[Any, ...], list[str]]:
    """Return the messages of each game."""
    texts: dict[str, list[str]] = {}
    for row in table(run, "messages"):
        texts.setdefault(row["rollout_id"], []).append(f"{row['round']} {row['agent']}: {row['content']}")
    return {game: texts.get(rollout, []) for game, rollout in rollout_ids.items()}


@pytest.mark.full
def test_rejudge_retries_an_answer_without_a_verdict(tmp_path: Path) -> None:
    with run_chat_server() as server:
        run = play_on_server(tmp_path, server)
        server.change(text="What about the empty input?")
        before = server.requests
        (judged,) = rejudge_with_wise_judge(tmp_path, server, run.name, "retry.invalid_response.attempts=2")
        assert server.requests == before + 2 * SIZE
    assert {row["outcome"] for row in table(judged, "rollouts")} == {"no_decision"}
    output = nip_run_here("show", judged.name, "p0", cwd=tmp_path).stdout
    assert "decision required" in output


@pytest.mark.parametrize("name", ["served", "finished", "replayed", "learning"])
@pytest.mark.full
def test_debates_of_a_0_1_0_run_can_be_rejudged(tmp_path: Path, name: str) -> None:
    folder = copy_old_files(tmp_path)
    run = f"{RUNS[name]}-i0" if name == "learning" else RUNS[name]
    judge_options = ("+models.judge={provider: dummy}", "agents.verifier.model=judge")
    (result,) = run_json(folder, "rejudge", run, *judge_options)
    judged = folder / result["folder"]
    assert result["rollouts"] > 0
    assert {row["agent"] for row in table(judged, "completions")} == {"verifier"}
    assert read_decisions(judged).keys() <= read_decisions(folder / "results" / "runs" / run).keys()


@pytest.mark.parametrize(
    ("name", "reason"), [("trees", "trees"), pytest.param("learning", "training run", marks=pytest.mark.full)]
)
def test_rejudge_refuses_runs_without_debates(tmp_path: Path, name: str, reason: str) -> None:
    process = nip_run_here("rejudge", RUNS[name], cwd=copy_old_files(tmp_path))
    assert process.returncode == 2
    assert reason in process.stderr


@pytest.mark.full
def test_budget_stops_the_judge_and_a_larger_budget_resumes(first_run: FirstRun) -> None:
    folder, server, run = first_run
    arguments = ("rejudge", run.name, JUDGE % server.base_url, "agents.verifier.model=judge", "votes=2")
    limit = "models.judge.max_completion_tokens=50"
    stopped = nip_run_here(*arguments, limit, "budget.completions=5", cwd=folder)
    assert stopped.returncode == 3
    assert f"nip-run rejudge {run.name}" in stopped.stderr
    before = server.requests
    (result,) = run_json(folder, *arguments, limit, "budget.completions=50")
    assert server.requests - before == 2 * SIZE - 5
    assert result["status"] == "done"
