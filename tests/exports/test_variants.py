"""Runs whose games are not all alike, exported: seats exchanged, both stances, votes, debates judged again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from runner.cli.main import main
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.hang_guard import HANG_SECONDS
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

WHO = ("--organization", "Acme Evals", "--relationship", "third_party")
HUB = ("--hf-dataset", "acme/claims", "--task-id", "claims")
ONE_MODEL = {"every-eval-ever": WHO, "hf-eval-results": HUB, "inspect": ()}


def export(result: FinishedRun, target: Path, name: str, *words: str) -> int:
    results = str(result.path.parent.parent)
    return main(["export", result.run_id, "--format", name, "--out", str(target), "--results", results, *words])


def samples(path: Path) -> list[dict[str, Any]]:
    with zipfile.ZipFile(path) as log:
        names = [name for name in log.namelist() if name.startswith("samples/")]
        return [json.loads(log.read(name)) for name in names]


def header(path: Path) -> Any:
    with zipfile.ZipFile(path) as log:
        return json.loads(log.read("header.json"))


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Two datapoints, each played with both stances and with the provers' models both ways."""
    folder = tmp_path_factory.mktemp("blocks")
    seated = {"prover0": "dear", "prover1": "cheap", "verifier": "cheap"}
    with run_chat_server() as server:
        at = {"provider": "openai", "base_url": server.base_url, "timeout": HANG_SECONDS}
        spec = spec_file(
            folder, size=2, prompts="prompts/code_validation/mnip",
            models={"m": None, **{name: {**at, "model": f"{name}-1"} for name in ("dear", "cheap")}},
            agents={"prover": None, **{name: {"model": model} for name, model in seated.items()}},
            protocol={"use": "mnip", "max_message_rounds": 5}, stances="both", seats="swap",
        )  # fmt: skip
        return run_spec(spec, folder / "results")


@pytest.mark.full
def test_the_model_that_played_stands_in_each_row(blocks: FinishedRun, tmp_path: Path) -> None:
    answered = {(r["rollout_id"], r["agent"]): r["model"] for r in table(blocks.path, "completions")}
    assert export(blocks, tmp_path, "scout") == 0
    rows = [r for r in parquet_rows(tmp_path / f"{blocks.run_id}.parquet") if r["role"] is not None]
    assert {(r["rollout_id"], r["agent"]): r["model"] for r in rows} == answered
    assert {model for (_, agent), model in answered.items() if agent == "prover0"} == {"dear-1", "cheap-1"}
    for row in rows:
        assert {m["model"] for m in json.loads(row["messages"]) if m["role"] == "assistant"} == {row["model"]}


def test_a_log_names_who_played_and_counts_by_model(blocks: FinishedRun, tmp_path: Path) -> None:
    assert export(blocks, tmp_path, "inspect") == 0
    path = tmp_path / f"{blocks.run_id}.eval"
    calls = table(blocks.path, "completions")
    answered = {(r["rollout_id"], r["agent"]): r["model"] for r in calls}
    for sample in samples(path):
        for message in (message for message in sample["messages"] if message["role"] == "assistant"):
            assert message["model"] == answered[sample["uuid"], message["metadata"]["agent"]]
    stats, roles = header(path)["stats"], header(path)["eval"]["model_roles"]
    tokens = {name: usage["output_tokens"] for name, usage in stats["role_usage"].items()}
    dear = sum(row["completion_tokens"] for row in calls if row["model"] == "dear-1")
    assert roles["prover0"]["model"] == "dear-1"
    assert tokens["prover0"] == stats["model_usage"]["dear-1"]["output_tokens"] == dear


