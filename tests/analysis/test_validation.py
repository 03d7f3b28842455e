"""The numbers of a validation, against other implementations, and the cases in which a number is left out."""

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
from tests.support.labels import label, labels_of, table_of, yes_no_analyzer

TONE = yes_no_analyzer()
KINDS = yes_no_analyzer(answers=("claim", "question", "thanks"))
SCALE = yes_no_analyzer(answers=("none", "some", "all"), values={"none": 0, "some": 1, "all": 4})


def sampled(answers: Sequence[str], size: int, seed: int) -> list[str]:
    return random.Random(seed).choices(answers, k=size)


def noisy(truth: Sequence[str], answers: Sequence[str], error: float, seed: int) -> list[str]:
    """Return the truth with errors at this rate."""
    generator = random.Random(seed)
    return [generator.choice(answers) if generator.random() < error else answer for answer in truth]


def validated(analyzer: Analyzer, model: Sequence[str | None], labels: Sequence[Label], *strata: Strata) -> Validation:
    table = table_of(analyzer, model)
    return validate(analyzer, table, labels, number_groups([table]), strata)


@pytest.mark.parametrize("analyzer", [TONE, KINDS, SCALE], ids=["yes and no", "labels", "scale"])
def test_numbers_are_those_of_scikit_learn_and_krippendorff(analyzer: Analyzer) -> None:
    import krippendorff  # these take seconds to import, also in processes that run none of these tests
    from sklearn.metrics import cohen_kappa_score, confusion_matrix, recall_score

    answers = analyzer.file.answers
    truth = sampled(answers, 120, 1)
    model, ann, ben = (noisy(truth, answers, 0.3, seed) for seed in (2, 3, 4))
    result = validated(analyzer, model, labels_of(analyzer, ann))
    assert result.kappa.value == pytest.approx(cohen_kappa_score(ann, model), abs=1e-9)
    assert result.raw.value == pytest.approx(np.mean([a == m for a, m in zip(ann, model, strict=True)]), abs=1e-9)
    recalls = {each.answer: each.recall.value for each in result.answers}
    expected = dict(zip(answers, recall_score(ann, model, labels=answers, average=None), strict=True))
    assert recalls == pytest.approx(expected, abs=1e-9)
    assert {each.answer: each.base_rate.value for each in result.answers} == pytest.approx(
        {answer: ann.count(answer) / 120 for answer in answers}, abs=1e-9
    )
    counts = [[len(result.confusion.get((people, given), ())) for given in answers] for people in answers]
    assert counts == confusion_matrix(ann, model, labels=answers).tolist()
    assert len(result.disagreements) == sum(a != m for a, m in zip(ann, model, strict=True))
    numbers = {a: analyzer.value_of(a) if analyzer is SCALE else float(answers.index(a)) for a in answers}
    codes = np.array([[numbers[each] for each in row] for row in (ann, model)], dtype=float)
    alpha = krippendorff.alpha(codes, level_of_measurement="interval" if analyzer is SCALE else "nominal")
    assert result.alpha.value == pytest.approx(alpha, abs=1e-9)
    readers = validated(analyzer, model, labels_of(analyzer, ann) + labels_of(analyzer, ben, "Ben"))
    (pair,) = readers.reader_agreements
    assert pair.kappa.value == pytest.approx(cohen_kappa_score(ann, ben), abs=1e-9)
    assert readers.labels.ties
    assert readers.kappa.value == pytest.approx(cohen_kappa_score(ann + ben, model + model), abs=1e-9)
    assert readers.kappa.n == 120


