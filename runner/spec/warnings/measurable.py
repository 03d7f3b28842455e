"""Warn about a dataset that is not sufficient for a measurement, and about columns that no template uses."""

from __future__ import annotations

import re
from collections.abc import Iterator

from runner.base.text import comma_join, counted
from runner.spec.loader import Spec
from runner.spec.warnings.groups import is_question

MIN_GROUPS = 10
"""Minimum number of independent groups; with fewer, intervals are too wide to be useful."""


def single_label(spec: Spec) -> Iterator[str]:
    """Warn if every datapoint, or every one of the test split, has the same label."""
    for dataset, place in ((spec.dataset, ""), (spec.test, " of the test split")):
        labels = set() if dataset is None else {point.label for point in dataset.datapoints}
        if dataset is not None and len(labels) == 1 and None not in labels:
            (label,) = labels
            yield (
                f"all {len(dataset.datapoints)} datapoints{place} have label {label}: a verifier that always "
                f"{'accepts' if label else 'rejects'} is always right; add datapoints with label {1 - int(label or 0)}"
            )


def few_groups(spec: Spec) -> Iterator[str]:
    """Warn if the dataset or the test split has too few independent groups for useful intervals."""
    experiment = spec.experiment
    test_limit = None if experiment.training is None else experiment.training.test.limit
    for dataset, name, key, limit in (
        (spec.dataset, "dataset", "dataset.limit", experiment.dataset.limit),
        (spec.test, "test split", "training.test.limit", test_limit),
    ):
        groups = 0 if dataset is None else len({point.group for point in dataset.datapoints})
        if dataset is not None and groups < MIN_GROUPS:
            unit = "datapoint" if dataset.group_by is None else "group"
            yield (
                f"the {name} has only {counted(groups, unit)}: intervals need at least {MIN_GROUPS} independent "
                f"{unit}s; add some{'' if limit is None else f', or raise {key}'}"
            )


def unused_columns(spec: Spec) -> Iterator[str]:
    """Warn about columns that an agent should probably see, but that neither a template nor the spec uses.

    Only columns that `dataset.columns` renames, and columns with questions or long texts, are checked.
    """
    dataset, settings = spec.dataset, spec.experiment.dataset
    used = {name for names in spec.prompts.variables.values() for name in names}
    checker_column = None if settings.checker is None else settings.checker.column
    used |= {"split", dataset.group_by or "", checker_column or "", *re.findall(r"\w+", settings.filter or "")}
    used |= {name for name, file_name in settings.columns.items() if file_name in used}
    unused = [
        name
        for name in dataset.columns
        if name not in used
        and (name in settings.columns or any(is_question(name, point.columns[name]) for point in dataset.datapoints))
    ]
    if unused:
        name = re.sub(r"\W+", "_", unused[0]) if not unused[0].isidentifier() else unused[0]
        renaming = "" if name == unused[0] else f"set dataset.columns.{name} to {unused[0]!r} and "
        yield (
            f"no template uses {comma_join(unused)}: agents do not see {'it' if len(unused) == 1 else 'them'}; "
            f"{renaming}write {{{{ {name} }}}} in a template in {spec.experiment.prompts}, or remove the column from "
            "the dataset"
        )
