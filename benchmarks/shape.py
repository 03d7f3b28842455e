"""Size and shape of a code base, to compare two checkouts: `python benchmarks/shape.py [CHECKOUT...]`.

Lines of code exclude blank lines, comments and docstrings. Complexity is ruff's C901.
"""

from __future__ import annotations

import argparse
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
UNTYPED = re.compile(r"\b(?:dict|Mapping|MutableMapping)\[str, (?:Any|object)\]")
ALIAS = re.compile(rf"^(\w+)(?:: TypeAlias)? = {UNTYPED.pattern}$", re.MULTILINE)
BLOCKS = ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try | ast.Match
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


def count_untyped_mappings(sources: Sequence[str]) -> int:
    """Return how often a type is a mapping with any values, directly or by an alias of its own module."""
    return sum(
        len(UNTYPED.findall(text)) + sum(len(re.findall(rf"\b{alias}\b", text)) - 1 for alias in ALIAS.findall(text))
        for text in sources
    )


def measure_nesting(node: ast.AST) -> int:
    """Return the number of blocks around the most nested statement of a function."""
    depths = [measure_nesting(child) for child in ast.iter_child_nodes(node) if not isinstance(child, Function)]
    is_elif = isinstance(node, ast.If) and len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)
    if is_elif:
        depths[-1] -= 1  # the other branches of an `if` are not more nested than its first
    return max(depths, default=0) + isinstance(node, BLOCKS)


def describe_spread(values: Sequence[int]) -> str:
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]}, p95 {ordered[int(len(ordered) * 0.95)]}, largest {ordered[-1]}"


def read_sources(folder: Path) -> list[str]:
    return [path.read_text("utf-8") for path in sorted(folder.rglob("*.py"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT", help="default: this checkout")
    for root in parser.parse_args().checkouts or [ROOT]:
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
        nesting = [measure_nesting(node) for node in nodes]
        print(f"  nested blocks            {describe_spread(nesting)}; over 3: {sum(n > 3 for n in nesting)}")
        print(f"  parameters per function  {describe_spread(parameters)}; over 6: {sum(n > 6 for n in parameters)}")
        print(f"  repeated class names     {count_repeated_class_names(trees)}")
        untyped = count_untyped_mappings(source)
        print(f"  untyped mappings         {untyped}; {untyped * 1000 / code:.1f} per 1,000 lines of code")
        print(f"  code in tests to source  {sum(map(count_code_lines, read_sources(root / 'tests'))) / code:.2f}")


if __name__ == "__main__":
    main()
