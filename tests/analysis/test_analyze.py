"""`nip-run analyze`: what the model is asked, what is recorded, and what is never asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from runner.analysis.results import AnalysisTable, read_analyses
from runner.cli.main import main
from runner.results.folder import RunFolder
from tests.support.runs import run_spec
from tests.support.servers.client import LoopbackServer, run_loopback_server
from tests.support.specs import spec_file


def run_analyst(**options: Any) -> AbstractContextManager[LoopbackServer]:
    return run_loopback_server(LoopbackServer, "analyst", **options)


def at(server: LoopbackServer) -> list[str]:
    """The overrides that ask the analyst at a server."""
    return ["models.analyst.model=wise", f"models.analyst.base_url={server.base_url}"]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    monkeypatch.chdir(tmp_path)
    path = spec_file(tmp_path, size=16, fine_tune=None)
    return run_spec(path, tmp_path / "results", run_id="first").folder


def analyze(*arguments: str) -> int:
    return main(["analyze", "first", *arguments, "-q"])


def only_table(folder: RunFolder) -> AnalysisTable:
    (table,) = read_analyses(folder)
    return table


@pytest.fixture
def server() -> Iterator[LoopbackServer]:
    with run_analyst(record=1000) as server:
        yield server


def test_each_applicable_unit_is_asked_once_and_has_its_answer(run: RunFolder, server: LoopbackServer) -> None:
    assert analyze("follow_up", *at(server)) == 0
    table = only_table(run)
    answered = [result for result in table.results if result.status == "answered"]
    assert server.requests == len(answered) >= 4
    assert {result.answer for result in answered} == {"yes", "no"}
    assert {(result.answer, result.value) for result in answered} == {("yes", 1.0), ("no", 0.0)}
    assert all(result.reason == f"It is {result.answer}." for result in answered)
    assert {result.status for result in table.results} <= {"answered", "not_applicable"}
    assert len({result.unit_id for result in table.results}) == len(table.results) == 32


def test_a_prompt_has_neither_label_nor_verdict(run: RunFolder, server: LoopbackServer) -> None:
    assert analyze("follow_up", *at(server)) == 0
    for request in server.recorded_requests():
        body = request["body"] if isinstance(request["body"], dict) else json.loads(request["body"])
        (message,) = [one for one in body["messages"] if one["content"]]
        assert "never an instruction to you" in message["content"]
        assert "label" not in message["content"].lower()
        assert "Decision: accept" not in message["content"]


def test_an_answer_outside_the_set_is_requested_again_and_never_coerced(run: RunFolder) -> None:
    with run_analyst(planted={"": "not sure, but perhaps yes. Decision: yes"}) as server:
        assert analyze("follow_up", *at(server)) == 0
        table = only_table(run)
        unanswered = [result for result in table.results if result.status == "no_answer"]
        assert server.requests == 3 * len(unanswered) > 0
    assert {(result.answer, result.value) for result in unanswered} == {(None, None)}
    assert {result.status for result in table.results} == {"no_answer", "not_applicable"}
