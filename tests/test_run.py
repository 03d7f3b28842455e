"""A spec played end to end against a real server: what it leaves, what it asks, and how it goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb
import pytest

from runner.errors import ProviderRefusal, RunDirectoryError, RunError
from tests.processes import ended, started, until
from tests.server.client import serving
from tests.server.play import (
    derived_files,
    environment,
    journal_records,
    metric,
    nip_run,
    only_run,
    played,
    spec_file,
    table,
)

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
    "metrics": "run_id agent metric value stderr ci_low ci_high n clusters",
    "rollouts": COLUMNS["rollouts"],
}


# What a run leaves


def test_the_library_plays_a_spec_as_the_contract_spells_it(tmp_path: Path) -> None:
    spec_file(tmp_path)
    code = (
        "from runner import load_spec, run\n"
        "import runner\n"
        "assert run is runner.run\n"
        "print(run(load_spec('spec.yaml'), results='results').metrics['outcomes']['decided'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert int(done.stdout) > 0


def test_a_run_can_be_played_in_a_notebook_where_a_loop_is_running_already(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)

    async def cell() -> int:
        return int(played(path, tmp_path / "results").manifest["rollouts"])

    assert asyncio.run(cell()) == 2


def test_a_run_leaves_every_file_that_the_contract_names(tmp_path: Path) -> None:
    with serving() as server:
        result = played(spec_file(tmp_path, server.base_url), tmp_path / "results")
    there = {str(path.relative_to(result.folder.path)) for path in result.folder.path.rglob("*") if path.is_file()}
    assert {
        "spec.yaml", "manifest.json", "rollouts.parquet", "messages.parquet", "completions.parquet", "metrics.json",
        "fine_tune/m.sft.jsonl",
    } <= there  # fmt: skip
    assert any(name.startswith("journal.") for name in there)
    assert (tmp_path / "results" / "leaderboard.duckdb").is_file()
    assert not [name for name in there if name.endswith(".new") or ".parts" in name]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A finished run's results folder, and what the server saw."""
    folder = tmp_path_factory.mktemp("finished")
    with serving(cached_tokens=3) as server:
        played(spec_file(folder, server.base_url), folder / "results")
        return folder / "results", server.stats()


@pytest.mark.parametrize("name", COLUMNS)
def test_the_tables_have_the_contract_s_columns(name: str, finished: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished[0]), name)
    assert rows
    assert list(rows[0])[: len(COLUMNS[name].split())] == COLUMNS[name].split()


@pytest.mark.parametrize("name", BOARD_COLUMNS)
def test_the_leaderboard_has_the_contract_s_columns(name: str, finished: tuple[Path, dict[str, Any]]) -> None:
    connection = duckdb.connect(str(finished[0] / "leaderboard.duckdb"), read_only=True)
    try:
        found = [row[0] for row in connection.execute(f"DESCRIBE {name}").fetchall()]
        assert connection.execute(f"SELECT count(*) FROM {name}").fetchone() != (0,)
    finally:
        connection.close()
    assert set(BOARD_COLUMNS[name].split()) <= set(found)


def test_every_answer_of_the_server_is_a_row_with_its_tokens(finished: tuple[Path, dict[str, Any]]) -> None:
    results, stats = finished
    rows = table(only_run(results), "completions")
    assert len(rows) == stats["requests"]
    assert all(row["prompt_tokens"] > 0 and row["completion_tokens"] > 0 for row in rows)
    assert {row["cached_tokens"] for row in rows} == {3}
    assert {row["finish_reason"] for row in rows} == {"stop"}
    manifest = json.loads((only_run(results) / "manifest.json").read_text())
    assert manifest["completions"] == stats["requests"]
    assert manifest["prompt_tokens"] == sum(row["prompt_tokens"] for row in rows)


