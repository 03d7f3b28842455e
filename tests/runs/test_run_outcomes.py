"""Games whose calls fail: each class of failure has its outcome, and none counts as a verdict."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support.files import json_lines
from tests.support.runs import derived_files, metric, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file


@pytest.mark.sample(3)
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
    with run_chat_server(kind=kind) as server:
        path = spec_file(
            tmp_path, server.base_url, size=2,
            retry={"transient": {"attempts": 2}, "invalid_response": {"attempts": 2, "then": then}},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
    assert {name: count for name, count in result.metrics["outcomes"].items() if count} == {outcome: 2}
    rows = table(result.folder.path, "rollouts")
    assert {(row["outcome"], row["decision"]) for row in rows} == {(outcome, 2)}
    # A run without any answer has failed: its rows are saved, and the same command tries again.
    assert result.manifest.status == ("failed" if outcome == "transport_failed" else "done")


def test_bad_answers_are_requested_again_up_to_the_given_number_of_attempts(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        path = spec_file(
            tmp_path, server.base_url, size=1, protocol={"use": "solo_verifier", "max_message_rounds": None},
            prompts="prompts/code_validation/solo_verifier", agents={"prover": None},
            retry={"invalid_response": {"attempts": 4}},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        assert server.requests == 4
    assert [row["attempt"] for row in table(result.folder.path, "completions")] == [0, 1, 2, 3]


@pytest.mark.full
def test_a_transport_failure_never_counts_as_a_verdict(tmp_path: Path) -> None:
    with run_chat_server(faults={"server_error": 0.08}, max_faults=10_000) as server:
        path = spec_file(tmp_path, server.base_url, size=40, retry={"transient": {"attempts": 1}})
        result = run_spec(path, tmp_path / "results")
    lost = result.metrics["outcomes"]["transport_failed"]
    assert 0 < lost < 40
    rows = table(result.folder.path, "rollouts")
    assert {row["correct"] for row in rows if row["outcome"] == "transport_failed"} == {None}
    assert {row["decision"] for row in rows if row["outcome"] == "transport_failed"} == {2}
    for name in ("accuracy", "decided", "episode_length"):
        assert metric(result, name)["n"] == 40 - lost
    right = sum(row["correct"] is True for row in rows)
    assert metric(result, "accuracy")["value"] == pytest.approx(right / (40 - lost))
    failed_ids = {row["rollout_id"] for row in rows if row["outcome"] == "transport_failed"}
    trace = json_lines(result.folder.path / "fine_tune" / "agents" / "verifier.sft.jsonl.trace.jsonl")
    assert trace
    assert failed_ids.isdisjoint(line["rollout_id"] for line in trace)


@pytest.mark.gate
def test_a_run_under_faults_gets_the_answers_of_one_without(tmp_path: Path) -> None:
    faults = dict.fromkeys(
        ("rate_limit", "rate_limit_seconds", "rate_limit_ms", "server_error", "drop", "half_body", "malformed",
         "html", "empty_choices"), 0.05,
    )  # fmt: skip
    runs = {}
    for name, options in (("calm", {}), ("stormy", {"faults": faults})):
        folder = tmp_path / name
        folder.mkdir()
        with run_chat_server(**options) as server:
            result = run_spec(spec_file(folder, server.base_url, size=20), folder / "results")
            runs[name] = (derived_files(result.folder.path), server.stats())
        assert result.metrics["outcomes"]["transport_failed"] == 0
    assert runs["stormy"][0] == runs["calm"][0]
    kinds = Counter(runs["stormy"][1]["kinds"])
    answered = kinds.pop("answer")
    assert len(kinds) == len(faults)
    # No usable answer was paid for twice.
    assert answered == runs["calm"][1]["requests"]
    rows = table(result.folder.path, "completions")
    assert sum(row["error"] is not None for row in rows) == kinds.total()
    assert len(rows) == runs["stormy"][1]["requests"]


@pytest.mark.gate
def test_a_call_that_hangs_is_given_up_at_the_timeout_and_retried(tmp_path: Path) -> None:
    with run_chat_server(faults={"hang": 0.3}, max_faults=1, hang=3600.0, decide=1.0) as server:
        path = spec_file(
            tmp_path, server.base_url, size=4, models={"m": {"timeout": 2.0}}, agents={"prover": None},
            protocol={"use": "solo_verifier", "max_message_rounds": None},
            prompts="prompts/code_validation/solo_verifier",
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        assert server.stats()["kinds"]["hang"] > 0
    assert result.metrics["outcomes"]["decided"] == 4
