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
def analyzed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of 40 games, and the results of an instrument that answers yes for every fourth unit."""
    tmp_path = tmp_path_factory.mktemp("analyzed")
    run_spec(spec_file(tmp_path, size=40, fine_tune=None, protocol={"max_message_rounds": 2}), tmp_path / "results")
    (tmp_path / "tone.yaml").write_text(TONE)
    folder = RunFolder(only_run(tmp_path / "results"))
    analyzer = load_analyzer("tone.yaml", tmp_path)
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
def folder(analyzed: Path, tmp_path: Path) -> RunFolder:
    shutil.copytree(analyzed, tmp_path, dirs_exist_ok=True)
    return RunFolder(only_run(tmp_path / "results"))


def test_units_that_code_finds_not_applicable_are_not_labeled(folder: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def f(unit):\n    return 'not applicable'\n")
    (tmp_path / "own.yaml").write_text(TONE + "code: own.py:f\n")
    message = printed(tmp_path, "label", folder.run_id, "own.yaml", "--import", "own.yaml", code=2)
    assert "there is nothing to label" in message


def label_units(folder: RunFolder, tmp_path: Path, reader: str, errors: int = 5) -> None:
    """Label all units of the run as the model does, except every `errors`-th."""
    analyzer = load_analyzer("tone.yaml", tmp_path)
    answers = ("no" if (number % 4 != 0) != (number % errors == 0) else "yes" for number in range(100))
    units = list_units(folder, analyzer)
    LabelFile(folder.path, analyzer).append(
        [label(analyzer, unit.id, answer, reader) for unit, answer in zip(units, answers, strict=False)]
    )


def printed(tmp_path: Path, *words: str, code: int = 0) -> str:
    done = nip_run_here(*words, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_labels_are_exported_for_scout_and_imported_again(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    label_units(folder, tmp_path, "Ben")
    labels = LabelFile(folder.path, load_analyzer("tone.yaml", tmp_path))
    before = labels.current()
    text = printed(tmp_path, "label", "last", "tone.yaml", "--export", "labels.csv", "--readers", "Ann")
    assert text == "labels.csv: 40 labels\n"
    rows = list(csv.DictReader((tmp_path / "labels.csv").read_text().splitlines()))
    assert {row["target"] for row in rows} == {"true", "false"}
    assert {row["id"] for row in rows} == {one.unit_id for one in before}
    labels.path.unlink()
    imported = ("label", "last", "tone.yaml", "--import", "labels.csv")
    assert printed(tmp_path, *imported) == "40 new labels, 0 already present\n"
    assert printed(tmp_path, *imported) == "0 new labels, 40 already present\n"
    assert labels.current() == before[:40]
    (tmp_path / "scout.csv").write_text(f"id,target\n{before[0].unit_id},true\n{before[1].unit_id},False\nu9,true\n")
    message = printed(tmp_path, "label", "last", "tone.yaml", "--import", "scout.csv", "--readers", "Cem", code=2)
    assert "line 4: the run has no unit 'u9'" in message
    assert len(labels.current()) == 40


def test_a_sample_is_exported_filled_in_and_imported_as_drawn(folder: RunFolder, tmp_path: Path) -> None:
    sample = ("label", "last", "tone.yaml", "--units", "24", "--export", "sample.csv")
    assert printed(tmp_path, *sample) == "sample.csv: 0 labels, 24 rows to fill in\n"
    rows = list(csv.DictReader((tmp_path / "sample.csv").read_text().splitlines(keepends=True)))
    assert {(row["target"], row["reader"], row["probability"]) for row in rows} == {("", "", "0.6")}
    assert all("Is " in row["text"].splitlines()[-1] for row in rows)
    with (tmp_path / "sample.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "target": "true" if number % 3 else ""} for number, row in enumerate(rows))
    imported = ("label", "last", "tone.yaml", "--import", "sample.csv", "--readers", "Ann")
    assert printed(tmp_path, *imported) == "16 new labels, 0 already present\n"
    labels = LabelFile(folder.path, load_analyzer("tone.yaml", tmp_path)).current()
    assert [one.drawn for one in labels] == [number for number in range(24) if number % 3]
    assert printed(tmp_path, *sample, "--readers", "Ann", "Ben") == "sample.csv: 16 labels, 32 rows to fill in\n"


def test_a_stratified_sample_that_was_labeled_elsewhere_is_validated(folder: RunFolder, tmp_path: Path) -> None:
    sample = ("label", "last", "tone.yaml", "--units", "24", "--stratify", "--export", "sample.csv")
    printed(tmp_path, *sample)
    rows = list(csv.DictReader((tmp_path / "sample.csv").read_text().splitlines(keepends=True)))
    assert {row["stratum"] for row in rows} == {"yes", "no"}
    with (tmp_path / "sample.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "target": "true" if number % 3 else "false"} for number, row in enumerate(rows))
    printed(tmp_path, "label", "last", "tone.yaml", "--import", "sample.csv", "--readers", "Ann")
    assert "24 units" in printed(tmp_path, "validate", "last", "tone.yaml")


def test_an_import_neither_changes_nor_deletes_labels_unless_asked(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    labels = LabelFile(folder.path, load_analyzer("tone.yaml", tmp_path))
    first, second, third, *_ = labels.current()
    opposite = "no" if first.answer == "yes" else "yes"
    (tmp_path / "new.csv").write_text(
        "id,target,reader\n"
        f"{first.unit_id},{opposite},Ann\n{second.unit_id},,Ann\n{third.unit_id},{third.answer},Ann\n"
        f"{first.unit_id},yes,Ben\n{first.unit_id},yes,Eve\n"
    )
    words = ("label", "last", "tone.yaml", "--import", "new.csv", "--readers", "Ann", "Ben")
    message = printed(tmp_path, *words, code=2)
    assert f"1 label of the run would change (Ann's for {first.unit_id}); add --replace" in message
    assert len(labels.current()) == 40
    assert printed(tmp_path, *words, "--replace") == "1 new label, 1 changed, 1 deleted, 1 already present\n"
    current = {(one.reader, one.unit_id): one.answer for one in labels.current()}
    assert current["Ann", first.unit_id] == opposite
    assert ("Ann", second.unit_id) not in current
    assert {reader for reader, _ in current} == {"Ann", "Ben"}
    assert "belongs to --import" in printed(tmp_path, "label", "last", "tone.yaml", "--replace", code=2)


def test_a_drawn_unit_is_recorded_with_its_stratum_and_probability(folder: RunFolder, tmp_path: Path) -> None:
    words = ("label", folder.run_id, "tone.yaml", "--units", "16", "--stratify", "--readers", "Ann", "Ben")
    with run_with_questions(*words, cwd=tmp_path) as command:
        for _ in range(16):
            command.answer("Ann", answer="yes")
        state = command.post("take", person="Ann")
        assert (state["question"], state["labeled"], state["total"]) == (None, 16, 16)
        assert command.post("undo", person="Ann")["labeled"] == 15
        command.answer("Ann", answer="no")
        command.answer("Ben", answer="no")
        command.process.send_signal(signal.SIGINT)
        code, out, err = wait_for_exit(command.process)
    assert (code, out) == (0, "Ann: 16 of 16 units labeled\nBen: 1 of 16 units labeled\n"), err
    current = LabelFile(folder.path, load_analyzer("tone.yaml", tmp_path)).current()
    assert [one.reader for one in current] == ["Ann"] * 16 + ["Ben"]
    drawn = sorted({(one.stratum, one.probability, one.stratified_by) for one in current})
    (strata,) = folder.path.glob("labels/strata-0123456789-*.json")
    name = strata.stem.removeprefix("strata-")
    assert drawn == [("no", 8 / 30, name), ("yes", 0.8, name)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stratify"], "add --units N"),
        (["--units", "0"], "must be 1 or more"),
        (["--units", "5", "--stratify", "77"], "there are no results of tone"),
        (["--units", "5", "--stratify", "77"], "nip-run analyze RUN_ID tone.yaml"),
        (["--export", "labels.txt"], "must end in .csv"),
    ],
)
def test_a_wrong_option_of_label_is_explained(
    folder: RunFolder, tmp_path: Path, words: list[str], message: str
) -> None:
    expected = message.replace("RUN_ID", folder.run_id)
    assert expected in printed(tmp_path, "label", folder.run_id, "tone.yaml", *words, code=2)


def test_a_run_without_labels_is_not_validated_and_says_how_many_it_needs(folder: RunFolder, tmp_path: Path) -> None:
    text = printed(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "0.4")
    assert "instrument 9876543210) on run " in text
    assert "not validated, because it answered another version of the question" in text
    assert "not validated: no unit of this run has a label" in text
    assert "no corrected rate: 0 labels" in text
    assert "yes: an interval of width 0.4 needs about" in text
    assert "if the model agrees with people about 80% of units" in text
    assert read_validations(folder.path) == {}
    assert "there are no results of tone by 77" in printed(
        tmp_path, "validate", folder.run_id, "tone.yaml", "--instrument", "77", code=2
    )


def test_labels_of_selected_units_are_refused_with_a_command_that_draws_some(folder: RunFolder, tmp_path: Path) -> None:
    analyzer = load_analyzer("tone.yaml", tmp_path)
    (table,) = [table for table in read_analyses(folder) if table.instrument == "0123456789"]
    selected = [label(analyzer, result.unit_id, "no") for result in table.results if result.answer == "no"]
    LabelFile(folder.path, analyzer).append(selected)
    text = " ".join(printed(tmp_path, "validate", folder.run_id, "tone.yaml").split())
    assert "30 of the labeled units were not drawn by nip-run label" in text
    assert text.count("the labeled units are not a random sample: the model answered 'no' for 30 of the 30 units") == 1
    assert f"nip-run label {folder.run_id} tone.yaml --units 100 --export sample.csv" in text
    assert read_validations(folder.path) == {}


def test_a_width_is_on_the_scale_of_values_and_readers_with_few_common_units_are_counted(
    folder: RunFolder, tmp_path: Path
) -> None:
    label_units(folder, tmp_path, "Ann")
    analyzer = load_analyzer("tone.yaml", tmp_path)
    first, *_ = LabelFile(folder.path, analyzer).current()
    LabelFile(folder.path, analyzer).append([label(analyzer, first.unit_id, "yes", "Ben")])
    message = printed(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "10", code=2)
    assert "--labels-needed 10: the width of an interval must be more than 0 and less than 1, such as 0.1" in message
    text = printed(tmp_path, "validate", folder.run_id, "tone.yaml")
    assert "Ann and Ben both labeled 1 unit" in text
    assert "kappa of Ann and Ben" not in text


def test_validate_prints_agreement_disagreements_and_both_rates(folder: RunFolder, tmp_path: Path) -> None:
    label_units(folder, tmp_path, "Ann")
    label_units(folder, tmp_path, "Ben", errors=10)
    text = printed(tmp_path, "validate", folder.run_id, "tone.yaml", "--labels-needed", "0.3")
    lines = {line.split("  ")[0].strip(): line for line in text.splitlines()}
    assert "40 units labeled by 2 readers: Ann, Ben" in text
    assert "4 units without a majority left out of the table of answers" in " ".join(text.split())
    for name in ("Cohen's kappa", "Krippendorff's alpha", "sensitivity (yes)", "specificity (no)",
                 "base rate of yes (people)", "ceiling: kappa of Ann and Ben"):  # fmt: skip
        assert name in lines
    assert "uncorrected" in text
    assert f"nip-run show {folder.run_id} " in text
    data: Any = json.loads(printed(tmp_path, "validate", folder.run_id, "tone.yaml", "--json"))
    (validation,) = data["validations"]
    assert data["other_questions"] == ["9876543210"]
    assert validation["readers"] == {"Ann": 40, "Ben": 40}
    assert len(validation["ties"]) == 4
    cells = {(cell["people"], cell["model"]): len(cell["units"]) for cell in validation["confusion"]}
    assert cells == {("yes", "yes"): 8, ("yes", "no"): 2, ("no", "yes"): 2, ("no", "no"): 24}
    assert validation["rates"]["yes"]["uncorrected"] == 0.25
    record = read_validations(folder.path)["0123456789", data["question_sha256"]]
    assert (record.labeled_units, record.readers, record.kappa) == (40, 2, validation["kappa"]["value"])


def test_a_useless_model_and_the_difference_of_two_runs_are_stated(folder: RunFolder, tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=40, fine_tune=None, protocol={"max_message_rounds": 2}, seed=8)
    run_spec(spec, tmp_path / "results")
    (path,) = set((tmp_path / "results" / "runs").iterdir()) - {folder.path}
    other = RunFolder(path)
    analyzer = load_analyzer("tone.yaml", tmp_path)
    units = list(list_units(other, analyzer))
    results = tuple(
        UnitResult(u.id, u.rollout_id, u.datapoint_id, u.group, u.agent, u.channel, None, "answered",
                   "no" if number // 4 % 2 else "yes", float(number // 4 % 2 == 0), None, "tiny")
        for number, u in enumerate(units)
    )  # fmt: skip
    write_analysis(
        other,
        AnalysisTable(other.run_id, "tone", analyzer.sha256, analyzer.question_sha256, "0123456789", None, results),
    )
    label_units(folder, tmp_path, "Ann")
    label_units(other, tmp_path, "Ann", errors=100)
    text = printed(tmp_path, "validate", folder.run_id, other.run_id, "tone.yaml")
    assert text.count("The model is not shown to agree with people more than by chance") == 1
    assert f"yes of {other.run_id} minus {folder.run_id}, instrument 0123456789, corrected: " in text
