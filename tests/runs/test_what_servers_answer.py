"""Runs on a server that refuses a prompt, cuts answers before their first word, or ignores `n`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted, ProviderRefusal
from runner.base.storage.atomic_files import read_json
from runner.models.answers import choices_of
from runner.models.interface import Body, Choice, Completion, Request, SampleKey
from runner.models.providers.openai_errors import classify_error
from runner.models.settings import ModelSettings
from runner.runs.execution.server_notes import ServerProblemDetector
from tests.support.processes import nip_run_here
from tests.support.runs import journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

SOLO: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}
THIRD_SOLUTION = "returns x + 3."
"""Text that only the prompts of one datapoint contain."""


def make_request(repeat: int) -> Request:
    return Request("m", [{"role": "user", "content": "Is it right?"}], SampleKey("p0", repeat, 0, "verifier", 0))


def read_outcomes(run: Path) -> dict[str, str]:
    return {row["datapoint_id"]: row["outcome"] for row in table(run, "rollouts")}


@pytest.mark.full
@pytest.mark.parametrize("concurrency", [pytest.param(1, marks=pytest.mark.full), 8])
def test_a_malformed_request_ends_only_the_game_of_its_datapoint(tmp_path: Path, concurrency: int) -> None:
    with run_chat_server(malformed=THIRD_SOLUTION) as server:
        path = spec_file(tmp_path, server.base_url, size=8, **{**SOLO, "rollouts": {"concurrency": concurrency}})
        result = run_spec(path, tmp_path / "r")
        first_outcomes = read_outcomes(only_run(tmp_path / "r"))
        request_count = server.requests
        resumed = run_spec(path, tmp_path / "r")
        assert server.requests == request_count + 1  # only the failed one
    assert first_outcomes.pop("p3") == "transport_failed"
    assert set(first_outcomes.values()) <= {"decided", "no_decision"}
    assert read_outcomes(only_run(tmp_path / "r")) == {**first_outcomes, "p3": "transport_failed"}
    assert (result.manifest.transport_failed, resumed.manifest.transport_failed) == (1, 1)
    (note,) = [note for note in resumed.notes if note.startswith("1 of 8 rollouts failed in transport")]
    assert "the first error: MalformedError: http" in note
    assert "Invalid value for 'content': it cannot be read (if the server accepts other requests of models.m" in note
    assert "same command" not in note
    ended_records = [record for record in journal_records(only_run(tmp_path / "r")) if record["kind"] == "ended"]
    assert {(record["sample"][0], record["error"]) for record in ended_records} == {("p3", "MalformedError")}


def test_the_first_datapoint_may_be_the_malformed_one(tmp_path: Path) -> None:
    """Its refusal comes before any answer."""
    with run_chat_server(malformed="returns x + 0.") as server:
        path = spec_file(tmp_path, server.base_url, size=4, **{**SOLO, "rollouts": {"concurrency": 1}})
        assert run_spec(path, tmp_path / "r").manifest.transport_failed == 1


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "options", "expected_changes"),
    [
        ({"chat_format": "openai"}, {}, {"chat_format": "alternating"}),
        ({"system_role": "system"}, {"takes_system": False}, {"system_role": "user"}),
        (
            {"chat_format": "openai"},
            {"takes_system": False},
            {"chat_format": "alternating", "system_role": "user"},
        ),
    ],
    ids=["first turns pass", "system", "both"],
)
def test_a_refusal_by_the_chat_template_stops_the_run_with_advice_that_helps(
    tmp_path: Path, settings: dict[str, Any], options: dict[str, Any], expected_changes: dict[str, str]
) -> None:
    overrides = [f"+models.m.{key}={value}" for key, value in settings.items()]
    with run_chat_server(alternates=True, **options) as server:
        spec_file(tmp_path, server.base_url, size=4)
        refused = nip_run_here("spec.yaml", *overrides, "--run-id", "mine", cwd=tmp_path)
        assert refused.returncode == 4, refused.stderr
        advice = " and ".join(f"models.m.{key} to {value}" for key, value in expected_changes.items())
        assert f"which are the same in all games: set {advice}." in refused.stderr
        arguments = [f"+models.m.{key}={expected_changes[key]}" for key in settings]
        resume_command = " ".join(["nip-run run spec.yaml", *arguments, "--run-id NAME"])
        assert refused.stderr.splitlines()[-1] == f"After that change, resume with: {resume_command}"
        arguments += [f"+models.m.{key}={value}" for key, value in expected_changes.items() if key not in settings]
        done = nip_run_here("spec.yaml", *arguments, "--run-id", "other", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "transport_failed" not in read_outcomes(tmp_path / "results" / "runs" / "other").values()


def test_advice_for_an_unsupported_chat_template_names_no_key_that_is_set() -> None:
    settings = ModelSettings(model="x", chat_format="alternating", system_role="user")
    error = classify_error(400, {"message": "Conversation roles must alternate user/assistant"}, {}, settings, "m")
    assert isinstance(error, ProviderRefusal)
    assert "change models.m.model, or the chat template of its server" in str(error)
    assert dict(error.changes) == {"models.m.model": None}


@pytest.mark.parametrize(("size", "expected_counts"), [(24, range(16, 24)), (3, [3])])
def test_a_server_that_refuses_every_request_stops_the_run(
    tmp_path: Path, size: int, expected_counts: Collection[int]
) -> None:
    """The run stops once refusals open the circuit breaker, or at its end if it has fewer games."""
    with run_chat_server(kind="malformed_request") as server:
        path = spec_file(tmp_path, server.base_url, size=size, **SOLO)
        with pytest.raises(
            ProviderRefusal, match=r"(?s)answered 400: Invalid .*refuses the request; check the settings in models\.m"
        ):
            run_spec(path, tmp_path / "r")
        assert server.requests in expected_counts
    assert read_json(only_run(tmp_path / "r") / "manifest.json")["status"] == "failed"


@pytest.mark.full
def test_a_group_that_was_answered_plays_on_despite_many_malformed_requests(tmp_path: Path) -> None:
    with run_chat_server(kind="malformed_request", after=2) as server:
        changes = {**SOLO, "rollouts": {"concurrency": 1}, "retry": {"breaker": {"failures": 3}}}
        path = spec_file(tmp_path, server.base_url, size=8, **changes)
        runs = [run_spec(path, tmp_path / "r") for _ in range(2)]
        assert server.requests == 2 + 6 + 6
    assert [(run.manifest.status, run.manifest.transport_failed) for run in runs] == [("incomplete", 6)] * 2


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "paid"),
    [pytest.param("blank_length", True, marks=pytest.mark.full), ("null_length", True), ("cut_at_limit", False)],
)
def test_an_answer_cut_before_its_first_word_is_requested_again_and_gives_no_message(
    tmp_path: Path, kind: str, *, paid: bool
) -> None:
    key = "max_completion_tokens" if paid else "max_tokens"
    with run_chat_server(kind=kind) as server:
        changes = {
            **SOLO,
            "models": {"m": {key: 40}},
            "retry": {"invalid_response": {"attempts": 2}},
        }
        path = spec_file(tmp_path, server.base_url, size=1, **changes)
        done = nip_run_here(path, "--results", tmp_path / "r", cwd=tmp_path)
        assert server.requests == 2
    assert done.returncode == 0, done.stderr
    (note,) = [line for line in done.stderr.splitlines() if "note: m: the model reached the token limit" in line]
    assert note.endswith(f"because of reasoning tokens; raise models.m.{key}")
    run = only_run(tmp_path / "r")
    (rollout,) = table(run, "rollouts")
    assert rollout["outcome"] == "invalid_response"
    assert rollout["error"].endswith(f"raise models.m.{key}")
    metrics = read_json(run / "metrics.json")
    values = {row["metric"]: row["value"] for row in metrics["metrics"]}
    assert (values["calls_per_message"], values["token_limit_proportion"]) == (2.0, 1.0)
    assert metrics["original_statistics"]["verifier.token_limit_proportion"] is None
    answers = [record for record in journal_records(run) if record["kind"] == "call"]
    choices_by_call = [
        [Choice(*choice) for choice in record.get("choices", ())] or choices_of(record["answer"]) for record in answers
    ]
    assert [list(choices) for choices in choices_by_call] == [[Choice(None, "length")]] * 2
    assert [bool(record.get("charged")) for record in answers] == [not paid] * 2
    assert {row["finish_reason"] for row in table(run, "completions")} == {"length"}


def test_a_server_that_ignores_n_is_reported_once(tmp_path: Path) -> None:
    with run_chat_server(max_n=1) as server:
        changes = {**SOLO, "models": {"m": {"share_prompts": True}}, "rollouts": {"per_datapoint": 3, "concurrency": 8}}
        path = spec_file(tmp_path, server.base_url, size=4, **changes)
        done = nip_run_here(path, "--results", tmp_path / "r", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("the server of m ignores `n`") == 1
    assert (only_run(tmp_path / "r") / "run.log").read_text("utf-8").count("ignores `n`") == 1


def test_a_server_that_gives_no_logprobs_is_reported_once(tmp_path: Path) -> None:
    changes = {**SOLO, "models": {"m": {"logprobs": True}}}
    with run_chat_server() as server:
        notes = run_spec(spec_file(tmp_path, server.base_url, size=4, **changes), tmp_path / "r").notes
    assert [note for note in notes if "log-prob" in note] == [
        (
            "the server of m returns no log-probabilities, although models.m.logprobs requests them; "
            "use another server, or remove this setting"
        )
    ]
    completion = Completion(
        (Choice("a", "stop"),), "x", body=Body(b'{"logprobs":{"content":[{"token":"a","logprob":-1}]}}')
    )
    new_notes: list[str] = []
    ServerProblemDetector({"m": ModelSettings(model="x", logprobs=True)}, new_notes).check_answer(
        make_request(0), completion
    )
    assert new_notes == []


def test_answers_of_another_model_in_a_resumed_run_are_noted_once(tmp_path: Path) -> None:
    with run_chat_server(model="m-2026-01") as server:
        path = spec_file(tmp_path, server.base_url, size=4, budget={"completions": 3})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        server.change(model="m-2026-05")
        notes = run_spec(path, tmp_path / "results", "budget=null").notes
    assert sum("different models ('m-2026-01' and 'm-2026-05')" in note for note in notes) == 1


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["Decision: accept"] * 5, None),
        (["Decision: accept"] * 6, "all 5 times"),
        (["Decision: accept", "Decision: accept", "Decision: reject", *["Decision: accept"] * 9], None),
        (["It is right, for a reason. " * 9] * 2, "the only time"),
    ],
    ids=["by chance", "often", "one differs", "long"],
)
def test_a_fixed_seed_is_noted_only_if_answers_repeat(answers: list[str], expected: str | None) -> None:
    notes: list[str] = []
    detector = ServerProblemDetector({"m": ModelSettings(model="x", seed=3)}, notes)
    for repeat, text in enumerate(answers):
        detector.check_answer(make_request(repeat), Completion((Choice(text, "stop"),), "x"))
    assert [expected is not None and expected in note for note in notes] == [True] * (expected is not None)


@pytest.mark.full
def test_a_cache_that_answers_samples_one_by_one_is_not_reported_as_ignoring_n(tmp_path: Path) -> None:
    changes = {**SOLO, "models": {"m": {"share_prompts": True}}, "rollouts": {"per_datapoint": 3}}
    with run_chat_server() as server:
        path = spec_file(tmp_path, server.base_url, size=1, cache="cache.sqlite", **changes)
        for results in ("first", "cached"):
            notes = run_spec(path, tmp_path / results).notes
            assert not [note for note in notes if "ignores `n`" in note]
        assert server.requests == 1


@pytest.mark.full
@pytest.mark.parametrize("repeated", [True, pytest.param(False, marks=pytest.mark.full)])
def test_equal_answers_to_repeats_or_retries_under_a_fixed_seed_are_reported_once(
    tmp_path: Path, *, repeated: bool
) -> None:
    """The server answers by the request's bytes, like a server that uses the seed."""
    changes: dict[str, Any] = (
        {"rollouts": {"per_datapoint": 3}} if repeated else {"retry": {"invalid_response": {"attempts": 2}}}
    )
    with run_chat_server(kind=None if repeated else "bad_decision") as server:
        path = spec_file(tmp_path, server.base_url, size=6, **{**SOLO, "models": {"m": {"seed": 3}}, **changes})
        notes = run_spec(path, tmp_path / "r").notes
        assert sum("models.m.seed is fixed (3)" in note for note in notes) == 1
        unseeded_spec = spec_file(tmp_path, server.base_url, size=6, **{**SOLO, **changes})
        assert not any("seed" in note for note in run_spec(unseeded_spec, tmp_path / "r2").notes)


@pytest.mark.parametrize("text", ["<think>\nIt is wrong.\n</think>\n\nIt is right.", "Hm.</think>Right.", "<think>Cut"])
def test_thoughts_in_the_text_of_answers_are_reported_once(text: str) -> None:
    notes: list[str] = []
    detector = ServerProblemDetector({"m": ModelSettings(model="x")}, notes)
    for repeat, answer in enumerate(["It is right.", text, text]):
        detector.check_answer(make_request(repeat), Completion((Choice(answer, "stop"),), "x"))
    (note,) = notes
    assert note.startswith("answers of m contain the model's thoughts (<think>), so other agents see them")


def test_answers_that_end_with_another_name_for_stop_are_used(tmp_path: Path) -> None:
    for reason in ("eos", "eos_token"):
        reply = {"message": {"content": "Decision: reject"}, "finish_reason": reason}
        with run_chat_server(reply={"model": "m", "choices": [reply]}) as server:
            run_spec(spec_file(tmp_path, server.base_url, size=1, **SOLO), tmp_path / reason)
        assert read_outcomes(only_run(tmp_path / reason)) == {"p0": "decided"}
