"""The plain values of a run for MLflow. `.ci/tools/mlflow_server.py` checks them with a server."""

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
from runner.exports.mlflow.sender import _build_spans, _format_traces_tag, _skip_sent_traces
from runner.exports.mlflow.training import training_record
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.runs.finished.result import FinishedRun
from tests.support.files import parquet_rows
from tests.support.paths import ROOT
from tests.support.runs import metric, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.tournaments import tournament_spec
from tests.support.training import training_spec

SECRET = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    results = tmp_path_factory.mktemp("results")
    return run_spec(ROOT / "specs" / "quickstart.yaml", results, "dataset.limit=6", "rollouts.per_datapoint=2")


@pytest.fixture(scope="module")
def training_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("trained")
    spec = training_spec(folder, training={"test": {"scheme": "first_and_last"}})
    return Results(folder / "results").find(run_spec(spec, folder / "results").run_id)


def build_record(path: Path) -> MlflowRun:
    with closing(GamesRecordBuilder(RunFolder(path), journal=False)) as games:
        return games.record()


def read_accuracy_curve(points: list[MetricPoint]) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in points if point.key == "accuracy"]


@pytest.mark.full
def test_benchmark_has_accuracy_by_game_and_all_metrics_at_the_last_step(result: FinishedRun) -> None:
    record = build_record(result.path)
    steps = read_accuracy_curve(list(record.metrics))
    assert [step for step, _ in steps] == list(range(1, 13))
    assert steps[-1] == (12, metric(result, "accuracy")["value"])
    last_metrics = {point.key: point.value for point in record.metrics if point.step == 12}
    assert last_metrics["accuracy.ci_low"] == metric(result, "accuracy")["ci_low"]
    assert last_metrics["prover.reward"] == metric(result, "reward", "prover")["value"]
    assert last_metrics["counts.completions"] == RunFolder(result.path).manifest().completions
    assert record.status == "FINISHED"
    assert record.notes == ()


@pytest.mark.parametrize(("key", "sent_again"), [("rollouts.per_datapoint=3", 0), ("dataset.limit=8", 12)])
def test_extended_run_sends_the_traces_of_all_its_new_games(
    result: FinishedRun, tmp_path: Path, key: str, sent_again: int
) -> None:
    """New repeats follow all earlier games, but new datapoints change the positions of earlier games."""
    before = build_record(result.path)
    keys, traces = _skip_sent_traces(before, "0")
    sent = [*keys, *(trace.key for trace in traces)]
    shutil.copytree(result.path.parent.parent, tmp_path / "results")
    overrides = {"dataset.limit": "dataset.limit=6", "rollouts.per_datapoint": "rollouts.per_datapoint=2"}
    overrides[key.partition("=")[0]] = key
    extended = run_spec(ROOT / "specs" / "quickstart.yaml", tmp_path / "results", *overrides.values())
    assert extended.run_id == result.run_id
    skipped, traces = _skip_sent_traces(build_record(extended.path), _format_traces_tag(sent))
    sent_later = [trace.key for trace in traces]
    rollouts = parquet_rows(extended.path / "rollouts.parquet")
    assert (len(sent), len({*sent, *sent_later}), len(rollouts)) == (12, len(rollouts), len(rollouts))
    assert len({*sent_later} & {*sent}) == sent_again == 12 - len(skipped)


@pytest.mark.full
def test_a_run_with_fixed_verdicts_has_a_tag_with_the_reason(tmp_path: Path) -> None:
    forced = run_spec(spec_file(tmp_path), tmp_path / "results", "protocol.force_guess=y")
    assert (
        build_record(forced.path).tags["nip_run.fixed_verdicts"].startswith("its verdicts are the labels, not answers")
    )


@pytest.mark.full
def test_each_metric_has_one_point_per_step(result: FinishedRun, training_run: RunFolder) -> None:
    for record in (build_record(result.path), training_record(training_run, journal=False)):
        counts = Counter((point.key, point.step) for point in record.metrics)
        assert max(counts.values()) == 1


@pytest.mark.gate
def test_points_of_a_killed_run_are_a_prefix_of_the_finished_run(result: FinishedRun, tmp_path: Path) -> None:
    """Points sent during a run are points of the finished run, whichever model answers first."""
    complete_record = build_record(result.path)
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
        record = build_record(killed)
        assert record.key == complete_record.key
        assert record.status == "KILLED"
        points = read_accuracy_curve(list(record.metrics))
        assert points == read_accuracy_curve(list(complete_record.metrics))[: len(points)]
        lengths.append(len(points))
    assert lengths == sorted(lengths)
    assert lengths[0] == 0
    assert 0 < lengths[1] < lengths[-1] == 12