def test_the_alpha_of_three_readers_with_gaps_is_that_of_krippendorff() -> None:
    import krippendorff

    truth = sampled(("yes", "no"), 90, 1)
    rows = {name: noisy(truth, ("yes", "no"), 0.3, seed) for seed, name in enumerate(("Ann", "Ben", "Cem"))}
    labels = [one for name, row in rows.items() for one in labels_of(TONE, row, name)]
    kept = [one for number, one in enumerate(labels) if number % 5]
    result = validated(TONE, truth, kept)
    by_reader = {name: {one.unit_id: one.answer == "yes" for one in kept if one.reader == name} for name in rows}
    matrix = [[answers.get(f"u{number}", np.nan) for number in range(90)] for answers in by_reader.values()]
    assert result.reader_alpha is not None
    assert result.reader_alpha.value == pytest.approx(
        krippendorff.alpha(np.array(matrix, dtype=float), level_of_measurement="nominal"), abs=1e-9
    )
    assert len(result.reader_agreements) == 3


def test_labels_that_were_drawn_by_answer_give_the_numbers_of_all_units() -> None:
    from sklearn.metrics import cohen_kappa_score

    # 20 units with the model's answer yes, of which 10 are right, and 180 with no, of which 9 in 10 are right.
    model = ["yes"] * 20 + ["no"] * 180
    truth = ["yes", "no"] * 10 + (["no"] * 9 + ["yes"]) * 18
    units = [*range(20), *range(20, 80)]  # all of one stratum, and a third of the other
    drawn = [label(TONE, f"u{n}", truth[n], stratum=model[n], drawn=n) for n in units]
    strata = table_strata(table_of(TONE, model))
    result = validated(TONE, model, drawn, strata)
    assert result.raw.value == pytest.approx((10 + 162) / 200)
    assert {each.answer: each.recall.value for each in result.answers} == pytest.approx(
        {"yes": 10 / 28, "no": 162 / 172}
    )
    assert result.kappa.value == pytest.approx(cohen_kappa_score(truth, model))
    assert result.rates["yes"].corrected.value == pytest.approx(28 / 200)
    assert result.rates["yes"].plain.value == pytest.approx(0.1)
    # The strata of one instrument also count for another one, whose answers differ.
    table = table_of(TONE, noisy(model, ("yes", "no"), 0.5, 1), "other")
    other = validate(TONE, table, drawn, number_groups([table]), [strata])
    assert other.rates["yes"].labels_alone.value == pytest.approx(28 / 200)


