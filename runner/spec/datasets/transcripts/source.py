"""Convert transcripts that `dataset.path` names to a file of rows, which is then read like any other dataset."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

import orjson

from runner.base.errors import RunError, SpecError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.package_data import is_file, is_folder
from runner.base.problems import Place, PlaceOf, Problem
from runner.base.storage.atomic_files import read_json
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import create, open_to_read
from runner.base.text import comma_join
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.datasets.transcripts.chat_files import read_chat_lines, read_scout_file
from runner.spec.datasets.transcripts.inspect_logs import read_eval_file, read_json_log, shorten
from runner.spec.datasets.transcripts.json_parts import parse_json, text_or_none
from runner.spec.datasets.transcripts.messages import InvalidTranscript, TranscriptMessage, TranscriptSample
from runner.spec.datasets.transcripts.rows import NoUsableRows, Row, RowBuilder

Reader = Callable[[Path, Meter], Iterator[TranscriptSample]]
READERS: Final[Mapping[str, Reader]] = {
    ".eval": read_eval_file,
    ".json": read_json_log,
    ".jsonl": read_chat_lines,
    ".parquet": read_scout_file,
}
"""The reader of transcripts by the extension of their file."""
_NOT_TRANSCRIPTS: Final = ("logs.json", "eval-set.json")
"""Files that Inspect writes next to its logs."""
_LINE: Final = re.compile(r"line (\d+)")
"""The start of messages about a line of a file."""
MAX_ROW_BYTES: Final = 15 << 20
"""Maximum size of a row, since DuckDB, which applies filters, reads lines of up to 16 MiB."""


def transcript_files(path: Path) -> tuple[Path, ...]:
    """Return the files of transcripts that a path names: the file, or the files of a run, or those in a folder."""
    if not is_folder(path):
        return (path,)
    if is_file(path / RUN_MANIFEST):
        return tuple(path / name for name in RUN_FILES if is_file(path / name))
    return tuple(
        file
        for file in sorted(path.iterdir())
        if file.suffix.lower() in READERS and is_file(file) and not file.name.startswith((".", "_", *_NOT_TRANSCRIPTS))
    )


def hash_transcripts(files: Sequence[Path]) -> str:
    """Return the hash of the file that a path names, or of all its files."""
    hashes = [file_hash(file) for file in files]
    return hashes[0] if len(hashes) == 1 else tagged_hash("transcripts", hashes)


class RowsFile(NamedTuple):
    """A file with the rows of a dataset."""

    path: Path
    source_sha256: str | None
    """The hash of the files that the rows were converted from; None if this file is the source."""
    notes: list[str]
    """Notes on skipped parts of the source."""


@contextmanager
def transcript_rows(path: Path, settings: DatasetSettings, place_of: PlaceOf) -> Iterator[RowsFile]:
    """Yield a temporary file with the rows of transcripts.

    Raises:
        SpecError: the files are not transcripts, or the settings leave no rows.
        TooLarge: the files, or their rows, exceed a limit.
    """
    assert settings.transcripts is not None
    builder, files = RowBuilder(settings.transcripts), transcript_files(path)
    is_run = is_folder(path) and is_file(path / RUN_MANIFEST)
    if not files:
        message = f"the folder has no transcripts; it needs files with the extensions {comma_join(READERS)}"
        raise SpecError([Problem(Place(str(path)), "dataset.path", message)])
    with TemporaryDirectory(prefix="nip-run-") as folder:
        rows = Path(folder) / "transcripts.jsonl"
        _write_rows([path] if is_run else files, builder, rows, Meter(settings.limits))
        try:
            notes = builder.notes()
        except NoUsableRows as error:
            raise SpecError([Problem(place_of(error.key), error.key, str(error))]) from error
        yield RowsFile(rows, hash_transcripts(files), notes)


def _write_rows(sources: Sequence[Path], builder: RowBuilder, target: Path, meter: Meter) -> None:
    """Write the rows of all sources. If there are several, ids start with the name of the file.

    Raises:
        SpecError: sources cannot be read; has a problem for each of them.
    """
    count = size = 0
    problems: list[Problem] = []
    with create(target) as file:
        for source in sources:
            try:
                for line, columns in _lines_of(source, builder, f"{source.stem}/" if len(sources) > 1 else "", meter):
                    count, size = count + 1, size + len(line)
                    meter.check_bytes(size)
                    meter.check_shape(count, columns)
                    file.write(line)
            except SpecError as error:
                problems.extend(error.problems)
    if problems:
        raise SpecError(problems)


def _lines_of(source: Path, builder: RowBuilder, prefix: str, meter: Meter) -> Iterator[tuple[bytes, int]]:
    """Yield each row of a source as a JSON line, with the number of its columns.

    Raises:
        SpecError: a transcript cannot be read, or a row is too long.
    """
    sample: TranscriptSample | None = None
    try:
        for sample in _read(source, meter):
            for row in builder.rows_of(sample, source.name, prefix):
                line = _to_line(row)
                if len(line) > MAX_ROW_BYTES:
                    raise InvalidTranscript(f"the row {row['id']} has {len(line):,} bytes, more than 15 MiB")
                yield line, len(row)
    except (InvalidTranscript, RecursionError, TypeError, UnicodeError) as error:
        where = "" if sample is None else f"sample {shorten(sample.id)}, or the one after it: "
        reason = str(error) if isinstance(error, InvalidTranscript) else f"{where}cannot be read ({error})"
        match = _LINE.match(reason)
        place = Place(str(source), int(match[1]) if match else 1)
        raise SpecError([Problem(place, "dataset.path", reason)]) from error


def _to_line(row: Row) -> bytes:
    """Return a row as a JSON line. Halves of surrogate pairs, which models may write, become question marks."""
    try:
        return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        if "surrogates" not in str(error):
            raise
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _read(source: Path, meter: Meter) -> Iterator[TranscriptSample]:
    if is_folder(source):
        return read_run(source, meter)
    reader = READERS.get(source.suffix.lower())
    if reader is None or not is_file(source):
        raise InvalidTranscript(
            "not a file or folder of transcripts; name an Inspect log (.eval, .json), a file of chats or a session "
            "trace (.jsonl), a file of Scout (.parquet), or the folder of a run"
        )
    return reader(source, meter)


RUN_MANIFEST: Final = "manifest.json"
"""The file that makes a folder the folder of a run."""
_TABLES: Final = {"rollouts": "rollouts.parquet", "messages": "messages.parquet"}
_DATASET: Final = ("inputs", "dataset.jsonl")
RUN_FILES: Final = (RUN_MANIFEST, *_TABLES.values(), "/".join(_DATASET))
"""The files of a run that have its transcripts."""
_DECIDED: Final = "decided"
_UNFINISHED: Final = "transport_failed"
_QUERY: Final = """
SELECT r.rollout_id, r.datapoint_id, r.repeat, r.y, r.decision, r.correct, r.outcome, r.confidence_stated,
    coalesce((SELECT list({'agent': m.agent, 'channel': m.channel, 'content': m.content} ORDER BY m.number)
        FROM (SELECT *, row_number() OVER () AS number FROM messages) m WHERE m.rollout_id = r.rollout_id), [])