@pytest.mark.parametrize("name", ONE_MODEL)
def test_a_swapped_seat_has_no_record_of_one_model(
    blocks: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert export(blocks, tmp_path, name, "--subject", "prover1", *ONE_MODEL[name]) == 2
    assert "prover0 and prover1 have exchanged their models (dear and cheap" in capsys.readouterr().err
    assert export(blocks, tmp_path, name, "--subject", "verifier", *ONE_MODEL[name]) == 0


def test_each_play_of_a_block_is_a_sample_of_its_own(blocks: FinishedRun, tmp_path: Path) -> None:
    assert export(blocks, tmp_path, "inspect") == 0
    path = tmp_path / f"{blocks.run_id}.eval"
    rollouts = {r["rollout_id"] for r in table(blocks.path, "rollouts")}
    assert {sample["uuid"] for sample in samples(path)} == rollouts
    assert sorted((s["id"], s["epoch"]) for s in samples(path)) == [(f"p{i}", e) for i in (0, 1) for e in (1, 2, 3, 4)]
    assert header(path)["eval"]["config"]["epochs"] == 4


def record(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (whole,) = folder.glob("data/*/*/*/*.json")
    rows = [json.loads(line) for line in whole.with_name(f"{whole.stem}_samples.jsonl").read_text().splitlines()]
    return json.loads(whole.read_text()), rows


def test_plays_of_a_block_can_be_told_apart_in_each_format(blocks: FinishedRun, tmp_path: Path) -> None:
    export(blocks, tmp_path, "every-eval-ever", "--subject", "verifier", *WHO)
    export(blocks, tmp_path, "scout")
    export(blocks, tmp_path, "inspect")
    played_ = {r["rollout_id"]: (r["stance"], r["swapped"]) for r in table(blocks.path, "rollouts")}
    _, rows = record(tmp_path)
    told = [row["metadata"] for row in rows]
    assert {m["rollout_id"]: (int(m["stance"]), m["swapped"] == "true") for m in told} == played_
    transcripts = parquet_rows(tmp_path / f"{blocks.run_id}.parquet")
    assert {row["rollout_id"]: (row["stance"], row["swapped"]) for row in transcripts} == played_
    logged = [sample["metadata"] for sample in samples(tmp_path / f"{blocks.run_id}.eval")]
    assert {m["rollout_id"]: (m["stance"], m["swapped"]) for m in logged} == played_


@pytest.mark.full
def test_a_chat_ends_with_the_vote_that_was_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_spec(spec_file(tmp_path, size=8), tmp_path / "results", "votes=3", "seed=1")
    decided = {r["rollout_id"]: (json.loads(r["votes"]), r["decision"]) for r in table(result.path, "rollouts")}
    assert any(votes[0] != decision for votes, decision in decided.values())
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *WHO)
    assert "the answers of votes that were not chosen" in capsys.readouterr().err
    for row in record(tmp_path)[1]:
        votes, decision = decided[row["metadata"]["rollout_id"]]
        (attributed,) = row["answer_attribution"]
        said = row["messages"][attributed["turn_idx"]]["content"]
        assert f"Decision: {attributed['extracted_value']}" in said
        assert attributed["extracted_value"] == ("reject", "accept")[decision]
        assert json.loads(row["metadata"]["votes"]) == votes


@pytest.mark.full
def test_debates_judged_again_are_said_to_be_anothers(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=4), tmp_path / "results")
    judge = ("+models.judge={provider: dummy, model: wise}", "agents.verifier.model=judge")
    results = ("--results", str(tmp_path / "results"))
    assert main(["rejudge", first.run_id, "--verdict", "each", *judge, *results, "-q"]) == 0
    words = ("--out", str(tmp_path), *results)
    assert main(["export", "last", "--format", "scout", *words]) == 0
    (path,) = tmp_path.glob("*.parquet")
    rows = parquet_rows(path)
    assert {row["debates_of"] for row in rows} == {first.run_id}
    for row in rows:
        assert json.loads(row["verdicts"])[-1]["decision"] == ("reject", "accept", None).index(row["decision"])
    chats = [json.loads(row["messages"]) for row in rows if row["agent"] == "verifier"]
    answers = [[m.get("model") for m in chat if m["role"] == "assistant"] for chat in chats]
    assert any(len(models) > 1 for models in answers)
    for models in answers:  # its questions are those of the judge before it
        assert models == [None] * (len(models) - 1) + ["wise"]
    for whole in (json.loads(row["messages"]) for row in rows if row["agent"] == "all agents"):
        judges = [message.get("model") for message in whole if message["metadata"]["agent"] == "verifier"]
        assert judges == [None] * (len(judges) - 1) + ["wise"]
    assert main(["export", "last", "--format", "hf-eval-results", "--subject", "verifier", *HUB, *words]) == 0
    (notes,) = (tmp_path / ".eval_results").iterdir()
    assert f"judges the debates of run {first.run_id}" in notes.read_text().replace("\n", " ")


@pytest.mark.full
def test_a_run_that_stopped_when_decided_says_its_interval(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=12), tmp_path / "results", "+until={width: 0.95}")
    assert result.metrics["until"]["games"] < 12
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *WHO)
    whole, _ = record(tmp_path)
    scores = {r["metric_config"]["metric_id"]: r["score_details"] for r in whole["evaluation_results"]}
    method = scores["accuracy"]["uncertainty"]["confidence_interval"]["method"]
    assert "confidence sequence" in method
    assert "stopped after" in whole["source_metadata"]["additional_details"]["until"]
    export(result, tmp_path, "hf-eval-results", "--subject", "verifier", *HUB)
    (notes,) = (tmp_path / ".eval_results").iterdir()
    assert "confidence sequence" in notes.read_text().replace("\n", " ")
