"""Stopping rules: a run stops after the same game at any concurrency, killed or not, and makes few extra calls."""

from __future__ import annotations

import json
import shutil
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from runner import query
from runner.base.errors import BudgetExhausted, SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.results.baseline_scores import BaselineScores, read_baseline
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.execution.baseline_run import load_baseline
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from runner.statistics.confidence_sequences import ConfidenceSequence
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_until
from tests.support.runs import derived_files, journal_records, metric, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import SOLO_OVERRIDES, debate_with_hints, spec_file

SIZE = 50
STOP_AT_WIDTH: dict[str, Any] = {
    "until": {"width": 0.6},
    "fine_tune": None,
    "protocol": {"use": "nip", "max_message_rounds": 3},
}


def write_spec(folder: Path, *args: Any, **changes: Any) -> Path:
    return spec_file(folder, *args, size=SIZE, **{**STOP_AT_WIDTH, **changes})


def read_played_points(run: Path) -> list[tuple[str, int]]:
    return [(row["datapoint_id"], row["repeat"]) for row in table(run, "rollouts")]


@pytest.fixture(scope="module")
def stopped_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a spec with a stopping rule, and its run."""
    folder = tmp_path_factory.mktemp("decided")
    path = write_spec(folder)
    return path, run_spec(path, folder / "results").path


@pytest.mark.full
def test_a_run_stops_at_the_first_game_that_makes_the_interval_narrow_enough(stopped_run: tuple[Path, Path]) -> None:
    path, run = stopped_run
    rows = table(run, "rollouts")
    widths, sequence = [], ConfidenceSequence()
    for row in rows:
        sequence.add(float(row["correct"]))
        low, high = sequence.interval()
        widths.append(high - low)
    assert len(rows) < SIZE
    assert [width <= 0.6 for width in widths] == [*[False] * (len(rows) - 1), True]
    jobs = [(job.datapoint.id, job.repeat) for job in Plan(load_spec(path)).jobs()]
    assert read_played_points(run) == jobs[: len(rows)]
    assert jobs != sorted(jobs, key=lambda point: int(point[0][1:]))


def test_a_stopped_run_has_a_confidence_sequence_and_a_leaderboard_mark(stopped_run: tuple[Path, Path]) -> None:
    _, run = stopped_run
    games, note = len(read_played_points(run)), "stopped after {} of 50 games: width 0.5"
    result = json.loads((run / "metrics.json").read_text())
    row = next(row for row in result["metrics"] if row["metric"] == "accuracy")
    assert row["ci_high"] - row["ci_low"] == pytest.approx(result["until"]["width"])
    assert (result["until"]["decided"], result["until"]["games"]) == (True, games)
    assert "confidence sequence" in result["interval"]
    sql = "SELECT rank, reason, n, ci_low, stopped FROM leaderboard"
    ((rank, reason, n, low, stopped),) = query(sql, run.parents[1]).fetchall()
    assert (rank, reason, n, low) == (1, None, games, row["ci_low"])
    assert stopped.startswith(note.format(games))
    done = nip_run_here("show", run, cwd=run)
    assert note.format(games) in " ".join(done.stdout.split())


@pytest.mark.full
def test_rejudged_games_of_a_stopped_run_are_marked(tmp_path: Path, stopped_run: tuple[Path, Path]) -> None:
    """The first judge's verdicts chose where to stop, so only a confidence sequence is valid for the second judge."""
    _, run = stopped_run
    options = ("agents.verifier.max_response_words=33", "--results", tmp_path, "--json")
    done = nip_run_here("rejudge", run, *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (rejudged,) = json.loads(done.stdout)
    second = nip_run_here(
        "rejudge", rejudged["folder"], "agents.verifier.max_response_words=34", *options[1:], cwd=tmp_path
    )
    for folder in (rejudged["folder"], json.loads(second.stdout)[0]["folder"]):
        sequence = ConfidenceSequence()
        for row in table(Path(folder), "rollouts"):
            sequence.add(float(row["correct"]))
        metrics = json.loads((Path(folder) / "metrics.json").read_text())
        accuracy = next(row for row in metrics["metrics"] if row["metric"] == "accuracy")
        assert (accuracy["ci_low"], accuracy["ci_high"]) == pytest.approx(sequence.interval())
        note = (
            f"only {sequence.n} of {SIZE} games are judged, because the stopping rule of {run.name} ended "
            "that run after them"
        )
        assert metrics["until"]["note"] == note
        assert "confidence sequence" in metrics["interval"]
    stopped = query("SELECT stopped FROM leaderboard", tmp_path).fetchall()
    assert stopped == [(note,), (note,)]


@pytest.mark.full
def test_games_after_the_stopping_point_are_in_no_output(tmp_path: Path, stopped_run: tuple[Path, Path]) -> None:
    path, run = stopped_run
    result = run_spec(path, run.parents[1])
    assert result.was_finished
    assert result.timesteps().batch_size[0] == len(read_played_points(run))
    replayed = run_spec(path, tmp_path / "results", replay=ReplayOf(run))
    assert read_played_points(replayed.path) == read_played_points(run)


def test_an_interrupted_run_stops_at_the_same_game_at_another_concurrency(
    tmp_path: Path, stopped_run: tuple[Path, Path]
) -> None:
    path, run = stopped_run
    rollouts: list[object] = []

    def stop(rollout: object) -> None:
        rollouts.append(rollout)
        if len(rollouts) == 7:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError):
        run_spec(path, tmp_path / "results", "rollouts.concurrency=3", on_rollout=stop)
    resumed = run_spec(path, tmp_path / "results", "rollouts.concurrency=64")
    assert derived_files(resumed.path) == derived_files(run)


