"""Specs played end to end on a real server: their requests, their files, and determinism."""

from __future__ import annotations

import asyncio
import json
import threading
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.support.processes import nip_run, nip_run_here, python, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

COLUMNS = {
    "rollouts": "run_id rollout_id datapoint_id repeat seed y stance decision correct outcome rounds rewards",
    "messages": "run_id rollout_id round channel agent content",
    "completions": "run_id rollout_id round agent attempt model finish_reason raw_message prompt_tokens "
    "completion_tokens cached_tokens latency_ms error",
}
BOARD_COLUMNS = {
    "runs": "run_id name kind benchmark protocol status seed spec_sha256 spec version git_commit git_dirty "
    "parent_run_id iteration started_at finished_at rollouts completions prompt_tokens completion_tokens "
    "cached_tokens cost_usd",
    "agents": "run_id agent role model_group provider model base_model",
    "metrics": "run_id agent metric value stderr ci_low ci_high n clusters reason",
    "rollouts": COLUMNS["rollouts"],
}


# Files of a run


@pytest.mark.gate
def test_load_spec_and_run_play_a_spec_from_python(tmp_path: Path) -> None:
    spec_file(tmp_path)
    code = (
        "from runner import load_spec, run\n"
        "import runner\n"
        "assert run is runner.run\n"
        "print(run(load_spec('spec.yaml'), results='results').metrics['outcomes']['decided'])\n"
    )
    done = python(code, cwd=tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 0


def test_a_run_works_in_a_notebook_whose_loop_is_running(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)

    async def cell() -> int:
        return run_spec(path, tmp_path / "results").manifest.rollouts or 0

    assert asyncio.run(cell()) == 2


def test_a_run_writes_every_documented_file(tmp_path: Path) -> None:
    with run_chat_server() as server:
        result = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
    files = {str(path.relative_to(result.folder.path)) for path in result.folder.path.rglob("*") if path.is_file()}
    assert {
        "spec.yaml", "manifest.json", "rollouts.parquet", "messages.parquet", "completions.parquet", "metrics.json",
        "fine_tune/m.sft.jsonl",
    } <= files  # fmt: skip
    assert any(name.startswith("journal.") for name in files)
    assert (tmp_path / "results" / "leaderboard.duckdb").is_file()
    assert not [name for name in files if name.endswith(".new") or ".parts" in name]


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return a finished run's results folder and the server's statistics."""
    folder = tmp_path_factory.mktemp("finished")
    with run_chat_server(cached_tokens=3) as server:
        run_spec(spec_file(folder, server.base_url), folder / "results")
        return folder / "results", server.stats()


@pytest.mark.parametrize("name", COLUMNS)
def test_the_tables_have_the_documented_columns(name: str, finished_run: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished_run[0]), name)
    assert rows
    assert list(rows[0])[: len(COLUMNS[name].split())] == COLUMNS[name].split()


@pytest.mark.parametrize("name", BOARD_COLUMNS)
def test_the_leaderboard_has_the_documented_columns(name: str, finished_run: tuple[Path, dict[str, Any]]) -> None:
    connection = duckdb.connect(str(finished_run[0] / "leaderboard.duckdb"), read_only=True)
    try:
        columns = [row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall()]
        assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() != (0,)
    finally:
        connection.close()
    assert set(BOARD_COLUMNS[name].split()) <= set(columns)


def test_every_answer_of_the_server_is_a_row_with_its_tokens(finished_run: tuple[Path, dict[str, Any]]) -> None:
    results, stats = finished_run
    rows = table(only_run(results), "completions")
    assert len(rows) == stats["requests"]
    assert all(row["prompt_tokens"] > 0 and row["completion_tokens"] > 0 for row in rows)
    assert {row["cached_tokens"] for row in rows} == {3}
    assert {row["finish_reason"] for row in rows} == {"stop"}
    manifest = json.loads((only_run(results) / "manifest.json").read_text())
    assert manifest["completions"] == stats["requests"]
    assert manifest["prompt_tokens"] == sum(row["prompt_tokens"] for row in rows)


def test_rewards_are_json_objects_that_sql_can_read(finished_run: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished_run[0]), "rollouts")
    for row in rows:
        rewards = json.loads(row["rewards"])
        assert rewards["verifier"] == (1.0 if row["correct"] else -1.0)
    connection = duckdb.connect(str(finished_run[0] / "leaderboard.duckdb"), read_only=True)
    try:
        lowest_reward = connection.execute("SELECT min((rewards->>'verifier')::DOUBLE) FROM rollouts").fetchone()
    finally:
        connection.close()
    assert lowest_reward == (min(json.loads(row["rewards"])["verifier"] for row in rows),)


def test_rollouts_are_rows_in_the_order_of_the_plan(finished_run: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished_run[0]), "rollouts")
    assert [row["datapoint_id"] for row in rows] == [f"p{index}" for index in range(12)]
    assert len({row["rollout_id"] for row in rows}) == 12
    assert [row["y"] for row in rows] == [0, 1] * 6
    assert all(row["correct"] == (row["decision"] == row["y"]) for row in rows)


def test_messages_are_the_answers_of_the_models(finished_run: tuple[Path, dict[str, Any]]) -> None:
    run_folder = only_run(finished_run[0])
    turn_key = itemgetter("rollout_id", "round", "agent")
    answers_by_turn = {turn_key(row): row["raw_message"] for row in table(run_folder, "completions")}
    messages = table(run_folder, "messages")
    assert messages
    for row in messages:
        assert answers_by_turn[turn_key(row)] == row["content"]


def test_the_saved_spec_plays_the_same_games(finished_run: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    first_folder = only_run(finished_run[0])
    with run_chat_server(cached_tokens=3) as server:
        second_run = run_spec(first_folder / "spec.yaml", tmp_path / "results", f"models.m.base_url={server.base_url}")
    expected = [{k: v for k, v in row.items() if k != "run_id"} for row in table(first_folder, "messages")]
    assert [
        {k: v for k, v in row.items() if k != "run_id"} for row in table(second_run.folder.path, "messages")
    ] == expected


def test_simultaneous_speakers_are_called_concurrently(tmp_path: Path) -> None:
    with run_chat_server(latency=0.1, decide=0.0) as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "debate", "max_message_rounds": 4},
            prompts="prompts/code_validation/debate",
            agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        run_spec(path, tmp_path / "results")
        assert server.stats()["max_open"] == 2


def test_concurrency_bounds_the_calls_in_flight(tmp_path: Path) -> None:
    with run_chat_server(latency=0.03) as server:
        run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results", "rollouts.concurrency=3")
        assert server.stats()["max_open"] == 3


def test_no_rollout_waits_for_the_round_of_another(tmp_path: Path) -> None:
    """While one answer is held back, the other seven games continue, and one of them gets rounds ahead."""
    with run_chat_server(held_first=1, decide=0.0) as server:
        path = spec_file(tmp_path, server.base_url, size=8, protocol={"max_message_rounds": 5, "min_message_rounds": 5})

        def release() -> None:
            wait_until(lambda: server.requests > 7 * 4)
            server.change(held_first=0)

        releasing = threading.Thread(target=release)
        releasing.start()
        run_spec(path, tmp_path / "results")
        releasing.join()
    rounds = [r["sample"][2] for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"]
    assert max(max(rounds[:index]) - rounds[index] for index in range(1, len(rounds))) >= 2


@pytest.mark.gate
def test_a_sweep_is_one_run_for_each_point(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, size=2, sweep={"models.m.temperature": [0.0, 1.0], "seed": [1, 2]})
        done = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        request_count = server.requests
        second = nip_run_here("spec.yaml", "--json", cwd=tmp_path)
        assert server.requests == request_count
    assert len({row["run_id"] for row in json.loads(done.stdout)}) == 4
    assert all(row["was_finished"] for row in json.loads(second.stdout))


# Determinism


@pytest.mark.gate
@pytest.mark.parametrize("provider", [pytest.param("dummy", marks=pytest.mark.full), "server"])
def test_records_do_not_depend_on_concurrency_nor_on_the_hash_seed(tmp_path: Path, provider: str) -> None:
    with run_chat_server(latency=[0.0, 0.015]) as server:
        spec_file(tmp_path, server.base_url if provider == "server" else None)
        files_by_run = []
        for concurrency, hash_seed in ((1, "0"), (256, "1")):
            results = tmp_path / f"results-{concurrency}"
            done = nip_run(
                "spec.yaml", f"rollouts.concurrency={concurrency}", "rollouts.per_datapoint=2", "--results", results,
                "-q", cwd=tmp_path, PYTHONHASHSEED=hash_seed,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            files_by_run.append(derived_files(only_run(results)))
    assert files_by_run[0] == files_by_run[1]
    assert len(files_by_run[0]) >= 8


@pytest.mark.full
def test_a_replay_gives_the_same_records_with_no_call(tmp_path: Path) -> None:
    with run_chat_server(faults={"bad_decision": 0.2}) as server:
        first_run = run_spec(spec_file(tmp_path, server.base_url), tmp_path / "results")
        request_count = server.requests
        replay = {"m": {"provider": "replay", "run": str(first_run.folder.path)}}
        replay_run = run_spec(spec_file(tmp_path, server.base_url, models=replay), tmp_path / "replayed")
        assert server.requests == request_count
    for name in ("rollouts", "messages"):
        drop = ("run_id", "rollout_id")
        rows, replayed = (
            [{k: v for k, v in row.items() if k not in drop} for row in table(folder, name)]
            for folder in (first_run.folder.path, replay_run.folder.path)
        )
        assert rows == replayed
