"""The leak audit: predictors of labels, duplicates across splits, and contradicting labels."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata

from runner.base.exit_codes import ExitCode
from runner.curation.audit.duplicates import (
    MAX_MATCHES,
    _shingles,
    _similar_pairs,
    find_contradictions,
    find_duplicates,
)
from runner.curation.audit.edits import Edit, find_edit, nearest_versions, summarize_edits
from runner.curation.audit.items import AuditItem, list_items
from runner.curation.audit.label_tests import LabelPermutations, check_predictor
from runner.curation.audit.predictors import Predictor, find_predictors
from runner.curation.audit.report import AuditSettings, audit_items
from runner.game.protocols.ballot import CandidateAnswers
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.loader import Dataset
from runner.statistics.sign_flip import sign_flip
from tests.support.leaky_datasets import CLEAN, LEAKS, audit, measure_false_alarms, measure_power, pairs, single
from tests.support.processes import python

DEFAULTS = AuditSettings()


def make_items(*rows: tuple[str, int, str]) -> list[AuditItem]:
    """Return items with a group, a label and a text."""
    return [AuditItem(f"i{n}", label, group, None, {"text": text}) for n, (group, label, text) in enumerate(rows)]


def make_random_items(size: int, seed: int = 0) -> list[AuditItem]:
    return single(np.random.default_rng(seed), size)


# Predictors of the label


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", LEAKS)
def test_a_planted_leak_is_found(name: str) -> None:
    assert measure_power(LEAKS[name], 1, 3) == 1


def test_a_clean_dataset_has_no_findings() -> None:
    report = audit(pairs(np.random.default_rng(5), 80))
    assert (report.findings, report.exit_code) == ([], ExitCode.DONE)


@pytest.mark.full
@pytest.mark.parametrize("name", CLEAN)
def test_few_clean_datasets_have_findings(name: str) -> None:
    """A small form of `benchmarks/leak_audit.py`. At 5 %, more than 9 alarms of 60 have a probability < 0.1 %."""
    assert measure_false_alarms(CLEAN[name], 60, 7) <= 9 / 60


@pytest.mark.full
@pytest.mark.parametrize("name", LEAKS)
def test_most_planted_leaks_are_found(name: str) -> None:
    assert measure_power(LEAKS[name], 20, 11) >= 0.8


def test_permutations_keep_the_label_counts_of_groups() -> None:
    groups = ["a", "a", "b", "b", "c", "c", "d", "e", "f", "f", "f"]
    labels = [1, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0]
    permutations = LabelPermutations(labels, groups, 500, 0)
    sizes = Counter(groups)

    def composition(column: Any) -> Counter[tuple[int, int]]:
        sums = Counter(dict.fromkeys(sizes, 0))
        for name, label in zip(groups, column, strict=True):
            sums[name] += int(label)
        return Counter((sizes[name], total) for name, total in sums.items())

    columns = permutations.columns.T
    assert {frozenset(composition(column).items()) for column in columns} == {frozenset(composition(labels).items())}
    distinct = len({tuple(column) for column in columns})
    assert distinct == 6 * 2 * 2 * 3  # orders of the pairs, of c's labels, of the single items, and of f's labels
    assert permutations.min_p == pytest.approx(1 / distinct)


def test_p_value_of_pairs_equals_that_of_a_sign_flip_test() -> None:
    rng = np.random.default_rng(2)
    values = rng.permutation(40).astype(float)
    values[1::2] += 5
    groups = [str(index // 2) for index in range(40)]
    permutations = LabelPermutations([0, 1] * 20, groups, 20_000, 0)
    p = check_predictor(Predictor("text", "length", values), permutations).p
    ranks = rankdata(values)
    assert p == pytest.approx(sign_flip([float(d) for d in ranks[1::2] - ranks[::2]]).p, abs=0.015)


@pytest.mark.full
def test_ratings_by_words_are_about_as_good_as_logistic_regression() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold, cross_val_predict

    name = "words: 25 % of wrong programs use a name that no other program has"
    rng = np.random.default_rng(4)
    items = LEAKS[name].plant(single(rng), rng)
    (words_predictor,) = [p for p in find_predictors(items) if (p.column, p.measure) == ("solution", "words")]
    labels, groups = [item.label or 0 for item in items], [item.group for item in items]
    check = check_predictor(words_predictor, LabelPermutations(labels, groups, 199, 0))
    scaled = (words_predictor.values - words_predictor.values.mean(axis=0)) / words_predictor.values.std(axis=0)
    model = LogisticRegression(C=0.001, max_iter=500)
    ratings = cross_val_predict(model, scaled, labels, groups=groups, cv=GroupKFold(5), method="decision_function")
    assert check.auc == pytest.approx(roc_auc_score(labels, ratings), abs=0.07)
    assert "legacy" in check.terms


def test_a_column_that_determines_the_label_is_named() -> None:
    items = [
        replace(item, columns={**item.columns, "source": f"m{item.label}"}) for item in make_random_items(60)
    ]  # fmt: skip
    assert any("column 'source': value determines the label" in line for line in audit(items).findings)


@pytest.mark.parametrize("as_cell", [int, str])
def test_numbers_in_texts_are_compared_like_numbers(as_cell: Callable[[int], Any]) -> None:
    rng = random.Random(0)
    items = [
        replace(item, columns={"size": as_cell(1_000_000 + rng.randrange(500_000) + 500_000 * (item.label or 0))})
        for item in make_random_items(60)
    ]
    assert any("column 'size': value predicts the label, AUC 1.000" in line for line in audit(items).findings)


def test_a_weak_leak_can_be_accepted() -> None:
    rng = np.random.default_rng(1)
    items = [
        replace(item, columns={"n": float(rng.normal()) + 0.8 * (item.label or 0)}) for item in make_random_items(200)
    ]  # fmt: skip
    strict = audit_items(items, DEFAULTS)
    assert (len(strict.findings), strict.exit_code) == (1, ExitCode.FAILED)
    assert audit_items(items, replace(DEFAULTS, max_auc=0.9)).exit_code == ExitCode.DONE


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        (make_items(*((str(n), n // 6, f"text {n}") for n in range(9))), "3 groups with label 1, but 5 are needed"),
        ([replace(item, label=None) for item in make_random_items(20)], "the dataset has no labels"),
        (make_items(*((str(n), n % 2, "same") for n in range(20))), "no column can predict the label"),
        (make_items(*(("abcdefg"[n % 7], n % 7 % 2, f"{n}" * n) for n in range(7)))[:0], "the dataset has no labels"),
    ],
)
def test_audit_without_enough_data_is_undecided(items: list[AuditItem], reason: str) -> None:
    report = audit_items(items, replace(DEFAULTS, similarity=1.0))
    if report.contradictions:
        report = replace(report, contradictions=())
    assert report.untested is not None
    assert reason in report.untested
    assert report.exit_code == ExitCode.UNDECIDED


@pytest.mark.full
def test_audit_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "from tests.support.leaky_datasets import *\n"
        "print(audit(single(np.random.default_rng(0), 40)).to_json())"
    )  # fmt: skip
    first, second = (python(code, PYTHONHASHSEED=seed) for seed in ("1", "2"))
    assert first.stdout == second.stdout != ""


# Edits


@pytest.mark.parametrize(
    ("first", "second", "edit"),
    [
        ("abcd", "abXd", Edit(1, 0.5)),
        ("aaaa", "aaa", Edit(1, 0.75)),
        ("", "abc", Edit(3, 0.0)),
        ("same", "same", Edit(0, 1.0)),
        ("abab", "abXXab", Edit(2, 0.5)),
    ],
)
def test_edit_is_the_part_between_common_prefix_and_suffix(first: str, second: str, edit: Edit) -> None:
    assert find_edit(first, second) == edit


def test_edits_are_not_predictors_in_groups_of_two() -> None:
    items = make_items(("a", 0, "x = 1"), ("a", 1, "x = 2"))
    assert nearest_versions(items, [item.text("text") for item in items]) is None
    assert [(edit.edits, edit.median_size) for edit in summarize_edits(items)] == [(1, 1)]


# Duplicates and contradictions


def test_equal_items_with_different_labels_are_contradictions() -> None:
    items = make_items(("a", 0, "if x:\n    y\nz"), ("b", 1, "if x:  \r\n\ty\r\nz\n"), ("c", 1, "if x:\n    y\n    z"))
    assert find_contradictions(items) == [["i0", "i1"]]
    assert audit_items(items, DEFAULTS).exit_code == ExitCode.FAILED


def test_similar_pairs_equal_those_of_an_exhaustive_search() -> None:
    rng = random.Random(0)
    base = [[rng.choice("abcdefgh") for _ in range(40)] for _ in range(6)]
    texts = []
    for _ in range(60):
        words = list(rng.choice(base))
        for _ in range(rng.randrange(4)):
            words[rng.randrange(40)] = rng.choice("abcdefgh")
        texts.append(_shingles(" ".join(words)))
    places = [str(rng.randrange(3)) for _ in texts]
    expected = {
        (i, j)
        for i, j in combinations(range(60), 2)
        if places[i] != places[j] and len(texts[i] & texts[j]) / len(texts[i] | texts[j]) >= 0.7
    }
    assert {(i, j) for i, j, _ in _similar_pairs(texts, places, 0.7)} == expected != set()


def test_duplicates_are_searched_between_splits_or_else_between_groups() -> None:
    text = " ".join(f"word{n}" for n in range(30))
    items = make_items(("a", 0, text), ("a", 1, text + " more"), ("b", 1, text), ("c", 1, "other " * 30))
    assert {(pair.first, pair.second) for pair in find_duplicates(items, 0.8)} == {("i0", "i2"), ("i1", "i2")}
    splits = [replace(item, split=split) for item, split in zip(items, ("train", "test", "train", "test"), strict=True)]
    assert {pair.places for pair in find_duplicates(splits, 0.8)} == {("train", "test")}


def test_texts_that_are_all_alike_give_a_bounded_number_of_duplicates() -> None:
    words = " ".join(f"word{n}" for n in range(30))
    items = make_items(*((str(n), n % 2, f"{words} {n}") for n in range(60)))
    pairs_of_texts = [(pair.first, pair.second) for pair in find_duplicates(items, 0.8)]
    assert len(pairs_of_texts) == sum(min(n, MAX_MATCHES) for n in range(60))
    assert ("i0", "i1") in pairs_of_texts


# Items


def test_each_candidate_answer_is_an_item() -> None:
    answers = CandidateAnswers(("x", "y"), (1,))
    point = Datapoint("q", None, {"question": "?", "answers": ["x", "y"]}, "g", answers)
    items = list_items(Dataset((point,), ("question", "answers"), "0"))
    assert [(item.label, item.group, item.columns) for item in items] == [
        (0, "g", {"question": "?", "answer": "x"}), (1, "g", {"question": "?", "answer": "y"}),
    ]  # fmt: skip


def test_group_split_and_ignored_columns_are_not_predictors() -> None:
    point = Datapoint("q", 1, {"text": "t", "split": "test", "problem": "p", "number": 3}, "p")
    (item,) = list_items(Dataset((point,), tuple(point.columns), "0", "problem"), {"number"})
    assert (item.split, item.group, item.columns) == ("test", "p", {"text": "t"})
