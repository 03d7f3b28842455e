"""For `verify`: check that the files outside `data/` in a run's release agree with the files in `data/`.

Users see the files outside `data/` first: the hyperparameters, the spec that includes them, and the metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.strict_json import is_same
from runner.base.text import in_one_line, shortened
from runner.documents.yaml_reader import Document, parse_yaml
from runner.documents.yaml_writer import dump, dump_inline
from runner.registry.bundles import parameters, run_data
from runner.registry.check_notes import limit_messages
from runner.registry.fetched_release import FetchedRelease, read_small
from runner.registry.metric_differences import MAX_SHOWN, is_from_other_version
from runner.results.folder import RunFolder
from runner.spec.model_sources import ModelSource
from runner.spec.origin import DATA
from runner.spec.run_names import SAVED_SPEC


def find_differences_from_data(
    fetched: FetchedRelease, run: RunFolder, ignored: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield a message for each value in the files outside `data/` that differs from `data/`; skip `ignored` files.

    A value that is missing outside `data/` is not a problem. If another version of nip-run recorded the run, nor is a
    value that only `run_data.yaml` has.

    Raises:
        NipRunError: a file of the run cannot be read.
    """
    manifest, spec = run.manifest(), ModelSource(run.path).spec
    metrics = read_json(run.metrics) if run.metrics.is_file() else {}
    expected_files = {
        parameters.FILE_NAME: dump(spec).encode(),
        SAVED_SPEC: parameters.SPEC_TEXT.encode(),
        run_data.FILE: run_data.build_run_data(manifest, metrics),
    }
    for name, expected in expected_files.items():
        if name not in ignored and fetched.release.file(name) is not None:
            may_have_more = name == run_data.FILE and is_from_other_version(manifest)
            messages = _find_differences(name, fetched.folder / name, expected, may_have_more=may_have_more)
            yield from limit_messages(messages, unit="values")


def _find_differences(name: str, path: Path, expected: bytes, *, may_have_more: bool) -> Iterator[str]:
    try:
        data = read_small(path, name=name)
    except ReleaseError as error:
        yield str(error)
        return
    if data == expected:
        return
    document = parse_yaml(data.decode("utf-8", "replace"), Document(name, path.parent))
    if document.problems:
        yield f"{name} cannot be read: {document.problems[0].message}"
        return
    values = _values_by_key(document.data)
    expected_values = _values_by_key(parse_yaml(expected.decode(), Document(name, path.parent)).data)
    for key, value in sorted(values.items()):
        statement = f"{name} says {in_one_line(shortened(key, MAX_SHOWN))}: {_format_value(value)}"
        if key not in expected_values and not may_have_more:
            yield f"{statement}, but {DATA}/ has no such value"
        elif key in expected_values and not is_same(value, expected_values[key]):
            yield f"{statement}, but {DATA}/ has {_format_value(expected_values[key])}"


def _values_by_key(data: Any, prefix: str = "") -> dict[str, object]:
    """Return the values of a document by dotted key; a list or an empty mapping is one value."""
    if not isinstance(data, Mapping) or not data:
        return {prefix: data}
    leaves: dict[str, Any] = {}
    for key, value in data.items():
        leaves |= _values_by_key(value, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def _format_value(value: Any) -> str:
    return in_one_line(shortened(dump_inline(value), MAX_SHOWN))