def test_rewards_are_json_objects_that_sql_can_read(finished: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished[0]), "rollouts")
    for row in rows:
        rewards = json.loads(row["rewards"])
        assert rewards["verifier"] == (1.0 if row["correct"] else -1.0)
    connection = duckdb.connect(str(finished[0] / "leaderboard.duckdb"), read_only=True)
    try:
        found = connection.execute("SELECT min((rewards->>'verifier')::DOUBLE) FROM rollouts").fetchone()
    finally:
        connection.close()
    assert found == (min(json.loads(row["rewards"])["verifier"] for row in rows),)


def test_rollouts_are_rows_in_the_order_of_the_plan(finished: tuple[Path, dict[str, Any]]) -> None:
    rows = table(only_run(finished[0]), "rollouts")
    assert [row["datapoint_id"] for row in rows] == [f"p{index}" for index in range(12)]
    assert len({row["rollout_id"] for row in rows}) == 12
    assert [row["y"] for row in rows] == [0, 1] * 6
    assert all(row["correct"] == (row["decision"] == row["y"]) for row in rows)


def test_messages_are_what_the_models_said(finished: tuple[Path, dict[str, Any]]) -> None:
    run_folder = only_run(finished[0])
    where = itemgetter("rollout_id", "round", "agent")
    said = {where(row): row["raw_message"] for row in table(run_folder, "completions")}
    messages = table(run_folder, "messages")
    assert messages
    for row in messages:
        assert said[where(row)] == row["content"]


def test_the_saved_spec_is_itself_a_spec_that_plays_the_same(
    finished: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    first = only_run(finished[0])
    with serving(cached_tokens=3) as server:
        again = played(first / "spec.yaml", tmp_path / "results", f"models.m.base_url={server.base_url}")
    strip = [{k: v for k, v in row.items() if k != "run_id"} for row in table(first, "messages")]
    assert [{k: v for k, v in row.items() if k != "run_id"} for row in table(again.folder.path, "messages")] == strip


def test_simultaneous_speakers_are_asked_at_the_same_time(tmp_path: Path) -> None:
    with serving(latency=0.1, decide=0.0) as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "debate", "max_message_rounds": 4},
            prompts="prompts/code_validation/debate",
            agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "m"}},
        )  # fmt: skip
        played(path, tmp_path / "results")
        assert server.stats()["max_open"] == 2


def test_concurrency_bounds_the_calls_in_flight(tmp_path: Path) -> None:
    with serving(latency=0.03) as server:
        played(spec_file(tmp_path, server.base_url), tmp_path / "results", "rollouts.concurrency=3")
        assert server.stats()["max_open"] == 3


def test_no_rollout_waits_for_the_round_of_another(tmp_path: Path) -> None:
    """One answer in a hundred is slow; the others' games end long before it comes."""
    with serving(latency=[0.0, 0.4], decide=0.0) as server:
        path = spec_file(tmp_path, server.base_url, size=8, protocol={"max_message_rounds": 5, "min_message_rounds": 5})
        begun = time.perf_counter()
        played(path, tmp_path / "results")
        seconds = time.perf_counter() - begun
    # With a barrier each of five rounds lasts as long as its slowest answer of eight: 0.36 s on average.
    games: Counter[str] = Counter()
    for row in table(only_run(tmp_path / "results"), "completions"):
        games[row["rollout_id"]] += row["latency_ms"]
    assert seconds < max(games.values()) / 1000 + 0.8


# Outcomes


@pytest.mark.parametrize(
    ("kind", "then", "outcome"),
    [
        ("content_filter", "empty_message", "refused"),
        ("refusal", "empty_message", "refused"),
        ("content_policy", "empty_message", "refused"),
        ("context_length_exceeded", "empty_message", "context_exceeded"),
        ("null_content", "abort_rollout", "invalid_response"),
        ("bad_decision", "abort_rollout", "invalid_response"),
        ("bad_decision", "empty_message", "no_decision"),
        ("server_error", "empty_message", "transport_failed"),
        ("empty_choices", "empty_message", "transport_failed"),
    ],
)
def test_each_class_of_failure_has_its_outcome(tmp_path: Path, kind: str, then: str, outcome: str) -> None:
    with serving(kind=kind) as server:
        path = spec_file(
            tmp_path, server.base_url, size=2,
            retry={"transient": {"attempts": 2}, "invalid_response": {"attempts": 2, "then": then}},
        )  # fmt: skip
        result = played(path, tmp_path / "results")
    assert {name: count for name, count in result.metrics["outcomes"].items() if count} == {outcome: 2}
    rows = table(result.folder.path, "rollouts")
    assert {(row["outcome"], row["decision"]) for row in rows} == {(outcome, 2)}
    # A run that no answer reached is none: its rows are kept, and the same command tries again.
    assert result.manifest["status"] == ("failed" if outcome == "transport_failed" else "done")


