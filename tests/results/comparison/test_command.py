"""`nip-run compare`: what it says, in words and as JSON, and its exit codes; both transcripts of a flip."""

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
from tests.results.comparison.planted import planted, solo_spec


def run_command(results: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*words, "--results", str(results)])
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def test_the_verdict_stands_first_then_the_numbers_then_the_flips(results: Path) -> None:
    done = run_command(results, "compare", "good", "same")
    assert done.returncode == 0
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert lines[0].startswith("accuracy: no evidence of a difference: same minus good is 0 points [")
    assert lines[2].split("  ")[0] == "system"
    assert "0.000 [-0." in lines[3]
    assert lines[4].startswith("detectable: the difference that the sign-flip test at 5 % detects with 80 % power, if ")
    assert lines[5].startswith("d' (sensitivity): ")
    assert lines[7] == "2 flips: right in one and wrong in the other"
    assert lines[8] == "  p0 (label 0): right in good"
    both = run_command(results, *shlex.split(lines[9])[1:6])
    assert both.returncode == 0, both.stderr
    assert [line for line in both.stdout.splitlines() if line.startswith("run ")] == ["run good", "run same"]
    assert both.stdout.count("datapoint p0 ") == 2


@pytest.mark.full
def test_adjusted_and_unadjusted_intervals_are_labelled(results: Path) -> None:
    alone = run_command(results, "compare", "good", "same").stdout
    assert "(Holm)" not in alone
    assert "unadjusted" not in alone
    for words in (("good", "fair", "same"), ("good", "fair", "--by", "label")):
        found = json.loads(run_command(results, "compare", *words, "--json").stdout)
        rows = found["slices"] or found["pairs"]
        assert any(row["ci_low"] != row["ci_low_corrected"] for row in rows)
        text = run_command(results, "compare", *words).stdout
        assert "  difference [95%, unadjusted]  " in text
        assert "  p (unadjusted)  [95%] (Holm)  " in text
        for row in rows:
            assert f"  [{row['ci_low_corrected']:.3f}, {row['ci_high_corrected']:.3f}]  " in text
    (line,) = (line for line in alone.splitlines() if line.startswith("d' (sensitivity)"))
    assert "] (95 % CI), p = " in line


def test_a_metric_without_failures_says_which_games_it_leaves_out(results: Path) -> None:
    name = "accuracy_excluding_failures"
    text = run_command(results, "compare", "good", "fair", "--metric", name).stdout
    assert text.startswith(f"{name} (lost or undecided): ")


@pytest.mark.gate
def test_json_has_all_of_it(results: Path) -> None:
    done = run_command(results, "compare", "half", "good", "--by", "label", "--json", "--assert", "accuracy >= base")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == ExitCode.UNDECIDED
    (pair,) = found["pairs"]
    assert (pair["base"], pair["other"], pair["datapoints"], len(pair["only_other"])) == ("half", "good", 20, 20)
    assert [one["slice"] for one in found["slices"]] == ["0", "1"]
    assert [flip["datapoint"] for flip in pair["flips"]] == ["p18", "p19"]
    assert found["asserted"][0]["held"] == "cannot be decided"
    assert found["verdict"] == pair["verdict"]


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("expressions", "code", "words"),
    [
        (["accuracy >= base - 0.02"], ExitCode.DONE, "holds: accuracy >= base - 0.02   (good minus fair: 0.300 ["),
        (["accuracy >= base + 50%"], ExitCode.FAILED, "does not hold: accuracy >= base + 50%"),
        (["accuracy >= base + 0.3"], ExitCode.UNDECIDED, "cannot be decided: accuracy >= base + 0.3"),
        (["accuracy > 0.3", "soundness_error < base"], ExitCode.DONE, "holds: soundness_error < base"),
        (["accuracy > 0.7"], ExitCode.UNDECIDED, "cannot be decided: accuracy > 0.7   (fair: 0.600 ["),
        (["accuracy > 0.9", "accuracy > 0.99"], ExitCode.FAILED, "does not hold: accuracy > 0.99   (good: 0.900 ["),
    ],
)
def test_an_assertion_ends_with_its_exit_code(results: Path, expressions: list[str], code: int, words: str) -> None:
    asserts = [word for one in expressions for word in ("--assert", one)]
    done = run_command(results, "compare", "fair", "good", *asserts)
    assert done.returncode == code
    assert words in done.stdout


