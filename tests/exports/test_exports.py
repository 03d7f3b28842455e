"""Exports of a finished run in the formats of other tools. `.ci/tools/exports.py` checks them with the tools."""

from __future__ import annotations

import inspect
import json
import zipfile
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any

import duckdb
import jsonschema
import pytest
import yaml

from runner.cli.main import main
from runner.exports.export_file import load_export
from runner.exports.formats import EXPORTS
from runner.exports.mlflow.games import GamesRecordBuilder
from runner.results.folder import RunFolder
from runner.results.table_columns import COLUMNS
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec

SCHEMAS = ROOT / "tests" / "fixtures" / "every_eval_ever"
SPEC = ROOT / "specs" / "quickstart.yaml"
ORGANIZATION_OPTIONS = ("--organization", "Acme Evals", "--relationship", "third_party")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return run_spec(SPEC, tmp_path_factory.mktemp("results"), "dataset.limit=6", "rollouts.per_datapoint=2")


def export(result: FinishedRun, target: Path, name: str, *options: str) -> int:
    results = str(result.path.parent.parent)
    return main(["export", result.run_id, "--format", name, "--out", str(target), "--results", results, *options])


def load_schema(name: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads((SCHEMAS / f"{name}.schema.json").read_text()))


def read_record(folder: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    (path,) = folder.glob("data/*/*/*/*.json")
    rows = [json.loads(line) for line in path.with_name(f"{path.stem}_samples.jsonl").read_text().splitlines()]
    return json.loads(path.read_text()), rows


@pytest.mark.parametrize("name", EXPORTS)
def test_every_format_has_a_function_that_writes_it(name: str) -> None:
    assert inspect.signature(load_export(name)).return_annotation == "WrittenExport"


@pytest.mark.sample(1)
@pytest.mark.parametrize("subject", ["verifier", "prover"])
def test_every_eval_ever_record_is_valid_and_has_the_number_of_rollouts(
    result: FinishedRun, tmp_path: Path, subject: str
) -> None:
    assert export(result, tmp_path, "every-eval-ever", "--subject", subject, *ORGANIZATION_OPTIONS) == 0
    document, rows = read_record(tmp_path)
    load_schema("eval").validate(document)
    for row in rows:
        load_schema("instance_level_eval").validate(row)
    (accuracy,) = [r for r in document["evaluation_results"] if r["metric_config"]["metric_id"] == "accuracy"]
    expected, exported = metric(result, "accuracy"), accuracy["score_details"]
    assert exported["score"] == expected["value"]
    assert exported["uncertainty"]["num_samples"] == expected["n"] == 12
    assert exported["uncertainty"]["confidence_interval"]["lower"] == expected["ci_low"]
    assert ("llm_scoring" in accuracy["metric_config"]) == (subject == "prover")
    assert document["detailed_evaluation_results"]["total_rows"] == len(rows)
    assert {row["evaluation_id"] for row in rows} == {document["evaluation_id"]}


def test_record_rows_have_the_messages_of_the_subject(result: FinishedRun, tmp_path: Path) -> None:
    export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
    _, rows = read_record(tmp_path)
    rollouts = {r["rollout_id"]: r for r in parquet_rows(result.path / "rollouts.parquet")}
    for row in rows:
        rollout = rollouts[row["metadata"]["rollout_id"]]
        assert row["evaluation"]["is_correct"] == rollout["correct"]
        assert row["messages"][0]["role"] == "system"
        (attribution,) = row["answer_attribution"]
        message = row["messages"][attribution["turn_idx"]]
        assert message["role"] == "assistant"
        assert f"Decision: {attribution['extracted_value']}" in message["content"]


def test_records_of_two_agents_with_the_same_model_have_different_ids(result: FinishedRun, tmp_path: Path) -> None:
    records = []
    for subject in ("prover", "verifier"):
        export(result, tmp_path / subject, "every-eval-ever", "--subject", subject, *ORGANIZATION_OPTIONS)
        records.append(read_record(tmp_path / subject)[0])
    assert records[0]["model_info"]["id"] == records[1]["model_info"]["id"]
    assert records[0]["evaluation_id"] != records[1]["evaluation_id"]


@pytest.mark.full
def test_exports_of_a_run_are_byte_identical(result: FinishedRun, tmp_path: Path) -> None:
    def export_files(folder: Path) -> dict[str, bytes]:
        export(result, folder, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS)
        for name in ("inspect", "scout"):
            export(result, folder, name)
        return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    assert export_files(tmp_path / "one") == export_files(tmp_path / "other")


def test_missing_or_invalid_options_of_a_format_are_reported(
    result: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export(result, tmp_path, "every-eval-ever") == 2
    assert "--subject AGENT" in capsys.readouterr().err
    assert export(result, tmp_path, "every-eval-ever", "--subject", "verifier") == 2
    stderr = capsys.readouterr().err
    assert "--organization" in stderr
    assert "--relationship" in stderr
    assert export(result, tmp_path, "hf-eval-results", "--subject", "verifier") == 2
    assert "--hf-dataset ID" in capsys.readouterr().err
    assert export(result, tmp_path, "scout", "--subject", "judge") == 2
    assert "has no such agent; choose one of prover, verifier" in capsys.readouterr().err
    assert export(result, tmp_path, "scout", "--true-labels") == 2
    assert "--true-labels" in capsys.readouterr().err
    assert export(result, tmp_path, "openai", "--subject", "verifier") == 2
    assert "--subject" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_hub_entry_notes_the_number_of_rollouts_and_the_agents(result: FinishedRun, tmp_path: Path) -> None:
    options = ("--subject", "verifier", "--hf-dataset", "acme/claims", "--task-id", "claims")
    assert export(result, tmp_path, "hf-eval-results", *options) == 0
    (path,) = (tmp_path / ".eval_results").iterdir()
    (entry,) = yaml.safe_load(path.read_text())
    assert entry["dataset"] == {"id": "acme/claims", "task_id": "claims"}
    assert entry["value"] == metric(result, "accuracy")["value"]
    assert isinstance(entry["date"], str)
    assert "n = 12 rollouts" in entry["notes"]
    assert "prover: dummy" in entry["notes"]


def test_inspect_log_has_a_sample_for_each_rollout(result: FinishedRun, tmp_path: Path) -> None:
    assert export(result, tmp_path, "inspect") == 0
    with zipfile.ZipFile(tmp_path / f"{result.run_id}.eval") as log:
        header = json.loads(log.read("header.json"))
        samples = [json.loads(log.read(name)) for name in log.namelist() if name.startswith("samples/")]
    assert header["eval"]["model"] == "none/none"
    assert set(header["eval"]["model_roles"]) == {"prover", "verifier"}
    assert header["results"]["scores"][0]["metrics"]["accuracy"]["value"] == metric(result, "accuracy")["value"]
    assert sorted({sample["epoch"] for sample in samples}) == [1, 2]
    assert len(samples) == 12
    assert all("Decision: " in sample["messages"][-1]["content"] for sample in samples)
    output_tokens = sum(usage["output_tokens"] for usage in header["stats"]["role_usage"].values())
    assert output_tokens == result.manifest.completion_tokens


def test_inspect_sample_has_prompts_task_and_times(result: FinishedRun, tmp_path: Path) -> None:
    assert export(result, tmp_path, "inspect") == 0
    (path,) = tmp_path.glob("*.eval")
    with zipfile.ZipFile(path) as archive:
        header = json.loads(archive.read("header.json"))
        samples = [json.loads(archive.read(name)) for name in archive.namelist() if name.startswith("samples/")]
    assert {role: model["model"] for role, model in header["eval"]["model_roles"].items()} == {
        "prover": "dummy", "verifier": "dummy",
    }  # fmt: skip
    started = datetime.fromisoformat(RunFolder(result.path).manifest().started_at)
    for sample in samples:
        by_role = {
            role: [m for m in sample["messages"] if m["role"] == role] for role in ("system", "user", "assistant")
        }
        agents = {message["metadata"]["agent"] for message in by_role["assistant"]}
        assert {message["metadata"]["agent"] for message in by_role["system"]} == agents
        assert [message["content"] for message in by_role["user"]] == [sample["input"]]
        assert sum(map(len, by_role.values())) == len(sample["messages"])
        assert len({message["id"] for message in sample["messages"]}) == len(sample["messages"])
        assert started <= datetime.fromisoformat(sample["started_at"]) <= datetime.fromisoformat(sample["completed_at"])


def test_scout_export_has_each_agents_chat_and_the_complete_game(result: FinishedRun, tmp_path: Path) -> None:
    assert export(result, tmp_path, "scout") == 0
    rows = parquet_rows(tmp_path / f"{result.run_id}.parquet")
    assert {row["agent"] for row in rows} == {"all agents", "prover", "verifier"}
    assert len({row["transcript_id"] for row in rows}) == len(rows)
    for row in rows:
        messages = json.loads(row["messages"])
        assert row["message_count"] == len(messages)
        assert (row["model"] is None) == (row["agent"] == "all agents")


@pytest.mark.full
def test_run_with_response_trees_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trees = run_spec(SPEC, tmp_path / "results", "dataset.limit=1", "rollouts.num_responses_per_timestep=2")
    assert export(trees, tmp_path / "out", "inspect") == 2
    assert "trees of responses" in capsys.readouterr().err


def test_sensitivity_is_exported_as_d_prime(result: FinishedRun, tmp_path: Path) -> None:
    expected = metric(result, "sensitivity")["value"]
    assert export(result, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS) == 0
    document, _ = read_record(tmp_path)
    scores = {r["metric_config"]["metric_id"]: r["score_details"]["score"] for r in document["evaluation_results"]}
    assert export(result, tmp_path, "inspect") == 0
    (path,) = tmp_path.glob("*.eval")
    with zipfile.ZipFile(path) as archive:
        metrics = json.loads(archive.read("header.json"))["results"]["scores"][0]["metrics"]
    with closing(GamesRecordBuilder(RunFolder(result.path), journal=False)) as games:
        mlflow_metrics = {point.key: point.value for point in games.record().metrics}
    assert scores["d_prime"] == metrics["d_prime"]["value"] == mlflow_metrics["d_prime"] == expected
    assert "sensitivity" not in {*scores, *metrics, *mlflow_metrics}


def test_open_interval_is_left_out_of_an_every_eval_ever_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    guessed = run_spec(SPEC, tmp_path / "results", "dataset.limit=12", "protocol.force_guess=y")
    expected = metric(guessed, "sensitivity")
    assert (expected["ci_low"] is None, expected["ci_high"]) == (False, None)
    assert export(guessed, tmp_path, "every-eval-ever", "--subject", "verifier", *ORGANIZATION_OPTIONS) == 0
    document, _ = read_record(tmp_path)
    load_schema("eval").validate(document)
    details = {r["metric_config"]["metric_id"]: r["score_details"] for r in document["evaluation_results"]}
    assert "confidence_interval" not in details["d_prime"]["uncertainty"]
    assert "minor metrics, metrics of agents, and metrics where" in capsys.readouterr().err


def test_text_columns_of_parquet_files_are_strings(tmp_path: Path) -> None:
    """polars reads Parquet's JSON type as bytes, and fails on others. `parquet_schema` returns the stored types."""
    results = tmp_path / "results"
    overrides = ("fine_tune.formats=[verl]", "dataset.limit=4", "votes=3")
    played_run = run_spec(SPEC, results, *overrides)
    assert export(played_run, tmp_path, "scout") == 0
    for name, sql in (
        ("rows", "FROM rollouts"),
        ("types", "SELECT [rewards] AS r, {'v': votes} AS s, uuid() AS u, INTERVAL 1 DAY AS i FROM rollouts"),
    ):
        assert main(["sql", sql, "-o", str(tmp_path / f"{name}.parquet"), "--results", str(results)]) == 0
    files = sorted(tmp_path.rglob("*.parquet"))
    assert {"rollouts", "messages", "completions", "rows", "types"} <= {path.stem for path in files}
    assert any(path.name.endswith(".rl.parquet") for path in files)
    for path in files:
        columns = duckdb.execute("SELECT name, type, converted_type FROM parquet_schema(?)", [str(path)]).fetchall()
        other_columns = [row for row in columns if "BYTE_ARRAY" in (row[1] or "") and row[2] != "UTF8"]
        assert not other_columns, path


def test_tables_of_earlier_versions_can_be_read_with_new_ones(tmp_path: Path) -> None:
    """Earlier versions wrote columns of JSON with Parquet's JSON type."""
    results = tmp_path / "results"
    first, second = (run_spec(SPEC, results, "dataset.limit=2", f"seed={seed}") for seed in (1, 2))
    (first.path / "SHA256SUMS").unlink()  # earlier versions wrote none
    for name, columns in COLUMNS.items():
        path, old_path = first.path / f"{name}.parquet", tmp_path / "old.parquet"
        casts = ", ".join(f"{column}::{kind} AS {column}" for column, kind in columns.items())
        duckdb.execute(f"COPY (SELECT {casts} FROM read_parquet('{path}')) TO '{old_path}' (FORMAT parquet)")
        old_path.replace(path)
    for run in (first, second):
        rewards = run.rollouts().select("rewards").fetchall()
        assert all(json.loads(row[0]).keys() == {"prover", "verifier"} for row in rewards)
    csv_path = tmp_path / "answer.csv"
    sql = "SELECT run_id, avg((rewards->>'verifier')::DOUBLE) AS r, count(verdict_logprobs) FROM rollouts "
    sql += "JOIN completions USING (run_id, rollout_id) GROUP BY run_id"
    assert main(["sql", sql, "-o", str(csv_path), "--results", str(results)]) == 0
    assert len(csv_path.read_text().splitlines()) == 3
