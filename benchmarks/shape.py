"""Size and shape of a code base, to compare two checkouts: `python benchmarks/shape.py [CHECKOUT...]`.

Lines of code exclude blank lines, comments and docstrings. Complexity is ruff's C901.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPLEXITY = re.compile(r"\((\d+) > 0\)")
UNTYPED = re.compile(r"\b(?:dict|Mapping|MutableMapping)\[str, Any\]")
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def find_docstring_lines(tree: ast.Module) -> Iterator[int]:
    """Yield the numbers of the lines of docstrings, including those of attributes."""
    for node in ast.walk(tree):
        for statement in getattr(node, "body", ()) if not isinstance(node, ast.Lambda | ast.IfExp) else ():
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                yield from range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)


def count_code_lines(text: str) -> int:
    """Return the number of lines with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - set(find_docstring_lines(ast.parse(text))))


def list_functions(trees: Sequence[ast.Module]) -> list[Function]:
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]


def count_parameters(function: Function) -> int:
    """Return the number of parameters except `self` and `cls`."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return sum(parameter.arg not in ("self", "cls") for parameter in parameters)


def measure_complexities(folder: Path) -> list[int]:
    process = subprocess.run(
        (sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--output-format", "json",
         "--config", "lint.mccabe.max-complexity=0", str(folder)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    matches = (COMPLEXITY.search(row["message"]) for row in json.loads(process.stdout))
    return [int(match.group(1)) for match in matches if match]


def count_repeated_class_names(trees: Sequence[ast.Module]) -> int:
    """Return how many public class names are used for more than one class."""
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return sum(count > 1 for name, count in names.items() if not name.startswith("_"))


def describe_spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]}, p95 {ordered[int(len(ordered) * 0.95)]}, largest {ordered[-1]}"


def read_sources(folder: Path) -> list[str]:
    return [path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))]


def main() -> None:
    for root in [Path(argument) for argument in sys.argv[1:]] or [ROOT]:
        source = read_sources(root / "runner")
        trees = [ast.parse(text) for text in source]
        lines = [len(text.splitlines()) for text in source]
        nodes = list_functions(trees)
        lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in nodes]
        parameters, complexity = [count_parameters(node) for node in nodes], measure_complexities(root / "runner")
        code = sum(map(count_code_lines, source))
        print(f"{root}: {len(source)} files, {sum(lines)} lines, {code} lines of code, {len(nodes)} functions")
        print(f"  lines per file           {describe_spread(lines)}; over 400: {sum(n > 400 for n in lines)}")
        print(f"  lines per function       {describe_spread(lengths)}; over 40: {sum(n > 40 for n in lengths)}")
        print(f"  complexity               {describe_spread(complexity)}; over 10: {sum(n > 10 for n in complexity)}")
        print(f"  parameters per function  {describe_spread(parameters)}; over 6: {sum(n > 6 for n in parameters)}")
        print(f"  repeated class names     {count_repeated_class_names(trees)}")
        print(f"  dict[str, Any] and such  {sum(len(UNTYPED.findall(text)) for text in source)}")
        print(f"  code in tests to source  {sum(map(count_code_lines, read_sources(root / 'tests'))) / code:.2f}")


if __name__ == "__main__":
    main()
