"""A run reports its problems at its end, each once, with a count, an example and advice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from runner.cli.terminal.run_result import as_json
from tests.cli.test_cli import run_cli
from tests.support.processes import nip_run_here
from tests.support.runs import only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import SOLO_OVERRIDES, spec_file

SOLO: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}


def play_and_read_troubles(
    folder: Path, size: int = 8, *, server: dict[str, Any], **changes: Any
) -> dict[str, dict[str, Any]]:
    """Play a run and return its troubles by kind, which must also be in its notes."""
    with run_chat_server(**server) as provider:
        result = run_spec(spec_file(folder, provider.base_url, size=size, **changes), folder / "results")
    troubles = {row["kind"]: row for row in as_json(result)["troubles"]}
    for row in troubles.values():
        assert [note for note in result.notes if note.startswith(row["message"])]
    return troubles


def retry_settings(attempts: int, then: str = "empty_message") -> dict[str, Any]:
    return {"invalid_response": {"attempts": attempts, "then": then}, "transient": {"attempts": 1}}


def test_unparsable_answers_are_reported_with_reason_and_consequences(tmp_path: Path) -> None:
    troubles = play_and_read_troubles(tmp_path, server={"kind": "bad_decision"}, **SOLO, retry=retry_settings(3))
    assert list(troubles) == ["no_decision", "repeats", "empty_messages"]
    first_rollout = table(only_run(tmp_path / "results"), "rollouts")[0]["rollout_id"]
    repeats = troubles["repeats"]
    assert (repeats["message"], repeats["show"]) == (
        "16 of 24 calls were repeated because of unparsable answers",
        first_rollout,
    )
    assert repeats["example"] == (
        f"verifier in round 0 of rollout {first_rollout} (p0) answered 'I have checked it.\\n\\nDecision: undecided': "
        "the answer holds 'decision:' and neither 'Decision: accept' nor 'Decision: reject'"
    )
    undecided = troubles["no_decision"]
    assert undecided["message"] == "8 of 8 rollouts ended undecided, and accuracy counts them as not correct"
    assert (undecided["count"], undecided["of"], undecided["show"]) == (8, 8, "--undecided")
    assert "the last answer of verifier is 'I have checked it." in undecided["example"]
    assert troubles["empty_messages"]["message"] == (
        "8 of 8 messages were left empty because none of 3 answers was usable"
    )


@pytest.mark.parametrize(
    ("kind", "then", "expected", "message"),
    [
        ("bad_decision", "abort_rollout", "invalid_response", "8 of 8 rollouts ended because no answer was usable"),
        pytest.param(
            "context_length_exceeded",
            "empty_message",
            "context_exceeded",
            "longer than the model's context",
            marks=pytest.mark.full,
        ),
        pytest.param("content_filter", "empty_message", "refused", "ended in a refusal", marks=pytest.mark.full),
        pytest.param("null_content", "empty_message", "no_content", "answers without content", marks=pytest.mark.full),
        pytest.param("length", "empty_message", "cut", "8 of 8 answers were truncated", marks=pytest.mark.full),
    ],
)
def test_each_game_end_without_a_verdict_is_reported(
    tmp_path: Path, kind: str, then: str, expected: str, message: str
) -> None:
    row = play_and_read_troubles(tmp_path, server={"kind": kind}, **SOLO, retry=retry_settings(2, then))[expected]
    if expected == "cut":
        assert "  (cut at the token limit)\n" in run_cli("show", "last", row["show"], cwd=tmp_path).stdout
    assert message in row["message"]
    assert "(p0)" in row["example"]


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("text", ["", " \n"])
def test_answers_without_content_are_one_trouble_whose_advice_names_no_template(tmp_path: Path, text: str) -> None:
    troubles = play_and_read_troubles(tmp_path, 4, server={"text": text}, **SOLO, retry=retry_settings(3))
    assert list(troubles) == ["no_decision", "no_content"]
    row = troubles["no_content"]
    assert row["message"] == "4 of 4 calls returned answers without content"
    assert row["example"].endswith("(p0): the answer has no content (finish_reason 'stop')")
    for trouble in troubles.values():
        assert "reasoning tokens" in trouble["advice"]
        assert "template" not in trouble["advice"]
    assert "  (empty: the answer has no content)\n" in run_cli("show", "last", row["show"], cwd=tmp_path).stdout
    output = run_cli("show", "last", "--wrong", cwd=tmp_path).stdout
    assert output.endswith("has no wrong verdict; 4 without a verdict: --undecided\n")


@pytest.mark.full
def test_rare_repeated_answers_are_not_reported(tmp_path: Path) -> None:
    server = {"faults": {"bad_decision": 0.02}, "max_faults": 1}
    assert play_and_read_troubles(tmp_path, 20, server=server, retry=retry_settings(4)) == {}
    assert sum(row["attempt"] for row in table(only_run(tmp_path / "results"), "completions")) > 0


@pytest.mark.full
def test_the_result_has_five_rows_then_troubles_and_a_finished_run_repeats_it(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        spec_file(tmp_path, server.base_url, size=4, **SOLO, retry=retry_settings(2))
        done = nip_run_here("spec.yaml", "--results", "my results", cwd=tmp_path)
        run = only_run(tmp_path / "my results").name
        repeated = nip_run_here("spec.yaml", "--results", "my results", cwd=tmp_path)
        verbose = nip_run_here("spec.yaml", "--results", "my results", "-v", cwd=tmp_path)
        (summary,) = json.loads(nip_run_here("spec.yaml", "--results", "my results", "--json", cwd=tmp_path).stdout)
    assert (done.returncode, done.stdout) == (0, repeated.stdout)
    title, *rows = done.stdout.splitlines()
    assert title == run
    assert [row.split()[0] for row in rows] == ["accuracy", "decided", "n", "cost", "where"]
    assert rows[1] == "decided   0 of 4 (no_decision 4)"
    assert "calls_per_message" in verbose.stdout
    assert " decision " not in verbose.stdout  # a mean of codes, one of which means "none"
    for stderr in (done.stderr, repeated.stderr, verbose.stderr):
        assert stderr.count("warning: 4 of 4 rollouts ended undecided") == stderr.count("ended undecided") == 1
        assert f"  show it: nip-run show {run} --undecided --results 'my results'\n" in stderr
        assert "warning: 4 of 8 calls were repeated because of unparsable answers\n" in stderr
    assert [row["kind"] for row in summary["troubles"]] == ["no_decision", "repeats", "empty_messages"]
    assert sum(note.startswith("4 of 8 calls were repeated") for note in summary["notes"]) == 1
    show_output = run_cli("show", "last", "--results", "my results", cwd=tmp_path).stdout
    assert (
        "\nwarning: 4 of 8 calls were repeated because of unparsable answers\n  example: verifier in round 0"
        in show_output
    )
    assert f"  show it: nip-run show {run} --undecided --results 'my results'\n" in show_output
    show_json = run_cli("show", "last", "--results", "my results", "--json", cwd=tmp_path).stdout
    assert json.loads(show_json)["troubles"] == summary["troubles"]


@pytest.mark.full
def test_a_failed_run_prints_each_note_once_and_its_earlier_troubles(tmp_path: Path) -> None:
    with run_chat_server(kind="unauthorized", after=3, faults={"bad_decision": 1.0}, max_faults=1) as server:
        changes = {
            **SOLO,
            "models": {"m": {"logprobs": True}},
            "rollouts": {"concurrency": 1},
            "retry": retry_settings(2),
        }
        spec_file(tmp_path, server.base_url, size=8, **changes)
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        second = nip_run_here("spec.yaml", "--again", "--json", cwd=tmp_path)
    assert done.returncode == 4
    assert done.stderr.count("returns no log-probabilities") == 1
    assert done.stderr.count("were repeated because of unparsable answers") == 1
    assert second.returncode == 4
    assert "unauthorized" not in done.stdout


@pytest.mark.full
def test_verdicts_before_any_prover_spoke_are_reported_and_compare_shows_them(tmp_path: Path) -> None:
    with run_chat_server(text="I know this.\n\nDecision: accept") as server:
        spec_file(tmp_path, server.base_url, size=4)
        solo = nip_run_here("spec.yaml", *SOLO_OVERRIDES, "--run-id", "alone", cwd=tmp_path)
        nip = nip_run_here("spec.yaml", "--run-id", "nip", cwd=tmp_path)
        later = nip_run_here("spec.yaml", "protocol.min_message_rounds=3", "--run-id", "later", cwd=tmp_path)
    message = "in 4 of 4 decided games, verifier decided before any prover spoke; these games say nothing about provers"
    assert f"warning: {message} " in (warning := " ".join(nip.stderr.split()))
    assert "set protocol.verifier_first=false or protocol.min_message_rounds=3" in warning
    assert "before any prover spoke" not in solo.stderr + later.stderr
    assert f"warning: {message}" in " ".join(run_cli("show", "nip", cwd=tmp_path).stdout.split())
    compared = nip_run_here("compare", "nip", "alone", "--json", cwd=tmp_path)
    assert f"nip: {message}" in json.loads(compared.stdout)["notes"]
    nip_run_here("report", "alone", "nip", "-o", "report.html", cwd=tmp_path)
    assert f'<p class="state">nip: {message}</p>' in (tmp_path / "report.html").read_text()


@pytest.mark.full
@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.gate)])
def test_a_few_verdicts_before_any_prover_spoke_are_not_reported(tmp_path: Path, processes: int) -> None:
    result = run_spec(spec_file(tmp_path, size=40, execution={"processes": processes}), tmp_path / "results")
    rows = table(only_run(tmp_path / "results"), "rollouts")
    assert 0 < sum(row["rounds"] == 1 for row in rows) < 20
    assert as_json(result)["troubles"] == []


def test_a_run_without_answers_says_why_it_failed_and_how_to_resume_it(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9", size=2, **SOLO, retry=retry_settings(1))
    done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 1
    reason = r"failed: 2 of 2 rollouts failed in transport; the first error: .*127\.0\.0\.1:9"
    assert re.search(rf"{reason}.*\. Resolve this, then resume with: nip-run run spec\.yaml", done.stderr)


def test_lost_rollouts_are_reported_once_with_the_error(tmp_path: Path) -> None:
    with run_chat_server(faults={"server_error": 0.3}, max_faults=10_000) as server:
        spec_file(tmp_path, server.base_url, size=12, **SOLO, retry=retry_settings(2))
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    lost = sum(row["outcome"] == "transport_failed" for row in table(only_run(tmp_path / "results"), "rollouts"))
    assert 0 < lost < 12
    assert done.returncode == 1
    assert done.stderr.count(f"{lost} of 12 rollouts lost in transport") == done.stderr.count("in transport") == 1
    assert "answered 500: The server had an error" in done.stderr
    assert f"transport_failed {lost})" in done.stdout
    assert "\r" not in done.stderr
    show_output = run_cli("show", "last", cwd=tmp_path).stdout
    assert f"warning: {lost} of 12 rollouts failed in transport; the first error:" in show_output
    assert f"resume with: nip-run results/runs/{only_run(tmp_path / 'results').name}\n" in show_output
