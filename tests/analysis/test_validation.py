"""Statistics of a validation, compared with other implementations, and the cases without a statistic."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runner.analysis.analyzer import Analyzer
from runner.analysis.label_sample import _chance_of_count
from runner.analysis.labels import Label
from runner.analysis.strata import Strata, find_strata, save_strata, table_strata
from runner.analysis.validation import Validation, number_groups, rate_difference, validate
from runner.analysis.validation_log import append_validations, read_validations, validation_record
from runner.base.errors import RunError
from runner.results.folder import RunFolder
from tests.support.labels import label, make_analysis_table, make_labels, yes_no_analyzer

TONE = yes_no_analyzer()
KINDS = yes_no_analyzer(answers=("claim", "question", "thanks"))
SCALE = yes_no_analyzer(answers=("none", "some", "all"), values={"none": 0, "some": 1, "all": 4})


def sample_answers(answers: Sequence[str], size: int, seed: int) -> list[str]:
    return random.Random(seed).choices(answers, k=size)


def add_errors(truth: Sequence[str], answers: Sequence[str], error: float, seed: int) -> list[str]:
    """Return the answers with random errors at this rate."""
    generator = random.Random(seed)
    return [generator.choice(answers) if generator.random() < error else answer for answer in truth]


def validate_model(
    analyzer: Analyzer, model: Sequence[str | None], labels: Sequence[Label], *strata: Strata
) -> Validation:
    table = make_analysis_table(analyzer, model)
    return validate(analyzer, table, labels, number_groups([table]), strata)


@pytest.mark.parametrize("analyzer", [TONE, KINDS, SCALE], ids=["yes and no", "labels", "scale"])
def test_statistics_equal_those_of_scikit_learn_and_krippendorff(analyzer: Analyzer) -> None:
    import krippendorff  # these take seconds to import, also in processes that run none of these tests
    from sklearn.metrics import cohen_kappa_score, confusion_matrix, recall_score

    answers = analyzer.file.answers
    truth = sample_answers(answers, 120, 1)
    model, ann, ben = (add_errors(truth, answers, 0.3, seed) for seed in (2, 3, 4))
    result = validate_model(analyzer, model, make_labels(analyzer, ann))
    assert result.kappa.value == pytest.approx(cohen_kappa_score(ann, model), abs=1e-9)
    assert result.raw.value == pytest.approx(np.mean([a == m for a, m in zip(ann, model, strict=True)]), abs=1e-9)
    recalls = {each.answer: each.recall.value for each in result.answers}
    expected = dict(zip(answers, recall_score(ann, model, labels=answers, average=None), strict=True))
    assert recalls == pytest.approx(expected, abs=1e-9)
    assert {each.answer: each.base_rate.value for each in result.answers} == pytest.approx(
        {answer: ann.count(answer) / 120 for answer in answers}, abs=1e-9
    )
    counts = [[len(result.confusion.get((people, model_answer), ())) for model_answer in answers] for people in answers]
    assert counts == confusion_matrix(ann, model, labels=answers).tolist()
    assert len(result.disagreements) == sum(a != m for a, m in zip(ann, model, strict=True))
    numbers = {a: analyzer.value_of(a) if analyzer is SCALE else float(answers.index(a)) for a in answers}
    codes = np.array([[numbers[each] for each in row] for row in (ann, model)], dtype=float)
    alpha = krippendorff.alpha(codes, level_of_measurement="interval" if analyzer is SCALE else "nominal")
    assert result.alpha.value == pytest.approx(alpha, abs=1e-9)
    readers = validate_model(analyzer, model, make_labels(analyzer, ann) + make_labels(analyzer, ben, "Ben"))
    (pair,) = readers.reader_agreements
    assert pair.kappa.value == pytest.approx(cohen_kappa_score(ann, ben), abs=1e-9)
    assert readers.labels.ties
    assert readers.kappa.value == pytest.approx(cohen_kappa_score(ann + ben, model + model), abs=1e-9)
    assert readers.kappa.n == 120


def test_alpha_of_three_readers_with_gaps_equals_that_of_krippendorff() -> None:
    import krippendorff

    truth = sample_answers(("yes", "no"), 90, 1)
    rows = {name: add_errors(truth, ("yes", "no"), 0.3, seed) for seed, name in enumerate(("Ann", "Ben", "Cem"))}
    labels = [reader_label for name, row in rows.items() for reader_label in make_labels(TONE, row, name)]
    kept_labels = [reader_label for number, reader_label in enumerate(labels) if number % 5]
    result = validate_model(TONE, truth, kept_labels)
    by_reader = {
        name: {
            reader_label.unit_id: reader_label.answer == "yes"
            for reader_label in kept_labels
            if reader_label.reader == name
        }
        for name in rows
    }
    matrix = [[answers.get(f"u{number}", np.nan) for number in range(90)] for answers in by_reader.values()]
    assert result.reader_alpha is not None
    assert result.reader_alpha.value == pytest.approx(
        krippendorff.alpha(np.array(matrix, dtype=float), level_of_measurement="nominal"), abs=1e-9
    )
    assert len(result.reader_agreements) == 3


def test_labels_stratified_by_answer_give_the_statistics_of_all_units() -> None:
    from sklearn.metrics import cohen_kappa_score

    # The model answers yes for 20 units, 10 of them right, and no for 180 units, 9 in 10 of them right.
    model = ["yes"] * 20 + ["no"] * 180
    truth = ["yes", "no"] * 10 + (["no"] * 9 + ["yes"]) * 18
    units = [*range(20), *range(20, 80)]  # one stratum completely, and a third of the other
    sampled_labels = [label(TONE, f"u{n}", truth[n], stratum=model[n], drawn=n) for n in units]
    strata = table_strata(make_analysis_table(TONE, model))
    result = validate_model(TONE, model, sampled_labels, strata)
    assert result.raw.value == pytest.approx((10 + 162) / 200)
    assert {answer_result.answer: answer_result.recall.value for answer_result in result.answers} == pytest.approx(
        {"yes": 10 / 28, "no": 162 / 172}
    )
    assert result.kappa.value == pytest.approx(cohen_kappa_score(truth, model))
    assert result.rates["yes"].corrected.value == pytest.approx(28 / 200)
    assert result.rates["yes"].plain.value == pytest.approx(0.1)
    # The strata of one instrument also count for another one, whose answers differ.
    table = make_analysis_table(TONE, add_errors(model, ("yes", "no"), 0.5, 1), "other")
    other_validation = validate(TONE, table, sampled_labels, number_groups([table]), [strata])
    assert other_validation.rates["yes"].labels_alone.value == pytest.approx(28 / 200)


def test_new_answers_of_an_instrument_do_not_change_the_strata_of_labels(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    old, new = make_analysis_table(TONE, ["yes"] * 20 + ["no"] * 180), make_analysis_table(TONE, ["no", "yes"] * 100)
    name = save_strata(folder, old)
    labels = [label(TONE, "u0", "yes", stratum="yes", stratified_by=name)]
    (strata,) = find_strata(folder, labels, [new])
    assert strata == table_strata(old) != table_strata(new)
    (saved,) = (tmp_path / "labels").iterdir()
    saved.unlink()
    assert find_strata(folder, labels, [new, old]) == [strata]
    renamed = replace(old, results=tuple(replace(result, unit_id=f"n{result.unit_id}") for result in old.results))
    assert find_strata(folder, labels, [new, renamed]) == [table_strata(renamed)]  # as in a release with new ids
    with pytest.raises(RunError, match=f"restore labels/{saved.name}"):
        find_strata(folder, labels, [new])
    assert find_strata(folder, make_labels(TONE, ["yes"]), [new]) == []


def test_readers_who_disagree_count_equally() -> None:
    model = ["yes"] * 60 + ["no"] * 40
    ann, ben = ["yes"] * 50 + ["no"] * 50, ["yes"] * 30 + ["no"] * 70
    result = validate_model(TONE, model, make_labels(TONE, ann) + make_labels(TONE, ben, "Ben"))
    rate = result.rates["yes"]
    assert rate.labels_alone.value == rate.corrected.value == pytest.approx(0.4)
    assert {answer_result.answer: answer_result.base_rate.value for answer_result in result.answers} == pytest.approx(
        {"yes": 0.4, "no": 0.6}
    )
    assert result.raw.value == pytest.approx((0.9 + 0.7) / 2)
    assert result.raw.n == 100
    assert {answer_result.answer: answer_result.recall.n for answer_result in result.answers} == {"yes": 50, "no": 70}
    assert (len(result.labels.ties), validation_record(result).labeled_units) == (20, 100)


def test_a_unit_with_many_readers_does_not_count_more_than_others() -> None:
    model, truth = ["yes", "no"] * 30, ["yes"] * 60
    readers = [label(TONE, f"u{n}", truth[n], name) for n in range(60) for name in ("Ann", "Ben")[: 1 + n % 2]]
    assert validate_model(TONE, model, readers).raw.value == pytest.approx(0.5)


def test_rate_from_labels_alone_has_the_interval_of_a_mean() -> None:
    truth = sample_answers(("yes", "no"), 200, 1)
    result = validate_model(TONE, add_errors(truth, ("yes", "no"), 0.2, 2), make_labels(TONE, truth[:50]))
    (yes_result,) = (answer_result for answer_result in result.answers if answer_result.answer == "yes")
    assert result.rates["yes"].labels_alone.interval == pytest.approx(yes_result.base_rate.interval)


def test_too_few_labels_give_a_reason_instead_of_an_interval() -> None:
    truth = sample_answers(("yes", "no"), 100, 1)
    with_19_labels = validate_model(TONE, truth, make_labels(TONE, truth[:19]))
    assert (with_19_labels.kappa.interval, with_19_labels.is_validated, with_19_labels.is_useless) == (
        None,
        False,
        False,
    )
    assert with_19_labels.kappa.value == 1.0
    assert with_19_labels.kappa.reason == "19 labeled units: an interval needs at least 20"
    assert with_19_labels.rates["yes"].corrected.value is None
    assert with_19_labels.rates["yes"].plain.value == pytest.approx(truth.count("yes") / 100)
    with_40_labels = validate_model(TONE, truth, make_labels(TONE, truth[:40]))
    assert with_40_labels.is_validated
    assert with_40_labels.rates["yes"].corrected.interval is not None
    for answers in (truth, []):
        without_labels = validate_model(TONE, answers, [])
        assert (
            without_labels.kappa.value,
            without_labels.alpha.value,
            without_labels.is_validated,
            without_labels.answers,
        ) == (
            None,
            None,
            False,
            (),
        )


def test_a_model_that_answers_at_random_is_useless_and_a_good_one_is_not() -> None:
    truth = sample_answers(("yes", "no"), 400, 1)
    labels = make_labels(TONE, truth[:100])
    useless = validate_model(TONE, sample_answers(("yes", "no"), 400, 7), labels)
    good = validate_model(TONE, add_errors(truth, ("yes", "no"), 0.2, 3), labels)
    assert (useless.is_useless, good.is_useless) == (True, False)
    for validation, is_narrower in ((useless, False), (good, True)):
        corrected, labels_alone = (
            validation.rates["yes"].corrected.interval,
            validation.rates["yes"].labels_alone.interval,
        )
        assert corrected
        assert labels_alone
        ratio = (corrected[1] - corrected[0]) / (labels_alone[1] - labels_alone[0])
        assert ratio < 0.9 if is_narrower else 0.95 < ratio < 1.05


@pytest.mark.parametrize("drawn", [None, 0])
def test_selected_labels_correct_nothing_unless_they_were_drawn(drawn: int | None) -> None:
    model = (["yes"] * 3 + ["no"]) * 50
    truth = add_errors(model, ("yes", "no"), 0.3, 3)
    all_yes = [n for n in range(160) if n % 4 == 0]
    mostly_yes = [n for n in range(200) if n % 4 < 3 or n % 40 == 3]
    for chosen in (all_yes, mostly_yes):
        labels = [label(TONE, f"u{n}", truth[n], drawn=drawn) for n in chosen]
        result = validate_model(TONE, model, labels)
        corrected = result.rates["yes"].corrected
        assert result.is_validated == (drawn is not None) == (corrected.interval is not None)
        assert result.undrawn_units == (len(labels) if drawn is None else 0)
        assert (corrected.reason is None) == (drawn is not None)
        if drawn is None:
            assert "model answered 'yes' for " in (corrected.reason or "")
            assert rate_difference(result, result, "yes").reason == corrected.reason
    assert validate_model(TONE, model, make_labels(TONE, truth[:60])).rates["yes"].corrected.interval is not None


def test_few_answers_of_a_rare_kind_do_not_make_a_sample_suspicious() -> None:
    model = ["no"] * 196 + ["yes"] * 4
    sampled_labels = [label(TONE, f"u{n}", model[n], drawn=n) for n in range(40)]
    assert validate_model(TONE, model, make_labels(TONE, model[:40])).rates["yes"].corrected.reason is None
    assert (
        validate_model(TONE, model, [*sampled_labels, label(TONE, "u199", "yes")]).rates["yes"].corrected.reason is None
    )


def test_chance_of_count_equals_that_of_scipy() -> None:
    from scipy.stats import hypergeom

    for count, size, members, total in ((0, 20, 30, 100), (12, 20, 30, 100), (20, 40, 50, 70), (6, 20, 30, 100)):
        distribution = hypergeom(total, members, size)
        expected = min(1.0, 2 * min(distribution.cdf(count), distribution.sf(count - 1)))
        assert _chance_of_count(count, size, members, total) == pytest.approx(expected)


def test_undefined_kappa_has_a_reason_that_names_who_gave_one_answer() -> None:
    constant = validate_model(
        TONE, ["yes"] * 60, [*make_labels(TONE, ["yes"] * 60), *make_labels(TONE, ["yes"] * 30, "Ben")]
    )
    assert constant.kappa.reason == "people and the model gave only one answer: kappa is undefined"
    assert constant.reader_agreements[0].kappa.reason == "Ann and Ben gave only one answer: kappa is undefined"


def test_units_without_an_answer_of_the_model_count_in_the_corrected_rate() -> None:
    truth = ["yes"] * 40 + ["no"] * 60
    model: list[str | None] = [None if number % 4 == 0 else answer for number, answer in enumerate(truth)]
    result = validate_model(TONE, model, [*make_labels(TONE, truth), label(TONE, "u999", "yes")])
    assert (result.units, result.unanswered, result.unknown_units) == (100, 25, 1)
    assert result.rates["yes"].corrected.value == pytest.approx(0.4)
    assert result.kappa.value == 1.0
    assert len(result.confusion["yes", "(no answer)"]) == 10
    assert result.disagreements == []


def test_rate_difference_compares_corrected_rates() -> None:
    truths = [["yes"] * 60 + ["no"] * 140, ["yes"] * 120 + ["no"] * 80]
    tables = [
        make_analysis_table(TONE, add_errors(truth, ("yes", "no"), 0.3, 5), run_id=f"run{n}")
        for n, truth in enumerate(truths)
    ]
    labels = [make_labels(TONE, truth) for truth in truths]
    groups = number_groups(tables)
    first, second = (
        validate(TONE, table, run_labels, groups) for table, run_labels in zip(tables, labels, strict=True)
    )
    difference = rate_difference(first, second, "yes")
    assert difference.value == pytest.approx(0.3)
    assert difference.interval
    assert 0 < difference.interval[0] < 0.3 < difference.interval[1]


def test_a_validation_is_recorded_once_until_its_numbers_change(tmp_path: Path) -> None:
    truth = sample_answers(("yes", "no"), 60, 1)
    first = validation_record(validate_model(TONE, truth, make_labels(TONE, truth[:30])))
    append_validations(tmp_path, [first])
    append_validations(tmp_path, [replace(first, time="2030-01-01T00:00:00Z")])
    key = (first.instrument, TONE.question_sha256)
    assert read_validations(tmp_path) == {key: first}
    second = validation_record(validate_model(TONE, truth, make_labels(TONE, truth[:40])))
    append_validations(tmp_path, [second])
    assert read_validations(tmp_path) == {key: second}
    path = tmp_path / "analyses" / "validations.jsonl"
    assert len(path.read_text().splitlines()) == 2
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(RunError, match=r"validations.jsonl:3: not a validation: `instrument` is missing"):
        read_validations(tmp_path)
