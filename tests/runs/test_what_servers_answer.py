"""A run on a server that refuses one prompt, that cuts answers before their first word, or that ignores `n`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ProviderRefusal
from runner.models.answers import choices_of
from runner.models.base import Choice
from runner.storage.atomic import read_json
from tests.support.processes import nip_run_here
from tests.support.runs import journal_records, only_run, played, table
from tests.support.servers.chat_client import serving
from tests.support.specs import spec_file

SOLO: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}
THIRD = "returns x + 3."
"""Stands in the prompts of one datapoint."""


def outcomes(run: Path) -> dict[str, str]:
    return {row["datapoint_id"]: row["outcome"] for row in table(run, "rollouts")}


@pytest.mark.parametrize("concurrency", [1, 8])
def test_a_datapoint_whose_request_is_malformed_ends_its_game_alone(tmp_path: Path, concurrency: int) -> None:
    with serving(malformed=THIRD) as server:
        path = spec_file(tmp_path, server.base_url, size=8, **{**SOLO, "rollouts": {"concurrency": concurrency}})
        result = played(path, tmp_path / "r")
        first = outcomes(only_run(tmp_path / "r"))
        asked = server.requests
        again = played(path, tmp_path / "r")
        assert server.requests == asked + 1  # it alone
    assert first.pop("p3") == "transport_failed"
    assert set(first.values()) <= {"decided", "no_decision"}
    assert outcomes(only_run(tmp_path / "r")) == {**first, "p3": "transport_failed"}
    assert (result.manifest.transport_failed, again.manifest.transport_failed) == (1, 1)
    assert any("1 of 8 rollouts failed in transport, the first with MalformedError: http" in n for n in again.notes)
    ended = [record for record in journal_records(only_run(tmp_path / "r")) if record["kind"] == "ended"]
    assert {(record["sample"][0], record["error"]) for record in ended} == {("p3", "MalformedError")}


def test_the_first_datapoint_may_be_the_malformed_one(tmp_path: Path) -> None:
    """Its refusal comes before any answer."""
    with serving(malformed="returns x + 0.") as server:
        path = spec_file(tmp_path, server.base_url, size=4, **{**SOLO, "rollouts": {"concurrency": 1}})
        assert played(path, tmp_path / "r").manifest.transport_failed == 1


@pytest.mark.parametrize(("size", "asked"), [(24, range(16, 24)), (3, [3])])
def test_a_server_that_takes_no_request_stops_the_run(tmp_path: Path, size: int, asked: Collection[int]) -> None:
    """After so many refusals as open a breaker, or at the end where there are fewer games."""
    with serving(kind="malformed_request") as server:
        path = spec_file(tmp_path, server.base_url, size=size, **SOLO)
        with pytest.raises(ProviderRefusal, match=r"(?s)answered 400: Invalid .*refuses the request as models\.m"):
            played(path, tmp_path / "r")
        assert server.requests in asked
    assert read_json(only_run(tmp_path / "r") / "manifest.json")["status"] == "failed"


def test_however_many_requests_are_malformed_a_group_that_was_answered_plays_on(tmp_path: Path) -> None:
    with serving(kind="malformed_request", after=2) as server:
        changes = {**SOLO, "rollouts": {"concurrency": 1}, "retry": {"breaker": {"failures": 3}}}
        path = spec_file(tmp_path, server.base_url, size=8, **changes)
        runs = [played(path, tmp_path / "r") for _ in range(2)]
        assert server.requests == 2 + 6 + 6
    assert [(run.manifest.status, run.manifest.transport_failed) for run in runs] == [("done", 6)] * 2


@pytest.mark.parametrize(
    ("kind", "paid"), [("blank_length", True), ("null_length", True), ("cut_at_limit", False)]
)  # fmt: skip
def test_an_answer_cut_before_its_first_word_is_asked_for_again_and_no_message(
    tmp_path: Path, kind: str, *, paid: bool
) -> None:
    with serving(kind=kind) as server:
        changes = {
            **SOLO,
            "models": {"m": {"max_completion_tokens": 40}},
            "retry": {"invalid_response": {"attempts": 2}},
        }
        path = spec_file(tmp_path, server.base_url, size=1, **changes)
        done = nip_run_here(path, "--results", tmp_path / "r", cwd=tmp_path)
        assert server.requests == 2
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the token limit of m went into reasoning") == 1
    run = only_run(tmp_path / "r")
    (rollout,) = table(run, "rollouts")
    assert rollout["outcome"] == "invalid_response"
    metrics = read_json(run / "metrics.json")
    values = {row["metric"]: row["value"] for row in metrics["metrics"]}
    assert (values["calls_per_message"], values["token_limit_proportion"]) == (2.0, 1.0)
    assert metrics["original_statistics"]["verifier.token_limit_proportion"] is None
    answers = [record for record in journal_records(run) if record["kind"] == "call"]
    found = [
        [Choice(*choice) for choice in record.get("choices", ())] or choices_of(record["answer"]) for record in answers
    ]
    assert [list(choices) for choices in found] == [[Choice(None, "length")]] * 2
    assert [bool(record.get("charged")) for record in answers] == [not paid] * 2
    assert {row["finish_reason"] for row in table(run, "completions")} == {"length"}


def test_a_server_that_ignores_n_is_told_once(tmp_path: Path) -> None:
    with serving(max_n=1) as server:
        changes = {**SOLO, "models": {"m": {"share_prompts": True}}, "rollouts": {"per_datapoint": 3, "concurrency": 8}}
        path = spec_file(tmp_path, server.base_url, size=4, **changes)
        done = nip_run_here(path, "--results", tmp_path / "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the server of m ignores `n`") == 1
    assert (only_run(tmp_path / "r") / "run.log").read_text("utf-8").count("ignores `n`") == 1


@pytest.mark.parametrize("repeated", [True, False])
def test_one_answer_to_each_repeat_or_retry_under_a_fixed_seed_is_told_once(tmp_path: Path, *, repeated: bool) -> None:
    """The server answers by the request's bytes, as one that heeds the seed does."""
    more: dict[str, Any] = (
        {"rollouts": {"per_datapoint": 3}} if repeated else {"retry": {"invalid_response": {"attempts": 2}}}
    )
    with serving(kind=None if repeated else "bad_decision") as server:
        path = spec_file(tmp_path, server.base_url, size=4, **{**SOLO, "models": {"m": {"seed": 3}}, **more})
        notes = played(path, tmp_path / "r").notes
        assert sum("with models.m.seed fixed (3)" in note for note in notes) == 1
        other = spec_file(tmp_path, server.base_url, size=4, **{**SOLO, **more})
        assert not any("seed" in note for note in played(other, tmp_path / "r2").notes)
