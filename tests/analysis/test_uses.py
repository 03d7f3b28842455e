"""The results of analyses in `compare`, sweeps and the leaderboard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from runner.analysis.comparison import AnalysisScores
from runner.analysis.results import read_analyses
from runner.analysis.scores import AnalysisName, find_analysis, find_validations
from runner.analysis.validation_log import ValidationRecord, append_validations
from runner.base.errors import RunError, UsageError
from runner.cli.main import main
from runner.results.comparison.analysis_metrics import AnalysisDifference
from runner.results.comparison.assertions import parse_assertion
from runner.results.comparison.comparison import Comparison, ComparisonOptions, compare_systems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from tests.support.analyses import INSTRUMENT, write_analysis, write_lines, yes
from tests.support.runs import run_spec
from tests.support.specs import spec_file

METRIC = "analysis:role_conformance"


@pytest.fixture(scope="module")
def original_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uses")
    spec = spec_file(folder)
    run_spec(spec, folder / "results", "name=first")
    run_spec(spec, folder / "results", "name=second", "protocol.max_message_rounds=4")
    return folder / "results"


@pytest.fixture
def results(original_results: Path, tmp_path: Path) -> Results:
    """Two runs with 12 games. In the first, 3 games have one unit of two with yes, in the second 6 have two of two."""
    copied = Results(Path(shutil.copytree(original_results, tmp_path / "results")))
    first, second = copied.find("first").path, copied.find("second").path
    write_analysis(first, lambda number, _: [yes(number < 3), yes(False), {"status": "not_applicable"}])
    write_analysis(second, lambda number, _: [yes(number < 6), yes(number < 6)])
    return copied


def compare(results: Results, metric: str = METRIC, **options: object) -> Comparison:
    names = [["first"], ["second"]]
    return compare_systems(names, results, ComparisonOptions(metric, analyses=AnalysisScores(), **options))  # type: ignore[arg-type]


def test_game_value_is_the_mean_of_its_answered_units_and_runs_are_paired_by_datapoint(results: Results) -> None:
    (pair,) = compare(results).pairs
    assert (pair.base_value, pair.other_value, pair.difference) == (0.125, 0.5, 0.375)
    assert (pair.paired, pair.datapoints, pair.differing) == (True, 12, 6)
    assert pair.measure.is_share
    assert "points" in pair.verdict


def test_difference_is_marked_not_validated_until_a_validation_is_recorded(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", "first", "second", "--metric", METRIC, "--results", str(results.path)]) == 0
    assert f"{METRIC}: uncorrected; not validated (instrument {INSTRUMENT})" in capsys.readouterr().out
    validation = ValidationRecord(
        INSTRUMENT, "role_conformance", "b" * 64, "other", 40, 2, 0.9, 0.5, 0.25, 0.75, 0.5, "2026-01-01T00:00:00Z"
    )
    append_validations(results.find("second").path, [validation])
    (pair,) = compare(results).pairs
    assert pair.analysis is not None
    assert pair.analysis.status.startswith("uncorrected; validated with 40 labels of other: kappa 0.500 [0.250, 0.750]")


def test_validation_on_the_run_itself_comes_first_and_chance_level_is_reported(results: Results) -> None:
    run = results.find("first")
    other_validation = ValidationRecord(
        INSTRUMENT, "role_conformance", "b" * 64, "other", 30, 1, 0.9, 0.5, 0.25, 0.75, 0.5, "2026-02-01T00:00:00Z"
    )
    append_validations(results.find("second").path, [other_validation])
    assert find_validations(run)[INSTRUMENT].startswith("validated with 30 labels of other: kappa 0.500")
    own_validation = replace(
        other_validation, run_id=run.run_id, kappa=0.0, kappa_low=-0.2, kappa_high=0.3, time="2026-01-01T00:00:00Z"
    )
    append_validations(run.path, [own_validation])
    chance = f"validated on {run.run_id}: no better than chance (kappa 0.000 [-0.200, 0.300], 30 labels)"
    assert find_validations(run) == {INSTRUMENT: chance}
    append_validations(run.path, [replace(own_validation, kappa=None, kappa_low=None, kappa_high=None)])
    assert find_validations(run)[INSTRUMENT].startswith(f"not validated with 30 labels of {run.run_id}: kappa is undef")
    (pair,) = compare(results).pairs
    assert pair.verdict.startswith("no test: the instrument is not validated")
    assert (pair.p, pair.ci_low) == (None, None)


def test_units_without_an_answer_are_counted_next_to_the_difference(results: Results) -> None:
    for name, status in (("first", "failed"), ("second", "no_answer")):
        write_analysis(results.find(name).path, lambda *_, status=status: [yes(True), {"status": status}])
    (pair,) = compare(results).pairs
    assert pair.analysis is not None
    assert pair.analysis.status.endswith("; 24 units without an answer left out")


def test_datapoints_with_the_largest_differences_are_listed_instead_of_flips(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    (pair,) = compare(results).pairs
    changes = [(change.base_value, change.other_value) for change in pair.value_changes]
    assert (pair.flips, changes) == ((), [(0.0, 1.0)] * 3 + [(0.5, 1.0)] * 3)
    assert main(["compare", "first", "second", "--metric", METRIC, "--results", str(results.path), "--flips", "1"]) == 0
    output = capsys.readouterr().out
    assert "6 datapoints with different values, the largest differences first" in output
    assert f"{pair.value_changes[0].datapoint} (label " in output
    assert f": 0.000 in {pair.base}, 1.000 in {pair.other}" in output
    assert "right in one" not in output


def write_labels(
    run: Path, is_yes: Callable[[int], bool], answers: Sequence[str] = ("yes", "no"), step: int = 1
) -> None:
    """Write a label for each unit that has an answer; `is_yes` gets the number of the unit."""
    (table,) = read_analyses(RunFolder(run))
    units = [result.unit_id for result in table.results if result.status == "answered"]
    write_lines(run / "labels" / "role_conformance-bbbbbbbbbb.jsonl", *(
        {"unit_id": unit, "answer": answers[not is_yes(number)], "reader": "Ann", "time": "2026-01-01T00:00:00Z",
         "analyzer": table.analyzer, "analyzer_sha256": table.analyzer_sha256,
         "question_sha256": table.question_sha256}
        for number, unit in list(enumerate(units))[::step]
    ))  # fmt: skip


def test_labels_of_both_runs_give_a_corrected_difference(results: Results, capsys: pytest.CaptureFixture[str]) -> None:
    write_labels(
        results.find("first").path, lambda number: number < 12 and number % 2 == 0
    )  # twice as many as the model finds
    (pair,) = compare(results).pairs
    assert pair.analysis is not None
    assert (pair.analysis.corrected, pair.analysis.reason) == (
        None, f"people have not labeled units of {results.find('second').run_id}; see nip-run label"
    )  # fmt: skip
    write_labels(results.find("second").path, lambda number: number < 12)
    analyses = [compare(results, metric).pairs[0].analysis for metric in (METRIC, f"{METRIC}=no")]
    (yes_facts, no_facts) = (facts for facts in analyses if facts is not None)
    assert (yes_facts.plain, yes_facts.labels) == (0.375, 48)
    assert yes_facts.corrected == pytest.approx(0.25)
    assert yes_facts.ci_low is not None
    assert yes_facts.ci_low < 0.25
    assert (no_facts.corrected, no_facts.ci_high) == pytest.approx((-0.25, -yes_facts.ci_low))
    assert main(["compare", "first", "second", "--metric", METRIC, "--results", str(results.path)]) == 0
    assert "corrected difference over units: 0.250 [" in capsys.readouterr().out


def test_sql_has_labels_that_count_and_the_last_validations(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(query: str) -> list[str]:
        assert main(["sql", query, "--results", str(results.path), "--format", "csv"]) == 0
        return capsys.readouterr().out.splitlines()[1:]

    folder = results.find("first")
    write_labels(folder.path, lambda number: number < 3)
    path = folder.path / "labels" / "role_conformance-bbbbbbbbbb.jsonl"
    first = json.loads(path.read_text().splitlines()[0])
    with path.open("a") as file:
        file.write(json.dumps({**first, "answer": None}) + "\n" + '{"incomplete')
    joined = "SELECT l.answer, count(*) FROM labels l JOIN analyses a USING (run_id, unit_id) GROUP BY 1 ORDER BY 1"
    assert answer(joined) == ["no,21", "yes,2"]
    record = ValidationRecord(INSTRUMENT, "a", "b" * 64, folder.run_id, 23, 1, 0.9, 0.5, None, None, None, "2026-01-01")
    append_validations(folder.path, [record])
    append_validations(folder.path, [replace(record, kappa=0.75)])
    assert answer("SELECT run_id, instrument, kappa FROM validations") == [f"{folder.run_id},{INSTRUMENT},0.75"]
    path.write_text("[1]\n")
    assert main(["sql", "FROM labels", "--results", str(results.path)]) == 1
    assert "role_conformance-bbbbbbbbbb.jsonl:1 is not a JSON object" in capsys.readouterr().err
    path.write_text('{"seconds": "soon"}\n')
    assert main(["sql", "FROM labels", "--results", str(results.path)]) == 1
    assert "a line of labels has a wrong value" in capsys.readouterr().err


def test_a_difference_uses_the_numbers_of_the_answers(results: Results) -> None:
    first, second = results.find("first").path, results.find("second").path
    numbers = {"answers": ["yes", "no"], "answer_values": [0, 1]}
    units = [{**yes(is_yes), **numbers, "value": float(not is_yes)} for is_yes in (False, True)]
    for run, count in ((first, 6), (second, 3)):  # no counts as 1, so that the second run has more
        write_analysis(run, lambda number, _, count=count: [units[number < count]] * 2)  # type: ignore[misc]
        write_labels(run, lambda number, count=count: number < 2 * count)  # type: ignore[misc]
    (pair,) = compare(results).pairs
    assert pair.analysis is not None
    assert (pair.difference, pair.analysis.plain, pair.analysis.corrected) == pytest.approx((0.25, 0.25, 0.25))


def test_the_difference_of_a_scale_is_corrected_too(results: Results) -> None:
    for name, count in (("first", 3), ("second", 9)):
        run = results.find(name).path
        write_analysis(run, lambda number, _, count=count: [  # type: ignore[misc]
            {"answer": "much", "value": 4.0} if number < count else {"answer": "none", "value": 0.0}] * 2)  # fmt: skip
        write_labels(run, lambda number, count=count: number < 2 * count, ("much", "none"))  # type: ignore[misc]
    (pair,) = compare(results).pairs
    assert pair.analysis is not None
    assert (pair.analysis.plain, pair.analysis.corrected) == pytest.approx((2.0, 2.0))


def test_pooled_runs_need_labels_of_each_and_count_by_their_units(results: Results, tmp_path: Path) -> None:
    run_spec(spec_file(tmp_path), results.path, "name=third", "protocol.max_message_rounds=4", "seed=1")
    first, second, third = (results.find(name) for name in ("first", "second", "third"))
    for run, size in ((first, 2), (second, 2), (third, 6)):
        write_analysis(run.path, lambda number, _, size=size: [yes(number < 6)] * size)  # type: ignore[misc]
    write_labels(first.path, lambda _: False)
    write_labels(second.path, lambda _: True)
    pooled = [["first"], ["second", "third"]]

    def compare_pooled() -> AnalysisDifference | None:
        return compare_systems(pooled, results, ComparisonOptions(METRIC, analyses=AnalysisScores())).pairs[0].analysis

    unlabeled = compare_pooled()
    assert unlabeled is not None
    assert unlabeled.reason == f"people have not labeled units of {third.run_id}; see nip-run label"
    write_labels(third.path, lambda _: False, step=3)
    labeled = compare_pooled()
    assert labeled is not None
    assert labeled.corrected == pytest.approx(24 / (24 + 72), abs=0.001)  # only the units of the second run are yes


def test_pooled_runs_of_one_spec_keep_their_own_labels_though_their_units_have_the_same_ids(
    results: Results, tmp_path: Path
) -> None:
    run_spec(spec_file(tmp_path), results.path, "name=first", run_id="copy")
    first, copy = results.find("first").path, results.find("copy").path
    for run, is_yes in ((first, True), (copy, False)):
        write_analysis(run, lambda *_: [yes(True)])
        write_labels(run, lambda _, is_yes=is_yes: is_yes)  # type: ignore[misc]
    rate = AnalysisScores().rate(METRIC, [results.find("first"), results.find("copy")])
    assert (rate.corrected, rate.labels) == (0.5, 24)


def test_without_labels_an_analysis_has_neither_test_nor_interval(results: Results) -> None:
    (pair,) = compare(results).pairs
    assert (pair.ci_low, pair.p, pair.detectable) == (None, None, None)
    assert pair.verdict.startswith("no test: the instrument is not validated; second-")
    (part, *_) = compare(results, by="label").slices
    assert (part.ci_low, part.p) == (None, None)


def test_an_assertion_about_an_analysis_is_judged_by_the_corrected_value(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "first", "second", "--results", str(results.path), "--assert"]
    assert main([*command, f"{METRIC} >= base - 0.02"]) == 5
    output = capsys.readouterr().out
    assert "cannot be decided: " in output
    assert f"; not validated (instrument {INSTRUMENT})" in output
    assert main([*command, f"{METRIC} <= 0.99"]) == 5
    write_labels(results.find("first").path, lambda _: True)  # the model finds 3 of 24
    write_labels(results.find("second").path, lambda _: False)  # the model finds 12 of 24
    assert main([*command, f"{METRIC} >= base"]) == 1
    output = capsys.readouterr().out
    assert "corrected difference over units: -1.000 [" in output
    assert f"not validated (instrument {INSTRUMENT})" in output
    assert main([*command, f"{METRIC}@{INSTRUMENT}=yes <= base - 0.5"]) == 0
    assert main(["compare", "second", "--results", str(results.path), "--assert", f"{METRIC} <= 0.4"]) == 0
    output = capsys.readouterr().out
    assert "holds: " in output
    assert "corrected rate over units: 0.000 [0.000, " in output
    assert main([*command, "analysis:unknown >= base"]) == 2
    assert "has no analysis 'unknown'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("analysis:a.b-c", ("a.b-c", None, None)),
        ("analysis:a@0123456789=yes", ("a", "0123456789", "yes")),
        ("analysis:a=yes@0123", ("a", "0123", "yes")),
        ('analysis:a="partly right"', ("a", None, "partly right")),
        ('analysis:a="x@12"@34', ("a", "34", "x@12")),
    ],
)
def test_a_metric_name_has_an_analyzer_and_optionally_an_instrument_and_an_answer(
    text: str, parts: tuple[str, ...]
) -> None:
    assert AnalysisName.parse(text) == parts
    assert parse_assertion(f"{text} >= base - 0.1").metric == text


def test_several_instruments_are_an_error_that_names_all(results: Results) -> None:
    first, second = results.find("first").path, results.find("second").path
    write_analysis(first, lambda *_: [yes(True)], instrument="1111111111", model="judge-2")
    with pytest.raises(UsageError, match=r"(?s)0a1b2c3d4e \(judge-1\), 1111111111 \(judge-2\).*@INSTRUMENT"):
        compare(results)
    assert compare(results, f"{METRIC}@{INSTRUMENT}").pairs[0].base_value == 0.125
    write_analysis(second, lambda *_: [yes(True)], instrument="1111111111", model="judge-2")
    assert compare(results, f"{METRIC}@1111111111").pairs[0].base_value == 1.0
    with pytest.raises(UsageError, match=r"first-.* has no role_conformance@2222222222"):
        compare(results, f"{METRIC}@2222222222")


def test_unique_prefix_of_an_instrument_is_accepted(results: Results) -> None:
    for name in ("first", "second"):
        write_analysis(results.find(name).path, lambda *_: [yes(True)], instrument="0a22222222")
    assert compare(results, f"{METRIC}@0a1=yes").pairs[0].base_value == 0.125
    assert compare(results, f"{METRIC}=yes@0a2").pairs[0].base_value == 1.0
    with pytest.raises(UsageError, match="there are several instruments"):
        compare(results, f"{METRIC}@0a")


def test_the_name_of_an_analyzer_without_its_prefix_is_an_error_with_a_hint(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", "first", "second", "--results", str(results.path)]
    assert main([*command, "--assert", "role_conformance >= 0.5"]) == 2
    assert "did you mean analysis:role_conformance?" in capsys.readouterr().err
    assert main([*command, "--metric", "follow_up"]) == 2
    assert "analysis:" not in capsys.readouterr().err


def test_labels_without_numbers_need_an_answer(results: Results) -> None:
    first, second = results.find("first").path, results.find("second").path
    write_analysis(first, lambda number, _: [{"answer": "lie" if number % 2 else "none"}], "kind")
    write_analysis(second, lambda number, _: [{"answer": "error" if number % 2 else "none"}], "kind")
    with pytest.raises(UsageError, match=r"choose one: .*analysis:kind=none"):
        compare(results, "analysis:kind")
    with pytest.raises(UsageError, match="'bluff' is not an answer of the analyzer"):
        compare(results, "analysis:kind=bluff")
    (pair,) = compare(results, "analysis:kind=lie").pairs
    assert (pair.base_value, pair.other_value) == (0.5, 0.0)


def test_mean_of_a_scale_is_not_treated_as_a_share(results: Results) -> None:
    for name in ("first", "second"):
        write_analysis(results.find(name).path, lambda number, _: [{"answer": "much", "value": 2.0}], "amount")
    (pair,) = compare(results, "analysis:amount").pairs
    assert (pair.base_value, pair.measure.is_share) == (2.0, False)


def test_leaderboard_has_an_analysis_column_only_if_requested(
    results: Results, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["leaderboard", "--results", str(results.path), "--json", "--metric", METRIC]) == 0
    rates = {row["run_id"]: row[METRIC]["value"] for row in json.loads(capsys.readouterr().out)}
    assert sorted(rates.values()) == [0.125, 0.5]
    assert main(["leaderboard", "--results", str(results.path)]) == 0
    assert "analysis" not in capsys.readouterr().out
    assert main(["leaderboard", "--results", str(results.path), "--metric", METRIC]) == 0
    assert "uncorrected; not validated" in capsys.readouterr().out
    assert main(["leaderboard", "--results", str(results.path), "--metric", "analysis:other"]) == 0
    assert "analysis:other: no run here was analyzed" in capsys.readouterr().out
    assert main(["leaderboard", "--results", str(results.path), "--metric", "recall"]) == 2


@pytest.mark.full
def test_the_table_of_a_sweep_has_the_rate_of_an_analysis(
    results: Results, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = spec_file(tmp_path, name="swept", sweep={"seed": [0, 1]}, dataset={"limit": 2})
    arguments = [str(spec), "--results", str(results.path)]
    assert main([*arguments, "--quiet"]) == 0
    for folder in results.runs():
        if folder.run_id.startswith("swept"):
            write_analysis(folder.path, lambda number, _: [yes(number == 0)])
    capsys.readouterr()
    assert main(["sweep", *arguments, "--metric", METRIC, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["metrics"][METRIC]["value"], row["metrics"][METRIC]["n"]) == (0.5, 4)
    assert main(["sweep", *arguments, "--metric", METRIC]) == 0
    assert f"{METRIC}: uncorrected; not validated" in capsys.readouterr().out


def test_a_damaged_table_is_an_error_that_names_the_file(results: Results) -> None:
    folder = RunFolder(results.find("first").path)
    (folder.path / "analyses" / "other-1111111111.jsonl").write_text('{"round": "one"}\n')
    with pytest.raises(RunError, match=r"other-1111111111\.jsonl:1 is damaged: round has the wrong type"):
        read_analyses(folder)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"group": None}, "row 1: group missing"),
        ({"spans": [{"agent": "prover"}]}, "row 1: a span lacks a value, or has a wrong one"),
        ({"spans": ["prover"]}, "row 1: a span lacks a value"),
        ({"spans": [{"agent": "a", "channel": "main", "round": 0, "start": 0, "end": 1, "mark": 2}]}, "a span lacks"),
    ],
)
def test_a_row_with_a_missing_or_wrong_value_is_an_error_that_names_it(
    results: Results, columns: dict[str, object], problem: str
) -> None:
    folder = RunFolder(results.find("first").path)
    write_analysis(folder.path, lambda *_: [{"group": "g", **columns}], "other")
    with pytest.raises(RunError, match=f"other-{INSTRUMENT}.parquet is damaged: .*{problem}"):
        read_analyses(folder)


def test_answer_without_units_has_rate_zero(results: Results) -> None:
    unit = {"answer": "calm", "answers": ["calm", "angry"]}
    for name in ("first", "second"):
        write_analysis(results.find(name).path, lambda *_: [unit], "mood")
    (pair,) = compare(results, "analysis:mood=angry").pairs
    assert (pair.base_value, pair.other_value) == (0.0, 0.0)


def test_the_rate_gives_each_datapoint_the_same_weight(results: Results) -> None:
    assert find_analysis(METRIC, [results.find("first")]).rate() == (0.125, 12, 12)