def _kill_run_at(requests: int, server: LoopbackServer, folder: Path, *overrides: str) -> None:
    process = start_nip_run_silently("spec.yaml", "-q", *overrides, cwd=folder)
    try:
        wait_until(lambda: server.requests >= requests or process.poll() is not None)
    finally:
        process.kill()
        process.wait()


@pytest.mark.full
def test_a_killed_run_stops_at_the_same_game_at_another_concurrency(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.03]) as server:
        path = write_spec(tmp_path, server.base_url)
        complete_run = run_spec(path, tmp_path / "whole")
        needed = server.requests
        for number in range(1, 4):
            _kill_run_at(needed + number * needed // 5, server, tmp_path, f"rollouts.concurrency={number * 5}")
        assert nip_run_here("spec.yaml", "-q", "rollouts.concurrency=2", cwd=tmp_path).returncode == 0
    assert derived_files(only_run(tmp_path / "results")) == derived_files(complete_run.path)


def test_a_stopped_run_makes_few_calls_beyond_its_last_game(stopped_run: tuple[Path, Path]) -> None:
    _, run = stopped_run
    calls = sum(record["kind"] == "call" for record in journal_records(run))
    completions = json.loads((run / "manifest.json").read_text())["completions"]
    assert 0 <= calls - completions <= 8 * 6  # games in flight times rounds of a game


def test_the_note_about_unused_answers_has_their_cost_and_does_not_count_failed_calls(tmp_path: Path) -> None:
    with run_chat_server(faults={"server_error": 0.3}, latency=0.02) as server:
        path = write_spec(tmp_path, server.base_url, retry={"transient": {"first_wait": 0.01, "max_wait": 0.01}})
        price = "models.m.price={input: 100, output: 200}"
        result = run_spec(path, tmp_path / "results", *SOLO_OVERRIDES, price, "rollouts.concurrency=16")
    records = journal_records(result.path)
    answers = sum(record["kind"] == "call" for record in records)
    unused = answers - len(table(result.path, "rollouts"))
    assert unused > 1
    failed_usd = sum(record["charged"][0] for record in records if record["kind"] == "failure")
    manifest = result.manifest
    unused_usd = manifest.cost_usd_at_most - failed_usd - manifest.cost_usd
    (note,) = (note for note in result.notes if note.startswith(f"{unused} answers not used"))
    assert f"they cost ${unused_usd:.4f} more" in note


@pytest.mark.full
def test_a_run_stopped_by_its_budget_resumes_with_a_larger_budget(tmp_path: Path) -> None:
    with run_chat_server() as server:
        path = write_spec(tmp_path, server.base_url)
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", "budget.completions=40")
        request_count = server.requests
        assert request_count <= 40
        result = run_spec(path, tmp_path / "results", "budget.completions=4000")
        assert result.metrics["until"]["decided"]
        calls = sum(record["kind"] == "call" for record in journal_records(result.path))
        assert server.requests == calls


@pytest.mark.parametrize(
    "changes",
    [
        ["until.width=0.7"],
        pytest.param(["until.width=0.5", "rollouts.per_datapoint=2"], marks=pytest.mark.full),
        pytest.param(["until={width: null, compare: a}"], marks=pytest.mark.full),
    ],
)
def test_a_finished_run_cannot_get_an_earlier_stopping_point(
    tmp_path: Path, stopped_run: tuple[Path, Path], changes: list[str]
) -> None:
    path, run = stopped_run
    files = derived_files(run)
    baseline = BaselineScores(run.name, "a", (), {})
    baseline.write(RunFolder(run))
    with pytest.raises(UsageError, match="may stop before games that the run has played"):
        run_spec(path, run.parents[1], *changes)
    assert derived_files(run) == files


@pytest.mark.full
def test_a_narrower_width_extends_the_run_and_null_plays_all_games(
    tmp_path: Path, stopped_run: tuple[Path, Path]
) -> None:
    path, run = stopped_run
    results = tmp_path / "results"
    shutil.copytree(run.parents[1], results)
    task = query("SELECT task FROM leaderboard", results).fetchall()
    longer = run_spec(path, results, "until.width=0.55")
    assert longer.run_id == run.name
    assert read_played_points(longer.path)[: len(read_played_points(run))] == read_played_points(run)
    complete_run = run_spec(path, results, "until=null")
    assert query("SELECT task FROM leaderboard", results).fetchall() == task
    assert (complete_run.run_id, complete_run.manifest.rollouts) == (run.name, SIZE)
    with pytest.raises(UsageError, match="may stop before"):
        run_spec(path, results)


@pytest.mark.full
def test_a_stopped_run_completes_its_last_group_with_all_repeats(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    data = tmp_path / "data.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    data.write_text("".join(json.dumps({**row, "pair": int(row["id"][1:]) // 3}) + "\n" for row in rows))
    repeats = ("dataset.group_by=pair", "rollouts.per_datapoint=2")
    result = run_spec(path, tmp_path / "results", *repeats)
    groups = [int(id_[1:]) // 3 for id_, _ in read_played_points(result.path)]
    streaks = [(group, len(list(games))) for group, games in groupby(groups)]
    assert len({group for group, _ in streaks}) == len(streaks)
    assert all(games == (6 if group < 16 else 4) for group, games in streaks)
    low, high = metric(result, "accuracy")["ci_low"], metric(result, "accuracy")["ci_high"]
    assert low < metric(result, "accuracy")["value"] < high
    variance = result.metrics["variance"]
    assert (variance["groups"], variance["repeats"]) == (len(streaks), 2)


@pytest.mark.full
def test_a_run_that_reaches_no_decision_notes_it(tmp_path: Path) -> None:
    result = run_spec(write_spec(tmp_path), tmp_path / "results", "dataset.limit=10", "until.width=0.1")
    assert (result.status, result.manifest.rollouts) == ("done", 10)
    assert result.metrics["until"]["note"].startswith("not decided after all 10 games: width 0.")


# Compared with another run


@pytest.mark.full
def test_a_compared_run_stops_once_one_of_the_two_runs_is_better(
    tmp_path: Path, stopped_run: tuple[Path, Path]
) -> None:
    """The compared run plays only datapoints that the base run got wrong."""
    results, compared_folder = tmp_path / "results", tmp_path / "other"
    path = write_spec(tmp_path, until=None)
    base = run_spec(path, results)
    base_correct = {row["datapoint_id"]: row["correct"] for row in table(base.path, "rollouts")}
    compared_folder.mkdir()
    compared_spec = write_spec(compared_folder, until={"compare": base.run_id}, name="turned")
    data = compared_folder / "data.jsonl"
    kept_rows = [
        row for line in data.read_text().splitlines() if base_correct[(row := json.loads(line))["id"]] is False
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in kept_rows))
    result = run_spec(compared_spec, results, "seed=3", run_id="turned")
    section = result.metrics["until"]
    assert section["decided"]
    assert section["difference"] > 0
    assert section["ci_low"] > 0
    assert section["games"] == result.manifest.rollouts
    assert section["games"] < len(kept_rows)
    assert f"better than {base.run_id}" in section["note"]
    # The base run is deleted, but its scores are saved in the compared run.
    shutil.rmtree(base.path)
    (result.path / "rollouts.parquet").unlink()
    metrics_before = (result.path / "metrics.json").read_bytes()
    manifest = json.loads((result.path / "manifest.json").read_text())
    (result.path / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    resumed = run_spec(compared_spec, results, "seed=3", "rollouts.concurrency=1", run_id="turned")
    assert (resumed.path / "metrics.json").read_bytes() == metrics_before
    assert (resumed.path / "rollouts.parquet").is_file()


@pytest.mark.full
def test_a_debate_with_hints_for_its_provers_is_compared_with_the_lone_verifier(tmp_path: Path) -> None:
    """The lone verifier's dataset lacks the column `hint`, and its datapoints have other ids."""
    path, results = debate_with_hints(tmp_path), tmp_path / "results"
    rows = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    for row in rows:
        row["id"] = f"q{row['id']}"
        del row["hint"]
    alone = tmp_path / "alone.jsonl"
    alone.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run_spec(path, results, *SOLO_OVERRIDES, f"dataset.path={alone}", run_id="alone")
    result = run_spec(path, results, "until={compare: alone}", run_id="debate")
    assert result.metrics["until"]["shared_groups"] == len(rows)
    planned = nip_run_here("plan", path, "--detect", "0.9", "--against", "alone", "--json", cwd=tmp_path)
    assert json.loads(planned.stdout)[0]["datapoints"] == len(rows)


def test_a_baseline_names_a_datapoint_that_it_lacks(tmp_path: Path) -> None:
    path, results = debate_with_hints(tmp_path), tmp_path / "results"
    run_spec(path, results, *SOLO_OVERRIDES, run_id="alone")
    data = tmp_path / "data.jsonl"
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[3]["solution"] = "another"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    plan = Plan(load_spec(path, ["until={compare: alone}"]))
    baseline = load_baseline(plan, Results(results), plan.run_id)
    assert baseline is not None
    (note,) = baseline.notes(plan.spec.dataset.datapoints)
    assert note == "until.compare: run alone played 5 of 6 datapoints; others, such as 'p3', are not compared"


def test_saved_scores_of_an_earlier_version_identify_datapoints_by_all_columns(tmp_path: Path) -> None:
    point = load_spec(debate_with_hints(tmp_path)).dataset.datapoints[0]
    columns = ("hint", "question", "solution")
    key = tagged_hash("compared", [point.label, {name: point.columns[name] for name in columns}])
    saved = {"run_id": "base", "asked": "base", "columns": columns, "scores": {key: [1, 2]}}
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs" / "compared.json").write_text(json.dumps(saved))
    baseline = read_baseline(tmp_path)
    assert baseline is not None
    assert baseline.score(point) == 0.5


def test_an_unusable_baseline_is_refused_before_the_first_call(tmp_path: Path, stopped_run: tuple[Path, Path]) -> None:
    path, run = stopped_run
    results = tmp_path / "results"
    shutil.copytree(run.parents[1], results)
    other_folder = tmp_path / "away"
    other_folder.mkdir()
    other_spec = write_spec(other_folder, name="away")
    data = other_folder / "data.jsonl"
    data.write_text(data.read_text().replace("returns x", "gives x"))

    def assert_refused(message: str, *overrides: str, spec: Path = path) -> None:
        files_before = sorted(results.rglob("*"))
        with pytest.raises(UsageError, match=message):
            run_spec(spec, results, "until={width: null, compare: " + overrides[0] + "}", *overrides[1:])
        assert sorted(results.rglob("*")) == files_before

    assert_refused("until.compare: no run 'nothing'", "nothing", "name=new")
    assert_refused(
        r"shares no datapoint with this spec: .* with another \w+ \(such as 'p0'\)", run.name, spec=other_spec
    )
    manifest = json.loads((results / "runs" / run.name / "manifest.json").read_text())
    (results / "runs" / run.name / "manifest.json").write_text(json.dumps({**manifest, "status": "failed"}))
    assert_refused(f"is failed; finish it first: nip-run .*{run.name}", run.name, "name=new")
    done = nip_run_here("check", path, "until={width: null, compare: nothing}", "--results", results, cwd=tmp_path)
    assert (done.returncode, "until.compare: no run 'nothing'" in done.stderr) == (2, True)


def test_check_and_plan_say_that_a_stopping_rule_may_reduce_costs(tmp_path: Path) -> None:
    path = write_spec(tmp_path)
    checked, planned = (
        " ".join(nip_run_here(*arguments, cwd=tmp_path).stdout.split())
        for arguments in (("check", path), ("plan", path, "--detect", "0.2"))
    )
    assert f"plays at most {SIZE} rollouts" in checked
    assert "at most, since `until` may stop it sooner; estimate: from the shortest games" in checked
    assert "With `until` a run may stop sooner" in planned
    assert f"plays {SIZE} rollouts" in nip_run_here("check", path, "until=null", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"until": {}}, "set either width or compare"),
        ({"until": {"width": 0.1, "compare": "a"}}, "set either width or compare"),
        ({"until": {"width": 1.5}}, "1.5"),
        ({"rollouts": {"num_responses_per_timestep": 2}}, "are not independent"),
    ],
)
def test_an_invalid_stopping_rule_is_an_error(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_spec(tmp_path, **changes))
    assert any(message in problem.message for problem in caught.value.problems)


def test_the_stopping_rule_is_not_part_of_the_run_identity(tmp_path: Path) -> None:
    plans = [Plan(load_spec(write_spec(tmp_path, until=until))) for until in (None, {"width": 0.1})]
    assert len({plan.identity for plan in plans}) == 1
    ids = [{job.rollout_id for job in plan.jobs()} for plan in plans]
    assert ids[0] == ids[1]