def test_new_answers_of_an_instrument_do_not_change_the_strata_of_labels(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    old, new = table_of(TONE, ["yes"] * 20 + ["no"] * 180), table_of(TONE, ["no", "yes"] * 100)
    name = save_strata(folder, old)
    labels = [label(TONE, "u0", "yes", stratum="yes", stratified_by=name)]
    (strata,) = find_strata(folder, labels, [new])
    assert strata == table_strata(old) != table_strata(new)
    (saved,) = (tmp_path / "labels").iterdir()
    saved.unlink()
    assert find_strata(folder, labels, [new, old]) == [strata]
    renamed = replace(old, results=tuple(replace(each, unit_id=f"n{each.unit_id}") for each in old.results))
    assert find_strata(folder, labels, [new, renamed]) == [table_strata(renamed)]  # as in a release with new ids
    with pytest.raises(RunError, match=f"restore labels/{saved.name}"):
        find_strata(folder, labels, [new])
    assert find_strata(folder, labels_of(TONE, ["yes"]), [new]) == []


def test_readers_who_disagree_count_equally() -> None:
    model = ["yes"] * 60 + ["no"] * 40
    ann, ben = ["yes"] * 50 + ["no"] * 50, ["yes"] * 30 + ["no"] * 70
    result = validated(TONE, model, labels_of(TONE, ann) + labels_of(TONE, ben, "Ben"))
    rate = result.rates["yes"]
    assert rate.labels_alone.value == rate.corrected.value == pytest.approx(0.4)
    assert {each.answer: each.base_rate.value for each in result.answers} == pytest.approx({"yes": 0.4, "no": 0.6})
    assert result.raw.value == pytest.approx((0.9 + 0.7) / 2)
    assert result.raw.n == 100
    assert {each.answer: each.recall.n for each in result.answers} == {"yes": 50, "no": 70}
    assert (len(result.labels.ties), validation_record(result).labeled_units) == (20, 100)


def test_a_unit_with_many_readers_does_not_count_more_than_others() -> None:
    model, truth = ["yes", "no"] * 30, ["yes"] * 60
    readers = [label(TONE, f"u{n}", truth[n], name) for n in range(60) for name in ("Ann", "Ben")[: 1 + n % 2]]
    assert validated(TONE, model, readers).raw.value == pytest.approx(0.5)


def test_labels_alone_of_a_plain_sample_have_the_interval_of_a_mean() -> None:
    truth = sampled(("yes", "no"), 200, 1)
    result = validated(TONE, noisy(truth, ("yes", "no"), 0.2, 2), labels_of(TONE, truth[:50]))
    (yes,) = (each for each in result.answers if each.answer == "yes")
    assert result.rates["yes"].labels_alone.interval == pytest.approx(yes.base_rate.interval)


def test_without_enough_labels_there_is_no_interval_but_a_reason() -> None:
    truth = sampled(("yes", "no"), 100, 1)
    few = validated(TONE, truth, labels_of(TONE, truth[:19]))
    assert (few.kappa.interval, few.is_validated, few.is_useless) == (None, False, False)
    assert few.kappa.value == 1.0
    assert few.kappa.reason == "19 labeled units: an interval needs at least 20"
    assert few.rates["yes"].corrected.value is None
    assert few.rates["yes"].plain.value == pytest.approx(truth.count("yes") / 100)
    enough = validated(TONE, truth, labels_of(TONE, truth[:40]))
    assert enough.is_validated
    assert enough.rates["yes"].corrected.interval is not None
    for answers in (truth, []):
        nothing = validated(TONE, answers, [])
        assert (nothing.kappa.value, nothing.alpha.value, nothing.is_validated, nothing.answers) == (
            None,
            None,
            False,
            (),
        )


def test_a_model_that_answers_at_random_is_useless_and_a_good_one_is_not() -> None:
    truth = sampled(("yes", "no"), 400, 1)
    labels = labels_of(TONE, truth[:100])
    useless = validated(TONE, sampled(("yes", "no"), 400, 7), labels)
    good = validated(TONE, noisy(truth, ("yes", "no"), 0.2, 3), labels)
    assert (useless.is_useless, good.is_useless) == (True, False)
    for each, is_narrower in ((useless, False), (good, True)):
        corrected, alone = each.rates["yes"].corrected.interval, each.rates["yes"].labels_alone.interval
        assert corrected
        assert alone
        ratio = (corrected[1] - corrected[0]) / (alone[1] - alone[0])
        assert ratio < 0.9 if is_narrower else 0.95 < ratio < 1.05


@pytest.mark.parametrize("drawn", [None, 0])
def test_selected_labels_correct_nothing_unless_they_were_drawn(drawn: int | None) -> None:
    model = (["yes"] * 3 + ["no"]) * 50
    truth = noisy(model, ("yes", "no"), 0.3, 3)
    all_yes = [n for n in range(160) if n % 4 == 0]
    mostly_yes = [n for n in range(200) if n % 4 < 3 or n % 40 == 3]
    for chosen in (all_yes, mostly_yes):
        labels = [label(TONE, f"u{n}", truth[n], drawn=drawn) for n in chosen]
        result = validated(TONE, model, labels)
        corrected = result.rates["yes"].corrected
        assert result.is_validated == (drawn is not None) == (corrected.interval is not None)
        assert result.undrawn_units == (len(labels) if drawn is None else 0)
        assert (corrected.reason is None) == (drawn is not None)
        if drawn is None:
            assert "model answered 'yes' for " in (corrected.reason or "")
            assert rate_difference(result, result, "yes").reason == corrected.reason
    assert validated(TONE, model, labels_of(TONE, truth[:60])).rates["yes"].corrected.interval is not None


def test_few_answers_of_a_rare_kind_do_not_make_a_sample_suspicious() -> None:
    model = ["no"] * 196 + ["yes"] * 4
    drawn = [label(TONE, f"u{n}", model[n], drawn=n) for n in range(40)]
    assert validated(TONE, model, labels_of(TONE, model[:40])).rates["yes"].corrected.reason is None
    assert validated(TONE, model, [*drawn, label(TONE, "u199", "yes")]).rates["yes"].corrected.reason is None


def test_the_chance_of_a_count_is_that_of_scipy() -> None:
    from scipy.stats import hypergeom

    for count, size, members, total in ((0, 20, 30, 100), (12, 20, 30, 100), (20, 40, 50, 70), (6, 20, 30, 100)):
        law = hypergeom(total, members, size)
        expected = min(1.0, 2 * min(law.cdf(count), law.sf(count - 1)))
        assert _chance_of_count(count, size, members, total) == pytest.approx(expected)


def test_the_reason_without_kappa_names_people_and_the_model() -> None:
    always = validated(TONE, ["yes"] * 60, [*labels_of(TONE, ["yes"] * 60), *labels_of(TONE, ["yes"] * 30, "Ben")])
    assert always.kappa.reason == "people and the model gave only one answer: kappa is undefined"
    assert always.reader_agreements[0].kappa.reason == "Ann and Ben gave only one answer: kappa is undefined"


def test_units_without_an_answer_of_the_model_count_in_the_corrected_rate() -> None:
    truth = ["yes"] * 40 + ["no"] * 60
    model: list[str | None] = [None if number % 4 == 0 else answer for number, answer in enumerate(truth)]
    result = validated(TONE, model, [*labels_of(TONE, truth), label(TONE, "u999", "yes")])
    assert (result.units, result.unanswered, result.unknown_units) == (100, 25, 1)
    assert result.rates["yes"].corrected.value == pytest.approx(0.4)
    assert result.kappa.value == 1.0
    assert len(result.confusion["yes", "(no answer)"]) == 10
    assert result.disagreements == []


def test_runs_are_compared_by_corrected_rates() -> None:
    truths = [["yes"] * 60 + ["no"] * 140, ["yes"] * 120 + ["no"] * 80]
    tables = [table_of(TONE, noisy(truth, ("yes", "no"), 0.3, 5), run_id=f"run{n}") for n, truth in enumerate(truths)]
    labels = [labels_of(TONE, truth) for truth in truths]
    groups = number_groups(tables)
    first, second = (validate(TONE, t, one, groups) for t, one in zip(tables, labels, strict=True))
    difference = rate_difference(first, second, "yes")
    assert difference.value == pytest.approx(0.3)
    assert difference.interval
    assert 0 < difference.interval[0] < 0.3 < difference.interval[1]


def test_a_validation_is_recorded_once_until_its_numbers_change(tmp_path: Path) -> None:
    truth = sampled(("yes", "no"), 60, 1)
    first = validation_record(validated(TONE, truth, labels_of(TONE, truth[:30])))
    append_validations(tmp_path, [first])
    append_validations(tmp_path, [replace(first, time="2030-01-01T00:00:00Z")])
    key = (first.instrument, TONE.question_sha256)
    assert read_validations(tmp_path) == {key: first}
    second = validation_record(validated(TONE, truth, labels_of(TONE, truth[:40])))
    append_validations(tmp_path, [second])
    assert read_validations(tmp_path) == {key: second}
    path = tmp_path / "analyses" / "validations.jsonl"
    assert len(path.read_text().splitlines()) == 2
    path.write_text(path.read_text() + "{}\n")
    with pytest.raises(RunError, match=r"validations.jsonl:3: not a validation: `instrument` is missing"):
        read_validations(tmp_path)
