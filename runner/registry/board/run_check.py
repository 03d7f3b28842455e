"""Check a published benchmark run for a board: recompute its metrics from its rollouts, and write the board's table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import orjson

from runner.base.errors import ReleaseError
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.parquet import write_parquet
from runner.base.storage.safe_files import create
from runner.base.storage.strict_json import is_same
from runner.documents.releases.manifest import Release
from runner.registry.bundles.runs import ROWS
from runner.registry.bundles.withheld_rows import MARK as WITHHELD_MARK
from runner.registry.bundles.withheld_rows import load_withheld
from runner.registry.fetched_release import PIN
from runner.registry.lineage.typed_facts import MAX_COUNT
from runner.registry.rollout_checker import RolloutChecker, describe_differences, merge_metrics, read_rows
from runner.registry.rollouts_file import ROLLOUTS_FILE
from runner.registry.verification.kinds import find_kind_problems
from runner.results.folder import RunFolder
from runner.results.manifest import COUNTED, PLAYED, Manifest
from runner.results.metric_definitions import RANKING_METRIC
from runner.results.metric_plugins import without_plugin_metrics
from runner.results.table_columns import COLUMNS
from runner.results.tables import PART_BYTES, PART_ROWS
from runner.runs.finished.reconstruction import played_plan
from runner.spec.datasets.loader import Dataset
from runner.spec.origin import DATA
from runner.version import __version__

NOT_RECOMPUTED = "not recomputed"
"""Prefix of the mark on a run whose metrics the board cannot recompute and shows as published."""


def check_run(folder: RunFolder, release: Release, cached_id: str) -> tuple[tuple[str, ...], str]:
    """Check that a run agrees with its release, and write the table of its rollouts.

    The table and the manifest in `folder` get `cached_id` as the run's id.

    Returns:
        The marks on the run's row, and the published id of the run.

    Raises:
        NipRunError: the run disagrees with its release, or is malformed.
        OSError: a file cannot be written.
    """
    manifest = folder.manifest()
    _check_counts(manifest)
    for problem in find_kind_problems(folder, release.facts):
        raise ReleaseError(problem)
    _check_facts(release, {"run_id": manifest.run_id, "status": manifest.status, "benchmark": manifest.benchmark})
    if release.identity.get("run") not in (None, manifest.identity):
        raise ReleaseError("the identity in the release differs from that of its run")
    if manifest.status not in PLAYED:
        raise ReleaseError(f"the run is not finished (its status is {manifest.status})")
    if release.file(f"{DATA}/{ROLLOUTS_FILE}") is None:
        raise ReleaseError(f"the release has no {DATA}/{ROLLOUTS_FILE} to recompute its metrics from")
    published_metrics = read_json(folder.metrics)
    withheld = load_withheld(folder) if release.file(PIN) is not None and release.file(ROWS) is None else None
    marks, metrics = _recompute_metrics(folder, published_metrics, withheld)
    marks = marks if withheld is None else (WITHHELD_MARK, *marks)
    atomic_write(folder.metrics, orjson.dumps(metrics))
    game_metrics = {row["metric"]: row["value"] for row in metrics["metrics"] if row["agent"] is None}
    accuracy = game_metrics.get(RANKING_METRIC)
    _write_rows(folder, cached_id)
    stated_accuracy = release.facts.get("accuracy")
    if not is_same((stated_accuracy or {}).get("value"), accuracy):
        raise ReleaseError(
            f"the release says accuracy {(stated_accuracy or {}).get('value')}, but the run's records give {accuracy}"
        )
    folder.write_manifest(replace(manifest, run_id=cached_id))
    return marks, manifest.run_id


def _check_counts(manifest: Manifest) -> None:
    for name in (*COUNTED, "cost_usd"):
        value = getattr(manifest, name)
        if value is not None and not 0 <= value <= MAX_COUNT:
            raise ReleaseError(f"the run's manifest says {name} {value!r}, which is out of range")


def _check_facts(release: Release, facts: Mapping[str, object]) -> None:
    for name, value in facts.items():
        if not is_same(release.facts.get(name), value):
            raise ReleaseError(f"the release says {name} {release.facts.get(name)!r}, but its run says {value!r}")


def _recompute_metrics(
    folder: RunFolder, published_metrics: Mapping[str, object], withheld: Dataset | None
) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Recompute a run's metrics from its rollouts, and return the marks on its row and the content of metrics.json.

    `withheld` is the dataset without its rows, if the release has only their hashes.

    Raises:
        ReleaseError: this version of nip-run played the run, but the published metrics differ.
    """
    plan, manifest = played_plan(folder, withheld), folder.manifest()
    if plan.tree_shape is not None:
        return (f"{NOT_RECOMPUTED}: a tree",), dict(published_metrics)
    checker = RolloutChecker(folder, plan)
    for row in read_rows(folder.path / ROLLOUTS_FILE):
        checker.add(row)
    recomputed_metrics = checker.summary()
    if plan.debates is not None and plan.debates.stopping_note is not None:
        return (f"{NOT_RECOMPUTED}: the run judges the debates of a run that had stopped",), dict(published_metrics)
    published_metrics = without_plugin_metrics(published_metrics, manifest)
    differences = describe_differences(published_metrics, recomputed_metrics)
    if differences and manifest.version == __version__:
        raise ReleaseError(f"the run's metrics do not follow from its records: {'; '.join(differences[:5])}")
    marks = (f"recomputed with {__version__} (published with {manifest.version}): {'; '.join(differences[:3])}",)
    return marks if differences else (), merge_metrics(published_metrics, recomputed_metrics)


def _write_rows(folder: RunFolder, cached_id: str) -> None:
    """Write a run's rows to the table that a board reads, with `cached_id` as run id.

    The rows first go to several JSON files of limited size, because the writer of the table loads a complete file.
    """
    paths: list[Path] = []
    longest_line = part_size = row_count = 0
    file: IO[bytes] | None = None
    try:
        for row in read_rows(folder.path / ROLLOUTS_FILE):
            line = orjson.dumps({**row, "run_id": cached_id}, option=orjson.OPT_APPEND_NEWLINE)
            if file is None or row_count >= PART_ROWS or part_size + len(line) > PART_BYTES:
                if file is not None:
                    file.close()
                paths.append(folder.path / f".rollouts.{len(paths):05d}.jsonl")
                file, part_size, row_count = create(paths[-1]), 0, 0
            file.write(line)
            longest_line, part_size, row_count = max(longest_line, len(line)), part_size + len(line), row_count + 1
    finally:
        if file is not None:
            file.close()
    write_parquet(paths, COLUMNS["rollouts"], folder.table("rollouts"), longest=longest_line)
    for path in (*paths, folder.path / ROLLOUTS_FILE):
        path.unlink()