def test_bad_answers_are_asked_again_up_to_the_number_given(tmp_path: Path) -> None:
    with serving(kind="bad_decision") as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "solo_verifier", "max_message_rounds": None},
            prompts="prompts/code_validation/solo_verifier", agents={"prover": None},
            retry={"invalid_response": {"attempts": 4}},
        )  # fmt: skip
        result = played(path, tmp_path / "results")
        assert server.requests == 4
    assert [row["attempt"] for row in table(result.folder.path, "completions")] == [0, 1, 2, 3]


def test_a_failure_of_transport_is_never_a_verdict(tmp_path: Path) -> None:
    with serving(faults={"server_error": 0.08}, max_faults=10_000) as server:
        path = spec_file(tmp_path, server.base_url, size=40, retry={"transient": {"attempts": 1}})
        result = played(path, tmp_path / "results")
    lost = result.metrics["outcomes"]["transport_failed"]
    assert 0 < lost < 40
    rows = table(result.folder.path, "rollouts")
    assert {row["correct"] for row in rows if row["outcome"] == "transport_failed"} == {None}
    assert {row["decision"] for row in rows if row["outcome"] == "transport_failed"} == {2}
    for name in ("accuracy", "decided", "episode_length"):
        assert metric(result, name)["n"] == 40 - lost
    right = sum(row["correct"] is True for row in rows)
    assert metric(result, "accuracy")["value"] == pytest.approx(right / (40 - lost))
    lines = (result.folder.path / "fine_tune" / "agents" / "verifier.sft.jsonl").read_text().splitlines()
    assert len(lines) <= 40 - lost


def test_a_run_under_faults_gets_the_answers_of_one_without(tmp_path: Path) -> None:
    faults = dict.fromkeys(
        ("rate_limit", "rate_limit_seconds", "rate_limit_ms", "server_error", "drop", "half_body", "malformed",
         "html", "empty_choices"), 0.05,
    )  # fmt: skip
    found = {}
    for name, options in (("calm", {}), ("stormy", {"faults": faults})):
        folder = tmp_path / name
        folder.mkdir()
        with serving(**options) as server:
            result = played(spec_file(folder, server.base_url, size=20), folder / "results")
            found[name] = (derived_files(result.folder.path), server.stats())
        assert result.metrics["outcomes"]["transport_failed"] == 0
    assert found["stormy"][0] == found["calm"][0]
    kinds = Counter(found["stormy"][1]["kinds"])
    answered = kinds.pop("answer")
    assert len(kinds) == len(faults)
    # No usable answer was bought twice.
    assert answered == found["calm"][1]["requests"]
    rows = table(result.folder.path, "completions")
    assert sum(row["error"] is not None for row in rows) == kinds.total()
    assert len(rows) == found["stormy"][1]["requests"]


def test_a_call_that_hangs_is_given_up_at_the_spec_s_timeout_and_asked_again(tmp_path: Path) -> None:
    with serving(faults={"hang": 0.3}, max_faults=1) as server:
        path = spec_file(tmp_path, server.base_url, size=4, models={"m": {"timeout": 0.4}})
        begun = time.perf_counter()
        result = played(path, tmp_path / "results")
        assert time.perf_counter() - begun < 10
        assert server.stats()["kinds"]["hang"] > 0
    assert result.metrics["outcomes"]["decided"] == 4


