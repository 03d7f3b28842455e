"""What a run's release has beside `data/` for people to read and play, held against what follows from `data/`.

Whoever reads a board or plays a release sees these files first: hyperparameters, the spec that leads to them, metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.strict_json import is_same
from runner.base.text import in_one_line, shortened
from runner.documents.yaml_reader import Document, parse
from runner.documents.yaml_writer import dump, dump_inline
from runner.registry.bundles import parameters, run_data
from runner.registry.check_notes import limit_differences
from runner.registry.fetched_release import FetchedRelease, small
from runner.registry.metric_differences import MAX_SHOWN, is_from_other_version
from runner.results.folder import RunFolder
from runner.spec.experiment import SAVED_SPEC
from runner.spec.model_sources import ModelSource
from runner.spec.origin import DATA


def wrong_beside(got: FetchedRelease, run: RunFolder, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """What those files say otherwise than the run's own; not of the files `but`, which a reader may have edited.

    They may say less. Of metrics another version may have told more than this one knows.

    Raises:
        NipRunError: a file of the run cannot be read.
    """
    manifest, spec = run.manifest(), ModelSource(run.path).spec
    metrics = read_json(run.metrics) if run.metrics.is_file() else {}
    follows = {
        parameters.FILE: dump(spec).encode(),
        SAVED_SPEC: parameters.SPEC.encode(),
        run_data.FILE: run_data.run_data(manifest, metrics),
    }
    for name, expected in follows.items():
        if name not in but and got.release.file(name) is not None:
            may_say_more = name == run_data.FILE and is_from_other_version(manifest)
            yield from limit_differences(
                _differences(name, got.folder / name, expected, may_say_more=may_say_more), "values"
            )


def _differences(name: str, path: Path, expected: bytes, *, may_say_more: bool) -> Iterator[str]:
    try:
        data = small(path, shown=name)
    except ReleaseError as error:
        yield str(error)
        return
    if data == expected:
        return
    document = parse(data.decode("utf-8", "replace"), Document(name, path.parent))
    if document.problems:
        yield f"{name} cannot be read: {document.problems[0].message}"
        return
    said = _leaves(document.data)
    follows = _leaves(parse(expected.decode(), Document(name, path.parent)).data)
    for key, value in sorted(said.items()):
        told = f"{name} says {in_one_line(shortened(key, MAX_SHOWN))}: {_shown(value)}"
        if key not in follows and not may_say_more:
            yield f"{told}, which follows from nothing in {DATA}/"
        elif key in follows and not is_same(value, follows[key]):
            yield f"{told}; from {DATA}/ follows {_shown(follows[key])}"


def _leaves(data: Any, at: str = "") -> dict[str, Any]:
    """The values of a document by their dotted keys; a list is one value, an empty mapping too."""
    if not isinstance(data, Mapping) or not data:
        return {at: data}
    found: dict[str, Any] = {}
    for key, value in data.items():
        found |= _leaves(value, f"{at}.{key}" if at else str(key))
    return found


def _shown(value: Any) -> str:
    return in_one_line(shortened(dump_inline(value), MAX_SHOWN))
