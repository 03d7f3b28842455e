"""Verdicts on transcripts, exported as scores. `.ci/tools/transcripts.py` opens them in Inspect and Scout."""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from runner.base.errors import UsageError
from runner.cli.main import main
from runner.exports.inspect_scores import match_logs
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.paths import ROOT
from tests.support.runs import run_spec

LOGS = ROOT / "tests" / "fixtures" / "inspect"
SPEC = """\
name: judge
dataset: {{path: {path}, transcripts: {{unit: {unit}, label: {label}}}}}
protocol: {{use: solo_verifier}}
prompts: prompts
models: {{judge: {{provider: dummy}}}}
agents: {{verifier: {{model: judge}}}}
"""
LOGPROB = ("verdict.confidence=logprob", "models.judge.logprobs=true", "models.judge.top_logprobs=5")
TEMPLATE = "{{ transcript }}\n\n{{ accept }}\n{{ reject }}\n"


def judge(
    folder: Path, log: Path, *overrides: str, unit: str = "sample", label: str = "match", run_id: str | None = None
) -> FinishedRun:
    (folder / "prompts").mkdir(parents=True, exist_ok=True)
    (folder / "prompts" / "verifier.jinja").write_text(TEMPLATE)
    spec = folder / "spec.yaml"
    spec.write_text(SPEC.format(path=log, unit=unit, label=label))
    return run_spec(spec, folder / "results", *overrides, run_id=run_id)


def export(result: FinishedRun, target: Path, name: str, *options: str) -> int:
    results = str(result.path.parent.parent)
    return main(["export", result.run_id, "--format", name, "--out", str(target), "--results", results, *options])


def read_log(path: Path) -> dict[str, Any]:
    """Return a log with its samples by id and epoch, and its summaries."""
    if path.suffix == ".json":
        log: dict[str, Any] = json.loads(path.read_text())
        return {**log, "samples": {f"{s['id']}-{s['epoch']}": s for s in log["samples"]}}
    with zipfile.ZipFile(path) as archive:
        members = {name: json.loads(archive.read(name)) for name in archive.namelist()}
    samples = {f"{s['id']}-{s['epoch']}": s for name, s in members.items() if name.startswith("samples/")}
    return {**members["header.json"], "samples": samples, "summaries": members["summaries.json"]}


def read_verdicts(result: FinishedRun) -> dict[str, float]:
    rows = parquet_rows(result.path / "rollouts.parquet")
    return {row["datapoint_id"]: float(row["decision"]) for row in rows if row["decision"] in (0, 1)}


@pytest.mark.gate
@pytest.mark.parametrize("name", ["chores.eval", "chores.json"])
def test_verdicts_become_scores_in_a_copy_of_the_log(tmp_path: Path, name: str) -> None:
    result, log = judge(tmp_path, LOGS / name), LOGS / name
    hash_before = hashlib.sha256(log.read_bytes()).hexdigest()
    assert export(result, tmp_path / "out", "inspect-scores", "--log", str(log)) == 0
    assert hashlib.sha256(log.read_bytes()).hexdigest() == hash_before
    copy, expected, score = read_log(tmp_path / "out" / name), read_verdicts(result), result.run_id
    assert expected
    scored = {id_: s["scores"][score]["value"] for id_, s in copy["samples"].items() if score in s.get("scores") or ()}
    assert scored == expected
    assert len(copy["samples"]) == 6  # failed samples are still there, without our score
    assert copy["samples"]["one-1"]["scores"]["match"]["value"] == "C"
    (entry,) = [entry for entry in copy["results"]["scores"] if entry["name"] == score]
    by_sample: dict[str, list[float]] = {}
    for id_, value in expected.items():
        by_sample.setdefault(id_.rpartition("-")[0], []).append(value)
    assert (entry["scored_samples"], entry["unscored_samples"]) == (len(by_sample), 3 - len(by_sample))
    assert entry["metrics"]["mean"]["value"] == pytest.approx(fmean(map(fmean, by_sample.values())))
    for summary in copy.get("summaries", ()):
        assert (score in summary["scores"]) == (f"{summary['id']}-{summary['epoch']}" in expected)


