"""The strata from which units were drawn for labels: the answers of an instrument at that time.

`analyze --again` and a resumed analysis replace the answers of an instrument. So labels name the answers by their hash,
and the run's folder has a copy of them, `labels/strata-INSTRUMENT-HASH.json`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from runner.analysis.labels import LABELS, Label, label_folders
from runner.analysis.results import AnalysisTable
from runner.base.errors import RunError
from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.text import comma_join
from runner.results.folder import RunFolder

Strata = Mapping[str, str]
"""The stratum of each unit. A missing unit has the stratum of units without an answer, the empty text."""


def table_strata(table: AnalysisTable) -> Strata:
    """Return the strata by the answers of a table."""
    return {result.unit_id: result.answer or "" for result in table.results if result.status != "not_applicable"}


def save_strata(folder: RunFolder, table: AnalysisTable) -> str:
    """Save the strata by the answers of a table in its run's folder, and return their name."""
    name, strata = _name(table), table_strata(table)
    atomic_write(folder.additions.make(LABELS) / f"strata-{name}.json", canonical(strata))
    return name


def find_strata(folder: RunFolder, labels: Iterable[Label], tables: Sequence[AnalysisTable]) -> list[Strata]:
    """Return all strata from which labels of a run were drawn; `tables` are the results of its analyses.

    Raises:
        RunError: the answers of an instrument have changed and the copy of the former ones is missing or damaged.
    """
    names = sorted({label.stratified_by for label in labels if label.stratified_by is not None})
    current = {_name(table): table for table in tables} if names else {}
    paths = [path for labels_folder in label_folders(folder.path) for path in labels_folder.glob("strata-*.json")]
    saved = {path.stem.removeprefix("strata-"): path for path in paths}
    if missing := [name for name in names if name not in current and name not in saved]:
        files = comma_join(f"{LABELS}/strata-{name}.json" for name in missing)
        raise RunError(
            f"units of {folder.run_id} were drawn by answers of a model that are missing or have changed; restore "
            f"{files} in the run's folder, since labels cannot be weighted without them"
        )
    return [table_strata(current[name]) if name in current else read_json(saved[name]) for name in names]


def _name(table: AnalysisTable) -> str:
    # Only the answers in order, since a release may have other ids of rollouts, and so of units.
    return f"{table.instrument}-{tagged_hash('strata', list(table_strata(table).values()))[:10]}"
