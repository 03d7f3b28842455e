"""Switch off each defence in turn with one edit of the code, and check that a test fails.

    python .ci/tools/defences.py [WORD...] [--table NAME] [--jobs N]

`tests/defences/*.toml` lists the defences: their purpose, the edit that switches each off, and the tests that must
fail. WORDs select the defences whose names contain one of them; a table selects those of one file. First the script
runs all their tests on the unchanged code; these must pass. A test that then takes several times as long has failed,
because without some defences a test never ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from xml.etree import ElementTree as ET

from shared import ROOT, SoftAssertions

TABLES = ROOT / "tests" / "defences"
COPIED_PATHS = ("runner", "tests", "specs", "prompts", "benchmarks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PASSED, FAILED = 0, 1
"""Exit codes of pytest. Any other exit code means a mistake in the table."""
START_SECONDS, SLOWDOWN = 20, 3
"""The time limit for a defence's tests: seconds for the start, and how many times as long as on unchanged code."""
BASELINE_SECONDS = 3 * 60 * 60


@dataclass(frozen=True)
class Defence:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def switch_off(self, source: str) -> str:
        count = source.count(self.find)
        if count != 1:
            raise ValueError(f"{self.file} has the text to replace {count} times")
        return source.replace(self.find, self.replace)


def load_defences(terms: Sequence[str], table: str | None = None) -> list[Defence]:
    by_table = {
        path.stem: [
            Defence(**{**row, "tests": tuple(row["tests"])}) for row in tomllib.loads(path.read_text())["defence"]
        ]
        for path in sorted(TABLES.glob("*.toml"))
    }
    names = [defence.name for rows in by_table.values() for defence in rows]
    assert len(set(names)) == len(names), "two defences have one name"
    chosen = [defence for name, rows in by_table.items() if table in (None, name) for defence in rows]
    return [defence for defence in chosen if not terms or any(term in defence.name for term in terms)]


class TreeCopy:
    """A copy of the source tree to switch off one defence at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED_PATHS:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(source, target)
        # Byte code is checked by the hash of its source: time stamps would miss the second of two edits in a second.
        for name in ("runner", "tests"):
            compile_dir(folder / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def run_tests_without(self, defence: Defence, seconds: float) -> tuple[int, str]:
        """Run a defence's tests while it is off, for at most `seconds`. Return pytest's exit code and last output."""
        path = self._folder / defence.file
        original = path.read_text("utf-8")
        path.write_text(defence.switch_off(original), "utf-8")
        try:
            return self.run_tests(defence.tests, seconds)
        finally:
            path.write_text(original, "utf-8")

    def run_tests(self, tests: Sequence[str], seconds: float, *options: str, workers: int = 0) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-n",
            str(workers),
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            *options,
            *tests,
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self._folder)}
        process = subprocess.Popen(
            command, cwd=self._folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        with process:
            try:
                output, _ = process.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                return FAILED, f"no end in {seconds:.0f} s"  # for example without a limit that ends a loop
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # with the processes that its tests started and left running
        return process.returncode, output[-2000:]


class Durations:
    """How long each test takes on unchanged code, from pytest's JUnit file."""

    def __init__(self, junit: Path) -> None:
        self._seconds = {
            (f"{case.get('classname', '').replace('.', '/')}.py", case.get("name", "")): float(case.get("time", "0"))
            for case in ET.parse(junit).iter("testcase")
        }

    def time_limit(self, defence: Defence) -> float:
        """Return the time limit, in seconds, for the tests of a defence while it is off."""
        return START_SECONDS + SLOWDOWN * sum(map(self._seconds_of, defence.tests))

    def _seconds_of(self, test: str) -> float:
        path, _, function = test.partition("::")
        return sum(
            seconds
            for (file, name), seconds in self._seconds.items()
            if file.startswith(path) and (not function or function in (name, name.partition("[")[0]))
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), metavar="N",
                        help="copies at work at once (default: two per core)")  # fmt: skip
    parser.add_argument("--table", metavar="NAME", choices=[path.stem for path in TABLES.glob("*.toml")])
    arguments = parser.parse_args()
    check, selected = SoftAssertions(), load_defences(arguments.words, arguments.table)

    with tempfile.TemporaryDirectory(prefix="nip-run-proof-") as name:
        copies: SimpleQueue[TreeCopy] = SimpleQueue()
        for number in range(arguments.jobs):
            copies.put(TreeCopy(Path(name) / str(number)))

        first_copy = copies.get()
        tests = sorted({test for defence in selected for test in defence.tests})
        junit = Path(name) / "junit.xml"
        code, output = first_copy.run_tests(tests, BASELINE_SECONDS, f"--junitxml={junit}", workers=arguments.jobs)
        copies.put(first_copy)
        check(code == PASSED, f"all tests pass with every defence on{'' if code == PASSED else output}")
        durations = Durations(junit)

        def check_defence(defence: Defence) -> tuple[Defence, int, str]:
            tree_copy = copies.get()
            try:
                return defence, *tree_copy.run_tests_without(defence, durations.time_limit(defence))
            except ValueError as error:
                return defence, -1, str(error)
            finally:
                copies.put(tree_copy)

        survived = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for future in as_completed([pool.submit(check_defence, defence) for defence in selected]):
                defence, code, output = future.result()
                survived += code != FAILED
                check(
                    code == FAILED,
                    f"a test fails without: {defence.name}{'' if code == FAILED else f' ({code}) {output}'}",
                )
    print(f"{len(selected)} defences were switched off, {survived} without any test that failed")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
