"""Every defence is switched off in turn, by one edit of the code, and some test must fail for it.

    python .ci/tools/defences.py [WORD...] [--table NAME] [--jobs N]

`tests/defences/*.toml` lists the defences: what each is for, the edit that switches it off, the tests that must fail.
With WORDs, those whose names have one of them; with a table, those of that file. First all those tests are run on the
code as it is, and must pass.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from compileall import compile_dir
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue

from shared import ROOT, SoftAssertions

TABLES = ROOT / "tests" / "defences"
COPIED = ("runner", "tests", "specs", "prompts", "benchmarks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
PASSED, FAILED = 0, 1
"""What pytest's exit says; any other is a mistake in the table."""
SECONDS = 300


@dataclass(frozen=True)
class Defence:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    def switched_off(self, text: str) -> str:
        count = text.count(self.find)
        if count != 1:
            raise ValueError(f"{self.file} has the text to replace {count} times")
        return text.replace(self.find, self.replace)


def defences(words: Sequence[str], table: str | None = None) -> list[Defence]:
    found = {
        path.stem: [
            Defence(**{**row, "tests": tuple(row["tests"])}) for row in tomllib.loads(path.read_text())["defence"]
        ]
        for path in sorted(TABLES.glob("*.toml"))
    }
    names = [defence.name for rows in found.values() for defence in rows]
    assert len(set(names)) == len(names), "two defences have one name"
    chosen = [defence for name, rows in found.items() if table in (None, name) for defence in rows]
    return [defence for defence in chosen if not words or any(word in defence.name for word in words)]


class Copy:
    """A copy of the tree, in which one defence at a time is off."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
            else:
                shutil.copy(source, target)
        # Byte code that is known by the hash of its source: two edits within one second would be taken for one by time.
        for name in ("runner", "tests"):
            compile_dir(folder / name, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)

    def without(self, defence: Defence) -> tuple[int, str]:
        """What the tests of a defence say when it is off: pytest's exit, and the end of its output."""
        path = self._folder / defence.file
        whole = path.read_text("utf-8")
        path.write_text(defence.switched_off(whole), "utf-8")
        try:
            return self.tested(defence.tests)
        finally:
            path.write_text(whole, "utf-8")

    def tested(self, tests: Sequence[str], *, workers: int = 0, seconds: float = SECONDS) -> tuple[int, str]:
        words = [
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
            *tests,
        ]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(self._folder)}
        try:
            done = subprocess.run(
                words, cwd=self._folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return FAILED, f"no end in {seconds} s"  # what a defence against endless things turns into
        return done.returncode, (done.stdout + done.stderr)[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="copies at work at once")
    parser.add_argument("--table", metavar="NAME", choices=[path.stem for path in TABLES.glob("*.toml")])
    arguments = parser.parse_args()
    check, chosen = SoftAssertions(), defences(arguments.words, arguments.table)

    with tempfile.TemporaryDirectory(prefix="nip-run-proof-") as name:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(arguments.jobs):
            copies.put(Copy(Path(name) / str(number)))

        first = copies.get()
        tests = sorted({test for defence in chosen for test in defence.tests})
        code, said = first.tested(tests, workers=arguments.jobs, seconds=10 * SECONDS)
        copies.put(first)
        check(code == PASSED, f"all tests pass with every defence on{'' if code == PASSED else said}")

        def without(defence: Defence) -> tuple[Defence, int, str]:
            copy = copies.get()
            try:
                return defence, *copy.without(defence)
            except ValueError as error:
                return defence, -1, str(error)
            finally:
                copies.put(copy)

        survived = 0
        with ThreadPoolExecutor(arguments.jobs) as pool:
            for defence, code, said in pool.map(without, chosen):
                survived += code != FAILED
                check(
                    code == FAILED,
                    f"a test fails without: {defence.name}{'' if code == FAILED else f' ({code}) {said}'}",
                )
    print(f"{len(chosen)} defences were switched off, {survived} without any test that failed")
    return check.exit_code()


if __name__ == "__main__":
    sys.exit(main())
