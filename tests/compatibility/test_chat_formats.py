"""Runs of 0.1.0 resume in its only chat format at any address. New runs may use another format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compatibility.old import RUNS, copy_old_files, hash_files, run_command, run_folder

SERVED = "specs/served.yaml"
STARTED_NOTICE = f"run {RUNS['served']} started with models.m.chat_format=openai"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return copy_old_files(tmp_path)


def check_run_id(folder: Path, *arguments: str) -> str:
    return str(run_command("check", "--json", *arguments, cwd=folder).json[0]["run_id"])


def test_spec_of_an_old_run_keeps_its_chat_format_and_reports_it(folder: Path) -> None:
    before = hash_files(folder)
    result = run_command("run", SERVED, cwd=folder)
    assert result.code == 0
    assert STARTED_NOTICE in result.err
    assert result.err.count(STARTED_NOTICE) == 1
    assert "models.m.chat_format=alternating" in result.err
    assert STARTED_NOTICE in run_command("check", SERVED, cwd=folder).out
    rendered = run_command("render", SERVED, "prover", "--round", "1", cwd=folder)
    assert STARTED_NOTICE in rendered.err
    assert 'chat_format: "openai"' in rendered.out
    assert "--- user (Verifier) ---" in rendered.out
    assert hash_files(folder) == before


def test_explicit_chat_format_or_new_results_folder_starts_a_new_run(folder: Path) -> None:
    new = check_run_id(folder, SERVED, "models.m.chat_format=alternating")
    assert new != RUNS["served"]
    assert check_run_id(folder, SERVED) == check_run_id(folder, SERVED, "models.m.chat_format=openai") == RUNS["served"]
    assert check_run_id(folder, SERVED, "--results", "nowhere") == new
    rendered = run_command("render", SERVED, "prover", "--round", "1", "--results", "nowhere", cwd=folder)
    assert rendered.err.count("started with") == 0
    assert 'chat_format: "alternating"' in rendered.out
    assert "\n\nVerifier: " in rendered.out or "---\nVerifier: " in rendered.out


@pytest.mark.full
def test_saved_spec_keeps_its_chat_format_at_any_address(folder: Path) -> None:
    saved = str(run_folder(folder, "served") / "spec.yaml")
    elsewhere = "models.m.base_url=http://127.0.0.1:9999/v1"
    assert check_run_id(folder, saved, elsewhere) == check_run_id(folder, saved, "models.m.chat_format=openai")
    assert check_run_id(folder, saved, elsewhere) != check_run_id(folder, saved, "models.m.chat_format=alternating")
    assert check_run_id(folder, SERVED, "models.m.base_url=null") == RUNS["served"]
