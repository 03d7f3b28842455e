"""Tests of programs whose verdicts are stored, so that a repeated command neither runs them again nor sees others.

The file is `verdicts.jsonl` in the folder of the dataset. A line has the hash of a program with its tests, and the
result of each test.
"""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from runner.base.errors import RunError, os_errors_as
from runner.base.hashing import canonical, tagged_hash
from runner.base.storage.line_file import LOCK_SECONDS
from runner.base.storage.locks import locked
from runner.base.storage.safe_files import append_to, open_to_read
from runner.base.storage.strict_json import parse_strict_json
from runner.curation.program_tester import ProgramTester, ProgramTestSettings
from runner.curation.program_tests import CallTest, Program, ProgramTest, ProgramTestResult, StdinTest, Verdict
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.sandbox import ProgramRun, RunOutcome
from runner.curation.sandbox.values import OpaqueValue, encode_value

VERDICTS = "verdicts.jsonl"
BATCH = 32
"""Number of programs whose verdicts are stored at once."""
REPORT_SECONDS = 10.0
"""Time between two reports of progress."""
OUTPUT_SECONDS = 1.0
MAX_OUTPUT = 20_000
"""Maximum number of bytes of an output that other programs are compared with."""


class VerdictLog:
    """The stored verdicts of programs, and the sandboxes that run programs without one."""

    def __init__(
        self, path: Path, tester: ProgramTester, settings: ProgramTestSettings, report: Callable[[str], None]
    ) -> None:
        self._path, self._tester, self._settings, self._report = path, tester, settings, report
        self._stored = _read(path)

    def test(self, programs: Sequence[tuple[Program, Sequence[ProgramTest]]]) -> list[list[ProgramTestResult]]:
        """Return the results of the tests of each program, in order.

        Raises:
            SandboxError: the sandbox cannot be started.
            RunError: the file cannot be written.
        """
        keys = [self._key("program tests", program, tests) for program, tests in programs]
        missing = {key: work for key, work in zip(keys, programs, strict=True) if key not in self._stored}
        done, last_report = 0, time.monotonic()
        for batch in _batches(missing):
            results = self._tester.test(batch.values())
            self._store({key: [_pack(result) for result in tests] for key, tests in zip(batch, results, strict=True)})
            done += len(batch)
            if time.monotonic() - last_report > REPORT_SECONDS:
                last_report = time.monotonic()
                self._report(f"tested {done:,} of {len(missing):,} programs")
        repetitions = self._settings.repetitions
        return [[_unpack(result, repetitions) for result in self._stored[key]] for key in keys]

    def outputs(self, program: Program, inputs: Sequence[StdinTest | CallTest]) -> list[StdinTest | CallTest]:
        """Return the tests that a program finishes, each with the program's output as the expected one.

        The program has `OUTPUT_SECONDS`, since a fuzzed input may be much larger than those of the tests. Raises as
        `test`.
        """
        key = self._key("program outputs", program, inputs)
        if key not in self._stored:
            limits = replace(self._settings.limits, cpu_seconds=min(OUTPUT_SECONDS, self._settings.limits.cpu_seconds))
            outcomes = self._tester.run([_run_of(program, test) for test in inputs], limits)
            self._store({key: [_pack_output(test, outcome) for test, outcome in zip(inputs, outcomes, strict=True)]})
        pairs = zip(inputs, self._stored[key], strict=True)
        return [_with_expected(test, output[0]) for test, output in pairs if output is not None]

    def _store(self, records: Mapping[str, list[Any]]) -> None:
        lines = b"".join(canonical({"key": key, "results": results}) + b"\n" for key, results in records.items())
        try:
            with append_to(self._path) as file:
                if file.write(lines) != len(lines):
                    raise OSError(errno.ENOSPC, "no space left on device")
                os.fsync(file.fileno())
        except OSError as error:
            raise RunError(f"cannot write {self._path}: {error.strerror}; then repeat the command") from error
        self._stored.update(records)

    def _key(self, tag: str, program: Program, tests: Sequence[ProgramTest]) -> str:
        settings = self._settings
        return tagged_hash(tag, [
            astuple(program), [[type(test).__name__, encode_value(vars(test))] for test in tests],
            astuple(settings.limits), settings.repetitions, settings.checker,
        ])  # fmt: skip


