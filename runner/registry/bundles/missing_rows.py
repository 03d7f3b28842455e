"""Add the rows of a dataset to a fetched run that was published without them, and check the rows by hash.

`nip-run reproduce --set dataset.path=FILE` does this.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import orjson

from runner.base.errors import NipRunError, ReleaseError, SpecError, UsageError
from runner.base.problems import Place
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import in_one_line, path_argument, shortened
from runner.documents.dataclass_schema import from_plain
from runner.registry.bundles.runs import ROWS
from runner.registry.fetched_release import PIN, FetchedRelease, read_pin
from runner.registry.recomputed_run import write_tables
from runner.spec.datasets.loader import Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings

ROWS_KEY = "dataset.path"


def lacks_rows(fetched: FetchedRelease) -> bool:
    """Return whether a release was published without its dataset's rows, and the user has not added them."""
    # Only such a release has a pin, which is a file with the hashes of the rows.
    return fetched.release.file(PIN) is not None and not (fetched.folder / ROWS).is_file()


def describe_missing_rows(fetched: FetchedRelease) -> str:
    """Return a message that names the dataset that a release needs, and the command that adds its rows."""
    pin = read_pin(fetched.folder / PIN)
    source = pin.get("source") if isinstance(pin.get("source"), dict) else {}
    parts = [f"{name} {source[name]}" for name in ("repository", "commit", "path") if source and source.get(name)]
    parts = parts or ([str(pin["file"])] if pin.get("file") else [])
    origin = in_one_line(shortened(", ".join(parts), 300)) if parts else "a file that was not recorded"
    digest = shortened(str(pin.get("source_sha256")), 64)
    command = f"nip-run reproduce {shlex.quote(path_argument(fetched.folder))} --set {ROWS_KEY}=FILE"
    return (
        f"the rows of its dataset are not in the release: {origin} (sha256 of the file: {digest}). Add them once: "
        f"{command}; all rows are checked by hash"
    )


def add_rows(fetched: FetchedRelease, file: Path) -> None:
    """Add the dataset rows that were played to a fetched folder.

    `file` is the original dataset, or the saved rows of another run (`inputs/dataset.jsonl`).

    Raises:
        UsageError: the file is missing or has other rows, or the release already has the rows.
        ReleaseError: a file of the release is damaged.
    """
    if not file.is_file():
        raise UsageError(f"--set {ROWS_KEY}={file}: there is no such file; correct the path")
    run = fetched.run
    if run is None or fetched.release.file(PIN) is None:
        raise UsageError(f"--set {ROWS_KEY}: {fetched.release.reference} needs no rows of a dataset; omit the option")
    manifest = run.manifest()
    problems = []
    for settings in _possible_settings(fetched, file):
        try:
            dataset = load_dataset(settings, file, manifest.seed, lambda _: Place(str(file)))
        except SpecError as error:
            problems.append(str(error))
            continue
        if dataset.sha256 == manifest.dataset_sha256:
            atomic_write(fetched.folder / ROWS, b"".join(_format_rows(dataset)))
            if not fetched.is_training_run:
                write_tables(run)
            return
    # If one of the two settings could read the file, the problem with the other would mislead.
    problem = f": {problems[0]}" if len(problems) > 1 else ""
    raise UsageError(
        f"{file} does not have the rows that were played (by hash){problem}; {describe_missing_rows(fetched)}"
    )


def _possible_settings(fetched: FetchedRelease, file: Path) -> Iterator[DatasetSettings]:
    """Yield the settings to try: for a run's saved rows, and for the original dataset, as the run used it."""
    yield DatasetSettings(path=str(file))
    selection = read_pin(fetched.folder / PIN).get("selection")
    try:
        yield from_plain(DatasetSettings, {**(selection or {}), "path": str(file), "revision": None})
    except (NipRunError, TypeError, ValueError, KeyError) as error:
        raise ReleaseError(f"{fetched.folder / PIN} is damaged: its selection is invalid ({error})") from error


def _format_rows(dataset: Dataset) -> Iterator[bytes]:
    for point in dataset.datapoints:
        row = {"id": point.id, "label": point.saved_label, **point.columns}
        yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
