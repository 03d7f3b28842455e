"""A run of 0.1.0, which knew one chat format, goes on in it whatever its address; what is begun anew need not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compatibility.old import RUNS, called, contents, opened, run_folder

SERVED = "specs/served.yaml"
STARTED = f"run {RUNS['served']} started with models.m.chat_format=openai"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return opened(tmp_path)


def run_id(folder: Path, *words: str) -> str:
    return str(called("check", "--json", *words, cwd=folder).json[0]["run_id"])


def test_its_spec_is_told_what_it_goes_on_with(folder: Path) -> None:
    before = contents(folder)
    done = called("run", SERVED, cwd=folder)
    assert done.code == 0
    assert STARTED in done.err
    assert done.err.count(STARTED) == 1
    assert "models.m.chat_format=alternating" in done.err
    assert STARTED in called("check", SERVED, cwd=folder).out
    rendered = called("render", SERVED, "prover", "--round", "1", cwd=folder)
    assert STARTED in rendered.err
    assert 'chat_format: "openai"' in rendered.out
    assert "--- user (Verifier) ---" in rendered.out
    assert contents(folder) == before


def test_a_spec_that_says_its_format_and_one_without_a_run_are_of_the_address(folder: Path) -> None:
    new = run_id(folder, SERVED, "models.m.chat_format=alternating")
    assert new != RUNS["served"]
    assert run_id(folder, SERVED) == run_id(folder, SERVED, "models.m.chat_format=openai") == RUNS["served"]
    assert run_id(folder, SERVED, "--results", "nowhere") == new
    rendered = called("render", SERVED, "prover", "--round", "1", "--results", "nowhere", cwd=folder)
    assert rendered.err.count("started with") == 0
    assert 'chat_format: "alternating"' in rendered.out
    assert "\n\nVerifier: " in rendered.out or "---\nVerifier: " in rendered.out


@pytest.mark.full
def test_a_saved_spec_keeps_its_format_at_any_address(folder: Path) -> None:
    saved = str(run_folder(folder, "served") / "spec.yaml")
    elsewhere = "models.m.base_url=http://127.0.0.1:9999/v1"
    assert run_id(folder, saved, elsewhere) == run_id(folder, saved, "models.m.chat_format=openai")
    assert run_id(folder, saved, elsewhere) != run_id(folder, saved, "models.m.chat_format=alternating")
    assert run_id(folder, SERVED, "models.m.base_url=null") == RUNS["served"]
