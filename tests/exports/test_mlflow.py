"""A run in the plain values that MLflow gets; `.ci/tools/mlflow_server.py` asks a server what it holds."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import yaml

from runner.base.batches import batches
from runner.base.errors import RunError
from runner.base.redaction import REMOVED, Redactor
from runner.cli.main import main
from runner.exports.mlflow import limits
from runner.exports.mlflow.curve import is_step
from runner.exports.mlflow.games import GamesRecordBuilder
from runner.exports.mlflow.limits import MlflowTexts, sent_bytes
from runner.exports.mlflow.record import MetricPoint, MlflowRun
from runner.exports.mlflow.sender import _build_spans
from runner.exports.mlflow.training import training_record
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.training import training_spec

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    results = tmp_path_factory.mktemp("results")
    return run_spec(ROOT / "specs" / "quickstart.yaml", results, "dataset.limit=6", "rollouts.per_datapoint=2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("trained")
    spec = training_spec(folder, training={"test": {"scheme": "first_and_last"}})
    return Results(folder / "results").find(run_spec(spec, folder / "results").run_id)


def record_of(path: Path) -> MlflowRun:
    with closing(GamesRecordBuilder(RunFolder(path), journal=False)) as games:
        return games.record()


def curve(points: list[MetricPoint]) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in points if point.key == "accuracy"]


@pytest.mark.full
def test_a_benchmark_has_its_accuracy_after_each_game_and_all_its_numbers_after_the_last(result: FinishedRun) -> None:
    record = record_of(result.path)
    steps = curve(list(record.metrics))
    assert [step for step, _ in steps] == list(range(1, 13))
    assert steps[-1] == (12, metric(result, "accuracy")["value"])
    at_the_end = {point.key: point.value for point in record.metrics if point.step == 12}
    assert at_the_end["accuracy.ci_low"] == metric(result, "accuracy")["ci_low"]
    assert at_the_end["prover.reward"] == metric(result, "reward", "prover")["value"]
    assert at_the_end["counts.completions"] == RunFolder(result.path).manifest().completions
    assert record.status == "FINISHED"
    assert record.notes == ()


@pytest.mark.full
def test_a_run_with_fixed_verdicts_has_a_tag_with_the_reason(tmp_path: Path) -> None:
    forced = run_spec(spec_file(tmp_path), tmp_path / "results", "protocol.force_guess=y")
    assert record_of(forced.path).tags["nip_run.fixed_verdicts"].startswith("its verdicts are the labels, not answers")


@pytest.mark.full
def test_each_point_stands_once(result: FinishedRun, trained: RunFolder) -> None:
    for record in (record_of(result.path), training_record(trained, journal=False)):
        counts = Counter((point.key, point.step) for point in record.metrics)
        assert max(counts.values()) == 1


def test_what_a_killed_run_has_is_the_beginning_of_what_it_has_in_the_end(result: FinishedRun, tmp_path: Path) -> None:
    """Whoever answered first: a point that was sent of a run that plays is a point of the finished run."""
    whole = record_of(result.path)
    killed = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, killed)
    (killed / "metrics.json").unlink()
    manifest = json.loads((killed / "manifest.json").read_text())
    manifest["status"] = "running"
    (killed / "manifest.json").write_text(json.dumps(manifest))
    lines = (killed / "journal.jsonl").read_bytes().splitlines(keepends=True)
    lengths = []
    for share in (0, 2, 3, 4):
        (killed / "journal.jsonl").write_bytes(b"".join(lines[: max(1, len(lines) * share // 4)]))
        record = record_of(killed)
        assert record.key == whole.key
        assert record.status == "KILLED"
        points = curve(list(record.metrics))
        assert points == curve(list(whole.metrics))[: len(points)]
        lengths.append(len(points))
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert 0 < lengths[1] < lengths[-1] == 12


@pytest.mark.full
def test_the_learning_curve_is_the_accuracy_of_the_tests_by_iteration(trained: RunFolder) -> None:
    record = training_record(trained, journal=False)
    tests = json.loads(trained.metrics.read_text())["tests"]
    assert curve(list(record.metrics)) == [(test["iteration"], test["accuracy"]["value"]) for test in tests]
    assert [test["iteration"] for test in tests] == [0, 2]


@pytest.mark.full
def test_models_of_a_training_run_have_their_lineage_and_are_those_that_play_after_it(trained: RunFolder) -> None:
    record = training_record(trained, journal=False)
    assert [(model.step, model.params["group"]) for model in record.models] == [(0, "p"), (0, "v"), (1, "p"), (1, "v")]
    lineage = json.loads(record.models[2].tags["nip_run.lineage"])
    assert [step["model"] for step in lineage] == [record.models[0].params["model"], record.models[2].params["model"]]
    parts = {one.run_id[-2:]: record_of(one.path) for one in Results.of(trained).parts_of(trained.run_id)}
    assert set(parts["t2"].plays_with) == {model.key for model in record.models if model.step == 1}
    assert parts["i0"].plays_with == ()


def test_a_training_run_names_every_dataset_that_was_learnt_from(trained: RunFolder) -> None:
    first, *learnt = training_record(trained, journal=False).inputs
    assert first.sha256 == trained.manifest().dataset_sha256
    assert len(learnt) == len({data.sha256 for data in learnt}) == 4


def test_a_secret_of_this_machine_is_in_nothing_that_is_sent(
    result: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    spec = yaml.safe_load((path / "spec.yaml").read_text())
    (path / "spec.yaml").write_text(yaml.safe_dump({**spec, "description": f"with {SECRET}"}))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "why_stopped": f"said {SECRET}"}))
    monkeypatch.setenv("ACME_API_KEY", SECRET)
    record = record_of(path)
    assert REMOVED in record.tags["nip_run.why_stopped"]
    assert record.params["description"] == f"with {REMOVED}"
    assert SECRET not in repr((record.params, record.tags, record.inputs))
    sent = {artifact.name for artifact in record.artifacts}
    assert "metrics.json" in sent
    assert not {"manifest.json", "spec.yaml"} & sent
    assert any(
        note.startswith("manifest.json is not sent, because the file contains an API key or token")
        for note in record.notes
    )


def test_a_name_that_mlflow_refuses_is_changed_and_stays_another_than_its_neighbour() -> None:
    fitted = MlflowTexts(Redactor(()))
    given = ("a/b", "a#b", "../x", "x" * 400, "x" * 399 + "y", "", "a\nb", "ö b:c.d")
    names = [fitted.key(name) for name in given]
    assert len(set(names)) == len(given)
    assert all(0 < len(name) <= limits.MAX_KEY and "/" not in name and not name.startswith(".") for name in names)
    assert names[-1] == "ö b:c.d"
    assert len(fitted.notes) == len(given) - 2  # of those that begin alike for long, one says it


@pytest.mark.parametrize(
    ("file", "key", "value", "said"),
    [
        ("metrics.json", "metrics", 5, "damaged"),
        ("metrics.json", "metrics", [{"agent": None, "metric": "accuracy", "value": "much"}], "much"),
        ("metrics.json", "outcomes", {"decided": "many"}, "damaged"),
        ("manifest.json", "started_at", "yesterday", "yesterday"),
        ("manifest.json", "started_at", "0001-01-01T00:00:00Z", "before 1970"),
    ],
)
def test_a_run_whose_files_hold_what_they_should_not_is_refused_in_words(
    result: FinishedRun, tmp_path: Path, file: str, key: str, value: Any, said: str
) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    (path / "SHA256SUMS").unlink()
    (path / file).write_text(json.dumps({**json.loads((path / file).read_text()), key: value}))
    with pytest.raises(RunError, match=said):
        record_of(path)


def test_a_value_that_is_too_long_says_how_long_it_was() -> None:
    fitted = MlflowTexts(Redactor(()))
    value = fitted.param("models.p.stop", ["x" * 7_000])
    assert len(value) == limits.MAX_PARAM
    assert "7,004 characters" in value
    assert fitted.notes == ["the parameter models.p.stop has 7,004 characters; shortened to MLflow's limit of 6,000"]


@pytest.mark.parametrize("text", ["x" * 6_000, "\u20ac" * 6_000, "\U0001f600" * 6_000])
def test_no_batch_is_larger_than_mlflow_takes(text: str) -> None:
    rows = [("key", text)] * 250
    made = list(batches(rows, limits.MAX_PARAMS, limits.MAX_BYTES, lambda row: sent_bytes(*row)))
    assert sum(map(len, made)) == 250
    assert all(len(batch) <= 100 and len(json.dumps(batch)) < 1_000_000 for batch in made)


def test_a_curve_of_many_games_has_few_points() -> None:
    steps = [games for games in range(1, 100_001) if is_step(games)]
    assert steps[:100] == list(range(1, 101))
    assert len(steps) < 400
    assert steps[-1] == 100_000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--tracking-uri URI or MLFLOW_TRACKING_URI"),
        (("--tracking-uri", "./mlruns"), "is not a tracking server"),
        (("--tracking-uri", "https://me:pw@example.org"), "MLFLOW_TRACKING_PASSWORD"),
        (("--tracking-uri", "http://127.0.0.1:5000/#/experiments/1"), "without the ? and # of a page"),
        (("--tracking-uri", "http://127.0.0.1:99999"), "is not the address of a tracking server"),
        (("--tracking-uri", "http://"), "is not the address of a tracking server"),
        (("--tracking-uri", "http://[::1"), "is not the address of a tracking server"),
        (("--tracking-uri", "http://127.0.0.1:9", "--agent", "prover"), "--agent"),
        (("--tracking-uri", "http://127.0.0.1:9"), "pip install 'nip-run[mlflow]'"),
    ],
)
def test_what_cannot_be_sent_to_is_refused_before_anything_is_sent(
    result: FinishedRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as where it is not installed
    for name in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(f"MLFLOW_{name}", "1")
    results = str(result.path.parent.parent)
    assert main(["export", result.run_id, "--format", "mlflow", "--results", results, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [("--follow",), ("--experiment", "x"), ("last",)])
def test_what_is_for_a_server_is_for_no_file(
    result: FinishedRun, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    results = str(result.path.parent.parent)
    assert main(["export", result.run_id, *words, "--format", "inspect", "--results", results]) == 2
    assert "--format" in capsys.readouterr().err


def live_run(folder: Path) -> RunFolder:
    """A run that began in the hour in which its server says that it created all answers."""
    with run_chat_server() as server:
        spec = spec_file(folder, server.base_url, size=2)
        path = run_spec(spec, folder / "results").path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "started_at": "2026-09-21T13:00:00Z"}))
    return RunFolder(path)


CREATED_MS = 1_790_000_000_000


def test_each_game_is_a_trace_with_a_span_for_each_turn_at_the_servers_time(tmp_path: Path) -> None:
    folder = live_run(tmp_path)
    with closing(GamesRecordBuilder(folder, journal=False)) as games:
        record = games.record()
        traces = list(record.traces())
        assert [trace.key for trace in games.record().traces()] == [trace.key for trace in traces]
    answers = parquet_rows(folder.table("completions"))
    expected = Counter(row["rollout_id"] for row in answers)
    assert {trace.name: len(trace.spans) for trace in traces} == expected
    assert len({trace.key for trace in traces}) == 2
    for trace in traces:
        first, *_ = trace.spans
        assert first.name == "round 0: verifier"
        assert first.start_ns == CREATED_MS * 1_000_000 <= first.end_ns
        assert json.loads(first.inputs)["messages"][0]["content"].startswith("You are the verifier")
        assert json.loads(trace.outputs)["verdict"] in {"accept", "reject", None}
    assert {point.time_ms for point in record.metrics if point.step == 1} == {CREATED_MS}


def test_spans_are_below_their_game_and_within_its_time(result: FinishedRun) -> None:
    with closing(GamesRecordBuilder(RunFolder(result.path), journal=False)) as games:
        record = games.record()
        trace = next(iter(record.traces()))
    game, *turns = _build_spans(trace, record.started_ms)
    assert len(turns) == len(trace.spans) > 0
    assert {turn["parent_span_id"] for turn in turns} == {game["span_id"]}
    assert len({span["span_id"] for span in (game, *turns)}) == 1 + len(turns)
    assert game["start_time_unix_nano"] == record.started_ms * 1_000_000
    assert all(turn["end_time_unix_nano"] <= game["end_time_unix_nano"] for turn in turns)


def test_a_run_that_can_go_on_has_no_traces_yet(result: FinishedRun, tmp_path: Path) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    assert list(record_of(path).traces()) == []


def test_a_secret_of_this_machine_is_in_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = live_run(tmp_path)
    text = next(row["raw_message"] for row in parquet_rows(folder.table("completions")))
    monkeypatch.setenv("ACME_API_KEY", text[:30])
    with closing(GamesRecordBuilder(folder, journal=False)) as games:
        traces = list(games.record().traces())
    assert text[:30] not in repr(traces)
    assert REMOVED in repr(traces)


def test_a_dataset_has_the_path_and_split_that_the_run_was_played_with(result: FinishedRun) -> None:
    (data,) = record_of(result.path).inputs
    assert data.facts["path"].endswith("specs/data/code_validation.jsonl")
    assert data.facts["split"] == "test"
