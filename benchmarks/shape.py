"""Figures of a code base's shape, to hold two versions side by side: `python benchmarks/shape.py [CHECKOUT...]`.

Lines a file, lines a function, parameters a function, complexity (ruff C901), and lines of tests to lines of source.
"""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
COMPLEXITY = re.compile(r"\((\d+) > 0\)")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many, `self` and `cls` left out."""
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(argument.arg not in ("self", "cls") for argument in given)


def complexities(folder: Path) -> list[int]:
    done = subprocess.run(
        (sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--output-format", "json",
         "--config", "lint.mccabe.max-complexity=0", str(folder)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return [int(found.group(1)) for row in json.loads(done.stdout) if (found := COMPLEXITY.search(row["message"]))]


def spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]}, p95 {ordered[int(len(ordered) * 0.95)]}, largest {ordered[-1]}"


def lines(folder: Path) -> list[int]:
    return [len(path.read_text("utf-8").splitlines()) for path in sorted(folder.rglob("*.py"))]


def main() -> None:
    for root in [Path(word) for word in sys.argv[1:]] or [HERE]:
        source, tests = root / "runner", root / "tests"
        found = [function for path in source.rglob("*.py") for function in functions(path)]
        lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in found]
        complexity, files = complexities(source), lines(source)
        print(f"{root}: {len(files)} files, {sum(files)} lines, {len(found)} functions")
        print(f"  lines a file           {spread(files)}; over 400: {sum(n > 400 for n in files)}")
        print(f"  lines a function       {spread(lengths)}; over 40: {sum(n > 40 for n in lengths)}")
        print(f"  complexity             {spread(complexity)}; over 10: {sum(n > 10 for n in complexity)}")
        print(f"  parameters a function  {spread([parameters(node) for node in found])}; "
              f"over 6: {sum(parameters(node) > 6 for node in found)}")  # fmt: skip
        print(f"  test lines to source   {sum(lines(tests)) / sum(files):.2f}")


if __name__ == "__main__":
    main()
