"""`nip-run compare`: text and JSON output, exit codes, and both transcripts of a flip."""

from __future__ import annotations

import io
import json
import shlex
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.main import main
from runner.results.folder import RunFolder
from runner.runs.finished.result import FinishedRun
from tests.results.comparison.planted import play_with_planted_verdicts, write_solo_spec
from tests.support.runs import run_spec
from tests.support.specs import spec_file


def run_command(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in this process."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        code = main([*arguments, "--results", str(results)])
    return subprocess.CompletedProcess(arguments, code, stdout.getvalue(), stderr.getvalue())


def test_compare_prints_the_verdict_then_the_numbers_then_the_flips(results: Path) -> None:
    process = run_command(results, "compare", "good", "same")
    assert process.returncode == 0
    assert process.stderr == ""
    lines = process.stdout.splitlines()
    assert lines[0].startswith("accuracy: no evidence of a difference: same minus good is 0 points [")
    assert lines[2].split("  ")[0] == "system"
    assert "0.000 [-0." in lines[3]
    assert lines[4].startswith("detectable: the difference that the sign-flip test at 5 % detects with 80 % power, if ")
    assert lines[5].startswith("d' (sensitivity): ")
    assert lines[7] == "2 flips: right in one and wrong in the other"
    assert lines[8] == "  p0 (label 0): right in good"
    transcripts = run_command(results, *shlex.split(lines[9])[1:6])
    assert transcripts.returncode == 0, transcripts.stderr
    assert [line for line in transcripts.stdout.splitlines() if line.startswith("run ")] == ["run good", "run same"]
    assert transcripts.stdout.count("datapoint p0 ") == 2


def test_small_costs_are_printed_with_enough_decimals(tmp_path: Path) -> None:
    models = {"m": {"price": {"input": 0.01, "output": 0.02}}}
    runs = [
        run_spec(spec_file(tmp_path, models=models, fine_tune=None), tmp_path / "results", f"seed={seed}").run_id
        for seed in (1, 2)
    ]
    results, arguments = tmp_path / "results", ("compare", *runs, "--metric", "cost", "--assert", "cost <= 1")
    (pair,) = json.loads(run_command(results, *arguments, "--json").stdout)["pairs"]
    text = run_command(results, *arguments).stdout
    assert 0 < pair["other_value"] < 0.0001
    assert "0.000 " not in text
    assert f"  {pair['other_value']:.7f}  " in text


@pytest.mark.full
def test_adjusted_and_unadjusted_intervals_are_labeled(results: Path) -> None:
    single_text = run_command(results, "compare", "good", "same").stdout
    assert "(Holm)" not in single_text
    assert "unadjusted" not in single_text
    for arguments in (("good", "fair", "same"), ("good", "fair", "--by", "label")):
        report = json.loads(run_command(results, "compare", *arguments, "--json").stdout)
        rows = report["slices"] or report["pairs"]
        assert any(row["ci_low"] != row["ci_low_corrected"] for row in rows)
        text = run_command(results, "compare", *arguments).stdout
        assert "  difference [95%, unadjusted]  " in text
        assert "  p (unadjusted)  [95%] (Holm)  " in text
        for row in rows:
            assert f"  [{row['ci_low_corrected']:.3f}, {row['ci_high_corrected']:.3f}]  " in text
    (line,) = (line for line in single_text.splitlines() if line.startswith("d' (sensitivity)"))
    assert "] (95 % CI), p = " in line


def test_metric_without_failures_names_the_excluded_games(results: Path) -> None:
    name = "accuracy_excluding_failures"
    text = run_command(results, "compare", "good", "fair", "--metric", name).stdout
    assert text.startswith(f"{name} (lost or undecided): ")


@pytest.mark.gate
def test_json_output_is_complete(results: Path) -> None:
    process = run_command(results, "compare", "half", "good", "--by", "label", "--json", "--assert", "accuracy >= base")
    report = json.loads(process.stdout)
    assert process.returncode == report["exit_code"] == ExitCode.UNDECIDED
    (pair,) = report["pairs"]
    assert (pair["base"], pair["other"], pair["datapoints"], len(pair["only_other"])) == ("half", "good", 20, 20)
    assert [row["slice"] for row in report["slices"]] == ["0", "1"]
    assert [flip["datapoint"] for flip in pair["flips"]] == ["p18", "p19"]
    assert report["asserted"][0]["held"] == "cannot be decided"
    assert report["verdict"] == pair["verdict"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("expressions", "code", "message"),
    [
        (["accuracy >= base - 0.02"], ExitCode.DONE, "holds: accuracy >= base - 0.02   (good minus fair: 0.300 ["),
        (["accuracy >= base + 50%"], ExitCode.FAILED, "does not hold: accuracy >= base + 50%"),
        (["accuracy >= base + 0.3"], ExitCode.UNDECIDED, "cannot be decided: accuracy >= base + 0.3"),
        (["accuracy > 0.3", "soundness_error < base"], ExitCode.DONE, "holds: soundness_error < base"),
        (["accuracy > 0.7"], ExitCode.UNDECIDED, "cannot be decided: accuracy > 0.7   (fair: 0.600 ["),
        (["accuracy > 0.9", "accuracy > 0.99"], ExitCode.FAILED, "does not hold: accuracy > 0.99   (good: 0.900 ["),
    ],
)
def test_assertions_determine_the_exit_code(results: Path, expressions: list[str], code: int, message: str) -> None:
    asserts = [argument for expression in expressions for argument in ("--assert", expression)]
    process = run_command(results, "compare", "fair", "good", *asserts)
    assert process.returncode == code
    assert message in process.stdout


def test_assertion_without_an_interval_cannot_be_decided_and_does_not_hide_others(results: Path) -> None:
    asserts = [argument for bound in ("<= 1", ">= 2") for argument in ("--assert", f"rounds_played {bound}")]
    process = run_command(results, "compare", "good", *asserts)
    assert process.returncode == ExitCode.UNDECIDED
    reason = "every group has the same value, which leaves its error open"
    for bound in ("<= 1", ">= 2"):
        assert f"cannot be decided: rounds_played {bound}   (good: 1.000)\n  {reason}\n" in process.stdout
    process = run_command(results, "compare", "good", *asserts, "--assert", "accuracy >= 0.99", "--json")
    assert process.returncode == ExitCode.FAILED
    rows = json.loads(process.stdout)["asserted"]
    assert [(row["held"], row["reason"]) for row in rows] == [
        ("cannot be decided", reason), ("cannot be decided", reason), ("does not hold", None)
    ]  # fmt: skip


@pytest.mark.full
def test_assertion_can_judge_one_run_and_damaged_runs_are_usage_errors(tmp_path: Path) -> None:
    play_with_planted_verdicts(write_solo_spec(tmp_path, size=8), tmp_path / "results", "alone", lambda _, __: True)
    process = run_command(tmp_path / "results", "compare", "alone", "--assert", "accuracy >= 0.5")
    assert process.returncode == 0
    assert process.stdout.startswith("holds: accuracy >= 0.5   (alone: 1.000 [0.676, 1.000])")
    for arguments, message in (
        (("--assert", "accuracy >= base"), "name at least two runs"),
        (("--assert", "accuracy >= 2"), "accuracy is between 0 and 1"),
        (("--assert", "accuracy > 1e999"), "expected a smaller number"),
        (("--baseline", "nip"), "nip is a protocol without runs on the task of alone"),
        (("--baseline", "solo_verifer"), "no run and no protocol 'solo_verifer'"),
    ):
        refused = run_command(tmp_path / "results", "compare", "alone", *arguments)
        assert (refused.returncode, message in refused.stderr) == (ExitCode.USAGE, True), refused.stderr
    table = tmp_path / "results" / "runs" / "alone" / "rollouts.parquet"
    table.write_bytes(b"nothing")
    for message in (
        "the assertions were not judged, because a run cannot be read: cannot read",
        "is missing, though the run is done",
    ):
        unread = run_command(tmp_path / "results", "compare", "alone", "--assert", "accuracy >= 0.5")
        assert (unread.returncode, message in unread.stderr) == (ExitCode.USAGE, True), unread.stderr
        table.unlink(missing_ok=True)


@pytest.mark.full
def test_worst_of_several_runs_has_a_simultaneous_interval(results: Path) -> None:
    process = run_command(results, "compare", "good", "fair", "same", "--worst", "--flips", "0")
    worst = json.loads(run_command(results, "compare", "good", "fair", "same", "--worst", "--json").stdout)["worst"]
    measured = json.loads((results / "runs" / "fair" / "metrics.json").read_text())["metrics"]
    accuracy_row = next(row for row in measured if (row["agent"], row["metric"]) == (None, "accuracy"))
    assert (worst["system"], worst["systems"], worst["value"]) == ("fair", 3, accuracy_row["value"])
    assert worst["ci_low"] < accuracy_row["value"] < worst["ci_high"]
    interval_text = f"[{worst['ci_low']:.3f}, {worst['ci_high']:.3f}] (simultaneous 95 % interval)"
    assert f"worst of 3 by accuracy: fair, 0.600 {interval_text}" in process.stdout
    for arguments, message in (
        (("good,often", "fair"), "pools several"),
        (("good", "fair", "--metric", "calls"), "has no worst value"),
        (("good", "half", "same"), "half differs from good: datapoints differ: 20 missing (such as 'p20')"),
        (("good", "often", "--metric", "always_failed"), "often 3 times; play all as often"),
    ):
        refused = run_command(results, "compare", *arguments, "--worst")
        assert (refused.returncode, message in refused.stderr) == (ExitCode.USAGE, True), refused.stderr


def test_worst_of_one_run_has_its_own_interval_and_stopped_runs_are_refused(results: Path) -> None:
    runs = [FinishedRun.from_folder(RunFolder(results / "runs" / name)) for name in ("good", "fair")]
    for metric in ("accuracy", "balanced_accuracy", "soundness_error"):
        run_metric, worst = runs[0].metric(metric), FinishedRun.worst_of(runs[:1], metric)
        assert run_metric is not None
        assert (worst.ci_low, worst.ci_high) == run_metric.interval
        worst_of_both = FinishedRun.worst_of(runs, metric)
        run_metric = runs[worst_of_both.system == "fair"].metric(metric)
        assert run_metric is not None
        assert run_metric.interval is not None
        assert worst_of_both.ci_high is not None
        assert worst_of_both.ci_high > run_metric.interval[1]
    stopped = replace(runs[1], metrics={**runs[1].metrics, "until": {"note": "stopped"}})
    with pytest.raises(UsageError, match="fair was played with a stopping rule"):
        FinishedRun.worst_of([runs[0], stopped])


def test_invalid_assertion_is_refused_before_runs_are_read(tmp_path: Path) -> None:
    process = run_command(tmp_path, "compare", "a", "b", "--assert", "accuracy >= bse")
    assert process.returncode == ExitCode.USAGE
    assert process.stderr.splitlines()[1:3] == ["  accuracy >= bse", "              ^"]


def test_differing_repeats_and_omitted_datapoints_are_noted(results: Path) -> None:
    process = run_command(results, "compare", "half", "often", "good")
    assert process.returncode == 0
    notes = process.stderr
    assert (
        "note: 20 datapoints of good left out, missing in the other run: p20, p21, p22, p23, p24 and 15 more" in notes
    )
    assert "repeats differ: p allows for the smaller spread of the system with more repeats" in notes


@pytest.mark.full
def test_dataset_ids_are_escaped_in_the_output(tmp_path: Path) -> None:
    path = write_solo_spec(tmp_path, size=4)
    data = tmp_path / "data.jsonl"
    data.write_text(data.read_text().replace('"p0"', '"\\u001b[mp0\\nx"'))
    for name, right in (("a", True), ("b", False)):
        path.write_text(path.read_text())
        play_with_planted_verdicts(path, tmp_path / "results", name, lambda _, __, right=right: right, f"name={name}")  # type: ignore[misc]
    process = run_command(tmp_path / "results", "compare", "a", "b")
    assert "\x1b" not in process.stdout
    assert "\\x1b[mp0\\nx (label 0): right in a" in process.stdout


def test_two_transcripts_need_two_runs(results: Path) -> None:
    process = run_command(results, "show", "good", "p0", "same")
    assert (process.returncode, process.stderr) == (
        ExitCode.USAGE,
        "two rollouts need a run each; write nip-run show RUN ROLLOUT RUN ROLLOUT\n",
    )
    rollouts = json.loads(run_command(results, "show", "good", "p0", "same", "p1", "--json").stdout)
    assert [(rollout["run_id"], rollout["datapoint"]["id"]) for rollout in rollouts] == [("good", "p0"), ("same", "p1")]