@pytest.mark.gate
def test_verdicts_on_tool_calls_are_grouped_by_sample_and_exported_to_scout(tmp_path: Path) -> None:
    log = LOGS / "chores.eval"
    result = judge(tmp_path, log, unit="tool_call", label="null")
    assert export(result, tmp_path / "out", "inspect-scores", "--log", str(log)) == 0
    copy, expected = read_log(tmp_path / "out" / log.name), read_verdicts(result)
    units = [
        unit
        for s in copy["samples"].values()
        if result.run_id in s.get("scores", ())
        for unit in s["scores"][result.run_id]["metadata"]["units"]
    ]
    assert {unit["id"]: unit["value"] for unit in units} == expected
    assert export(result, tmp_path / "scan", "scout-results") == 0
    (folder,) = (tmp_path / "scan").glob("scan_id=*")
    rows = parquet_rows(folder / "verdict.parquet")
    assert {row["label"]: float(row["value"] == "true") for row in rows} == expected
    assert {row["transcript_id"] for row in rows} <= {s["uuid"] for s in copy["samples"].values()}
    assert all(json.loads(row["message_references"])[0]["type"] == "message" for row in rows)
    summary = json.loads((folder / "_summary.json").read_text())["scanners"]["verdict"]
    assert (summary["scans"], summary["results"]) == (len(rows), sum(expected.values()))


@pytest.mark.gate
def test_suspicion_of_a_sample_is_that_of_its_most_suspicious_unit(tmp_path: Path) -> None:
    log = LOGS / "chores.eval"
    result = judge(tmp_path, log, *LOGPROB, unit="message", label="null")
    assert export(result, tmp_path / "out", "inspect-scores", "--log", str(log)) == 0
    assert export(result, tmp_path / "scan", "scout-results") == 0
    lowest: dict[str, float] = {}
    for row in parquet_rows(result.path / "rollouts.parquet"):
        if row["decision"] in (0, 1):
            sample = row["datapoint_id"].rpartition("-m")[0]
            lowest[sample] = min(lowest.get(sample, 1), row["confidence_logprob"])
    expected = {sample: 1 - confidence for sample, confidence in lowest.items()}
    assert max(expected.values()) > 0.5
    copy, name = read_log(tmp_path / "out" / log.name), f"{result.run_id}_suspicion"
    scored = {id_: s["scores"][name]["value"] for id_, s in copy["samples"].items() if name in (s.get("scores") or ())}
    assert scored == pytest.approx(expected)
    assert name in [entry["name"] for entry in copy["results"]["scores"]]
    (folder,) = (tmp_path / "scan").glob("scan_id=*")
    uuids = {id_: s["uuid"] for id_, s in copy["samples"].items()}
    rows = parquet_rows(folder / "suspicion.parquet")
    assert {row["transcript_id"]: float(row["value"]) for row in rows} == pytest.approx(
        {uuids[id_]: value for id_, value in expected.items()}
    )
    summary = json.loads((folder / "_summary.json").read_text())["scanners"]
    assert summary["suspicion"] == {"scans": len(rows), "results": len(rows), "errors": 0}
    assert json.loads((folder / "_scan.json").read_text())["scanners"].keys() == {"verdict", "suspicion"}


@pytest.mark.gate
def test_run_without_confidences_has_no_suspicion(tmp_path: Path) -> None:
    log = LOGS / "chores.eval"
    result = judge(tmp_path, log)
    assert export(result, tmp_path / "out", "inspect-scores", "--log", str(log)) == 0
    assert export(result, tmp_path / "scan", "scout-results") == 0
    scores = read_log(tmp_path / "out" / log.name)["results"]["scores"]
    assert [entry["name"] for entry in scores if entry["name"].startswith(result.run_id)] == [result.run_id]
    assert [path.name for path in (tmp_path / "scan").glob("scan_id=*/*.parquet")] == ["verdict.parquet"]


