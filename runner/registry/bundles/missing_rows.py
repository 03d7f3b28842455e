"""A run that was published without the rows of its dataset: what it needs, and how they come to it, checked by hash."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import orjson

from runner.base.errors import NipRunError, Place, ReleaseError, SpecError, UsageError
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import in_one_line, shortened
from runner.documents.dataclass_schema import from_plain
from runner.registry.bundles.runs import ROWS
from runner.registry.fetched_release import PIN, FetchedRelease, read_pin
from runner.registry.recomputed_run import write_tables
from runner.spec.datasets.loader import Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings

OPTION = "dataset.path"


def lacks_rows(got: FetchedRelease) -> bool:
    """Whether the rows of its dataset are neither in a release nor put beside it since."""
    return got.release.file(PIN) is not None and not (got.folder / ROWS).is_file()


def what_is_needed(got: FetchedRelease) -> str:
    """Which dataset a release needs, in a sentence."""
    pin = read_pin(got.folder / PIN)
    source = pin.get("source") if isinstance(pin.get("source"), dict) else {}
    from_ = [f"{name} {source[name]}" for name in ("repository", "commit", "path") if source and source.get(name)]
    from_ = from_ or ([str(pin["file"])] if pin.get("file") else [])
    told = in_one_line(shortened(", ".join(from_), 300)) if from_ else "a file that was not recorded"
    digest = shortened(str(pin.get("source_sha256")), 64)
    command = f"nip-run reproduce {shlex.quote(str(got.folder))} --set {OPTION}=FILE"
    return (
        f"it needs the dataset, whose rows are not in the release: {told} (sha256 of the file: {digest}). "
        f"Give it once: {command}; its rows are checked by hash"
    )


def put_rows(got: FetchedRelease, file: Path) -> None:
    """Put the rows that were played into a got folder, out of a dataset's file or the rows of another run.

    Raises:
        UsageError: there is no such file, they are not the rows that were played, or it was published with its rows.
        ReleaseError: a file of the release is damaged.
    """
    if not file.is_file():
        raise UsageError(f"--set {OPTION}={file}: there is no such file")
    run = got.run
    if run is None or got.release.file(PIN) is None:
        raise UsageError(f"--set {OPTION}: {got.release.reference} has the rows of its dataset, or needs none")
    manifest = run.manifest()
    wrong = []
    for settings in _settings(got, file):
        try:
            found = load_dataset(settings, file, manifest.seed, lambda _: Place(str(file)))
        except SpecError as error:
            wrong.append(str(error))
            continue
        if found.sha256 == manifest.dataset_sha256:
            atomic_write(got.folder / ROWS, b"".join(_lines(found)))
            if not got.is_training_run:
                write_tables(run)
            return
    why = f": {wrong[0]}" if len(wrong) > 1 else ""
    raise UsageError(f"{file} does not have the rows that were played, by their hash{why}; {what_is_needed(got)}")


def _settings(got: FetchedRelease, file: Path) -> Iterator[DatasetSettings]:
    """How the rows may stand in a file: as a run keeps them, or as in the file that they were chosen from."""
    yield DatasetSettings(path=str(file))
    said = read_pin(got.folder / PIN).get("selection")
    try:
        yield from_plain(DatasetSettings, {**(said or {}), "path": str(file), "revision": None})
    except (NipRunError, TypeError, ValueError, KeyError) as error:
        raise ReleaseError(f"{got.folder / PIN} is damaged: its selection is none ({error})") from error


def _lines(dataset: Dataset) -> Iterator[bytes]:
    for point in dataset.datapoints:
        row = {"id": point.id, "label": point.label, **point.columns}
        yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
