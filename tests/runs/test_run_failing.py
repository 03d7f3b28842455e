"""Runs that cannot continue: the exit code, the advice, and the saved answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.base.errors import ProviderRefusal, UsageError
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "advice", "is_spec_error"),
    [
        ("insufficient_quota", "Add credit", False),
        pytest.param("unauthorized", "key", False, marks=pytest.mark.full),
        pytest.param("unknown_model", "models.m.model", True, marks=pytest.mark.full),
        ("unsupported_parameter", "models.m.temperature", True),
    ],
)
def test_a_provider_refusal_ends_the_run_with_exit_code_4_at_once(
    tmp_path: Path, kind: str, advice: str, *, is_spec_error: bool
) -> None:
    with run_chat_server(kind=kind, after=10, latency=0.02) as server:
        spec_file(tmp_path, server.base_url, size=64)
        done = nip_run_here("spec.yaml", "rollouts.concurrency=8", "+models.m.temperature=1", "-q", cwd=tmp_path)
        stats, err = server.stats(), done.stderr
    assert (done.returncode, done.stdout) == (4, ""), err
    assert advice in err
    temperature = "..." if kind == "unsupported_parameter" else "1"
    command = f"nip-run run spec.yaml rollouts.concurrency=8 +models.m.temperature={temperature}"
    assert err.splitlines()[-1] == f"{'After that change, resume' if is_spec_error else 'Resume'} with: {command}"
    assert "Traceback" not in err
    assert stats["kinds"][kind] <= 8
    run_folder = only_run(tmp_path / "results")
    assert json.loads((run_folder / "manifest.json").read_text())["status"] == "failed"
    assert len([r for r in journal_records(run_folder) if r["kind"] == "call"]) >= stats["kinds"]["answer"] - 8


@pytest.mark.full
def test_after_a_refusal_the_same_command_pays_only_for_the_rest(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        complete_run = run_spec(path, tmp_path / "whole")
        needed = server.requests
        server.change(kind="insufficient_quota", after=needed + 20)
        with pytest.raises(ProviderRefusal):
            run_spec(path, tmp_path / "results")
        refusal_count = server.stats()["kinds"]["insufficient_quota"]
        server.change(kind=None)
        resumed = run_spec(path, tmp_path / "results")
        assert server.requests <= 2 * needed + refusal_count + 8
    assert derived_files(resumed.folder.path) == derived_files(complete_run.folder.path)


def test_the_policy_fail_run_ends_the_run_with_exit_code_1(tmp_path: Path) -> None:
    with run_chat_server(kind="null_content") as server:
        spec_file(tmp_path, server.base_url, retry={"invalid_response": {"attempts": 1, "then": "fail_run"}})
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 1
    assert "fail_run" in done.stderr
    assert "Resume with: nip-run run spec.yaml" in done.stderr


def test_an_unwritable_results_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url)
        with pytest.raises(UsageError, match=r"file/results"):
            run_spec(path, tmp_path / "file" / "results")
        done = nip_run_here("spec.yaml", "--results", "file/results", cwd=tmp_path)
        assert server.requests == 0
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "bug in nip-run" not in done.stderr


@pytest.mark.full
def test_a_missing_key_is_refused_before_any_call(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, models={"m": {"api_key_env": "MY_TEST_KEY"}})
        done = nip_run("spec.yaml", "-q", cwd=tmp_path)
        assert server.requests == 0
        with_key = nip_run("spec.yaml", "-q", cwd=tmp_path, MY_TEST_KEY="sk-test")
    assert done.returncode == 4
    assert "MY_TEST_KEY" in done.stderr
    assert with_key.returncode == 0, with_key.stderr


def test_an_invalid_spec_calls_nothing_and_writes_nothing(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec_file(tmp_path, server.base_url, rollouts={"concurency": 3}, models={"m": {"temperature": "hot"}})
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        assert server.requests == 0
    assert done.returncode == 2
    assert "concurrency" in done.stderr
    assert "models.m.temperature" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.jsonl", "spec.yaml"]
