"""Runs record the confidence of verdicts, and replayed and resumed runs record the same."""

from __future__ import annotations

import json
import re
import shutil
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.cli.main import main
from runner.cli.terminal.run_result import as_json
from runner.game.protocols.rounds import Round
from runner.models.logprobs import BOUND, PAccept
from runner.rollouts.confidence import confidence_of, is_bound
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from runner.spec.warnings.catalog import warnings_of
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import training_spec

SOLO_VERIFIER: dict[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None},
    "prompts": "prompts/code_validation/solo_verifier",
    "agents": {"prover": None},
}
LOGPROBS: dict[str, Any] = {"models": {"m": {"logprobs": True, "top_logprobs": 5}}}
BOTH_CONFIDENCES = {**SOLO_VERIFIER, **LOGPROBS, "verdict": {"confidence": "both"}}


def read_confidences(run: Path) -> list[tuple[float | None, float | None, str | None]]:
    names = ("confidence_stated", "confidence_logprob", "confidence_note")
    return [tuple(row[name] for name in names) for row in table(run, "rollouts")]


def compute_confidences(run: Path) -> list[tuple[float, float]]:
    """Compute P(accept) independently, from the stated number and from the alternatives of the verdict's token."""
    read_confidences = []
    for row in table(run, "completions"):
        sign = 1 if "Decision: accept" in row["raw_message"] else -1
        stated = float(re.findall(r"Confidence: (\S+)", row["raw_message"])[0])
        (alternatives,) = (token["top"] for token in json.loads(row["verdict_logprobs"]) if len(token["top"]) > 1)
        shares = {key[1]: 2.718281828459045**value for key, value in alternatives.items() if key.strip()}
        read_confidences.append((stated if sign > 0 else 1 - stated, shares["a"] / (shares["a"] + shares["r"])))
    return read_confidences


@pytest.mark.full
def test_recorded_confidences_are_the_same_after_a_replay_and_a_resumed_run(tmp_path: Path) -> None:
    with run_chat_server(logprobs=True, decide=1.0) as server:
        path = spec_file(tmp_path, server.base_url, size=4, **BOTH_CONFIDENCES)
        first = run_spec(path, tmp_path / "r")
        requests_of_first_run = server.requests
        replay = run_spec(path, tmp_path / "other", replay=ReplayOf(first.folder.path))
        # an interrupted run resumes from its journal
        files_of_first_run = derived_files(first.folder.path)
        journal = first.folder.path / "journal.jsonl"
        journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))
        for name in ("rollouts", "messages", "completions"):
            (first.folder.path / f"{name}.parquet").unlink()
        manifest = first.folder.path / "manifest.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "status": "interrupted"}))
        resumed = run_spec(path, tmp_path / "r")
        assert (requests_of_first_run, server.requests) == (4, 4 + 2)
    run = resumed.folder.path
    assert derived_files(run) == files_of_first_run
    assert derived_files(replay.folder.path) == files_of_first_run
    assert [row[:2] for row in read_confidences(run)] == [pytest.approx(pair) for pair in compute_confidences(run)]
    assert [note for *_, note in read_confidences(run)] == [None] * 4
    assert read_confidences(replay.folder.path) == read_confidences(run)
    assert [row["verdict_logprobs"] for row in table(replay.folder.path, "completions")] == [
        row["verdict_logprobs"] for row in table(run, "completions")
    ]


def test_confidence_of_votes_is_the_mean_over_deciding_votes(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=8, **BOTH_CONFIDENCES), tmp_path / "r", "votes=3").folder.path
    confidences_by_rollout: dict[str, list[tuple[float, float]]] = {}
    for row, pair in zip(table(run, "completions"), compute_confidences(run), strict=True):
        confidences_by_rollout.setdefault(row["rollout_id"], []).append(pair)
    split_panels = 0
    for row in table(run, "rollouts"):
        split_panels += len(set(json.loads(row["votes"]))) > 1
        recorded = (row["confidence_stated"], row["confidence_logprob"])
        assert recorded == pytest.approx(
            [sum(column) / 3 for column in zip(*confidences_by_rollout[row["rollout_id"]], strict=True)]
        )
    assert split_panels > 1