@pytest.mark.gate
def test_other_logs_the_folder_of_the_log_and_other_runs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "chores.eval"
    log.write_bytes((LOGS / log.name).read_bytes())
    result = judge(tmp_path, log)
    cases = {
        "copies the log": (),
        "there is no such file": ("--log", str(tmp_path / "none.eval")),
        "differs from the log": ("--log", str(LOGS / "chores.json")),
        "is not an Inspect log": ("--log", str(tmp_path / "spec.yaml")),
    }
    for message, options in cases.items():
        assert export(result, tmp_path / "out", "inspect-scores", *options) == 2
        assert message in capsys.readouterr().err
    assert export(result, tmp_path, "inspect-scores", "--log", str(log)) == 2
    assert "choose another folder" in capsys.readouterr().err
    table = run_spec(ROOT / "specs" / "solo_verifier.yaml", tmp_path / "results", "dataset.limit=2")
    assert export(table, tmp_path / "out", "inspect-scores", "--log", str(log)) == 2
    assert "did not judge transcripts" in capsys.readouterr().err


def find_scored_samples(result: FinishedRun, log: Path) -> set[str]:
    samples = read_log(log)["samples"].items()
    return {id_ for id_, sample in samples if result.run_id in (sample.get("scores") or ())}


@pytest.mark.gate
def test_renamed_logs_get_the_scores_of_their_samples(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("a.json", "b.json"):
        content = json.loads((LOGS / "chores.json").read_text())
        content["samples"] = [{**sample, "id": f"{name[0]}-{sample['id']}"} for sample in content["samples"]]
        (logs / name).write_text(json.dumps(content))
    single_result, both_results = judge(tmp_path, logs / "a.json"), judge(tmp_path, logs)
    (logs / "b.json").rename(logs / "c.json")
    (logs / "a.json").rename(logs / "b.json")
    assert export(single_result, tmp_path / "one", "inspect-scores", "--log", str(logs / "b.json")) == 0
    assert find_scored_samples(single_result, tmp_path / "one" / "b.json") == read_verdicts(single_result).keys()
    assert export(both_results, tmp_path / "both", "inspect-scores", "--log", str(logs)) == 0
    for name, id_ in (("b.json", "a"), ("c.json", "b")):
        expected = {sample.partition("/")[2] for sample in read_verdicts(both_results) if sample.startswith(f"{id_}/")}
        assert find_scored_samples(both_results, tmp_path / "both" / name) == expected != set()


@pytest.mark.gate
def test_logs_without_verdicts_or_missing_logs_are_refused() -> None:
    logs = [Path("a.json"), Path("b.json")]
    with pytest.raises(UsageError, match="r has no verdict of accept or reject"):
        match_logs(logs, {}, "r")
    with pytest.raises(UsageError, match=r"has no file c\.json, which r judged"):
        match_logs(logs, {"c.json": {}}, "r")
    assert match_logs(logs, {"b.json": {}}, "r") == {logs[1]: {}}


@pytest.mark.gate
def test_existing_score_of_a_log_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("chores.eval", "chores.json"):
        result = judge(tmp_path / name, LOGS / name, run_id="match")
        assert export(result, tmp_path / "out", "inspect-scores", "--log", str(LOGS / name)) == 2
        assert "the log already has a score 'match'" in capsys.readouterr().err
        assert not (tmp_path / "out" / name).exists()


@pytest.mark.gate
def test_a_run_on_transcripts_resumes_from_its_folder_without_the_log(tmp_path: Path) -> None:
    log = tmp_path / "chores.eval"
    log.write_bytes((LOGS / log.name).read_bytes())
    result = judge(tmp_path, log)
    log.unlink()
    assert main([str(result.path), "-q", "--results", str(tmp_path / "results")]) == 0
    assert len(list((tmp_path / "results" / "runs").iterdir())) == 1
