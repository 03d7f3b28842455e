"""Exports of runs with varied games: swapped seats, both stances, votes, panels, refusals, rejudged debates."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from runner.cli.main import main
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec, table
from tests.support.servers.answers import run_reply_server
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

ORGANIZATION_OPTIONS = ("--organization", "Acme Evals", "--relationship", "third_party")
HUB_OPTIONS = ("--hf-dataset", "acme/claims", "--task-id", "claims")
SINGLE_MODEL_FORMATS = {"every-eval-ever": ORGANIZATION_OPTIONS, "hf-eval-results": HUB_OPTIONS, "inspect": ()}


def export(result: FinishedRun, target: Path, name: str, *options: str) -> int:
    results = str(result.path.parent.parent)
    return main(["export", result.run_id, "--format", name, "--out", str(target), "--results", results, *options])


def read_samples(path: Path) -> list[dict[str, Any]]:
    with zipfile.ZipFile(path) as log:
        names = [name for name in log.namelist() if name.startswith("samples/")]
        return [json.loads(log.read(name)) for name in names]


def read_header(path: Path) -> Any:
    with zipfile.ZipFile(path) as log:
        return json.loads(log.read("header.json"))


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """A run of two datapoints, each played with both stances and with the provers' models swapped."""
    folder = tmp_path_factory.mktemp("blocks")
    seat_models = {"prover0": "dear", "prover1": "cheap", "verifier": "cheap"}
    with run_chat_server() as server:
        server_settings = {"provider": "openai", "base_url": server.base_url, "timeout": HANG_SECONDS}
        spec = spec_file(
            folder, size=2, prompts="prompts/code_validation/mnip",
            models={"m": None, **{name: {**server_settings, "model": f"{name}-1"} for name in ("dear", "cheap")}},
            agents={"prover": None, **{name: {"model": model} for name, model in seat_models.items()}},
            protocol={"use": "mnip", "max_message_rounds": 5}, stances="both", seats="swap",
        )  # fmt: skip
        return run_spec(spec, folder / "results")


@pytest.mark.full
def test_scout_rows_have_the_model_that_played(blocks: FinishedRun, tmp_path: Path) -> None:
    models = {(r["rollout_id"], r["agent"]): r["model"] for r in table(blocks.path, "completions")}
    assert export(blocks, tmp_path, "scout") == 0
    rows = [r for r in parquet_rows(tmp_path / f"{blocks.run_id}.parquet") if r["role"] is not None]
    assert {(r["rollout_id"], r["agent"]): r["model"] for r in rows} == models
    assert {model for (_, agent), model in models.items() if agent == "prover0"} == {"dear-1", "cheap-1"}
    for row in rows:
        assert {m["model"] for m in json.loads(row["messages"]) if m["role"] == "assistant"} == {row["model"]}


def test_inspect_log_has_models_and_tokens_by_model(blocks: FinishedRun, tmp_path: Path) -> None:
    assert export(blocks, tmp_path, "inspect") == 0
    path = tmp_path / f"{blocks.run_id}.eval"
    completions = table(blocks.path, "completions")
    models = {(r["rollout_id"], r["agent"]): r["model"] for r in completions}
    for sample in read_samples(path):
        for message in (message for message in sample["messages"] if message["role"] == "assistant"):
            assert message["model"] == models[sample["uuid"], message["metadata"]["agent"]]
    stats, roles = read_header(path)["stats"], read_header(path)["eval"]["model_roles"]
    tokens = {name: usage["output_tokens"] for name, usage in stats["role_usage"].items()}
    dear_tokens = sum(row["completion_tokens"] for row in completions if row["model"] == "dear-1")
    assert roles["prover0"]["model"] == "dear-1"
    assert tokens["prover0"] == stats["model_usage"]["dear-1"]["output_tokens"] == dear_tokens