def test_confidence_of_unanimous_and_divided_votes_is_their_mean(tmp_path: Path) -> None:
    judge = Plan(load_spec(spec_file(tmp_path, **BOTH_CONFIDENCES))).agents()["verifier"]
    votes = (1, 0, 1, 0, 1)
    texts = [f"Decision: {('reject', 'accept')[v]}\nConfidence: {(0.99, 0.55)[v]}" for v in votes]
    calls = [
        Call(0, "verifier", 0, "m", raw_message=text, p_accept=PAccept((0.01, 0.55)[v]), vote=index)
        for index, (v, text) in enumerate(zip(votes, texts, strict=True))
    ]
    calls.insert(1, Call(0, "verifier", 0, "m", raw_message="Well.", vote=1))
    calls[2] = replace(calls[2], attempt=1)
    last = Round({"verifier": texts[0]}, decision=1, calls={"verifier": 6}, votes=votes)
    confidence = confidence_of(judge, [last], calls, 1)
    assert confidence[:2] == pytest.approx([(3 * 0.55 + 2 * 0.01) / 5] * 2)
    assert confidence.note is None
    calls[-1] = replace(calls[-1], p_accept=PAccept(0.99, BOUND), raw_message="Decision: accept\nConfidence: so so")
    confidence = confidence_of(judge, [last], calls, 1)
    assert confidence.stated == pytest.approx((2 * 0.55 + 2 * 0.01) / 4)
    assert is_bound(confidence.note)
    assert str(confidence.note).startswith("some votes stated no readable confidence; ")


@pytest.mark.full
def test_every_intermediate_verdict_has_its_own_confidence(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=3, **LOGPROBS, verdict={"confidence": "both"}, fine_tune=None)
    run_spec(path, tmp_path / "r", run_id="first")
    options = ["--verdict", "each", "--results", str(tmp_path / "r"), "-q"]
    overrides = [
        "+models.judge={provider: dummy, model: wise, logprobs: true, top_logprobs: 5}",
        "agents.verifier.model=judge",
    ]
    with redirect_stdout(StringIO()):
        assert main(["rejudge", "first", *overrides, *options, "--run-id", "second"]) == 0
    run = tmp_path / "r" / "runs" / "second"
    games = {row["rollout_id"]: row for row in table(run, "rollouts")}
    confidences_by_round = {(row["rollout_id"], row["round"]): pair
             for row, pair in zip(table(run, "completions"), compute_confidences(run), strict=True)}  # fmt: skip
    for (rollout, round_), pair in confidences_by_round.items():
        (verdict,) = (recorded for recorded in json.loads(games[rollout]["verdicts"]) if recorded["round"] == round_)
        assert (verdict["confidence_stated"], verdict["confidence_logprob"]) == pytest.approx(pair)
    assert len(confidences_by_round) > len(games)
    for row in games.values():
        last = json.loads(row["verdicts"])[-1]
        assert (last["confidence_stated"], last["confidence_logprob"]) == confidences_in(row)
    with redirect_stdout(StringIO()) as stdout:
        assert main(["show", "second", next(iter(games)), "--results", str(tmp_path / "r")]) == 0
    assert re.search(r"verdicts: round 0 \w+ \(P\(accept\): 0\S* stated, \S+ by log-probabilities\)", stdout.getvalue())


def confidences_in(row: dict[str, Any]) -> tuple[float | None, float | None]:
    return row["confidence_stated"], row["confidence_logprob"]


@pytest.mark.full
def test_shared_calls_and_multiple_choices_keep_their_log_probabilities(tmp_path: Path) -> None:
    for name, settings in (("n", {"n": 3}), ("shared", {"share_prompts": True})):
        folder = tmp_path / name
        folder.mkdir()
        with run_chat_server(logprobs=True, decide=1.0) as server:
            changes = {
                **BOTH_CONFIDENCES,
                "models": {"m": {**LOGPROBS["models"]["m"], **settings}},
                "rollouts": {"per_datapoint": 2},
            }
            run_spec(spec_file(folder, server.base_url, size=2, **changes), folder / "r")
        run = only_run(folder / "r")
        expected_confidences = [
            pair for number, pair in enumerate(compute_confidences(run)) if name == "shared" or number % 3 == 0
        ]
        assert [row[:2] for row in read_confidences(run)] == [pytest.approx(pair) for pair in expected_confidences]


