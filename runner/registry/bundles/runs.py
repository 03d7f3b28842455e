"""Drafts of the releases of a run: the run with everything that determines it, its parts and its models.

`nip-run publish` and the Python function `publish` use this module. The same run folder gives the same bytes at any
time and on any machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import orjson

from runner.analysis.labels import LABELS, Label, read_labels
from runner.analysis.published import SUFFIX, read_rows
from runner.analysis.results import analysis_files, read_analyses
from runner.analysis.scores import find_validation_records
from runner.analysis.validation_log import VALIDATIONS
from runner.base.errors import ReleaseError, RunError, errors_as, os_errors_as
from runner.base.storage.safe_files import open_to_read, read_bounded
from runner.base.text import counted
from runner.documents import croissant
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import Kind, Reference
from runner.documents.yaml_writer import dump
from runner.game.prompts.templates import STORED_SUFFIXES
from runner.registry.bundles import parameters, readme, run_data
from runner.registry.bundles.models import build_model_drafts
from runner.registry.bundles.run_facts import (
    collect_facts,
    collect_hashes,
    load_datapoints,
    replace_sources,
    sources_of_manifest,
)
from runner.registry.draft import Draft, PublisherChoices
from runner.registry.fetched_release import MAX_LOCK, PIN
from runner.registry.lineage.links import build_links, release_name
from runner.registry.rollouts_file import ROLLOUTS_FILE, write_rollouts
from runner.registry.sent_releases import find_sent_reference
from runner.results import baseline_scores
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest
from runner.results.provenance.sources_snapshot import ENVIRONMENT, WRITTEN
from runner.results.table_columns import ANALYSES, ANALYSIS_COLUMNS
from runner.results.tasks import PlayedDatapoint
from runner.spec.model_sources import ModelSource
from runner.spec.origin import DATA
from runner.spec.rejudged_run import DEBATES
from runner.spec.run_names import SAVED_SPEC
from runner.spec.trainer_files import FOLDER, INDEX, read_index, stored_name
from runner.training.trainer_files import missing_lines

NO_ROWS = "none"
"""The value of `--dataset-license` for a dataset whose rows must not be published."""
ROWS = f"{DATA}/inputs/dataset.jsonl"
REPLAYED = "inputs/replayed"
"""The path of replayed runs in a published spec. Readers do not need these runs, because the replay has the answers."""

_RUN_FILES = ("journal.jsonl", "stages.jsonl", "state.json", "metrics.json", "manifest.json")
_INPUTS = ("protocol.yaml", DEBATES, baseline_scores.FILE)


def build_run_draft(folder: RunFolder, results: Results, choices: PublisherChoices) -> Draft:
    """Return the draft of the release of one run.

    Raises:
        RunError, SpecError: a file of the run is missing or damaged.
        ReleaseError: the run cannot be published without its rows, or is the run of an analysis.
    """
    manifest = replace_sources(folder.manifest(), choices.sources)
    spec = ModelSource(folder.path).spec
    if (analysis := spec.get("analysis")) is not None:
        raise ReleaseError(
            f"{folder.run_id} is the run of an analysis, and its rows have texts of {analysis['run_id']}; publish "
            f"{analysis['run_id']} instead, whose release has the results of the analysis"
        )
    metrics = folder.read_metrics() if folder.metrics.is_file() else {}
    datapoints = load_datapoints(folder)
    release = Release(
        kind=Kind.RUN,
        owner=choices.owner,
        name=choices.name or release_name(manifest.run_id),
        version=choices.version,
        description=choices.description or str(spec.get("description") or ""),
        licence=choices.licence,
        visibility=choices.visibility,
        identity=collect_hashes(folder, manifest, datapoints),
        sources=sources_of_manifest(manifest),
        links=_links(folder, results, choices),
        facts=collect_facts(folder, manifest, metrics, datapoints),
    )
    has_rows, rows_licence = choices.dataset_licence != NO_ROWS, choices.dataset_licence or choices.licence
    if not has_rows and (spec.get("dataset") or {}).get("answers") is not None:
        raise ReleaseError(
            f"{folder.run_id} cannot be published without its rows, because its verdicts choose from answers in the "
            "rows; publish the rows, or do not publish the run"
        )
    analyses = build_analysis_contents(folder, choices.labels_licence)
    contents: dict[str, Content] = {
        **_run_files(folder, spec),
        **analyses.files,
        **_start_files(folder),
        **_generated_files(folder, manifest, spec, metrics),
        readme.FILE: _readme(release, folder, has_rows),
        **(_dataset_files(folder, release, manifest, rows_licence) if has_rows else {PIN: _pin(manifest, datapoints)}),
    }
    return Draft(
        release,
        contents,
        notes=(*_notes(folder, manifest, spec, contents, has_rows=has_rows), *analyses.notes),
        # The README has names from the spec and the manifest. After these are redacted, the README is built again.
        rebuilders={
            readme.FILE: lambda redacted, root: _readme(redacted, RunFolder.from_release(root / DATA), has_rows)
        },
        withheld={} if has_rows else {ROWS: folder.path / "inputs" / "dataset.jsonl"},
    )


def _generated_files(
    folder: RunFolder, manifest: Manifest, spec: Mapping[str, object], metrics: Mapping[str, object]
) -> dict[str, Content]:
    """Return the files that are computed from the run's files for readers of the release."""
    files: dict[str, Content] = {
        parameters.FILE_NAME: parameters.build_parameters(spec),
        SAVED_SPEC: parameters.SPEC_TEXT.encode(),
        run_data.FILE: run_data.build_run_data(manifest, metrics),
    }
    if not manifest.is_training_run and manifest.status in PLAYED:
        files[f"{DATA}/{ROLLOUTS_FILE}"] = write_rollouts(folder)
    return files


