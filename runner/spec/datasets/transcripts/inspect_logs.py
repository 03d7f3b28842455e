"""Samples from the logs of Inspect: `.eval`, a zip with a JSON file for each sample, and `.json`."""

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from runner.base.errors import errors_as
from runner.base.storage.duckdb_connections import borrow_connection, duckdb_pattern
from runner.base.storage.safe_files import create, open_to_read
from runner.spec.datasets.limits import Meter
from runner.spec.datasets.transcripts.json_parts import parse_json, text_or_none
from runner.spec.datasets.transcripts.messages import (
    InvalidTranscript,
    TranscriptSample,
    parse_messages,
    render_messages,
)

SAMPLE_NAME: Final = re.compile(r"samples/.+_epoch_\d+\.json", re.DOTALL)
"""The names of the members of a `.eval` file that have samples."""
VERSIONS: Final = (1, 2)
_ATTACHMENTS: Final = ("attachment://", "tc://")
"""The start of a reference to an attachment, now and in older logs."""
_ZIP_ZSTANDARD: Final = 93
_ENCRYPTED: Final = 0x1


class EvalFile:
    """An open `.eval` file. Its members are read within the limits of a dataset."""

    def __init__(self, archive: ZipFile, meter: Meter) -> None:
        self._archive, self._meter = archive, meter
        self.members: Mapping[str, ZipInfo] = dict(archive.NameToInfo)  # the last member of each name is the valid one
        meter.check_bytes(sum(info.file_size for info in self.members.values()))

    def header(self) -> dict[str, Any]:
        """Return the log without its samples; of a log that Inspect has not finished, only what it knew at the start.

        Raises:
            InvalidTranscript: the log has no header, or another version.
        """
        name = next((name for name in ("header.json", "_journal/start.json") if name in self.members), None)
        if name is None:
            raise InvalidTranscript("not a log of Inspect, because header.json is missing")
        return check_header(parse_json(self.read(name), name), name)

    def samples(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the name and the content of each member that has a sample.

        Raises:
            InvalidTranscript: a member is damaged or has no sample; the error names it.
        """
        for name in self.members:
            if SAMPLE_NAME.fullmatch(name):
                yield name, check_sample(parse_json(self.read(name), shorten(name)), shorten(name))

    def read(self, name: str) -> bytes:
        """Return the content of a member, which the central directory bounds.

        Raises:
            InvalidTranscript: the member is damaged, encrypted, or compressed with an unknown method.
        """
        info = self.members[name]
        if info.flag_bits & _ENCRYPTED:
            raise InvalidTranscript(f"{shorten(name)} is encrypted; write the log without a password")
        if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED, _ZIP_ZSTANDARD):
            raise InvalidTranscript(
                f"{shorten(name)} is compressed with unknown method {info.compress_type}; pack the log with deflate"
            )
        try:
            read = self._read_zstandard if info.compress_type == _ZIP_ZSTANDARD else self._read_bounded
            content = read(info)
        except NotImplementedError as error:
            raise InvalidTranscript(f"{shorten(name)} cannot be unpacked: {error}; pack the log again") from error
        except (BadZipFile, EOFError, OSError, zlib.error, ValueError) as error:
            raise InvalidTranscript(f"{shorten(name)} is damaged: {error}; copy the log again") from error
        if len(content) > info.file_size:
            raise InvalidTranscript(
                f"{shorten(name)} is damaged: it is larger than the archive says; copy the log again"
            )
        return content

    def _read_bounded(self, info: ZipInfo) -> bytes:
        """Return the content of a member, but at most one byte more than the size in the central directory."""
        bounded = copy.copy(info)
        bounded.file_size += 1  # otherwise `zipfile` would hide that the content is longer
        with self._archive.open(bounded) as member:
            return member.read(bounded.file_size)

    def _read_zstandard(self, info: ZipInfo) -> bytes:
        """Return the content of a member that is compressed with Zstandard, which Python has only since 3.14."""
        import _duckdb

        stored = copy.copy(info)
        stored.compress_type, stored.file_size = ZIP_STORED, info.compress_size
        del stored.CRC  # the checksum is that of the content
        try:
            with TemporaryDirectory(prefix="nip-run-") as folder:
                path = Path(folder) / "member.zst"
                with self._archive.open(stored) as member, create(path) as file:
                    file.write(member.read())
                with borrow_connection(f"{self._meter.limits.memory >> 20}MiB") as connection:
                    rows = connection.execute(
                        "SELECT json FROM read_json_objects(?, format='unstructured', compression='zstd', "
                        "maximum_object_size=?)",
                        [duckdb_pattern(path), min(info.file_size + 16, (1 << 32) - 1)],
                    ).fetchmany(2)
        except _duckdb.Error as error:  # its message would name the temporary file
            raise BadZipFile("its Zstandard data or its JSON is invalid, or larger than the archive says") from error
        if len(rows) != 1:
            raise BadZipFile("it has not exactly one JSON value")
        return str(rows[0][0]).encode()


def shorten(name: str) -> str:
    """Return the name of a member for messages."""
    return ascii(name)[1:-1][:120]


@contextmanager
def open_eval_file(path: Path, meter: Meter) -> Iterator[EvalFile]:
    """Open a `.eval` file for reading.

    Raises:
        InvalidTranscript: the file is not a complete zip archive.
        TooLarge: its members are larger than the limit when they are unpacked.
    """
    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        try:
            archive = ZipFile(file)
        except (BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
            raise InvalidTranscript(
                f"the file is not a complete zip archive ({error}); if Inspect still writes the log, wait until it ends"
            ) from error
        with archive:
            yield EvalFile(archive, meter)


def read_eval_file(path: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield the samples of a `.eval` file, in the order of its members.

    Raises:
        InvalidTranscript: the file is not such a log, or a member is damaged; the error names it.
        TooLarge: the unpacked log exceeds the limit.
    """
    with open_eval_file(path, meter) as log:
        header = log.header()
        for name, sample in log.samples():
            yield parse_sample(sample, header["eval"], shorten(name), meter)


def read_json_log(path: Path, meter: Meter) -> Iterator[TranscriptSample]:
    """Yield the samples of a log in Inspect's JSON format.

    Raises:
        InvalidTranscript: the file is not such a log; the error names the sample.
    """
    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        log = check_header(parse_json(file.read(), "the log"), "the log")
    for number, sample in enumerate(log.get("samples") or (), 1):
        yield parse_sample(check_sample(sample, f"sample {number}"), log["eval"], f"sample {number}", meter)


def check_header(header: Any, place: str) -> dict[str, Any]:
    """Check the version of a log, and that it describes a task.

    Raises:
        InvalidTranscript: it does not.
    """
    if not isinstance(header, dict) or not isinstance(header.get("eval"), dict):
        raise InvalidTranscript(f"not a log of Inspect, because {place} has no object 'eval'")
    if header.get("version", 1) not in VERSIONS:
        version = str(header["version"])[:20]
        raise InvalidTranscript(
            f"{place}: unknown version {version} of Inspect's format (known: 1 and 2); update nip-run, or convert the "
            "log with `inspect log convert`"
        )
    return header


def check_sample(sample: Any, place: str) -> dict[str, Any]:
    """Check that a value is a sample with an id and an epoch.

    Raises:
        InvalidTranscript: it is not.
    """
    if not isinstance(sample, dict) or not isinstance(sample.get("id"), (int, str)):
        raise InvalidTranscript(f"{place} is not a sample with an id")
    if not isinstance(sample.get("epoch", 1), int):
        raise InvalidTranscript(f"{place} has an epoch that is not a whole number")
    return sample


def parse_sample(sample: dict[str, Any], task: Mapping[str, object], place: str, meter: Meter) -> TranscriptSample:
    """Parse a sample of a log that describes its task in `task`.

    Raises:
        InvalidTranscript: a part of the sample is not as Inspect writes it.
        TooLarge: the sample is too large with its attachments.
    """
    with errors_as(InvalidTranscript, place, InvalidTranscript):
        resolve = _Attachments(_attachments_of(sample), meter).resolve
        messages = parse_messages(resolve(sample.get("messages") or []))
        input_ = resolve(sample.get("input"))
        if isinstance(input_, list):
            input_ = "\n\n".join(render_messages(parse_messages(input_), reasoning=False))
    target, metadata, epoch = sample.get("target"), sample.get("metadata"), sample.get("epoch", 1)
    return TranscriptSample(
        f"{sample['id']}-{epoch}", str(sample["id"]), messages, epoch, text_or_none(sample.get("uuid")),
        text_or_none(task.get("task")), text_or_none(task.get("model")), text_or_none(input_),
        ", ".join(map(str, target)) if isinstance(target, list) else text_or_none(target),
        _error_of(sample), _scores_of(sample), resolve(metadata) if isinstance(metadata, dict) else {},
    )  # fmt: skip


def _attachments_of(sample: Mapping[str, object]) -> dict[str, object]:
    """Return the texts of a sample's attachments by their hash; older logs have them in the sample's transcript."""
    transcript = sample.get("transcript")
    parts = (transcript.get("content") if isinstance(transcript, dict) else None, sample.get("attachments"))
    return {name: text for part in parts if isinstance(part, dict) for name, text in part.items()}


def _error_of(sample: Mapping[str, object]) -> str | None:
    """Return why the sample must not count: its error, or that somebody has marked it as invalid."""
    error = sample.get("error")
    if error is not None:
        return str(error.get("message") or "error") if isinstance(error, dict) else str(error)
    return None if sample.get("invalidation") is None else "invalidated"


def _scores_of(sample: Mapping[str, object]) -> dict[str, object]:
    scores = sample.get("scores")
    if scores is None and isinstance(sample.get("score"), dict):  # version 1 had one score, without a name
        scores = {"score": sample["score"]}
    return {
        str(name): score["value"]
        for name, score in (scores.items() if isinstance(scores, dict) else ())
        if isinstance(score, dict) and "value" in score
    }


class _Attachments:
    """Replaces references to attachments in a sample by their texts, within the limit of a dataset."""

    def __init__(self, texts: Mapping[str, object], meter: Meter) -> None:
        self._texts, self._meter, self._size = texts, meter, 0

    def resolve(self, value: Any) -> Any:
        """Return a value with the texts of its attachments. A text that only looks like a reference stays as it is.

        Raises:
            TooLarge: the attachments exceed the limit, since a text may be referred to many times.
        """
        if isinstance(value, str) and value.startswith(_ATTACHMENTS):
            text = self._texts.get(value.partition("://")[2])
            if not isinstance(text, str):
                return value
            self._size += len(text)
            self._meter.check_bytes(self._size)
            return text
        if isinstance(value, dict):
            return {name: self.resolve(item) for name, item in value.items()}
        return [self.resolve(item) for item in value] if isinstance(value, list) else value