@pytest.mark.full
def test_learning_curve_is_the_test_accuracy_by_iteration(training_run: RunFolder) -> None:
    record = training_record(training_run, journal=False)
    tests = json.loads(training_run.metrics.read_text())["tests"]
    assert read_accuracy_curve(list(record.metrics)) == [
        (test["iteration"], test["accuracy"]["value"]) for test in tests
    ]
    assert [test["iteration"] for test in tests] == [0, 2]


@pytest.mark.full
def test_trained_models_have_a_lineage_and_play_in_the_following_test(training_run: RunFolder) -> None:
    record = training_record(training_run, journal=False)
    assert [(model.step, model.params["group"]) for model in record.models] == [(0, "p"), (0, "v"), (1, "p"), (1, "v")]
    lineage = json.loads(record.models[2].tags["nip_run.lineage"])
    assert [step["model"] for step in lineage] == [record.models[0].params["model"], record.models[2].params["model"]]
    parts = {
        part.run_id[-2:]: build_record(part.path) for part in Results.of(training_run).parts_of(training_run.run_id)
    }
    assert set(parts["t2"].plays_with) == {model.key for model in record.models if model.step == 1}
    assert parts["i0"].plays_with == ()


@pytest.mark.full
def test_only_parts_of_a_training_run_are_nested(training_run: RunFolder, tmp_path: Path) -> None:
    """A tournament is not exported, so that its pairings are runs of their own."""
    spec = tournament_spec(tmp_path, size=2, tournament={"games": 12})
    tournament = Results(tmp_path / "results").find(run_spec(spec, tmp_path / "results").run_id)
    for parent, has_nested_runs in ((training_run, True), (tournament, False)):
        for part in Results.of(parent).parts_of(parent.run_id):
            with closing(GamesRecordBuilder(part, journal=False)) as games:
                record, orphan = games.record(parent.manifest()), games.record()
            assert record.tags["nip_run.part"] in (("games", "test") if has_nested_runs else ("pairing",))
            assert (record.parent is not None) == has_nested_runs == any("not nested" in note for note in orphan.notes)


@pytest.mark.gate
def test_training_run_lists_every_training_dataset(training_run: RunFolder) -> None:
    first, *training_data = training_record(training_run, journal=False).inputs
    assert first.sha256 == training_run.manifest().dataset_sha256
    assert len(training_data) == len({data.sha256 for data in training_data}) == 4


@pytest.mark.gate
def test_nothing_with_a_secret_is_sent(result: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    spec = yaml.safe_load((path / "spec.yaml").read_text())
    (path / "spec.yaml").write_text(yaml.safe_dump({**spec, "description": f"with {SECRET}"}))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "why_stopped": f"said {SECRET}"}))
    monkeypatch.setenv("ACME_API_KEY", SECRET)
    record = build_record(path)
    assert REMOVED in record.tags["nip_run.why_stopped"]
    assert record.params["description"] == f"with {REMOVED}"
    assert SECRET not in repr((record.params, record.tags, record.inputs))
    artifact_names = {artifact.name for artifact in record.artifacts}
    assert "metrics.json" in artifact_names
    assert not {"manifest.json", "spec.yaml"} & artifact_names
    assert any(
        note.startswith("manifest.json is not sent, because the file contains an API key or token")
        for note in record.notes
    )


@pytest.mark.gate
def test_names_that_mlflow_refuses_are_changed_and_stay_distinct() -> None:
    texts = MlflowTexts(Redactor(()))
    original_names = ("a/b", "a#b", "../x", "x" * 400, "x" * 399 + "y", "", "a\nb", "ö b:c.d")
    names = [texts.key(name) for name in original_names]
    assert len(set(names)) == len(original_names)
    assert all(0 < len(name) <= limits.MAX_KEY and "/" not in name and not name.startswith(".") for name in names)
    assert names[-1] == "ö b:c.d"
    assert len(texts.notes) == len(original_names) - 2  # names with a long common prefix share one note


@pytest.mark.gate
@pytest.mark.parametrize(
    ("file", "key", "value", "message"),
    [
        ("metrics.json", "metrics", 5, "damaged"),
        ("metrics.json", "metrics", [{"agent": None, "metric": "accuracy", "value": "much"}], "much"),
        ("metrics.json", "outcomes", {"decided": "many"}, "damaged"),
        ("manifest.json", "started_at", "yesterday", "yesterday"),
        ("manifest.json", "started_at", "0001-01-01T00:00:00Z", "before 1970"),
    ],
)
def test_run_with_invalid_files_is_refused_with_a_message(
    result: FinishedRun, tmp_path: Path, file: str, key: str, value: Any, message: str
) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    (path / "SHA256SUMS").unlink()
    (path / file).write_text(json.dumps({**json.loads((path / file).read_text()), key: value}))
    with pytest.raises(RunError, match=message):
        build_record(path)


