"""A dataset file into datapoints, through DuckDB's readers, or every problem it has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.datasets.settings import DatasetSettings
from runner.errors import Place, Problem, SpecError
from runner.ids import derived_seed, file_hash, hash_parity, tagged_hash
from runner.text import listed, nearest

if TYPE_CHECKING:
    import duckdb

HUB = "hf://"
_READERS = {".jsonl": "read_json", ".ndjson": "read_json", ".json": "read_json", ".csv": "read_csv", ".tsv": "read_csv"}
_GUESSED_FROM_TEXT = ("DATE", "TIME", "TIMESTAMP", "UUID", "INTERVAL")
_SHOWN = 5


@dataclass(frozen=True)
class Datapoint:
    """One item: its id, its label, and the columns that templates may show."""

    id: str
    label: int
    columns: Mapping[str, Any]

    @cached_property
    def prover_stance(self) -> int:
        """The stance a prover is given for this datapoint where the protocol randomises it."""
        text = self.columns.get("solution")
        return hash_parity(text if isinstance(text, str) else self.id)

    @cached_property
    def content_hash(self) -> str:
        """Identity: the hash of everything a game can depend on."""
        return tagged_hash("datapoint", {"id": self.id, "label": self.label, "columns": self.columns})


@dataclass(frozen=True)
class Dataset:
    """The chosen datapoints in the order of play, and the hash of the source they came from."""

    datapoints: tuple[Datapoint, ...]
    columns: tuple[str, ...]
    source_sha256: str

    @cached_property
    def sha256(self) -> str:
        """The hash of the chosen datapoints."""
        return tagged_hash("dataset", [point.content_hash for point in self.datapoints])


Where = Callable[[str], Place]
"""A key such as `dataset.split`, into the place that set it."""


def load_dataset(settings: DatasetSettings, path: Path | None, seed: int, where: Where) -> Dataset:
    """Read, map, filter, order and cut a dataset. `path` is the file that `settings.path` was found to be.

    Raises:
        SpecError: with all that is wrong with the file or its rows.
    """

    def failed(message: str, key: str = "dataset") -> SpecError:
        return SpecError([Problem(where(key), key, message)])

    import duckdb

    connection = duckdb.connect(":memory:", config={"threads": 1, "autoinstall_known_extensions": "false"})
    try:
        if settings.path.startswith(HUB):
            source = _read_hub(connection, settings, failed)
        elif path is None:
            raise failed(f"no file {settings.path!r} beside the spec, nor among the built-in ones", "dataset.path")
        else:
            _read_file(connection, path)
            source = file_hash(path)
        # From here on only the table in memory: a filter comes from the spec, and a spec may be a stranger's.
        connection.execute("SET enable_external_access=false; SET lock_configuration=true")
        rows, columns = _select(connection, settings, failed)
    except duckdb.Error as error:
        raise failed(str(error).splitlines()[0]) from error
    finally:
        connection.close()
    problems = list(_row_problems(rows, where("dataset.path")))
    if problems:
        raise SpecError(problems)
    points = [Datapoint(str(row["id"]), int(row["label"]), {name: row[name] for name in columns}) for row in rows]
    chosen = tuple(_ordered_and_cut(points, settings, seed))
    if not chosen:
        raise failed("no datapoint is left" + (f" after balancing {len(points)} rows" if points else ""))
    return Dataset(chosen, columns, source)


def _read_file(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    reader = _READERS.get(path.suffix.lower())
    name = str(path)
    if reader is None:
        connection.execute("CREATE TABLE source AS SELECT * FROM read_parquet(?)", [name])
        return
    options = (
        ", format='newline_delimited', sample_size=-1"
        if reader == "read_json" and path.suffix != ".json"
        else ", sample_size=-1"
    )
    described = connection.execute(f"DESCRIBE SELECT * FROM {reader}(?{options})", [name]).fetchall()
    # DuckDB guesses dates and UUIDs from text; a datapoint's text must stay what it is.
    types = {column: "VARCHAR" if kind.startswith(_GUESSED_FROM_TEXT) else kind for column, kind, *_ in described}
    parameter = "columns" if reader == "read_json" else "types"
    connection.execute(f"CREATE TABLE source AS SELECT * FROM {reader}(?{options}, {parameter}=?)", [name, types])


def _read_hub(connection: duckdb.DuckDBPyConnection, settings: DatasetSettings, failed: Any) -> str:
    try:
        import datasets
    except ImportError as error:
        raise failed("a dataset on the Hub needs an extra: pip install 'nip-run[hf]'", "dataset.path") from error
    name = settings.path.removeprefix(HUB)
    try:
        table = datasets.load_dataset(name, split=settings.split or "train", revision=settings.revision)
    except Exception as error:
        raise failed(f"cannot load {name!r}: {error}", "dataset.path") from error
    connection.register("hub_rows", table.data.table)
    connection.execute("CREATE TABLE source AS SELECT * FROM hub_rows")
    connection.unregister("hub_rows")
    rows = "SELECT sha256(string_agg(sha256(CAST(source AS VARCHAR)), '' ORDER BY rowid)) FROM source"
    (content,) = connection.execute(rows).fetchone() or (None,)
    return tagged_hash("hub", [name, settings.split, settings.revision, content])


def _select(
    connection: duckdb.DuckDBPyConnection, settings: DatasetSettings, failed: Any
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    there = [row[0] for row in connection.execute("DESCRIBE source").fetchall()]
    renamed = {theirs: ours for ours, theirs in settings.columns.items()}
    for ours, theirs in settings.columns.items():
        if theirs not in there:
            raise failed(f"the file has no column {theirs!r}{nearest(theirs, there)}", f"dataset.columns.{ours}")
    names = [
        renamed.get(name, name) for name in there if renamed.get(name, name) not in settings.columns or name in renamed
    ]
    for needed in ("id", "label"):
        if needed not in names:
            hint = nearest(needed, there) or f"; the file has {listed(there)}"
            raise failed(f"the file has no column {needed!r}{hint}; map it with dataset.columns.{needed}=...")
    picked = ", ".join(
        f"{_quoted(name)} AS {_quoted(renamed.get(name, name))}"
        for name in there
        if renamed.get(name, name) in names and (name in renamed or name not in settings.columns)
    )
    connection.execute(f"CREATE TABLE data AS SELECT {picked} FROM source ORDER BY rowid")
    conditions, values = [], []
    if settings.split is not None and not settings.path.startswith(HUB):
        if "split" not in names:
            raise failed("the file has no column 'split'; leave the split out or map one", "dataset.split")
        conditions.append('"split" = ?')
        values.append(settings.split)
    if settings.filter is not None:
        conditions.append(f"({settings.filter})")
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    statement = f"SELECT * FROM data {where} ORDER BY rowid"
    if len(connection.extract_statements(statement)) != 1:
        raise failed("one SQL condition belongs here", "dataset.filter")
    try:
        found = connection.execute(statement, values).fetchall()
    except Exception as error:
        raise failed(str(error).splitlines()[0], "dataset.filter" if settings.filter else "dataset") from error
    if not found:
        if settings.filter is not None:
            raise failed(
                "no row passes the filter" + (" and has the split" if len(conditions) > 1 else ""), "dataset.filter"
            )
        if conditions:
            splits = [row[0] for row in connection.execute('SELECT DISTINCT "split" FROM data ORDER BY 1').fetchall()]
            raise failed(f"no row has this split; the file has {listed(splits)}", "dataset.split")
        raise failed("the file has no rows", "dataset.path")
    columns = [item[0] for item in connection.description or []]
    rows = [dict(zip(columns, row, strict=True)) for row in found]
    return rows, tuple(name for name in columns if name not in ("id", "label"))


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _row_problems(rows: list[dict[str, Any]], place: Place) -> Iterator[Problem]:
    def some(what: list[Any]) -> str:
        return listed(what[:_SHOWN]) + (f" and {len(what) - _SHOWN} more" if len(what) > _SHOWN else "")

    missing = [i + 1 for i, row in enumerate(rows) if row["id"] is None or row["id"] == ""]
    if missing:
        yield Problem(place, "dataset", f"rows without an id: {some(missing)}")
    doubled = [
        name for name, count in Counter(str(row["id"]) for row in rows if row["id"] is not None).items() if count > 1
    ]
    if doubled:
        yield Problem(place, "dataset", f"ids that stand twice: {some(doubled)}")
    wrong = [
        f"{row['id']} has {row['label']!r}"
        for row in rows
        if row["label"] not in (0, 1) or isinstance(row["label"], (str, float))
    ]
    if wrong:
        yield Problem(place, "dataset", f"a label is 0 or 1: {some(wrong)}")
    for name in rows[0] if rows else ():
        values = (row[name] for row in rows)
        if any(isinstance(value, float) and not math.isfinite(value) for value in values):
            yield Problem(place, "dataset", f"column {name!r} holds a number that is not finite")
        if any(isinstance(value, (bytes, bytearray)) for value in (row[name] for row in rows)):
            yield Problem(place, "dataset", f"column {name!r} holds bytes; a template shows text")


def _ordered_and_cut(points: list[Datapoint], settings: DatasetSettings, seed: int) -> list[Datapoint]:
    if settings.shuffle:
        points = sorted(points, key=lambda point: (derived_seed("shuffle", seed, point.id), point.id))
    if settings.balance == "label":
        size = min(sum(point.label == label for point in points) for label in (0, 1))
        if settings.limit is not None:
            size = min(size, settings.limit // 2)
        kept: Counter[int] = Counter()
        balanced = []
        for point in points:
            kept[point.label] += 1
            if kept[point.label] <= size:
                balanced.append(point)
        points = balanced
    return points[: settings.limit]
