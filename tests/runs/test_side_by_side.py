"""Points of a sweep run concurrently, give the results of separate runs, and share limits, budget and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from runner import run
from runner.cli.main import main
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.game_slots import GameSlots
from runner.rollouts.plan import Plan
from runner.runs.execution.process import log_to
from runner.spec.loader import load_specs
from tests.support.processes import (
    interrupt,
    nip_run,
    nip_run_here,
    start_nip_run,
    start_nip_run_silently,
    wait_for_exit,
    wait_until,
)
from tests.support.runs import derived_files, journal_records
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

GRID = {"models.m.temperature": [0.0, 0.5, 1.0], "seed": [1, 2, 3]}


def count_calls_by_run(results: Path) -> dict[str, int]:
    """Count the answers in each run's journal, without a last line that a kill cut off."""
    return {
        folder.name: sum(record["kind"] == "call" for record in journal_records(folder))
        for folder in sorted((results / "runs").iterdir())
        if (folder / "journal.jsonl").is_file()
    }


def read_statuses(results: Path) -> set[str]:
    return {json.loads(path.read_text())["status"] for path in results.glob("runs/*/manifest.json")}


@pytest.mark.full
def test_points_share_one_concurrency_limit_and_write_the_files_of_separate_runs(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05) as server:
        path = spec_file(
            tmp_path, server.base_url, size=3, sweep={"models.m.temperature": [0.0, 1.0]},
            rollouts={"concurrency": 5},
        )  # fmt: skip
        with redirect_stdout(StringIO()) as output:
            assert main(["run", str(path), "--json", "-q", "--results", str(tmp_path / "together")]) == 0
        assert 3 < server.stats()["max_open"] <= 5  # a point has three games with one call at a time
        separate_runs = [run(spec, tmp_path / "alone") for spec in load_specs(path)]
    assert [row["run_id"] for row in json.loads(output.getvalue())] == [result.run_id for result in separate_runs]
    for result in separate_runs:
        assert derived_files(tmp_path / "together" / "runs" / result.run_id) == derived_files(result.path)


@pytest.mark.full
def test_a_resumed_sweep_requests_only_missing_calls(tmp_path: Path) -> None:
    with run_chat_server(held_after=100) as server:
        spec_file(tmp_path, server.base_url, size=4, sweep=GRID, rollouts={"concurrency": 8})
        process = start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)
        wait_until(lambda: len(list(tmp_path.glob("results/runs/*/metrics.json"))) >= 2 and server.requests > 100)
        process.kill()
        process.wait()
        server.change(held_after=None)
        wait_until(lambda: server.stats()["open"] == 0)
        request_count, calls_before = server.requests, count_calls_by_run(tmp_path / "results")
        assert len(calls_before) > len(list(tmp_path.glob("results/runs/*/metrics.json")))
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        calls_after = count_calls_by_run(tmp_path / "results")
        assert len(calls_after) == 9
        assert server.requests - request_count == sum(calls_after.values()) - sum(calls_before.values())
    assert read_statuses(tmp_path / "results") == {"done"}


@pytest.mark.full
def test_a_provider_refusal_stops_every_point_and_loses_no_paid_answer(tmp_path: Path) -> None:
    with run_chat_server(latency=0.05, kind="insufficient_quota", after=20) as server:
        spec_file(tmp_path, server.base_url, size=4, sweep=GRID, rollouts={"concurrency": 8})
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert server.stats()["kinds"]["answer"] == sum(count_calls_by_run(tmp_path / "results").values())
        assert server.requests <= 20 + 8
    stopped = [name for name in count_calls_by_run(tmp_path / "results") if name in done.stderr]
    assert len(stopped) > 1
    assert "This error also stopped " in done.stderr
    assert read_statuses(tmp_path / "results") <= {"failed", "interrupted", "done"}
    assert len(list(tmp_path.glob("results/runs/*"))) < 9


@pytest.mark.full
def test_points_share_a_budget_to_the_cent(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 100.0, "output": 400.0}, "max_completion_tokens": 60}}
    with run_batch_provider(latency=0.02) as provider:
        spec_file(
            tmp_path, provider.base_url, size=4, models=priced, budget={"usd": 1.0}, sweep={"seed": [1, 2, 3, 4]},
            rollouts={"concurrency": 16},
        )  # fmt: skip
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 3, done.stderr
        assert 0.4 < provider.billed_usd(100.0, 400.0) <= 1.0
        costs = [json.loads(path.read_text())["cost_usd"] for path in tmp_path.glob("results/runs/*/manifest.json")]
        assert len(costs) > 1
        assert sum(costs) == pytest.approx(provider.billed_usd(100.0, 400.0), abs=1e-9)


@pytest.mark.gate
def test_a_spent_budget_stops_only_the_points_that_share_it(tmp_path: Path) -> None:
    changes: dict[str, dict[str, Any]] = {
        "spent": {"budget": {"completions": 1}, "sweep": {"seed": [1, 2]}},
        "rich": {"budget": {"completions": 1000}},
        "free": {},
    }
    for name in changes:
        (tmp_path / name).mkdir()
    with run_chat_server() as server:
        paths = [
            spec_file(tmp_path / name, server.base_url, size=2, name=name, rollouts={"concurrency": 1}, **overrides)
            for name, overrides in changes.items()
        ]
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as err:
            code = main(["run", *map(str, paths), "-q", "--results", str(tmp_path / "results")])
    assert code == 3, err.getvalue()
    manifests = [json.loads(path.read_text()) for path in tmp_path.glob("results/runs/*/manifest.json")]
    assert sorted((manifest["run_id"].split("-")[0], manifest["status"]) for manifest in manifests) == [
        ("free", "done"), ("rich", "done"), ("spent", "interrupted"),
    ]  # fmt: skip