def _readme(release: Release, folder: RunFolder, has_rows: bool) -> bytes:
    metrics = folder.read_metrics() if folder.metrics.is_file() else {}
    return readme.build_readme(release, folder.manifest(), ModelSource(folder.path).spec, metrics, has_rows=has_rows)


def build_run_drafts(folder: RunFolder, results: Results, choices: PublisherChoices) -> Sequence[Draft]:
    """Return the drafts of a run and of everything that is published with it: parts, models, and the run itself last.

    Raises:
        RunError, SpecError: a file of the run, or of a part, is missing or damaged.
    """
    parts = results.parts_of(folder.run_id) if folder.manifest().is_training_run else []
    reference = Reference(Kind.RUN, choices.owner, choices.name or release_name(folder.run_id), choices.version)
    choices = replace(choices, references={**choices.references, folder.run_id: str(reference)})
    choices_for_parts = replace(choices, name=None, description="", child_of=None)
    return [
        *(build_run_draft(part, results, choices_for_parts) for part in parts),
        *build_model_drafts(folder, choices_for_parts),
        build_run_draft(folder, results, choices),
    ]


def _links(folder: RunFolder, results: Results, choices: PublisherChoices) -> tuple[ReleaseLink, ...]:
    sent_references = {
        run_id: reference
        for run_id in folder.manifest().source_run_ids
        if (reference := find_sent_reference(results.run(run_id), choices.registry_address, choices.version))
    }
    names = {**sent_references, **choices.references}
    links = build_links(folder, results, choices.owner, choices.version, names=names)
    if choices.child_of is None:
        return links
    parent = ReleaseLink(role="child_of", release=choices.child_of, sha256=choices.child_of_sha256)
    return (*(link for link in links if link.role != "child_of"), parent)


def _run_files(folder: RunFolder, spec: Mapping[str, object]) -> dict[str, Content]:
    """Return the files of the run's folder that are published. Files that can be recomputed from them are omitted."""
    inputs = folder.path / "inputs"
    trainers = inputs / FOLDER
    stored_files = read_index(trainers)
    names = {stored_name(group, path) for group, files in stored_files.items() for path in files.files}
    names |= {INDEX} if stored_files else set()
    prompts = sorted(path for path in (inputs / "prompts").iterdir() if path.name.endswith(STORED_SUFFIXES))
    contents: dict[str, Content] = {f"{DATA}/{SAVED_SPEC}": _published_spec(folder, spec)}
    contents |= {f"{DATA}/{name}": folder.path / name for name in _RUN_FILES if (folder.path / name).is_file()}
    contents |= {f"{DATA}/inputs/{name}": inputs / name for name in _INPUTS if (inputs / name).is_file()}
    contents |= {f"{DATA}/inputs/{FOLDER}/{name}": trainers / name for name in sorted(names)}
    return contents | {f"{DATA}/inputs/prompts/{path.name}": path for path in prompts}


