"""A sweep's remaining budget is counted once: its runs are locked by one process while it plays."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import max_spending
from runner.runs.finished.reconstruction import saved_plan
from runner.spec.loader import load_specs
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import command, environment, nip_run, nip_run_here, start_nip_run_silently, wait_until
from tests.support.runs import journal_records
from tests.support.servers.batch_client import BatchProvider, run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

INPUT_PRICE, OUTPUT_PRICE = 100.0, 400.0
PRICED = {"m": {"price": {"input": INPUT_PRICE, "output": OUTPUT_PRICE}, "max_completion_tokens": 60}}


def write_sweep(folder: Path, provider: BatchProvider, seeds: int = 2, **changes: Any) -> list[str]:
    """Write a spec that sweeps over seeds from 1 and return the ids of its runs."""
    axes = {"seed": list(range(1, seeds + 1))}
    path = spec_file(folder, provider.base_url, size=4, models=PRICED, sweep=axes, **changes)
    return [Plan(spec).run_id for spec in load_specs(path)]


@contextmanager
def run_sweep_process(folder: Path, provider: BatchProvider) -> Iterator[subprocess.Popen[bytes]]:
    """Play the sweep in a process that has made its first calls."""
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    try:
        wait_until(lambda: provider.stats()["chat"] > 0)
        yield process
    finally:
        process.kill()
        process.wait()


def count_records(folder: Path, run_id: str) -> int:
    run = folder / "results" / "runs" / run_id
    return len(journal_records(run)) if (run / "journal.jsonl").is_file() else 0


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(("spec.yaml",), id="all", marks=pytest.mark.full),
        pytest.param(("spec.yaml", "sweep={}", "seed=2"), id="a later point"),
    ],
)
def test_a_run_counted_in_the_budget_of_another_process_is_locked(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    with run_batch_provider(latency=1.0) as provider:
        first, second = write_sweep(tmp_path, provider, budget={"usd": 50.0})
        with run_sweep_process(tmp_path, provider) as process:
            done = nip_run(*arguments, "-q", cwd=tmp_path)
            assert process.poll() is None
        assert done.returncode == 1
        locked = first if len(arguments) == 1 else second
        assert f"run {locked} is in use by process {process.pid} " in done.stderr


@pytest.mark.full
def test_two_processes_on_one_sweep_spend_its_budget_once(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.05) as provider:
        write_sweep(tmp_path, provider, budget={"usd": 1.0})
        processes = [start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path) for _ in range(3)]
        codes = [process.wait(HANG_SECONDS) for process in processes]
        assert provider.billed_usd(INPUT_PRICE, OUTPUT_PRICE) <= 1.0
        assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert 0.4 < provider.billed_usd(INPUT_PRICE, OUTPUT_PRICE) <= 1.0
    assert 3 in codes
    assert set(codes) <= {1, 3}


@pytest.mark.full
def test_no_call_is_made_before_every_point_of_the_sweep_is_locked(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        _, second = write_sweep(tmp_path, provider, budget={"usd": 50.0})
        with Results(tmp_path / "results").lock(second):
            done = nip_run("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 1
        assert f"run {second} is in use by process" in done.stderr
        assert provider.stats()["chat"] == 0
        assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 0


@pytest.mark.full
def test_a_sweep_may_have_more_points_than_a_process_may_open_files(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, sweep={"seed": list(range(80))}, budget={"usd": 1.0})
    last = Plan(load_specs(path)[-1]).run_id
    with Results(tmp_path / "results").lock(last):
        done = subprocess.run(
            ["sh", "-c", 'ulimit -S -n 64; exec "$@"', "sh", *command("spec.yaml", "-q")], cwd=tmp_path,
            env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    assert f"run {last} is in use by process" in done.stderr
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 80


@pytest.mark.full
@pytest.mark.gate
def test_without_a_budget_the_points_of_a_sweep_are_not_locked(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.1) as provider:
        runs = write_sweep(tmp_path, provider, seeds=4, rollouts={"concurrency": 1})
        with run_sweep_process(tmp_path, provider) as process:
            override = "rollouts.concurrency=8"
            done = nip_run_here("spec.yaml", "-q", "sweep={}", "seed=4", override, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert process.wait(HANG_SECONDS) == 0
    assert all(count_records(tmp_path, run_id) > 0 for run_id in runs)


@pytest.mark.gate
def test_points_with_different_budgets_do_not_share_one(tmp_path: Path) -> None:
    with run_chat_server() as server:
        points = [{"seed": 1, "budget": {"completions": 1000}}, {"seed": 2, "budget": {"completions": 5}}]
        path = spec_file(tmp_path, server.base_url, size=4, sweep=points)
        large, small = [Plan(spec).run_id for spec in load_specs(path)]
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == ExitCode.BUDGET, done.stderr
        runs = Results(tmp_path / "results")
        assert runs.run(large).manifest().status == Status.DONE
        assert 0 < max_spending(saved_plan(runs.run(small)), runs.run(small)).completions <= 5


@pytest.mark.full
def test_a_run_that_a_command_lists_twice_is_counted_and_locked_once(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, size=4, models=PRICED)
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 0
        spent = provider.billed_usd(INPUT_PRICE, OUTPUT_PRICE)
        budget = f"budget.usd={2.6 * spent:.6f}"
        done = nip_run_here("spec.yaml", "spec.yaml", "-q", budget, "rollouts.per_datapoint=2", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert provider.billed_usd(INPUT_PRICE, OUTPUT_PRICE) > 1.5 * spent


@pytest.mark.parametrize("name", ["../elsewhere", "a b", "", "."])
def test_an_invalid_run_id_is_refused_before_anything_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="is not a valid run id"):
        Results(tmp_path / "results").lock(name)
    if name:
        spec_file(tmp_path, budget={"usd": 1.0})
        files_before = sorted(tmp_path.rglob("*"))
        assert nip_run_here("spec.yaml", "-q", "--run-id", name, cwd=tmp_path).returncode == 2
        assert sorted(tmp_path.rglob("*")) == files_before


def test_a_budget_counts_no_run_of_another_spec(tmp_path: Path) -> None:
    """The folder that `--run-id` names has another game with other agents."""
    solo: dict[str, Any] = {
        "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
        "prompts": "prompts/code_validation/solo_verifier",
    }  # fmt: skip
    spec_file(tmp_path, size=2)
    assert nip_run_here("spec.yaml", "-q", "--run-id", "taken", cwd=tmp_path).returncode == 0
    spec_file(tmp_path, size=2, budget={"usd": 1.0}, **solo)
    done = nip_run_here("spec.yaml", "-q", "--run-id", "taken", cwd=tmp_path)
    assert done.returncode == 1
    assert "has the run of another spec" in done.stderr


@pytest.mark.full
def test_the_spending_of_a_run_without_a_manifest_is_counted(tmp_path: Path) -> None:
    """A user may remove a damaged manifest so that the run is rebuilt from its journal."""
    with run_batch_provider() as provider:
        (run_id,) = write_sweep(tmp_path, provider, seeds=1, budget={"usd": 0.5})
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        (tmp_path / "results" / "runs" / run_id / "manifest.json").unlink()
        assert nip_run_here("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert provider.billed_usd(INPUT_PRICE, OUTPUT_PRICE) <= 0.5