@pytest.mark.parametrize("name", SINGLE_MODEL_FORMATS)
def test_agent_with_swapped_models_cannot_be_exported_as_one_model(
    blocks: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert export(blocks, tmp_path, name, "--subject", "prover1", *SINGLE_MODEL_FORMATS[name]) == 2
    assert "prover0 and prover1 have exchanged their models (dear and cheap" in capsys.readouterr().err
    assert export(blocks, tmp_path, name, "--subject", "verifier", *SINGLE_MODEL_FORMATS[name]) == 0


def test_each_rollout_of_a_block_is_a_sample(blocks: FinishedRun, tmp_path: Path) -> None:
    assert export(blocks, tmp_path, "inspect") == 0
    path = tmp_path / f"{blocks.run_id}.eval"
    rollouts = {r["rollout_id"] for r in table(blocks.path, "rollouts")}
    assert {sample["uuid"] for sample in read_samples(path)} == rollouts
    assert sorted((s["id"], s["epoch"]) for s in read_samples(path)) == [
        (f"p{i}", e) for i in (0, 1) for e in (1, 2, 3, 4)
    ]
    assert read_header(path)["eval"]["config"]["epochs"] == 4


def read_record(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (path,) = folder.glob("data/*/*/*/*.json")
    rows = [json.loads(line) for line in path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()]
    return json.loads(path.read_text()), rows


def test_rollouts_of_a_block_have_their_stance_and_swap_in_each_format(blocks: FinishedRun, tmp_path: Path) -> None:
    export(blocks, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    export(blocks, tmp_path, "scout")
    export(blocks, tmp_path, "inspect")
    variants = {r["rollout_id"]: (r["stance"], r["swapped"]) for r in table(blocks.path, "rollouts")}
    _, rows = read_record(tmp_path)
    metadata = [row["metadata"] for row in rows]
    assert {m["rollout_id"]: (int(m["stance"]), m["swapped"] == "true") for m in metadata} == variants
    transcripts = parquet_rows(tmp_path / f"{blocks.run_id}.parquet")
    assert {row["rollout_id"]: (row["stance"], row["swapped"]) for row in transcripts} == variants
    logged_metadata = [sample["metadata"] for sample in read_samples(tmp_path / f"{blocks.run_id}.eval")]
    assert {m["rollout_id"]: (m["stance"], m["swapped"]) for m in logged_metadata} == variants


@pytest.mark.full
def test_chat_ends_with_the_chosen_vote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_spec(spec_file(tmp_path, size=8), tmp_path / "results", "votes=3", "seed=1")
    outcomes = {r["rollout_id"]: (json.loads(r["votes"]), r["decision"]) for r in table(result.path, "rollouts")}
    assert any(votes[0] != decision for votes, decision in outcomes.values())
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    assert "the answers of votes that were not chosen" in capsys.readouterr().err
    for row in read_record(tmp_path)[1]:
        votes, decision = outcomes[row["metadata"]["rollout_id"]]
        (attribution,) = row["answer_attribution"]
        content = row["messages"][attribution["turn_idx"]]["content"]
        assert f"Decision: {attribution['extracted_value']}" in content
        assert attribution["extracted_value"] == ("reject", "accept")[decision]
        assert json.loads(row["metadata"]["votes"]) == votes


@pytest.mark.full
def test_rejudged_debates_name_the_original_run(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    judge = ("+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge")
    results = ("--results", str(tmp_path / "results"))
    assert main(["rejudge", first.run_id, "--verdict", "each", *judge, *results, "-q"]) == 0
    export_options = ("--out", str(tmp_path), *results)
    assert main(["export", "last", "--format", "scout", *export_options]) == 0
    (path,) = tmp_path.glob("*.parquet")
    rows = parquet_rows(path)
    assert {row["debates_of"] for row in rows} == {first.run_id}
    for row in rows:
        assert json.loads(row["verdicts"])[-1]["decision"] == ("reject", "accept", None).index(row["decision"])
    chats = [json.loads(row["messages"]) for row in rows if row["agent"] == "verifier"]
    answers = [[m.get("model") for m in chat if m["role"] == "assistant"] for chat in chats]
    assert any(len(models) > 1 for models in answers)
    for models in answers:  # the questions are from the previous judge
        assert models == [None] * (len(models) - 1) + ["wise"]
    for messages in (json.loads(row["messages"]) for row in rows if row["agent"] == "all agents"):
        judges = [message.get("model") for message in messages if message["metadata"]["agent"] == "verifier"]
        assert judges == [None] * (len(judges) - 1) + ["wise"]
    assert (
        main(["export", "last", "--format", "hf-eval-results", "--subject", "verifier", *HUB_OPTIONS, *export_options])
        == 0
    )
    (notes,) = (tmp_path / ".eval_results").iterdir()
    assert f"judges the debates of run {first.run_id}" in notes.read_text().replace("\n", " ")


@pytest.mark.full
def test_run_that_stopped_early_states_its_interval_method(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=12), tmp_path / "results", "+until={width: 0.95}")
    assert result.metrics["until"]["games"] < 12
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    document, _ = read_record(tmp_path)
    scores = {r["metric_config"]["metric_id"]: r["score_details"] for r in document["evaluation_results"]}
    method = scores["accuracy"]["uncertainty"]["confidence_interval"]["method"]
    assert "confidence sequence" in method
    assert "stopped after" in document["source_metadata"]["additional_details"]["until"]
    export(result, tmp_path, "hf-eval-results", "--subject", "verifier", *HUB_OPTIONS)
    (notes,) = (tmp_path / ".eval_results").iterdir()
    assert "confidence sequence" in notes.read_text().replace("\n", " ")


def test_tokens_of_an_inspect_log_exclude_those_that_a_cache_read(tmp_path: Path) -> None:
    with run_chat_server(cached_tokens=7) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, size=2), tmp_path / "results")
    export(result, tmp_path, "inspect")
    usage = read_header(tmp_path / f"{result.run_id}.eval")["stats"]["model_usage"]["tiny"]
    calls = table(result.path, "completions")
    prompt_tokens = sum(call["prompt_tokens"] for call in calls)
    assert usage["input_tokens_cache_read"] == 7 * len(calls)
    assert usage["input_tokens"] == prompt_tokens - 7 * len(calls)
    assert usage["total_tokens"] == prompt_tokens + usage["output_tokens"]


@pytest.mark.parametrize("options", [{"text": "In\u2028Unicode.\x85\n\nDecision: accept"}, {"kind": "refusal"}])
def test_each_line_of_a_record_is_valid_however_a_reader_splits_the_file(
    tmp_path: Path, options: dict[str, str]
) -> None:
    with run_chat_server(**options) as server:
        spec = spec_file(tmp_path, server.base_url, size=2, rollouts={"max_unusable": 1.0})
        result = run_spec(spec, tmp_path / "results")
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    _, rows = read_record(tmp_path)
    schema = json.loads((ROOT / "tests/fixtures/every_eval_ever/instance_level_eval.schema.json").read_text())
    assert len(rows) == 2
    for row in rows:
        jsonschema.validate(row, schema)
        assert row["evaluation"]["num_turns"] == (1 if "text" in options else None)


def test_attributed_verdict_of_a_panels_judge_is_its_own(tmp_path: Path) -> None:
    result = run_spec(ROOT / "specs" / "panel_debate.yaml", tmp_path / "results", "dataset.limit=8")
    export(result, tmp_path, "every-eval-ever", "--subject", "judge1", *ORGANIZATION_OPTIONS)
    _, rows = read_record(tmp_path)
    attributions = [(row, *row["answer_attribution"]) for row in rows]
    assert any(attribution["extracted_value"] != row["metadata"]["decision"] for row, attribution in attributions)
    for row, attribution in attributions:
        assert f"Decision: {attribution['extracted_value']}" in row["messages"][attribution["turn_idx"]]["content"]


def test_game_that_ends_before_its_answer_is_stated_has_no_label_and_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def reply(body: Any) -> str:
        is_stated = "is prime?" not in json.dumps(body["messages"])
        return "Answer: 2231\nDecision: accept" if is_stated else "I do not know.\nDecision: accept"

    with run_reply_server(reply) as server:
        model = f"+models.offline={{provider: openai, model: tiny, base_url: '{server.base_url}'}}"
        overrides = ("dataset.limit=6", "rollouts.max_unusable=1.0", "~models.offline", model)
        result = run_spec(ROOT / "specs" / "proposer_critic.yaml", tmp_path / "results", *overrides)
    accuracy = metric(result, "accuracy")
    assert 0 < accuracy["n"] < 6
    assert export(result, tmp_path, "inspect") == 0
    samples = read_samples(tmp_path / f"{result.run_id}.eval")
    scores = [sample["scores"]["verdict"]["value"] for sample in samples if sample["scores"]]
    assert (len(samples), len(scores), sum(scores)) == (6, accuracy["n"], accuracy["value"] * accuracy["n"])
    assert {sample["target"] for sample in samples if not sample["scores"]} == {""}
    assert export(result, tmp_path, "scout") == 0
    rows = parquet_rows(tmp_path / f"{result.run_id}.parquet")
    assert {row["rollout_id"] for row in rows if row["success"] is not None and row["score"] and row["label"]} == {
        sample["uuid"] for sample in samples if sample["scores"]
    }
    assert export(result, tmp_path, "every-eval-ever", "--subject", "proposer", *ORGANIZATION_OPTIONS) == 0
    assert len(read_record(tmp_path)[1]) == accuracy["n"]
    assert "rollouts without a label" in capsys.readouterr().err


@pytest.mark.parametrize("max_lost", [0.0, 1.0])
def test_exported_accuracy_never_hides_lost_rollouts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], max_lost: float
) -> None:
    with run_chat_server(faults={"server_error": 0.2}) as server:
        changes: dict[str, Any] = {
            "retry": {"transient": {"attempts": 1}},
            "rollouts": {"max_transport_failed": max_lost},
        }
        result = run_spec(spec_file(tmp_path, server.base_url, **changes), tmp_path / "results")
    lost = f"{result.metrics['outcomes']['transport_failed']} of 12 rollouts lost in transport"
    status = export(result, tmp_path, "hf-eval-results", "--subject", "verifier", *HUB_OPTIONS)
    if max_lost:
        assert status == 0
        (notes,) = (tmp_path / ".eval_results").iterdir()
        assert lost in yaml.safe_load(notes.read_text())[0]["notes"]
    else:
        assert status == 2
        assert f"is incomplete: {lost}; resume the run" in capsys.readouterr().err
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    assert read_record(tmp_path)[0]["source_metadata"]["additional_details"]["lost_rollouts"] == lost
    export(result, tmp_path, "inspect")
    assert read_header(tmp_path / f"{result.run_id}.eval")["eval"]["metadata"]["lost_rollouts"] == lost
