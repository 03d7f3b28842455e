"""The leak audit of a dataset: all checks, corrected for their number, and what they find."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from runner.base.exit_codes import ExitCode
from runner.base.text import counted, decimal, list_some, p_statement
from runner.curation.audit.duplicates import (
    SIMILARITY,
    Duplicate,
    duplicate_scope,
    find_contradictions,
    find_duplicates,
)
from runner.curation.audit.edits import EditSummary, summarize_edits
from runner.curation.audit.items import AuditItem, list_items
from runner.curation.audit.label_tests import LabelPermutations, LabelTest, check_predictor
from runner.curation.audit.predictors import find_predictors
from runner.spec.datasets.loader import Dataset
from runner.statistics.significance import ALPHA, holm

MAX_TESTED_ITEMS: Final = 2000
"""The approximate number of items for testing predictors. Of more items, groups are chosen at random."""
_MIN_PERMUTATIONS: Final = 1999
_PERMUTATIONS_PER_TEST: Final = 50
"""The fewest permutations for each test: Holm's correction needs p-values below 0.05 / tests."""
_MIN_GROUPS_PER_LABEL: Final = 5


@dataclass(frozen=True)
class AuditSettings:
    """The user's choices for an audit."""

    ignored: frozenset[str] = frozenset()
    """Columns that no agent sees."""
    max_auc: float = 0.5
    """Predictors whose AUC is between 1 minus this value and this value are not leaks, even if they are significant."""
    similarity: float = SIMILARITY
    seed: int = 0


@dataclass(frozen=True)
class AuditReport:
    """The results of an audit."""

    items: int
    groups: int
    labels: dict[str, int]
    splits: dict[str, int]
    tested_items: int
    tests: Sequence[LabelTest]
    untested: str | None
    """Why the predictors were not tested, or why no test can find a leak; None if they were tested."""
    edits: Sequence[EditSummary]
    contradictions: Sequence[Sequence[str]]
    duplicate_scope: str
    duplicates: Sequence[Duplicate]
    max_auc: float

    def is_leak(self, test: LabelTest) -> bool:
        """Return whether a test is a finding."""
        return test.p_holm <= ALPHA and max(test.auc, 1 - test.auc) > self.max_auc

    @cached_property
    def findings(self) -> list[str]:
        """A sentence for each finding."""
        lines = [describe_leak(test) for test in self.tests if self.is_leak(test)]
        lines += [f"equal items with different labels: {list_some(ids)}" for ids in self.contradictions]
        by_column = Counter(duplicate.column for duplicate in self.duplicates)
        for column, count in by_column.items():
            pairs = f"{counted(count, 'pair')} of duplicates or near-duplicates"
            lines.append(f"column {column!r}: {pairs} in different {self.duplicate_scope}")
        return lines

    @property
    def exit_code(self) -> ExitCode:
        """1: there are findings; 5: there is too little data to find a leak; 0 otherwise."""
        if self.findings:
            return ExitCode.FAILED
        return ExitCode.DONE if self.untested is None else ExitCode.UNDECIDED

    def to_json(self) -> dict[str, Any]:
        from dataclasses import asdict

        return {**asdict(self), "findings": self.findings, "exit_code": int(self.exit_code)}


def describe_leak(test: LabelTest) -> str:
    """Return a sentence about a predictor that tells the label."""
    name = f"column {test.column!r}: {test.measure}"
    if test.determines_label:
        return f"{name} determines the label of each item"
    how = f" (strongest: {', '.join(test.terms)})" if test.terms else ""
    larger = "" if test.terms else f"; larger with label {int(test.auc > 0.5)}"
    return f"{name} predicts the label, AUC {decimal(test.auc)}, {p_statement(test.p_holm)} (Holm){larger}{how}"


def audit_dataset(dataset: Dataset, settings: AuditSettings) -> AuditReport:
    """Audit a dataset. The result depends only on the dataset and the settings."""
    return audit_items(list_items(dataset, settings.ignored), settings)


def audit_items(items: Sequence[AuditItem], settings: AuditSettings) -> AuditReport:
    """Audit items, as `audit_dataset` does."""
    tested = _sample_groups([item for item in items if item.label is not None], settings.seed)
    tests, untested = _run_tests(tested, settings.seed)
    return AuditReport(
        items=len(items),
        groups=len({item.group for item in items}),
        labels=_count("none" if item.label is None else str(item.label) for item in items),
        splits=_count(item.split for item in items if item.split is not None),
        tested_items=len(tested),
        tests=tests,
        untested=untested,
        edits=list(summarize_edits(items)),
        contradictions=find_contradictions(items),
        duplicate_scope=duplicate_scope(items),
        duplicates=list(find_duplicates(items, settings.similarity)),
        max_auc=settings.max_auc,
    )


def _count(values: Any) -> dict[str, int]:
    return dict(sorted(Counter(values).items()))


def _sample_groups(items: list[AuditItem], seed: int) -> list[AuditItem]:
    """Return all items, or the items of groups chosen at random if there are too many."""
    if len(items) <= MAX_TESTED_ITEMS:
        return items
    sizes = Counter(item.group for item in items)
    names = sorted(sizes)
    order = np.random.default_rng(seed).permutation(len(names))
    total = np.cumsum([sizes[names[index]] for index in order])
    chosen = {names[index] for index in order[: int(np.searchsorted(total, MAX_TESTED_ITEMS)) + 1]}
    return [item for item in items if item.group in chosen]


def _run_tests(items: Sequence[AuditItem], seed: int) -> tuple[list[LabelTest], str | None]:
    """Return the tests of all predictors, and the reason why there is none or why none can find a leak."""
    if not items:
        return [], "the dataset has no labels"
    for label in (0, 1):
        groups = {item.group for item in items if item.label == label}
        if len(groups) < _MIN_GROUPS_PER_LABEL:
            noun = counted(len(groups), "group")
            return [], f"too little data: {noun} with label {label}, but {_MIN_GROUPS_PER_LABEL} are needed"
    predictors = list(find_predictors(items))
    labels, groups_of_items = [item.label or 0 for item in items], [item.group for item in items]
    count = max(_MIN_PERMUTATIONS, _PERMUTATIONS_PER_TEST * len(predictors))
    permutations = LabelPermutations(labels, groups_of_items, count, seed)
    predictors = [predictor for predictor in predictors if permutations.is_informative(predictor.values)]
    tests = [check_predictor(predictor, permutations) for predictor in predictors]
    adjusted = holm([test.p for test in tests])
    tests = [replace(test, p_holm=p) for test, p in zip(tests, adjusted, strict=True)]
    if not tests:
        return [], "no column can predict the label, since no column differs between items of different labels"
    if permutations.min_p * len(tests) > ALPHA:
        possible = math.floor(1 / permutations.min_p)
        return tests, f"too little data: only {possible} permutations of the labels respect the groups"
    return tests, None