@pytest.mark.full
@pytest.mark.parametrize("baseline", ["base", pytest.param("last", marks=pytest.mark.full)])
def test_a_point_waits_for_its_baseline(tmp_path: Path, baseline: str) -> None:
    """A point without a stopping rule ends before the next one reads its scores."""
    pairs = {"name": ["base", "other"], "until": [None, {"compare": baseline}], "seed": [1, 2]}
    path = spec_file(tmp_path, size=4, sweep={"zip": pairs}, fine_tune=None)
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()) as stderr:
        assert main(["run", str(path), "-q", "--results", str(tmp_path / "results")]) == 0, stderr.getvalue()
    base_run_id, compared_run_id = (Plan(spec).run_id for spec in load_specs(path))
    compared = json.loads((tmp_path / "results" / "runs" / compared_run_id / "inputs" / "compared.json").read_text())
    assert compared["run_id"] == base_run_id
    assert sum(games for _, games in compared["scores"].values()) == 4


@pytest.mark.full
def test_one_ctrl_c_stops_all_points_and_saves_answers_in_flight(tmp_path: Path) -> None:
    with run_chat_server(held_after=12) as server:
        spec_file(tmp_path, server.base_url, size=4, sweep=GRID, rollouts={"concurrency": 10})
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests > 12 or process.poll() is not None)
        early_stderr = interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        err = early_stderr + err
        assert code == 130, err
        calls_by_run = count_calls_by_run(tmp_path / "results")
        assert server.requests == sum(calls_by_run.values())
    assert len(calls_by_run) > 1
    assert all(name in err for name, count in calls_by_run.items() if count)
    assert "Resume with: nip-run run spec.yaml" in err
    assert len(re.findall(r"in flight, at most", err)) == 1
    assert read_statuses(tmp_path / "results") == {"interrupted"}


@pytest.mark.full
def test_two_ctrl_c_stop_all_points_at_once(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        spec_file(tmp_path, server.base_url, size=4, sweep=GRID)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests >= 4 or process.poll() is not None)
        early_stderr = interrupt(process)
        process.send_signal(signal.SIGINT)
        code, _, err = wait_for_exit(process)
    assert code == 130, early_stderr + err
    assert read_statuses(tmp_path / "results") == {"interrupted"}


@pytest.mark.full
def test_points_share_a_cache_file(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=3, sweep={"seed": [1, 2]}, cache="cache.sqlite")
        assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        request_count = server.requests
        for spec in load_specs(path):
            assert run(spec, tmp_path / "again").run_id == Plan(spec).run_id
        assert server.requests == request_count


@pytest.fixture
def nip_logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("nip_run.test")
    level = logging.getLogger("nip_run").level
    yield logger
    logging.getLogger("nip_run").setLevel(level)


def test_each_run_logs_to_its_own_file(tmp_path: Path, nip_logger: logging.Logger) -> None:
    async def log_messages(name: str) -> None:
        with log_to(tmp_path / name):
            for _ in range(3):
                await asyncio.gather(asyncio.to_thread(nip_logger.info, "%s says", name), asyncio.sleep(0))

    async def log_both() -> None:
        with log_to(tmp_path / "whole"):
            await asyncio.gather(log_messages("a"), log_messages("b"))

    asyncio.run(log_both())
    names_by_file = {name: re.findall(r"(\w) says", (tmp_path / name).read_text()) for name in ("a", "b", "whole")}
    assert (names_by_file["a"], names_by_file["b"]) == (["a"] * 3, ["b"] * 3)
    assert sorted(names_by_file["whole"]) == ["a"] * 3 + ["b"] * 3


def test_a_free_slot_goes_to_the_first_waiting_run() -> None:
    async def enter_in_order() -> list[int]:
        slots, order = GameSlots(1), []

        async def take_slot(number: int) -> None:
            await slots.enter(number)
            order.append(number)
            slots.leave()

        await slots.enter(0)
        tasks = [asyncio.create_task(take_slot(number)) for number in (3, 1, 2, 1)]
        await asyncio.sleep(0)
        tasks[3].cancel()
        slots.leave()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert slots.has_free
        return order

    assert asyncio.run(enter_in_order()) == [1, 2, 3]


@pytest.mark.full
def test_a_point_in_use_by_another_process_does_not_stop_the_others(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, sweep={"seed": [1, 2, 3]}, fine_tune=None)
    used_run_id, *other_run_ids = [Plan(spec).run_id for spec in load_specs(path)]
    with Results(tmp_path / "results").lock(used_run_id):
        done = nip_run_here("spec.yaml", "-v", cwd=tmp_path)
    assert done.returncode == 1
    assert f"run {used_run_id} is in use by process" in done.stderr
    assert all(Results(tmp_path / "results").run(run_id).manifest().status == "done" for run_id in other_run_ids)
    assert all(run_id in done.stdout for run_id in other_run_ids)