@pytest.mark.gate
def test_shortened_value_states_its_original_length() -> None:
    texts = MlflowTexts(Redactor(()))
    value = texts.param("models.p.stop", ["x" * 7_000])
    assert len(value) == limits.MAX_PARAM
    assert "7,004 characters" in value
    assert texts.notes == ["the parameter models.p.stop has 7,004 characters; shortened to MLflow's limit of 6,000"]


@pytest.mark.gate
@pytest.mark.parametrize("text", ["x" * 6_000, "\u20ac" * 6_000, "\U0001f600" * 6_000])
def test_batches_respect_the_limits_of_mlflow(text: str) -> None:
    rows = [("key", text)] * 250
    created_batches = list(batches(rows, limits.MAX_PARAMS, limits.MAX_BYTES, lambda row: sent_bytes(*row)))
    assert sum(map(len, created_batches)) == 250
    assert all(len(batch) <= 100 and len(json.dumps(batch)) < 1_000_000 for batch in created_batches)


@pytest.mark.gate
def test_curve_of_many_games_has_few_points() -> None:
    steps = [games for games in range(1, 100_001) if is_step(games)]
    assert steps[:100] == list(range(1, 101))
    assert len(steps) < 400
    assert steps[-1] == 100_000


@pytest.mark.gate
@pytest.mark.parametrize(
    ("options", "message"),
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
def test_invalid_tracking_server_is_refused(
    result: FinishedRun,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setitem(sys.modules, "mlflow", None)  # as if mlflow were not installed
    for name in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES"):
        monkeypatch.setenv(f"MLFLOW_{name}", "1")
    results = str(result.path.parent.parent)
    assert main(["export", result.run_id, "--format", "mlflow", "--results", results, *options]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.gate
@pytest.mark.parametrize("arguments", [("--follow",), ("--experiment", "x"), ("last",)])
def test_options_of_a_tracking_server_are_refused_for_files(
    result: FinishedRun, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    results = str(result.path.parent.parent)
    assert main(["export", result.run_id, *arguments, "--format", "inspect", "--results", results]) == 2
    assert "--format" in capsys.readouterr().err


def play_run(folder: Path) -> RunFolder:
    """Play a run and set its start to the hour of its server's responses."""
    with run_chat_server() as server:
        spec = spec_file(folder, server.base_url, size=2)
        path = run_spec(spec, folder / "results").path
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "started_at": "2026-09-21T13:00:00Z"}))
    return RunFolder(path)


CREATED_MS = 1_790_000_000_000


@pytest.mark.gate
def test_each_game_is_a_trace_with_a_span_per_turn_at_server_time(tmp_path: Path) -> None:
    folder = play_run(tmp_path)
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


@pytest.mark.gate
def test_turn_spans_are_children_of_their_game_and_within_its_time(result: FinishedRun) -> None:
    with closing(GamesRecordBuilder(RunFolder(result.path), journal=False)) as games:
        record = games.record()
        trace = next(iter(record.traces()))
    game, *turns = _build_spans(trace, record.started_ms)
    assert len(turns) == len(trace.spans) > 0
    assert {turn["parent_span_id"] for turn in turns} == {game["span_id"]}
    assert len({span["span_id"] for span in (game, *turns)}) == 1 + len(turns)
    assert game["start_time_unix_nano"] == record.started_ms * 1_000_000
    assert all(turn["end_time_unix_nano"] <= game["end_time_unix_nano"] for turn in turns)


@pytest.mark.gate
def test_run_that_can_be_resumed_has_no_traces(result: FinishedRun, tmp_path: Path) -> None:
    path = tmp_path / "runs" / result.run_id
    shutil.copytree(result.path, path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    assert list(build_record(path).traces()) == []


@pytest.mark.gate
def test_traces_contain_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = play_run(tmp_path)
    text = next(row["raw_message"] for row in parquet_rows(folder.table("completions")))
    monkeypatch.setenv("ACME_API_KEY", text[:30])
    with closing(GamesRecordBuilder(folder, journal=False)) as games:
        traces = list(games.record().traces())
    assert text[:30] not in repr(traces)
    assert REMOVED in repr(traces)


@pytest.mark.gate
def test_dataset_input_has_its_path_and_split(result: FinishedRun) -> None:
    (data,) = build_record(result.path).inputs
    assert data.facts["path"].endswith("specs/data/code_validation.jsonl")
    assert data.facts["split"] == "test"