@pytest.mark.full
def test_verdict_without_a_confidence_is_retried_then_accepted_and_counted(tmp_path: Path) -> None:
    result, calls = run_with_unreadable_confidence(tmp_path, "empty_message")
    assert calls == 6
    rows = table(only_run(tmp_path / "r"), "rollouts")
    assert {(row["outcome"], row["confidence_stated"]) for row in rows} == {("decided", None)}
    assert {row["confidence_note"] for row in rows} == {"no answer stated a readable confidence"}
    kinds = {row["kind"]: f"{row['message']}; {row['example']}" for row in as_json(result)["troubles"]}
    assert set(kinds) == {"repeats", "confidence_unknown"}
    assert kinds["confidence_unknown"].startswith("2 of 2 rollouts lack a confidence (no answer stated a readable")
    assert "but no 'Confidence:' with a number" in kinds["repeats"]


@pytest.mark.full
def test_verdict_without_a_confidence_aborts_the_rollout_under_abort_rollout(tmp_path: Path) -> None:
    run_with_unreadable_confidence(tmp_path, "abort_rollout")
    assert {row["outcome"] for row in table(only_run(tmp_path / "r"), "rollouts")} == {"invalid_response"}


def run_with_unreadable_confidence(folder: Path, then: str) -> tuple[FinishedRun, int]:
    """Run a verifier that never states a number, and return the result and the number of calls."""
    retry = {"invalid_response": {"attempts": 3, "then": then}}
    with run_chat_server(confidence="Confidence: high 5", decide=1.0) as server:
        changes = {**SOLO_VERIFIER, "verdict": {"confidence": "stated"}, "retry": retry}
        return run_spec(spec_file(folder, server.base_url, size=2, **changes), folder / "r"), server.requests


@pytest.mark.full
def test_missing_log_probabilities_leave_the_confidence_unknown_with_a_reason(tmp_path: Path) -> None:
    with run_chat_server(decide=1.0) as server:
        changes = {**SOLO_VERIFIER, **LOGPROBS, "verdict": {"confidence": "logprob"}}
        result = run_spec(spec_file(tmp_path, server.base_url, size=2, **changes), tmp_path / "r")
    note = "by log-probabilities: the server told no log-probabilities of the answer"
    assert read_confidences(only_run(tmp_path / "r")) == [(None, None, note)] * 2
    assert [row["message"] for row in as_json(result)["troubles"]] == [f"2 of 2 rollouts lack a confidence ({note})"]


@pytest.mark.full
def test_dummy_model_gives_both_confidences_and_show_prints_them(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=4, **LOGPROBS, verdict={"confidence": "both"})
    run = run_spec(path, tmp_path / "r").folder.path
    recorded = [
        (row["decision"], row["confidence_stated"], row["confidence_logprob"]) for row in table(run, "rollouts")
    ]
    assert all((stated >= 0.5) == (decision == 1) or stated == 0.5 for decision, stated, _ in recorded)
    assert all(0 < logprob < 1 for *_, logprob in recorded)
    rollout = table(run, "rollouts")[0]["rollout_id"]
    stdout = nip_run_here("show", run.name, rollout, "--results", tmp_path / "r", cwd=tmp_path).stdout
    assert f"P(accept): {recorded[0][1]:.3g} stated, {recorded[0][2]:.3g} by log-probabilities" in stdout
    document = json.loads(nip_run_here("show", run.name, rollout, "--json", "--results", "r", cwd=tmp_path).stdout)
    assert (document["decision"], document["confidence_stated"], document["confidence_logprob"]) == recorded[0]
    plain = run_spec(spec_file(tmp_path, size=4), tmp_path / "plain").folder.path
    assert [row["decision"] for row in table(plain, "rollouts")] == [decision for decision, *_ in recorded]
    assert read_confidences(plain) == [(None, None, None)] * 4