@pytest.mark.full
def test_one_run_is_judged_by_itself_and_a_damaged_one_is_no_failed_assertion(tmp_path: Path) -> None:
    planted(solo_spec(tmp_path, size=8), tmp_path / "results", "alone", lambda _, __: True)
    done = run_command(tmp_path / "results", "compare", "alone", "--assert", "accuracy >= 0.5")
    assert done.returncode == 0
    assert done.stdout.startswith("holds: accuracy >= 0.5   (alone: 1.000 [0.676, 1.000])")
    for words, why in (
        (("--assert", "accuracy >= base"), "name at least two runs"),
        (("--assert", "accuracy >= 2"), "accuracy is between 0 and 1"),
        (("--assert", "accuracy > 1e999"), "expected a smaller number"),
        (("--baseline", "nip"), "nip is a protocol without runs on the task of alone"),
        (("--baseline", "solo_verifer"), "no run and no protocol 'solo_verifer'"),
    ):
        refused = run_command(tmp_path / "results", "compare", "alone", *words)
        assert (refused.returncode, why in refused.stderr) == (ExitCode.USAGE, True), refused.stderr
    table = tmp_path / "results" / "runs" / "alone" / "rollouts.parquet"
    table.write_bytes(b"nothing")
    for why in (
        "the assertions were not judged, because a run cannot be read: cannot read",
        "is missing, though the run is done",
    ):
        unread = run_command(tmp_path / "results", "compare", "alone", "--assert", "accuracy >= 0.5")
        assert (unread.returncode, why in unread.stderr) == (ExitCode.USAGE, True), unread.stderr
        table.unlink(missing_ok=True)


@pytest.mark.full
def test_the_worst_of_several_has_an_interval_that_holds_for_all(results: Path) -> None:
    done = run_command(results, "compare", "good", "fair", "same", "--worst", "--flips", "0")
    found = json.loads(run_command(results, "compare", "good", "fair", "same", "--worst", "--json").stdout)["worst"]
    measured = json.loads((results / "runs" / "fair" / "metrics.json").read_text())["metrics"]
    own = next(row for row in measured if (row["agent"], row["metric"]) == (None, "accuracy"))
    assert (found["system"], found["systems"], found["value"]) == ("fair", 3, own["value"])
    assert found["ci_low"] < own["value"] < found["ci_high"]
    shown = f"[{found['ci_low']:.3f}, {found['ci_high']:.3f}] (simultaneous 95 % interval)"
    assert f"worst of 3 by accuracy: fair, 0.600 {shown}" in done.stdout
    for words, why in (
        (("good,often", "fair"), "pools several"),
        (("good", "fair", "--metric", "calls"), "has no worst value"),
        (("good", "half", "same"), "half differs from good: datapoints differ: 20 missing (such as 'p20')"),
        (("good", "often", "--metric", "always_failed"), "often 3 times; play all as often"),
    ):
        refused = run_command(results, "compare", *words, "--worst")
        assert (refused.returncode, why in refused.stderr) == (ExitCode.USAGE, True), refused.stderr


def test_the_worst_of_one_run_has_its_own_interval_and_stopped_runs_have_none(results: Path) -> None:
    runs = [FinishedRun.from_folder(RunFolder(results / "runs" / name)) for name in ("good", "fair")]
    for metric in ("accuracy", "balanced_accuracy", "soundness_error"):
        own, found = runs[0].metric(metric), FinishedRun.worst_of(runs[:1], metric)
        assert own is not None
        assert (found.ci_low, found.ci_high) == own.interval
        both = FinishedRun.worst_of(runs, metric)
        own = runs[both.system == "fair"].metric(metric)
        assert own is not None
        assert own.interval is not None
        assert both.ci_high is not None
        assert both.ci_high > own.interval[1]
    stopped = replace(runs[1], metrics={**runs[1].metrics, "until": {"note": "stopped"}})
    with pytest.raises(UsageError, match="fair was played with a stopping rule"):
        FinishedRun.worst_of([runs[0], stopped])


def test_a_wrong_assertion_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    done = run_command(tmp_path, "compare", "a", "b", "--assert", "accuracy >= bse")
    assert done.returncode == ExitCode.USAGE
    assert done.stderr.splitlines()[1:3] == ["  accuracy >= bse", "              ^"]


def test_repeats_that_differ_and_datapoints_left_out_are_said(results: Path) -> None:
    done = run_command(results, "compare", "half", "often", "good")
    assert done.returncode == 0
    notes = done.stderr
    assert (
        "note: 20 datapoints of good left out, missing in the other run: p20, p21, p22, p23, p24 and 15 more" in notes
    )
    assert "repeats differ: p allows for the smaller spread of the system with more repeats" in notes


@pytest.mark.full
def test_ids_of_a_dataset_drive_no_terminal(tmp_path: Path) -> None:
    path = solo_spec(tmp_path, size=4)
    data = tmp_path / "data.jsonl"
    data.write_text(data.read_text().replace('"p0"', '"\\u001b[mp0\\nx"'))
    for name, right in (("a", True), ("b", False)):
        path.write_text(path.read_text())
        planted(path, tmp_path / "results", name, lambda _, __, right=right: right, f"name={name}")  # type: ignore[misc]
    done = run_command(tmp_path / "results", "compare", "a", "b")
    assert "\x1b" not in done.stdout
    assert "\\x1b[mp0\\nx (label 0): right in a" in done.stdout


def test_two_transcripts_need_two_runs(results: Path) -> None:
    done = run_command(results, "show", "good", "p0", "same")
    assert (done.returncode, done.stderr) == (
        ExitCode.USAGE,
        "two rollouts need a run each; write nip-run show RUN ROLLOUT RUN ROLLOUT\n",
    )
    both = json.loads(run_command(results, "show", "good", "p0", "same", "p1", "--json").stdout)
    assert [(one["run_id"], one["datapoint"]["id"]) for one in both] == [("good", "p0"), ("same", "p1")]
