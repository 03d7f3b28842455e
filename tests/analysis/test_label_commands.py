"""`nip-run label` and `nip-run validate` on a run, by their output."""

from __future__ import annotations

import csv
import json
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.analysis.analyzer import load_analyzer
from runner.analysis.labels import LabelFile
from runner.analysis.results import AnalysisTable, UnitResult, read_analyses, write_analysis
from runner.analysis.units import list_units
from runner.analysis.validation_log import read_validations
from runner.results.folder import RunFolder
from tests.support.labels import label
from tests.support.processes import nip_run_here, wait_for_exit
from tests.support.question_process import run_with_questions
from tests.support.runs import only_run, run_spec
from tests.support.specs import spec_file

TONE = "name: tone\nunit: channel\napplies: [prover]\nquestion: Is {{ agent_name }} polite?\n"


@pytest.fixture(scope="module")
def analyzed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 40 games, and the results of an instrument that answers yes for every fourth unit."""
    tmp_path = tmp_path_factory.mktemp("analyzed")
    run_spec(spec_file(tmp_path, size=40, fine_tune=None, protocol={"max_message_rounds": 2}), tmp_path / "results")
    (tmp_path / "tone.yaml").write_text(TONE)
    folder = RunFolder(only_run(tmp_path / "results"))
    analyzer = load_analyzer(str(tmp_path / "tone.yaml"))
    results = tuple(
        UnitResult(
            unit.id, unit.rollout_id, unit.datapoint_id, unit.group, unit.agent, unit.channel, None, "answered",
            "no" if number % 4 else "yes", float(number % 4 == 0), None, "tiny",
        )
        for number, unit in enumerate(list_units(folder, analyzer))
    )  # fmt: skip
    table = AnalysisTable(
        folder.run_id, "tone", analyzer.sha256, analyzer.question_sha256, "0123456789", None, results
    )  # fmt: skip
    write_analysis(folder, table)
    write_analysis(folder, replace(table, instrument="9876543210", question_sha256="0" * 64))
    return tmp_path


@pytest.fixture
def folder(analyzed_folder: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(analyzed_folder, tmp_path, dirs_exist_ok=True)
    return RunFolder(only_run(tmp_path / "results"))


def test_units_that_code_finds_not_applicable_are_not_labeled(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(unit):\n    return 'not applicable'\n")
    (tmp_path / "own.yaml").write_text(TONE + "code: own.py:f\n")
    message = run_command(tmp_path, "label", folder.run_id, "own.yaml", "--import", "own.yaml", code=2)
    assert "there is nothing to label" in message


def label_units(folder: RunFolder, tmp_path: Path, reader: str, errors: int = 5) -> None:
    """Label all units of the run as the model does, except every `errors`-th."""
    analyzer = load_analyzer(str(tmp_path / "tone.yaml"))
    answers = ("no" if (number % 4 != 0) != (number % errors == 0) else "yes" for number in range(100))
    units = list_units(folder, analyzer)
    LabelFile(folder.path, analyzer).append(
        [label(analyzer, unit.id, answer, reader) for unit, answer in zip(units, answers, strict=False)]
    )


def run_command(tmp_path: Path, *arguments: str, code: int = 0) -> str:
    process = nip_run_here(*arguments, cwd=tmp_path)
    assert process.returncode == code, process.stderr
    return process.stdout if code == 0 else process.stderr


def test_labels_survive_export_to_scout_csv_and_import(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    label_units(folder, tmp_path, "Ben")
    labels = LabelFile(folder.path, load_analyzer(str(tmp_path / "tone.yaml")))
    before = labels.current()
    text = run_command(tmp_path, "label", "last", "tone.yaml", "--export", "labels.csv", "--readers", "Ann")
    assert text == "labels.csv: 40 labels\n"
    rows = list(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))
    assert {row["target"] for row in rows} == {"true", "false"}
    assert {row["id"] for row in rows} == {saved_label.unit_id for saved_label in before}
    labels.path.unlink()
    import_arguments = ("label", "last", "tone.yaml", "--import", "labels.csv")
    assert run_command(tmp_path, *import_arguments) == "40 new labels, 0 already present\n"
    assert run_command(tmp_path, *import_arguments) == "0 new labels, 40 already present\n"
    assert labels.current() == before[:40]
    (tmp_path / "scout.csv").write_text(f"id,target\n{before[0].unit_id},true\n{before[1].unit_id},False\nu9,true\n")
    message = run_command(tmp_path, "label", "last", "tone.yaml", "--import", "scout.csv", "--readers", "Cem", code=2)
    assert "line 4: the run has no unit 'u9'" in message
    assert len(labels.current()) == 40


def test_exported_sample_is_filled_in_and_imported_with_its_positions(folder: RunFolder, tmp_path: Path) -> None:
    export_arguments = ("label", "last", "tone.yaml", "--units", "24", "--export", "sample.csv")
    assert run_command(tmp_path, *export_arguments) == "sample.csv: 0 labels, 24 rows to fill in\n"
    rows = list(csv.DictReader((tmp_path / "sample.csv").read_text().splitlines(keepends=True)))
    assert {(row["target"], row["reader"], row["probability"]) for row in rows} == {("", "", "0.6")}
    assert all("Is " in row["text"].splitlines()[-1] for row in rows)
    with (tmp_path / "sample.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "target": "true" if number % 3 else ""} for number, row in enumerate(rows))
    import_arguments = ("label", "last", "tone.yaml", "--import", "sample.csv", "--readers", "Ann")
    assert run_command(tmp_path, *import_arguments) == "16 new labels, 0 already present\n"
    labels = LabelFile(folder.path, load_analyzer(str(tmp_path / "tone.yaml"))).current()
    assert [saved_label.drawn for saved_label in labels] == [number for number in range(24) if number % 3]
    assert (
        run_command(tmp_path, *export_arguments, "--readers", "Ann", "Ben")
        == "sample.csv: 16 labels, 32 rows to fill in\n"
    )


def test_stratified_sample_labeled_in_csv_is_validated(folder: RunFolder, tmp_path: Path) -> None:
    export_arguments = ("label", "last", "tone.yaml", "--units", "24", "--stratify", "--export", "sample.csv")
    run_command(tmp_path, *export_arguments)
    rows = list(csv.DictReader((tmp_path / "sample.csv").read_text().splitlines(keepends=True)))
    assert {row["stratum"] for row in rows} == {"yes", "no"}
    with (tmp_path / "sample.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "target": "true" if number % 3 else "false"} for number, row in enumerate(rows))
    run_command(tmp_path, "label", "last", "tone.yaml", "--import", "sample.csv", "--readers", "Ann")
    assert "24 units" in run_command(tmp_path, "validate", "last", "tone.yaml")


def test_import_changes_or_deletes_labels_only_with_replace(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    labels = LabelFile(folder.path, load_analyzer(str(tmp_path / "tone.yaml")))
    first, second, third, *_ = labels.current()
    opposite = "no" if first.answer == "yes" else "yes"
    (tmp_path / "new.csv").write_text(
        "id,target,reader\n"
        f"{first.unit_id},{opposite},Ann\n{second.unit_id},,Ann\n{third.unit_id},{third.answer},Ann\n"
        f"{first.unit_id},yes,Ben\n{first.unit_id},yes,Eve\n"
    )
    arguments = ("label", "last", "tone.yaml", "--import", "new.csv", "--readers", "Ann", "Ben")
    message = run_command(tmp_path, *arguments, code=2)
    assert f"1 label of the run would change (Ann's for {first.unit_id}); add --replace" in message
    assert len(labels.current()) == 40
    assert run_command(tmp_path, *arguments, "--replace") == "1 new label, 1 changed, 1 deleted, 1 already present\n"
    current = {(saved_label.reader, saved_label.unit_id): saved_label.answer for saved_label in labels.current()}
    assert current["Ann", first.unit_id] == opposite
    assert ("Ann", second.unit_id) not in current
    assert {reader for reader, _ in current} == {"Ann", "Ben"}
    assert "belongs to --import" in run_command(tmp_path, "label", "last", "tone.yaml", "--replace", code=2)


def test_label_is_stored_with_the_stratum_and_probability_of_its_unit(folder: RunFolder, tmp_path: Path) -> None:
    arguments = ("label", folder.run_id, "tone.yaml", "--units", "16", "--stratify", "--readers", "Ann", "Ben")
    with run_with_questions(*arguments, cwd=tmp_path) as command:
        for _ in range(16):
            command.answer("Ann", answer="yes")
        state = command.post("take", person="Ann")
        assert (state["question"], state["labeled"], state["total"]) == (None, 16, 16)
        assert command.post("undo", person="Ann")["labeled"] == 15
        command.answer("Ann", answer="no")
        command.answer("Ben", answer="no")
        command.process.send_signal(signal.SIGINT)
        code, stdout, stderr = wait_for_exit(command.process)
    assert (code, stdout) == (0, "Ann: 16 of 16 units labeled\nBen: 1 of 16 units labeled\n"), stderr
    current = LabelFile(folder.path, load_analyzer(str(tmp_path / "tone.yaml"))).current()
    assert [saved_label.reader for saved_label in current] == ["Ann"] * 16 + ["Ben"]
    strata_and_probabilities = sorted(
        {(saved_label.stratum, saved_label.probability, saved_label.stratified_by) for saved_label in current}
    )
    (strata,) = folder.path.glob("labels/strata-0123456789-*.json")
    name = strata.stem.removeprefix("strata-")
    assert strata_and_probabilities == [("no", 8 / 30, name), ("yes", 0.8, name)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stratify"], "add --units N"),
        (["--units", "0"], "must be 1 or more"),
        (["--units", "5", "--stratify", "77"], "there are no results of tone"),
        (["--units", "5", "--stratify", "77"], "nip-run analyze RUN_ID tone.yaml"),
        (["--export", "labels.txt"], "must end in .csv"),
    ],
)
def test_invalid_option_of_label_is_explained(
    folder: RunFolder, tmp_path: Path, options: list[str], message: str
) -> None:
    expected = message.replace("RUN_ID", folder.run_id)
    assert expected in run_command(tmp_path, "label", folder.run_id, "tone.yaml", *options, code=2)


def test_validate_without_labels_says_how_many_are_needed(folder: RunFolder, tmp_path: Path) -> None:
    text = run_command(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "0.4")
    assert "instrument 9876543210) on run " in text
    assert "not validated, because it answered another version of the question" in text
    assert "not validated: no unit of this run has a label" in text
    assert "no corrected rate: 0 labels" in text
    assert "yes: an interval of width 0.4 needs about" in text
    assert "if the model agrees with people about 80% of units" in text
    assert read_validations(folder.path) == {}
    assert "there are no results of tone by 77" in run_command(
        tmp_path, "validate", folder.run_id, "tone.yaml", "--instrument", "77", code=2
    )


def test_labels_of_hand_picked_units_are_refused_with_a_sampling_command(folder: RunFolder, tmp_path: Path) -> None:
    analyzer = load_analyzer(str(tmp_path / "tone.yaml"))
    (table,) = [table for table in read_analyses(folder) if table.instrument == "0123456789"]
    selected = [label(analyzer, result.unit_id, "no") for result in table.results if result.answer == "no"]
    LabelFile(folder.path, analyzer).append(selected)
    text = " ".join(run_command(tmp_path, "validate", folder.run_id, "tone.yaml").split())
    assert "30 of the labeled units were not drawn by nip-run label" in text
    assert text.count("the labeled units are not a random sample: the model answered 'no' for 30 of the 30 units") == 1
    assert f"nip-run label {folder.run_id} tone.yaml --units 100 --export sample.csv" in text
    assert read_validations(folder.path) == {}


def test_interval_width_is_checked_and_readers_with_few_common_units_are_counted(
    folder: RunFolder, tmp_path: Path
) -> None:
    label_units(folder, tmp_path, "Ann")
    analyzer = load_analyzer(str(tmp_path / "tone.yaml"))
    first, *_ = LabelFile(folder.path, analyzer).current()
    LabelFile(folder.path, analyzer).append([label(analyzer, first.unit_id, "yes", "Ben")])
    message = run_command(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "10", code=2)
    assert "--labels-needed 10: the width of an interval must be more than 0 and less than 1, such as 0.1" in message
    text = run_command(tmp_path, "validate", folder.run_id, "tone.yaml")
    assert "Ann and Ben both labeled 1 unit" in text
    assert "kappa of Ann and Ben" not in text


def test_validate_prints_agreement_disagreements_and_both_rates(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    label_units(folder, tmp_path, "Ben", errors=10)
    text = run_command(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "0.3")
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "40 units labeled by 2 readers: Ann, Ben" in text
    assert "4 units without a majority left out of the table of answers" in " ".join(text.split())
    for name in ("Cohen's kappa", "Krippendorff's alpha", "sensitivity (yes)", "specificity (no)",
                 "base rate of yes (people)", "ceiling: kappa of Ann and Ben"):  # fmt: skip
        assert name in lines
    assert "uncorrected" in text
    assert f"nip-run show {folder.run_id} " in text
    data: Any = json.loads(run_command(tmp_path, "validate", folder.run_id, "tone.yaml", "--json"))
    (validation,) = data["validations"]
    assert data["other_questions"] == ["9876543210"]
    assert validation["readers"] == {"Ann": 40, "Ben": 40}
    assert len(validation["ties"]) == 4
    cells = {(cell["people"], cell["model"]): len(cell["units"]) for cell in validation["confusion"]}
    assert cells == {("yes", "yes"): 8, ("yes", "no"): 2, ("no", "yes"): 2, ("no", "no"): 24}
    assert validation["rates"]["yes"]["uncorrected"] == 0.25
    record = read_validations(folder.path)["0123456789", data["question_sha256"]]
    assert (record.labeled_units, record.readers, record.kappa) == (40, 2, validation["kappa"]["value"])


def test_validate_reports_a_useless_model_and_the_difference_of_two_runs(folder: RunFolder, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=40, fine_tune=None, protocol={"max_message_rounds": 2}, seed=8)
    run_spec(spec, tmp_path / "results")
    (path,) = set((tmp_path / "results" / "runs").iterdir()) - {folder.path}
    other_run = RunFolder(path)
    analyzer = load_analyzer(str(tmp_path / "tone.yaml"))
    units = list(list_units(other_run, analyzer))
    results = tuple(
        UnitResult(unit.id, unit.rollout_id, unit.datapoint_id, unit.group, unit.agent, unit.channel, None, "answered",
                   "no" if number // 4 % 2 else "yes", float(number // 4 % 2 == 0), None, "tiny")
        for number, unit in enumerate(units)
    )  # fmt: skip
    write_analysis(
        other_run,
        AnalysisTable(other_run.run_id, "tone", analyzer.sha256, analyzer.question_sha256, "0123456789", None, results),
    )
    label_units(folder, tmp_path, "Ann")
    label_units(other_run, tmp_path, "Ann", errors=100)
    text = run_command(tmp_path, "validate", folder.run_id, other_run.run_id, "tone.yaml")
    assert text.count("The model is not shown to agree with people more than by chance") == 1
    assert f"yes of {other_run.run_id} minus {folder.run_id}, instrument 0123456789, corrected: " in text
