"""The files of analyses in a run's release: the results as JSON lines, their validations, and labels of people.

The names of readers are replaced by `reader-1`, `reader-2` and so on. Labels are published only under a license that
the publisher names, because they belong to the readers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple

import orjson

from runner.analysis.labels import LABELS, Label, read_labels
from runner.analysis.published import SUFFIX, read_rows
from runner.analysis.results import analysis_files, read_analyses
from runner.analysis.scores import find_validation_records
from runner.analysis.validation_log import VALIDATIONS
from runner.base.text import counted
from runner.documents.releases.bundle import Content
from runner.results.folder import RunFolder
from runner.results.table_columns import ANALYSES, ANALYSIS_COLUMNS
from runner.spec.origin import DATA

LABELS_LICENSE = f"{DATA}/{LABELS}/license.txt"


class AnalysisContents(NamedTuple):
    """The files of analyses by path, and messages for the publisher."""

    files: Mapping[str, Content]
    notes: tuple[str, ...]


def build_analysis_contents(folder: RunFolder, labels_licence: str | None) -> AnalysisContents:
    """Return the files of a run's analyses; labels only with their license.

    Raises:
        RunError: a file of an analysis is damaged.
    """
    files: dict[str, Content] = {
        f"{DATA}/{ANALYSES}/{path.stem}{SUFFIX}": _to_lines(read_rows(path, ANALYSIS_COLUMNS))
        for path in analysis_files(folder)
    }
    instruments = {table.instrument for table in read_analyses(folder)}
    records = [asdict(record) for record in find_validation_records(folder) if record.instrument in instruments]
    if records:
        files[f"{DATA}/{ANALYSES}/{VALIDATIONS}"] = _to_lines(records)
    labels = {path.name: labels for path, labels in read_labels(folder.path).items() if labels}
    if not labels:
        return AnalysisContents(files, ())
    count = counted(sum(map(len, labels.values())), "label")
    if labels_licence is None:
        note = f"{count} of people left out: if their readers agree, publish them with --labels-license SPDX"
        return AnalysisContents(files, (note,))
    aliases = _number_readers(label for each in labels.values() for label in each)
    files |= {
        f"{DATA}/{LABELS}/{name}": _to_lines({**asdict(label), "reader": aliases[label.reader]} for label in each)
        for name, each in labels.items()
    }
    files[LABELS_LICENSE] = f"{labels_licence}\n".encode()
    readers = counted(len(aliases), "reader")
    return AnalysisContents(files, (f"{count} of {readers} included ({labels_licence}), with numbers for names",))


def _number_readers(labels: Iterable[Label]) -> dict[str, str]:
    names = dict.fromkeys(label.reader for label in labels)
    return {name: f"reader-{number}" for number, name in enumerate(names, 1)}


def _to_lines(rows: Iterable[Mapping[str, object]]) -> bytes:
    return b"".join(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in rows)