def test_confidence_text_affects_prompts_and_identity_only_if_requested(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2)
    plan, plan_with_marker = (
        Plan(load_spec(path, overrides)) for overrides in ([], ["decision_format.confidence='Sure:'"])
    )
    assert plan.run_id == plan_with_marker.run_id
    stated_plans = [
        Plan(load_spec(path, ["verdict.confidence=stated", *overrides]))
        for overrides in ([], ["decision_format.confidence='Sure:'"])
    ]
    assert len({plan.run_id, *(stated_plan.run_id for stated_plan in stated_plans)}) == 3
    job = next(plan.jobs())
    prompt, prompt_with_confidence = (
        prompted_plan.agents()["verifier"].prompt(job.observation(0, ())) for prompted_plan in (plan, stated_plans[1])
    )
    assert prompt_with_confidence[0]["content"].startswith(prompt[0]["content"] + "\n\nWherever you decide")
    assert "Sure: <a number from 0 to 1>" in prompt_with_confidence[0]["content"]
    assert not [template for template in plan.spec.prompts.sources if "confidence" in template]


def test_error_for_confidence_names_the_missing_settings(tmp_path: Path) -> None:
    prompts = tmp_path / "own"
    shutil.copytree(Path("prompts/code_validation/solo_verifier"), prompts)
    (prompts / "verifier.confidence.jinja").unlink()
    path = spec_file(tmp_path, size=2, **{**SOLO_VERIFIER, "prompts": "own"})
    with pytest.raises(SpecError) as caught:
        load_spec(path, ["verdict.confidence=both"])
    messages = sorted((str(problem) for problem in caught.value.problems), key=lambda message: "never asks" in message)
    assert len(messages) == 2
    assert "set models.m.logprobs=true and models.m.top_logprobs=5" in messages[0]
    assert "verifier.jinja never asks for it; use {{ confidence_marker }} there" in messages[1]
    with (prompts / "verifier.jinja").open("a") as file:
        file.write("\n{% if confidence_marker %}{{ confidence_marker }} P{% endif %}\n")
    spec = load_spec(path, ["verdict.confidence=stated", "fine_tune.replace_verifier_guess_with_true_label=true"])
    assert [line for line in warnings_of(spec) if "state the confidence 1" in line]


@pytest.mark.full
def test_fine_tune_files_have_the_stated_confidence_or_certainty_if_the_label_replaces_the_verdict(
    tmp_path: Path,
) -> None:
    for replaced in (False, True):
        folder = tmp_path / str(replaced)
        folder.mkdir()
        fine_tune = {"replace_verifier_guess_with_true_label": replaced, "agents": ["verifier"], "formats": ["openai"]}
        run_spec(
            spec_file(folder, size=4, **SOLO_VERIFIER, verdict={"confidence": "stated"}, fine_tune=fine_tune),
            folder / "r",
        )
        (file,) = (only_run(folder / "r") / "fine_tune").glob("m.sft.jsonl")
        last_messages = [json.loads(line)["messages"][-1]["content"] for line in file.read_text().splitlines()]
        assert len(last_messages) == 4
        assert all("Confidence: " in text for text in last_messages)
        is_label = [re.fullmatch(r"Decision: (accept|reject)\nConfidence: 1", text) for text in last_messages]
        assert all(is_label) if replaced else not any(is_label)


@pytest.mark.parametrize("confidence_marker", ["Confidence:", "how sure"])
def test_label_as_training_data_is_a_valid_verdict_with_confidence_1(tmp_path: Path, confidence_marker: str) -> None:
    path = spec_file(
        tmp_path, size=2, **SOLO_VERIFIER, verdict={"confidence": "stated"},
        decision_format={"confidence": confidence_marker},
    )  # fmt: skip
    agent = Plan(load_spec(path)).agents()["verifier"]
    parsed = [agent.parse(agent.true_verdict(label), 0) for label in (0, 1)]
    assert [(answer.decision, answer.confidence) for answer in parsed] == [(0, 0.0), (1, 1.0)]


def test_training_on_labels_warns_that_they_state_the_confidence_1(tmp_path: Path) -> None:
    path = training_spec(tmp_path, verdict={"confidence": "stated"})
    for proportion, count in ((0.0, 0), (0.5, 1)):
        warnings = warnings_of(load_spec(path, [f"training.guess_replacement.proportion={proportion}"]))
        assert sum("training.guess_replacement.proportion=0" in line for line in warnings) == count