def _published_spec(folder: RunFolder, spec: Mapping[str, Any]) -> Content:
    """Return the resolved spec with a placeholder instead of the path of each replayed run."""
    replays = {name: group for name, group in spec["models"].items() if group.get("run") is not None}
    if not replays:
        return folder.spec
    groups = {name: {**group, "run": f"{REPLAYED}/{PurePath(group['run']).name}"} for name, group in replays.items()}
    public_spec = {**spec, "models": {**spec["models"], **groups}}
    return ("# The resolved spec of this run, with every default written out.\n" + dump(public_spec)).encode()


def _start_files(folder: RunFolder) -> dict[str, Content]:
    """Return files saved at the start of a run: specs as the user wrote them, and package versions (not in 0.1.0)."""
    inputs = folder.path / "inputs"
    specs = sorted(path for path in (inputs / WRITTEN).iterdir()) if (inputs / WRITTEN).is_dir() else []
    files: dict[str, Content] = {f"{WRITTEN}/{path.name}": path for path in specs if not path.name.endswith(".new")}
    if (inputs / ENVIRONMENT).is_file():
        files[ENVIRONMENT] = _read_file(inputs / ENVIRONMENT)
    return files


def _read_file(path: Path) -> bytes:
    with os_errors_as(RunError, f"cannot read {path}"):
        return read_bounded(path, MAX_LOCK)


def _dataset_files(folder: RunFolder, release: Release, manifest: Manifest, licence: str | None) -> dict[str, Content]:
    """Return the dataset rows that were played, and their description in the Croissant format."""
    path = folder.path / "inputs" / "dataset.jsonl"
    with errors_as(RunError, f"{path} cannot be read", OSError, orjson.JSONDecodeError):
        columns = croissant.find_column_kinds(_read_rows(path))
        description = croissant.build_croissant(
            release.name,
            f"The datapoints of the run {manifest.run_id}, on {manifest.benchmark}.",
            licence,
            {ROWS: path},
            columns,
            published=manifest.started_at[:10],
        )
    return {ROWS: path, croissant.FILE: description}


def _read_rows(path: Path) -> Iterator[Mapping[str, object]]:
    with open_to_read(path) as file:
        for line in file:
            yield orjson.loads(line)


def _pin(manifest: Manifest, datapoints: list[PlayedDatapoint]) -> bytes:
    """Return the *pin*: JSON with the source and the hashes of the dataset rows that were played, but not the rows."""
    source = sources_of_manifest(manifest).get("dataset")
    pin = {
        "file": None if source is None or source.path is None else PurePath(source.path).name,
        "source": None if source is None else vars(source),
        "source_sha256": manifest.dataset_source_sha256,
        "dataset_sha256": manifest.dataset_sha256,
        "selection": dict(manifest.dataset_selection),
        "rows": [
            {
                "id": point.id,
                "content_sha256": point.content_sha256,
                **({} if point.all_columns_sha256 is None else {"all_columns_sha256": point.all_columns_sha256}),
                "sha256": point.sha256,
                "group_sha256": point.group_sha256,
            }
            for point in datapoints
        ],
    }
    return orjson.dumps(pin, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _notes(
    folder: RunFolder, manifest: Manifest, spec: Mapping[str, Any], contents: Mapping[str, Content], *, has_rows: bool
) -> Iterator[str]:
    """Yield notes for the publisher about what the release lacks."""
    for part, source in sources_of_manifest(manifest).items():
        if not source.clean:
            yield f"not pinned: {part}: {source.why}"
    if manifest.sources is None:
        yield f"not pinned: the run was started by nip-run {manifest.version}, which did not record its files' origin"
    if ENVIRONMENT not in contents:
        yield f"no {ENVIRONMENT}: the run was started by nip-run {manifest.version}, which did not record its packages"
    if not has_rows:
        yield "the dataset's rows are not published, but their ids, hashes and source and the models' messages are"
    for group in spec["models"].values():
        if group.get("run") is not None:
            yield f"the replayed run {PurePath(group['run']).name} is not part of the release, but its answers are"
    for line in missing_lines(read_index(folder.path / "inputs" / FOLDER)):
        yield f"not in the release: {line}"


LABELS_LICENSE = f"{DATA}/{LABELS}/license.txt"


class AnalysisContents(NamedTuple):
    """The files of analyses by path, and messages for the publisher."""

    files: Mapping[str, Content]
    notes: tuple[str, ...]


def build_analysis_contents(folder: RunFolder, labels_licence: str | None) -> AnalysisContents:
    """Return the files of a run's analyses: the results as JSON lines, their validations, and labels of people.

    The names of readers are replaced by `reader-1`, `reader-2` and so on. Labels are included only with a license that
    the publisher names, because they belong to the readers.

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