FROM (SELECT *, row_number() OVER () AS number FROM rollouts) r ORDER BY r.number
"""


def read_run(folder: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield a sample for each game of a run. Its messages are the ones that agents sent in channels.

    Raises:
        InvalidTranscript: the folder has no tables, or a file is damaged.
    """
    try:
        manifest = read_json(folder / RUN_MANIFEST)
        tables = {name: folder / file for name, file in _TABLES.items()}
        for path in tables.values():
            meter.check_bytes(path.stat().st_size)
        columns = dict(_dataset_rows(folder.joinpath(*_DATASET), meter))
        ((size,),) = read_tables("SELECT coalesce(sum(strlen(content)), 0) FROM messages", tables, {})
        meter.check_bytes(int(size))
        for row in read_tables(_QUERY, tables, {}):
            yield _sample(row, manifest, columns)
    except FileNotFoundError as error:
        raise InvalidTranscript(
            f"the run has no {Path(str(error.filename)).name}; name the folder of a finished run"
        ) from error
    except (RunError, OSError) as error:
        raise InvalidTranscript(str(error)) from error


def _dataset_rows(path: Path, meter: Meter) -> Iterator[tuple[str, Mapping[str, object]]]:
    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        for number, line in enumerate(file, 1):
            row = parse_json(line, f"inputs/dataset.jsonl, line {number}")
            if isinstance(row, dict):
                yield str(row.get("id")), {name: row[name] for name in row if name not in ("id", "label")}


def _sample(
    row: tuple[Any, ...], manifest: Mapping[str, Any], columns: Mapping[str, Mapping[str, Any]]
) -> TranscriptSample:
    rollout_id, datapoint_id, repeat, label, decision, correct, outcome, confidence, messages = row
    if outcome != _DECIDED:  # the table counts such a game as not correct, but it has no verdict to judge
        correct = None
    scores = {"decision": decision, "label": label, "confidence": confidence}
    models = {str(agent.get("agent")): str(agent.get("model")) for agent in manifest.get("agents") or ()}
    return TranscriptSample(
        id=str(rollout_id),
        sample=str(datapoint_id),
        messages=[
            TranscriptMessage(
                "assistant", str(message["content"] or ""),
                name=f"{message['agent']} in {message['channel']}" if message["channel"] else str(message["agent"]),
            )
            for message in messages
        ],
        epoch=repeat,
        transcript_id=str(rollout_id),
        task=text_or_none(manifest.get("benchmark")),
        model=", ".join(dict.fromkeys(models.values())) or None,
        error=str(outcome) if outcome == _UNFINISHED else None,
        scores={"correct": correct, **{name: value for name, value in scores.items() if value is not None}},
        metadata={**columns.get(str(datapoint_id), {}), "outcome": outcome},
    )  # fmt: skip
