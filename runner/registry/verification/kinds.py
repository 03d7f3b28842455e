"""Check a run for `verify`: the kind and models in its release's facts, and incomplete records in its logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runner.base.storage.log_lines import scan
from runner.base.storage.safe_files import open_to_read
from runner.base.storage.strict_json import is_same
from runner.registry.lineage.links import collect_public_group_facts
from runner.results.folder import RunFolder
from runner.spec.model_sources import ModelSource

KINDS = ("benchmark", "training")

_UNCHECKED = ("weights_sha256", "games")
"""Facts about a model that only its publisher can compute, because they follow from local files or other runs."""


def find_kind_problems(folder: RunFolder, facts: Mapping[str, object]) -> Iterator[str]:
    """Yield a message for each fact about the kind and models of a run that the run's own files contradict.

    Raises:
        RunError, SpecError: the files cannot be read.
    """
    source, manifest = ModelSource(folder.path), folder.manifest()
    run, kind = f"run {manifest.run_id}", manifest.kind
    trains = source.spec.get("kind") == "training" or source.spec.get("training") is not None
    if kind not in KINDS:
        yield f"{run} cannot be of kind {kind!r}"
    elif trains and kind == "benchmark":
        yield f"{run} is of kind benchmark, but its spec trains models, so its kind must be training"
    elif kind == "training" and not trains and manifest.parent_run_id is None:  # training games have a parent run
        yield f"{run} is of kind training, but its spec has no trainer"
    elif facts.get("kind") != kind:
        yield f"{run} is of kind {kind}, but its release says {facts.get('kind')!r}"
    groups = collect_public_group_facts(folder, source)
    if not is_same(_checkable_facts(facts.get("trained")), _checkable_facts(groups)):
        yield f"{run}: the models in its release's facts are not those in its {folder.spec.name} and its stage log"


def _checkable_facts(trained: Any) -> Any:
    if not isinstance(trained, list):
        return trained
    return [
        {name: value for name, value in group.items() if name not in _UNCHECKED} if isinstance(group, dict) else group
        for group in trained
    ]


def find_torn_logs(run: RunFolder, identity: str) -> Iterator[str]:
    """Yield a message for each log that ends in an incomplete record.

    Raises:
        JournalError: a log is damaged before its end.
    """
    for log in (run.journal, run.stage_log):
        if log.is_file():
            with open_to_read(log) as file:
                size = sum(len(line) for _, line, record in scan(file, log, identity) if record is None)
            if size:
                yield f"{log.name} ends with {size:,} bytes of an incomplete record"
