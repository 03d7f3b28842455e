"""Tests of programs whose verdicts are stored, so that a repeated command neither runs them again nor sees others.

The file is `verdicts.jsonl` in the folder of the dataset. A line has the hash of a program with its tests, and the
result of each test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from runner.base.errors import RunError
from runner.base.hashing import tagged_hash
from runner.base.storage.line_file import LineFile
from runner.base.storage.strict_json import parse_strict_json
from runner.curation.program_tester import ProgramTester, ProgramTestSettings
from runner.curation.program_tests import CallTest, Program, ProgramTest, ProgramTestResult, StdinTest, Verdict
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.sandbox import ProgramRun
from runner.curation.sandbox.values import OpaqueValue, decode_value, encode_value

VERDICTS = "verdicts.jsonl"
BATCH = 32
"""Number of programs whose verdicts are stored at once."""
REPORT_SECONDS = 10.0
"""Time between two reports of progress."""
OUTPUT_SECONDS = 1.0
MAX_OUTPUT = 20_000
"""Maximum number of characters of an output with which other programs are compared."""


class VerdictLog:
    """The stored verdicts of programs, and the sandboxes that run programs without one."""

    def __init__(
        self, file: LineFile, tester: ProgramTester, settings: ProgramTestSettings, report: Callable[[str], None]
    ) -> None:
        self._file, self._tester, self._settings, self._report = file, tester, settings, report
        self._stored = _read(file)

    def test(self, programs: Sequence[tuple[Program, Sequence[ProgramTest]]]) -> list[list[ProgramTestResult]]:
        """Return the results of the tests of each program, in order.

        Raises:
            SandboxError: the sandbox cannot be started, or a program has ended it twice.
            RunError: a test is not Python, or the file cannot be written.
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
        return [[_unpack(result) for result in self._stored[key]] for key in keys]

    def outputs(self, program: Program, inputs: Sequence[StdinTest | CallTest]) -> list[StdinTest | CallTest]:
        """Return the tests on which a program ends well, each with what the program prints or returns as expected.

        The program has `OUTPUT_SECONDS`, since a fuzzed input may be much larger than those of the tests.

        Raises as `test`.
        """
        key = self._key("program outputs", program, inputs)
        if key not in self._stored:
            limits = replace(self._settings.limits, cpu_seconds=min(OUTPUT_SECONDS, self._settings.limits.cpu_seconds))
            outcomes = self._tester.run([_run_of(program, test) for test in inputs], limits)
            outputs = []
            for test, outcome in zip(inputs, outcomes, strict=True):
                output: object = outcome.stdout if isinstance(test, StdinTest) else outcome.value
                fails = outcome.stopped is not None or outcome.status != 0 or isinstance(output, OpaqueValue)
                packed = None if fails else [encode_value(output)]
                outputs.append(packed if len(repr(packed)) <= MAX_OUTPUT else None)
            self._store({key: outputs})
        pairs = zip(inputs, self._stored[key], strict=True)
        return [_with_expected(test, decode_value(output[0])) for test, output in pairs if output is not None]

    def _store(self, records: Mapping[str, list[Any]]) -> None:
        self._file.append({"key": key, "results": results} for key, results in records.items())
        self._stored.update(records)

    def _key(self, tag: str, program: Program, tests: Sequence[ProgramTest]) -> str:
        settings = self._settings
        return tagged_hash(tag, [
            astuple(program), [_test_content(test) for test in tests], astuple(settings.limits), settings.repetitions,
            settings.checker,
        ])  # fmt: skip


@contextmanager
def open_verdict_log(
    folder: Path, mechanism: Mechanism, settings: ProgramTestSettings, report: Callable[[str], None]
) -> Iterator[VerdictLog]:
    """Yield the log in a folder, which no other process can use meanwhile. `report` gets sentences about the progress.

    Raises:
        RunError: the file cannot be read or locked, or a complete line is not a verdict.
    """
    file = LineFile(folder / VERDICTS, folder / f".{VERDICTS}.lock", str(folder))
    with file.hold_lock(), ProgramTester(mechanism, settings) as tester:
        yield VerdictLog(file, tester, settings, report)


def _read(file: LineFile) -> dict[str, list[Any]]:
    stored = {}
    for number, line in enumerate(file.complete_lines().splitlines(), 1):
        try:
            record = parse_strict_json(line)
            stored[str(record["key"])] = list(record["results"])
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"{file.path}:{number}: not a verdict: {error}; remove the line") from error
    return stored


def _batches(work: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    items = list(work.items())
    for start in range(0, len(items), BATCH):
        yield dict(items[start : start + BATCH])


def _pack(result: ProgramTestResult) -> list[Any]:
    return [list(result.verdicts), result.detail]


def _unpack(packed: Any) -> ProgramTestResult:
    verdicts, detail = packed
    return ProgramTestResult(tuple(map(Verdict, verdicts)), str(detail), 0.0)


def _test_content(test: ProgramTest) -> list[Any]:
    return [type(test).__name__, encode_value(vars(test))]


def _run_of(program: Program, test: StdinTest | CallTest) -> ProgramRun:
    if isinstance(test, StdinTest):
        return ProgramRun(program.source, preamble=program.preamble, stdin=test.stdin)
    return ProgramRun(
        program.source, preamble=program.preamble, setup=test.setup, expression=test.expression,
        arguments=test.arguments,
    )  # fmt: skip


def _with_expected(test: StdinTest | CallTest, output: Any) -> StdinTest | CallTest:
    if isinstance(test, StdinTest):
        return StdinTest(test.stdin, str(output))
    return CallTest(test.expression, output, test.setup, test.arguments)