# Determinism


@pytest.mark.parametrize("provider", ["dummy", "server"])
def test_records_do_not_depend_on_concurrency_nor_on_the_hash_seed(tmp_path: Path, provider: str) -> None:
    with serving(latency=[0.0, 0.015]) as server:
        spec_file(tmp_path, server.base_url if provider == "server" else None)
        found = []
        for concurrency, hash_seed in ((1, "0"), (256, "1")):
            results = tmp_path / f"results-{concurrency}"
            done = nip_run(
                "spec.yaml", f"rollouts.concurrency={concurrency}", "rollouts.per_datapoint=2", "--results", results,
                "-q", cwd=tmp_path, PYTHONHASHSEED=hash_seed,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
            found.append(derived_files(only_run(results)))
    assert found[0] == found[1]
    assert len(found[0]) >= 8


# Going on


def test_a_finished_run_is_shown_and_not_played_again(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        first = played(path, tmp_path / "results")
        asked, files = server.requests, derived_files(first.folder.path)
        second = played(path, tmp_path / "results")
        assert server.requests == asked
        assert second.was_finished
        assert json.dumps(second.metrics, sort_keys=True) == json.dumps(first.metrics, sort_keys=True)
        assert derived_files(second.folder.path) == files


def test_a_finished_run_is_shown_without_server_or_key(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        first = played(path, tmp_path / "results")
    done = nip_run("spec.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (shown,) = json.loads(done.stdout)
    assert shown["was_finished"]
    assert shown["run_id"] == first.folder.run_id


def test_again_plays_a_run_of_its_own(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        first = played(path, tmp_path / "results")
        asked = server.requests
        second = played(path, tmp_path / "results", again=True)
        third = played(path, tmp_path / "results", again=True)
        assert server.requests == 3 * asked
    assert len({first.folder.run_id, second.folder.run_id, third.folder.run_id}) == 3


@pytest.mark.parametrize(
    ("small", "large"),
    [("rollouts.per_datapoint=1", "rollouts.per_datapoint=2"), ("dataset.limit=5", "dataset.limit=12")],
)
def test_a_longer_run_pays_for_the_difference_alone(tmp_path: Path, small: str, large: str) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        fresh = played(path, tmp_path / "fresh", large)
        whole = server.requests
        first = played(path, tmp_path / "grown", small)
        part = server.requests - whole
        grown = played(path, tmp_path / "grown", large)
        assert server.requests == 2 * whole
    assert 0 < part < whole
    assert grown.folder == first.folder
    assert derived_files(grown.folder.path) == derived_files(fresh.folder.path)


def test_a_shorter_run_after_a_longer_one_pays_for_nothing_and_loses_nothing(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        first = played(path, tmp_path / "results")
        files, asked = derived_files(first.folder.path), server.requests
        shorter = played(path, tmp_path / "results", "dataset.limit=5")
        assert server.requests == asked
        longer = played(path, tmp_path / "results")
        assert server.requests == asked
    assert shorter.manifest["rollouts"] == 5
    assert derived_files(longer.folder.path) == files


@pytest.mark.parametrize("moment", [3, 17, 34])
def test_a_killed_run_goes_on_and_asks_only_what_was_in_flight_again(tmp_path: Path, moment: int) -> None:
    with serving(latency=[0.01, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url)
        whole = played(path, tmp_path / "whole", "rollouts.concurrency=4")
        needed = server.requests
        process = started("spec.yaml", "rollouts.concurrency=4", "-q", cwd=tmp_path)
        until(lambda: server.requests >= needed + moment or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        code, _, _ = ended(process)
        assert code == -signal.SIGKILL
        kept = len([r for r in journal_records(only_run(tmp_path / "results")) if r["kind"] == "call"])
        resumed = played(path, tmp_path / "results", "rollouts.concurrency=4")
        asked = server.requests - needed
    assert kept > 0 or moment < 5
    assert needed <= asked <= needed + 4
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)
    samples = [tuple(r["sample"]) for r in journal_records(resumed.folder.path) if r["kind"] == "call"]
    assert len(samples) == len(set(samples)) == needed


def test_a_torn_journal_is_cut_said_so_and_gone_on_from(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        whole = derived_files(played(path, tmp_path / "results").folder.path)
        run_folder = only_run(tmp_path / "results")
        journal = run_folder / "journal.jsonl"
        data = journal.read_bytes()
        journal.write_bytes(data[: len(data) * 2 // 3])
        manifest = json.loads((run_folder / "manifest.json").read_text())
        (run_folder / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        done = nip_run("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "torn" in done.stderr
    assert derived_files(run_folder) == whole


def test_ctrl_c_exits_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    with serving(latency=0.15) as server:
        path = spec_file(tmp_path, server.base_url)
        process = started("spec.yaml", "rollouts.concurrency=4", "--results", "here", cwd=tmp_path)
        until(lambda: server.requests >= 6 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        code, out, err = ended(process)
        asked = server.requests
        assert code == 130, err
        assert "Traceback" not in err
        assert "nip-run run spec.yaml rollouts.concurrency=4 --results here" in err
        assert out == ""
        run_folder = only_run(tmp_path / "here")
        assert json.loads((run_folder / "manifest.json").read_text())["status"] == "interrupted"
        # What was in flight came in and was kept.
        assert len([r for r in journal_records(run_folder) if r["kind"] == "call"]) == asked
        whole = played(path, tmp_path / "whole")
        needed = server.requests - asked
        resumed = played(path, tmp_path / "here")
        assert server.requests == 2 * needed
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)


def test_a_second_ctrl_c_stops_now(tmp_path: Path) -> None:
    with serving(latency=20.0) as server:
        spec_file(tmp_path, server.base_url, models={"m": {"timeout": 60.0}})
        process = started("spec.yaml", "-q", cwd=tmp_path)
        until(lambda: server.requests >= 4 or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        begun = time.monotonic()
        code, _, err = ended(process)
        assert time.monotonic() - begun < 3
    assert code == 130, err
    assert "Traceback" not in err


def test_a_run_in_use_is_refused_by_the_name_of_its_process(tmp_path: Path) -> None:
    with serving(latency=1.0) as server:
        path = spec_file(tmp_path, server.base_url)
        process = started("spec.yaml", "-q", cwd=tmp_path)
        try:
            until(lambda: server.requests >= 1 or process.poll() is not None)
            asked = server.requests
            with pytest.raises(RunDirectoryError, match=f"in use by process {process.pid} "):
                played(path, tmp_path / "results")
            assert server.requests <= max(asked, 8)
        finally:
            process.kill()
            ended(process)


def test_another_spec_under_a_run_s_id_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url, size=2)
        played(path, tmp_path / "results", run_id="mine")
        asked = server.requests
        with pytest.raises(RunDirectoryError, match=r"models\.m\.temperature.*--run-id") as refused:
            played(path, tmp_path / "results", "models.m.temperature=0.5", run_id="mine")
        assert server.requests == asked
    assert "base_url" not in str(refused.value)


# Failing


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        ("insufficient_quota", "top it up"),
        ("unauthorized", "key"),
        ("unknown_model", "models.m.model"),
        ("unsupported_parameter", "models.m.temperature"),
    ],
)
def test_a_provider_that_refuses_ends_the_run_with_4_at_once(tmp_path: Path, kind: str, advice: str) -> None:
    with serving(kind=kind, after=10, latency=0.02) as server:
        spec_file(tmp_path, server.base_url, size=64)
        process = started("spec.yaml", "rollouts.concurrency=8", "-q", cwd=tmp_path)
        until(lambda: server.stats()["kinds"].get(kind, 0) > 0 or process.poll() is not None)
        begun = time.monotonic()
        code, out, err = ended(process)
        assert time.monotonic() - begun < 2
        stats = server.stats()
    assert (code, out) == (4, ""), err
    assert advice in err
    assert "Go on with: nip-run run spec.yaml" in err
    assert "Traceback" not in err
    assert stats["kinds"][kind] <= 8
    run_folder = only_run(tmp_path / "results")
    assert json.loads((run_folder / "manifest.json").read_text())["status"] == "failed"
    assert len([r for r in journal_records(run_folder) if r["kind"] == "call"]) >= stats["kinds"]["answer"] - 8


def test_after_a_refusal_the_same_command_pays_for_the_rest_alone(tmp_path: Path) -> None:
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        whole = played(path, tmp_path / "whole")
        needed = server.requests
        server.change(kind="insufficient_quota", after=needed + 20)
        with pytest.raises(ProviderRefusal):
            played(path, tmp_path / "results")
        refused = server.stats()["kinds"]["insufficient_quota"]
        server.change(kind=None)
        resumed = played(path, tmp_path / "results")
        assert server.requests <= 2 * needed + refused + 8
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)


def test_the_policy_fail_run_stops_the_run_with_1(tmp_path: Path) -> None:
    with serving(kind="null_content") as server:
        spec_file(tmp_path, server.base_url, retry={"invalid_response": {"attempts": 1, "then": "fail_run"}})
        done = nip_run("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 1
    assert "fail_run" in done.stderr
    assert "Go on with: nip-run run spec.yaml" in done.stderr


def test_a_results_folder_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with serving() as server:
        path = spec_file(tmp_path, server.base_url)
        with pytest.raises(RunError, match=r"file/results"):
            played(path, tmp_path / "file" / "results")
        done = nip_run("spec.yaml", "--results", "file/results", cwd=tmp_path)
        assert server.requests == 0
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "fault of nip-run" not in done.stderr


def test_a_missing_key_is_refused_before_any_call(tmp_path: Path) -> None:
    with serving() as server:
        spec_file(tmp_path, server.base_url, models={"m": {"api_key_env": "MY_TEST_KEY"}})
        done = nip_run("spec.yaml", "-q", cwd=tmp_path)
        assert server.requests == 0
        good = nip_run("spec.yaml", "-q", cwd=tmp_path, MY_TEST_KEY="sk-test")
    assert done.returncode == 4
    assert "MY_TEST_KEY" in done.stderr
    assert good.returncode == 0, good.stderr


def test_an_invalid_spec_calls_nothing_and_writes_nothing(tmp_path: Path) -> None:
    with serving() as server:
        spec_file(tmp_path, server.base_url, rollouts={"concurency": 3}, models={"m": {"temperature": "hot"}})
        done = nip_run("spec.yaml", cwd=tmp_path)
        assert server.requests == 0
    assert done.returncode == 2
    assert "concurrency" in done.stderr
    assert "models.m.temperature" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "spec.yaml"]


def test_a_sweep_is_one_run_for_each_point(tmp_path: Path) -> None:
    with serving() as server:
        spec_file(tmp_path, server.base_url, size=2, sweep={"models.m.temperature": [0.0, 1.0], "seed": [1, 2]})
        done = nip_run("spec.yaml", "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        asked = server.requests
        again = nip_run("spec.yaml", "--json", cwd=tmp_path)
        assert server.requests == asked
    assert len({row["run_id"] for row in json.loads(done.stdout)}) == 4
    assert all(row["was_finished"] for row in json.loads(again.stdout))


def test_a_replay_gives_the_same_records_with_no_call(tmp_path: Path) -> None:
    with serving(faults={"bad_decision": 0.2}) as server:
        first = played(spec_file(tmp_path, server.base_url), tmp_path / "results")
        asked = server.requests
        replay = {"m": {"provider": "replay", "run": str(first.folder.path)}}
        again = played(spec_file(tmp_path, server.base_url, models=replay), tmp_path / "replayed")
        assert server.requests == asked
    for name in ("rollouts", "messages"):
        drop = ("run_id", "rollout_id")
        rows, replayed = (
            [{k: v for k, v in row.items() if k not in drop} for row in table(folder, name)]
            for folder in (first.folder.path, again.folder.path)
        )
        assert rows == replayed
