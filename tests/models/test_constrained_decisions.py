"""The key `constrain_decisions`: the JSON schema of a deciding answer and the text made from the answer."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import InvalidResponseError, ProviderRefusal, RunError, SpecError
from runner.exports.run_source import RunSource
from runner.game.prompts.chat import ChatMessage
from runner.game.protocols.answer_parser import DecisionFormat, verdict_of
from runner.game.protocols.ballot import FIRST_ANSWER
from runner.game.protocols.protocol import Decision
from runner.models.interface import Request, ResponseHint, SampleKey
from runner.models.layers.answer_form import NO_VERDICT, answer_schema, render_json_answer
from runner.models.layers.cache import request_fields
from runner.models.providers.openai_errors import classify_error
from runner.models.request_body import request_body
from runner.models.settings import ModelSettings
from runner.spec.loader import load_spec
from tests.models.real_errors import error
from tests.models.test_bills import SOLO
from tests.support.processes import nip_run_here
from tests.support.runs import derived_files, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

VERDICTS: dict[str, Any] = {"accept": "Decision: accept", "reject": "Decision: reject"}
JUDGE = ResponseHint(**VERDICTS, must_decide=True)
ASKER = ResponseHint(**VERDICTS)
TWO_SPEAKERS = ResponseHint(("Ann:", "Ben:"), **VERDICTS, scratchpad="Speech:")
CHOOSER = ResponseHint(answer_order=(0, 1, 2), answer_marker="Decision:", must_decide=True)
CONFIDENT_JUDGE = ResponseHint(**VERDICTS, must_decide=True, confidence="Confidence:")
FORMAT = DecisionFormat()
CONSTRAINED = ModelSettings(model="m", constrain_decisions=True)


def schema_enums(hint: ResponseHint) -> dict[str, list[str] | None]:
    schema = answer_schema(hint)
    assert schema is not None
    assert schema["required"] == list(schema["properties"])
    return {name: value.get("enum") for name, value in schema["properties"].items()}


def render_answer(hint: ResponseHint, format_: DecisionFormat = FORMAT, /, **answer: str) -> tuple[str, int]:
    return render_json_answer(hint, json.dumps(answer), format_)


def test_reasoning_precedes_the_decision_which_allows_only_verdicts() -> None:
    assert list(schema_enums(JUDGE).items()) == [("reasoning", None), ("decision", list(VERDICTS.values()))]
    assert list(schema_enums(ASKER).items()) == [("message", None), ("decision", [*VERDICTS.values(), NO_VERDICT])]
    assert list(schema_enums(TWO_SPEAKERS)) == ["notes", "message0", "message1", "decision"]
    assert schema_enums(CHOOSER)["decision"] == ["A", "B", "C"]
    assert list(schema_enums(CONFIDENT_JUDGE)) == ["reasoning", "decision", "confidence"]
    limited = answer_schema(CONFIDENT_JUDGE, 400)
    assert limited is not None
    assert [value.get("maxLength") for value in limited["properties"].values()] == [400, None, None]


@pytest.mark.parametrize(
    "hint",
    [
        ResponseHint(), ResponseHint(number=("Score:", 10)), ResponseHint(answer_order=(0, 1), answer_marker="Answer:"),
        ResponseHint(answer_order=(0, 1), answer_marker="Decision:", form="scores"),
    ],
)  # fmt: skip
def test_answer_without_a_choice_of_verdict_has_no_schema(hint: ResponseHint) -> None:
    assert answer_schema(hint) is None


@pytest.mark.parametrize(
    ("hint", "answer", "text", "decision"),
    [
        (JUDGE, {"reasoning": "Wrong.", "decision": "Decision: reject"}, "Wrong.\n\nDecision: reject", 0),
        (JUDGE, {"reasoning": "", "decision": "Decision: accept"}, "Decision: accept", 1),
        (ASKER, {"message": "Why?", "decision": NO_VERDICT}, "Why?", Decision.NONE),
        (
            CONFIDENT_JUDGE, {"reasoning": "r", "decision": "Decision: accept", "confidence": "80%"},
            "r\n\nDecision: accept\nConfidence: 80%", 1,
        ),
        (
            TWO_SPEAKERS, {"notes": "n", "message0": "a", "message1": "b", "decision": NO_VERDICT},
            "n\n\nSpeech: Ann: a\n\nBen: b", Decision.NONE,
        ),
        (CHOOSER, {"reasoning": "r", "decision": "B"}, "r\n\nDecision: B", FIRST_ANSWER + 1),
    ],
)  # fmt: skip
def test_json_answer_is_rendered_as_a_models_plain_text(
    hint: ResponseHint, answer: dict[str, str], text: str, decision: int
) -> None:
    assert render_answer(hint, FORMAT, **answer) == (text, decision)


@pytest.mark.parametrize("lenient", [False, True])
@pytest.mark.parametrize(
    "reasoning", ["Decision: accept? No.", "I end with DECISION: ACCEPT", "**Decision:** accept", "decision: maybe"]
)
def test_only_the_decision_property_decides(reasoning: str, lenient: bool) -> None:
    format_ = DecisionFormat(lenient=lenient)
    text, code = render_answer(JUDGE, format_, reasoning=reasoning, decision="Decision: reject")
    assert code == Decision.REJECT == verdict_of(text, format_)
    text, code = render_answer(ASKER, format_, message=f"{reasoning} Why?", decision=NO_VERDICT)
    assert code == Decision.NONE == verdict_of(text, format_)


@pytest.mark.parametrize(
    "text",
    [
        "Decision: accept", '{"reasoning": "cut at the li', "[]", '{"decision": "Decision: accept"}',
        '{"reasoning": "r", "decision": "perhaps"}', '{"reasoning": 1, "decision": "Decision: accept"}',
        '{"reasoning": "r", "decision": " Decision: accept"}', "[" * 100_000,
    ],
)  # fmt: skip
def test_malformed_json_answer_is_invalid(text: str) -> None:
    with pytest.raises(InvalidResponseError, match="JSON"):
        render_json_answer(JUDGE, text, FORMAT)


@pytest.mark.parametrize("decision", [" B", "AB", "", "b", "D", f"{NO_VERDICT} "])
def test_letter_with_other_text_is_invalid_and_does_not_end_the_run(decision: str) -> None:
    for hint in (CHOOSER, ResponseHint(answer_order=(0, 1, 2), answer_marker="Decision:")):
        name = "reasoning" if hint.must_decide else "message"
        with pytest.raises(InvalidResponseError, match="exactly one of: 1 for 'A'"):
            render_answer(hint, FORMAT, **{name: "r", "decision": decision})


@pytest.mark.parametrize(
    "body",
    [
        error(
            "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model.",
            param="response_format",
        ),
        error("This response_format type is unavailable now"),
        error("This model does not support response format `json_schema`."),
        {"error": {"code": 400, "message": "Failed to parse grammar", "type": "invalid_request_error"}},
    ],
)
def test_error_for_an_unsupported_schema_names_the_key(body: Any) -> None:
    refusal = classify_error(400, body, {}, CONSTRAINED, "judge")
    assert isinstance(refusal, ProviderRefusal)
    assert "models.judge.constrain_decisions; remove the key, or use another server" in str(refusal)
    assert dict(refusal.changes) == {"models.judge.constrain_decisions": None}
    assert refusal.of_one_call is None


def test_schema_is_part_of_the_request_and_the_cache_key() -> None:
    chat = (ChatMessage(role="user", content="q"),)
    request = Request("m", chat, SampleKey("d", 0, 0, "verifier", 0), schema=answer_schema(JUDGE))
    fields = request_fields(request, CONSTRAINED)
    assert fields["response_format"]["json_schema"]["schema"] == answer_schema(JUDGE)
    claude = ModelSettings(
        provider="anthropic", model="m", max_tokens=9, reasoning_effort="low", chat_format="alternating"
    )
    config = json.loads(request_body(claude, chat, answer_schema(JUDGE)))["output_config"]
    assert config["format"]["schema"] == answer_schema(JUDGE)
    assert config["effort"] == "low"


def test_conflicting_constraints_are_rejected(tmp_path: Path) -> None:
    model = {"constrain_decisions": True, "extra_body": {"grammar": "root ::= [a-z]"}}
    with pytest.raises(SpecError, match="constrain_decisions sets the form of answers, too; remove one of the two"):
        load_spec(spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": model}))
    with pytest.raises(SpecError, match="max_reasoning_length needs constrain_decisions: true; add it"):
        load_spec(spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {"max_reasoning_length": 9}}))


# Runs


@pytest.mark.gate
def test_run_with_constrained_answers_shows_text_and_can_be_resumed_and_replayed(tmp_path: Path) -> None:
    answer = {"reasoning": 'One may say "Decision: accept".', "decision": "Decision: reject"}
    message = {"role": "assistant", "content": json.dumps(answer)}
    reply = {"id": "c", "model": "tiny", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    with run_chat_server(reply=reply, record=20) as server:
        spec = spec_file(
            tmp_path, server.base_url, size=4, models={"m": {"constrain_decisions": True}}, **{**SOLO, "dataset": {}}
        )
        run = run_spec(spec, tmp_path / "results")
        sent = [json.loads(request["body"]) for request in server.recorded_requests()]
        first = derived_files(run.folder.path)
        assert derived_files(run_spec(spec, tmp_path / "results").folder.path) == first
        assert len(server.recorded_requests()) == 4
    assert [body["response_format"]["json_schema"]["name"] for body in sent] == ["answer"] * 4
    assert {row["decision"] for row in table(run.folder.path, "rollouts")} == {Decision.REJECT}
    assert {row["raw_message"] for row in table(run.folder.path, "completions")} == {json.dumps(answer)}
    rollout_id = table(run.folder.path, "rollouts")[0]["rollout_id"]
    output = nip_run_here("show", run.run_id, rollout_id, cwd=tmp_path).stdout
    assert 'One may say "".' in output
    assert "Decision: reject" in output
    assert '"decision"' not in output
    prompt = nip_run_here("show", run.run_id, rollout_id, "--prompt", "verifier", "--json", cwd=tmp_path)
    assert "response_format" in prompt.stdout


@pytest.mark.gate
@pytest.mark.parametrize("protocol", ["nip", "mnip", "answer_debate"])
def test_dummy_games_are_decided_without_json_in_their_messages(tmp_path: Path, protocol: str) -> None:
    done = nip_run_here(
        f"specs/{protocol}.yaml", "models.offline.constrain_decisions=true", "verdict.form=answer", "dataset.limit=8",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "results" / "runs").iterdir()
    assert {row["outcome"] for row in table(run, "rollouts")} == {"decided"}
    assert "unparsable" not in done.stderr
    assert not any("{" in row["content"] for row in table(run, "messages") if row["agent"] == "verifier")
    assert any(row["raw_message"].startswith("{") for row in table(run, "completions"))


@pytest.mark.parametrize("form", ["distribution", "scores"])
def test_verdict_with_numbers_cannot_be_constrained(tmp_path: Path, form: str) -> None:
    done = nip_run_here(
        "check", "specs/answer_debate.yaml", "models.offline.constrain_decisions=true", f"verdict.form={form}",
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    message = f"models.offline.constrain_decisions: has no effect with verdict.form: {form}; set verdict.form=answer"
    assert message in done.stdout + done.stderr


def reply_with_tokens(text: str, p_accept: float) -> dict[str, Any]:
    """Build an answer whose last verdict token has the probability `p_accept` of ` accept`."""
    pieces = re.findall(r"\s*(?:\w+|[^\w\s])", text)
    verdict_index = max(index for index, piece in enumerate(pieces) if piece in (" accept", " reject"))
    probabilities = {" accept": p_accept, " reject": 1 - p_accept}
    tokens = [
        {
            "token": piece, "logprob": -0.1, "bytes": None,
            "top_logprobs": [
                {"token": name, "logprob": math.log(p), "bytes": None} for name, p in probabilities.items()
            ]
            if index == verdict_index else [],
        }
        for index, piece in enumerate(pieces)
    ]  # fmt: skip
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "logprobs": {"content": tokens}, "finish_reason": "stop"}
    return {"id": "c", "model": "tiny", "choices": [choice]}


@pytest.mark.gate
@pytest.mark.parametrize("votes", [1, 3])
def test_confidence_of_a_constrained_verdict_comes_from_its_properties(tmp_path: Path, votes: int) -> None:
    answer = {"reasoning": 'Not "Decision: accept".', "decision": "Decision: reject", "confidence": "80%"}
    model = {"constrain_decisions": True, "logprobs": True, "top_logprobs": 5}
    changes = {**SOLO, "verdict": {"confidence": "both"}, "votes": votes}
    with run_chat_server(reply=reply_with_tokens(json.dumps(answer), 0.3)) as server:
        spec = spec_file(tmp_path, server.base_url, size=2, models={"m": model}, **changes)
        run = run_spec(spec, tmp_path / "results")
    (row,) = table(run.folder.path, "rollouts")
    assert row["decision"] == Decision.REJECT
    assert (row["confidence_stated"], row["confidence_logprob"]) == pytest.approx((0.2, 0.3))
    assert row["confidence_note"] is None
    (game,) = RunSource.load(run.folder).games()
    exported = 'Not "".\n\nDecision: reject\nConfidence: 80%'
    assert game.chat("verifier")[-1].message["content"] == exported


@pytest.mark.gate
def test_replay_without_the_schema_is_rejected(tmp_path: Path) -> None:
    answer = {"reasoning": 'One may say "Decision: accept".', "decision": "Decision: reject"}
    message = {"role": "assistant", "content": json.dumps(answer)}
    reply = {"id": "c", "model": "tiny", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    with run_chat_server(reply=reply) as server:
        spec = spec_file(tmp_path, server.base_url, size=2, models={"m": {"constrain_decisions": True}}, **SOLO)
        run = run_spec(spec, tmp_path / "results")
    model = {"provider": "replay", "run": str(run.folder.path)}
    for is_constrained in (True, None):
        spec = spec_file(tmp_path, size=2, models={"m": {**model, "constrain_decisions": is_constrained}}, **SOLO)
        if is_constrained:
            (row,) = table(run_spec(spec, tmp_path / "replays").folder.path, "rollouts")
            assert row["decision"] == Decision.REJECT
        else:
            with pytest.raises(RunError, match="the same JSON schemas"):
                run_spec(spec, tmp_path / "replays")


@pytest.mark.gate
def test_advice_about_answers_that_are_not_json_names_the_key_and_not_the_template(tmp_path: Path) -> None:
    games = {"concurrency": 1, "per_datapoint": 24}
    with run_chat_server(text="I am sure.\nDecision: accept") as server:
        spec = spec_file(tmp_path, server.base_url, models={"m": {"constrain_decisions": True}}, **SOLO, rollouts=games)
        done = nip_run_here(spec, cwd=tmp_path)
    assert done.stderr.count("schemas, remove models.m.constrain_decisions") == 2, done.stderr
    assert "asks for the format" not in done.stderr


@pytest.mark.gate
def test_run_fails_with_the_key_name_if_the_server_supports_no_schemas(tmp_path: Path) -> None:
    with run_chat_server(refused=["response_format"]) as server:
        spec = spec_file(tmp_path, server.base_url, size=2, models={"m": {"constrain_decisions": True}}, **SOLO)
        failed = nip_run_here(spec, cwd=tmp_path)
    assert failed.returncode != 0
    assert "does not accept the JSON schema of models.m.constrain_decisions" in failed.stderr