@contextmanager
def open_verdict_log(
    folder: Path, mechanism: Mechanism, settings: ProgramTestSettings, report: Callable[[str], None]
) -> Iterator[VerdictLog]:
    """Yield the log in a folder, and lock it against other processes. `report` gets sentences about the progress.

    Raises:
        RunError: the file cannot be read or locked, or a complete line is not a verdict.
    """
    lock = locked(folder / f".{VERDICTS}.lock", str(folder), LOCK_SECONDS, "; run the same command again")
    with lock, ProgramTester(mechanism, settings) as tester:
        yield VerdictLog(folder / VERDICTS, tester, settings, report)


def _read(path: Path) -> dict[str, list[Any]]:
    """Return the complete lines of the file, and remove an incomplete last line."""
    stored, end = {}, 0
    with os_errors_as(RunError, f"cannot read {path}"), suppress(FileNotFoundError):
        with open_to_read(path) as file:
            complete_lines = takewhile(lambda line: line.endswith(b"\n"), file)
            for number, line in enumerate(complete_lines, 1):
                key, results = _parse_verdict(line, f"{path}:{number}")
                stored[key] = results
                end += len(line)
        with append_to(path) as file:
            os.ftruncate(file.fileno(), end)
    return stored


def _batches(work: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    items = list(work.items())
    for start in range(0, len(items), BATCH):
        yield dict(items[start : start + BATCH])


def _pack(result: ProgramTestResult) -> list[Any] | int:
    """Return a result as JSON: 1 for a test that passes in all repetitions, which is most of them."""
    if set(result.verdicts) == {Verdict.PASS} and not result.detail:
        return 1
    return [list(result.verdicts), result.detail]


def _unpack(packed: Any, repetitions: int) -> ProgramTestResult:
    verdicts, detail = ([Verdict.PASS] * repetitions, "") if packed == 1 else packed
    return ProgramTestResult(tuple(map(Verdict, verdicts)), str(detail), 0.0)


def _pack_output(test: StdinTest | CallTest, outcome: RunOutcome) -> list[Any] | None:
    """Return what a program prints or returns, in a list; None if it fails, or if it is too large or not JSON."""
    output: object = outcome.stdout if isinstance(test, StdinTest) else outcome.value
    if outcome.stopped is not None or outcome.status != 0 or isinstance(output, OpaqueValue):
        return None
    try:
        packed = [_as_json(output)]
        return packed if len(canonical(packed)) <= MAX_OUTPUT else None
    except (TypeError, ValueError, RecursionError):  # such as half of a surrogate pair, or a very large integer
        return None


def _as_json(value: Any) -> Any:
    """Return a value as JSON would store it: with lists for tuples and sets, and texts for keys."""
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_as_json(item) for item in value), key=repr)
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("not a JSON number")
    return value


def _run_of(program: Program, test: StdinTest | CallTest) -> ProgramRun:
    if isinstance(test, StdinTest):
        return ProgramRun(program.source, preamble=program.preamble, stdin=test.stdin)
    return ProgramRun(
        program.source, preamble=program.preamble, setup=test.setup, expression=test.expression,
        arguments=test.arguments,
    )  # fmt: skip


def _with_expected(test: StdinTest | CallTest, output: Any) -> StdinTest | CallTest:
    """Return a test that expects an output, compared as in JSON, so that a tuple equals a list."""
    if isinstance(test, StdinTest):
        return StdinTest(test.stdin, str(output))
    return replace(test, expected=output, in_json=True)


def _parse_verdict(line: bytes, place: str) -> tuple[str, list[Any]]:
    """Return the key and the results in a line of the file."""
    try:
        record = parse_strict_json(line)
        return str(record["key"]), list(record["results"])
    except (ValueError, TypeError, KeyError) as error:
        raise RunError(f"{place}: not a verdict: {error}; remove the line") from error
