"""Operations that only some modules may use: writing and reading files, printing. And no machine-specific paths."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Callable, Iterator

import pytest

from runner.game.protocols.loader import protocol_schema
from runner.spec.schemas import experiment_schema
from tests.support.modules import FILES, tree, walk
from tests.support.paths import ROOT

# Files


WRITERS = {
    "runner.base.storage.safe_files",
    "runner.base.storage.duckdb_connections",
    "runner.training.backends.supervisor",
}
"""Modules that may write files and make folders, because they follow no links. The second makes links only in its own
temporary folder. The third is a separate program that imports nothing of nip-run."""

_WRITE_NAMES = {
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to", "symlink", "link", "mkfifo",
    "copyfile", "copy2", "copytree", "rmtree", "move", "FileHandler", "mknod",
}  # fmt: skip
_WRITE_MODE = re.compile(r"[rwaxbt+]*[wax+][rwaxbt+]*")


def _name(function: ast.expr) -> str:
    """Return the last name of a called function, such as `open` for `path.open`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def find_writes(code: ast.AST) -> Iterator[str]:
    """Yield code that writes a file, or makes or removes a folder, except through an open file descriptor."""
    for node in walk(code):
        if isinstance(node, ast.Attribute) and (node.attr in _WRITE_NAMES or node.attr == "O_CREAT"):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and _name(node.func).endswith("open") and "fdopen" not in ast.unparse(node):
            modes = [argument.value for argument in (*node.args, *node.keywords) if isinstance(argument, ast.keyword)]
            constants = [argument for argument in (*node.args, *modes) if isinstance(argument, ast.Constant)]
            if any(isinstance(argument.value, str) and _WRITE_MODE.fullmatch(argument.value) for argument in constants):
                yield ast.unparse(node)


def test_only_safe_modules_write_files() -> None:
    writes_by_module = {module: set(find_writes(tree(module))) for module in FILES}
    # With O_CREAT, code asks the opener in `safe_files` for a file that may be new.
    violations = {
        (module, write)
        for module, writes in writes_by_module.items()
        for write in writes
        if module not in WRITERS and (write != "os.O_CREAT" or "os.open(" in FILES[module].read_text("utf-8"))
    }
    assert violations == set()


@pytest.mark.parametrize(
    "code",
    [
        "open(p, 'w')", "p.open('ab')", "p.open(mode='x')", "io.open(p, 'r+')", "p.write_text('a')", "p.mkdir()",
        "os.open(p, os.O_RDWR | os.O_CREAT)", "shutil.rmtree(p)", "logging.FileHandler(p)", "shutil.copyfile(p, q)",
    ],
)  # fmt: skip
def test_write_of_a_file_is_detected(code: str) -> None:
    assert list(find_writes(ast.parse(code)))


@pytest.mark.parametrize("code", ["p.open('rb')", "open(p)", "os.fdopen(d, 'wb')", "results.open(plan, 'x y')"])
def test_read_of_a_file_is_not_reported_as_a_write(code: str) -> None:
    assert not list(find_writes(ast.parse(code)))


PLAIN_READERS = {
    "runner.models.retirements", "runner.pages.html", "runner.results.provenance.sources_snapshot",
    "runner.base.storage.parquet",
    "runner.models.providers.openai_fine_tuning",
    "runner.exports.verifiers_env.package",
}  # fmt: skip
"""Modules that may open a file by its path: a packaged file, or one that was just written."""


def find_reads(code: ast.AST) -> Iterator[str]:
    """Yield code that opens a path without a check, which would hang at a FIFO without a writer."""
    for node in walk(code):
        if not isinstance(node, ast.Call):
            continue
        if _name(node.func) not in ("open", "read_bytes", "read_text"):
            continue
        name = ast.unparse(node.func)
        mode = [argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)]
        opens = name.endswith(".open") and name != "os.open" and (not node.args or mode in (["r"], ["rb"]))
        if opens or name in ("open", "io.open") or name.endswith((".read_bytes", ".read_text")):
            yield ast.unparse(node)


def test_only_listed_modules_open_files_by_path() -> None:
    modules = {module for module in FILES if set(find_reads(tree(module)))}
    assert modules == PLAIN_READERS


@pytest.mark.parametrize("code", ["open(p)", "p.open()", "p.open('rb')", "p.open(encoding='x')", "p.read_bytes()"])
def test_read_of_a_file_by_path_is_detected(code: str) -> None:
    assert list(find_reads(ast.parse(code)))


# Output and patterns


_PRINT_NAMES = {
    "write", "writelines", "buffer", "__stdout__", "__stderr__", "print", "print_exc", "print_exception", "print_usage",
    "print_last", "print_list", "print_stack", "print_tb",
}  # fmt: skip


def find_prints(code: ast.AST) -> Iterator[str]:
    """Yield code that writes to a terminal, directly or with rich."""
    for node in walk(code):
        if isinstance(node, ast.Name) and node.id == "print":
            yield "print"
        if isinstance(node, ast.Attribute) and node.attr in _PRINT_NAMES:
            name = ast.unparse(node)
            if name in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"):
                yield name
            if name in ("sys.stdout.buffer", "sys.stderr.buffer", "sys.__stdout__", "sys.__stderr__", "console.print"):
                yield name
            if name.startswith("traceback.print_") or node.attr in ("print_exc", "print_exception", "print_usage"):
                yield name
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
            yield from (alias.name for alias in node.names if alias.name in ("Console", "print", "Text"))


def test_only_the_output_module_prints() -> None:
    calls = {(module, call) for module in FILES for call in find_prints(tree(module))}
    other_calls = {(module, call) for module, call in calls if module != "runner.cli.terminal.output"}
    assert other_calls == {
        ("runner.spec.datasets.subprocess_tasks", "sys.stdout.buffer"),  # the result of a worker process
    }


@pytest.mark.parametrize(
    "code",
    [
        "print(manifest)",
        "import sys\nsys.stderr.write(error)",
        "import traceback\ntraceback.print_exc()",
        "from rich import print",
        "from rich.console import Console\nConsole()",
        "log = print",
    ],
)
def test_printing_code_is_detected(code: str) -> None:
    assert list(find_prints(ast.parse(code)))


def find_patterns_with_dollars(code: ast.AST) -> Iterator[str]:
    """Yield Python patterns whose `$` accepts a final newline. Patterns of schemas are `pattern` keywords."""
    for node in walk(code):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _name(node.func.value) == "re":
            for text in (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)):
                if re.search(r"(?<!\\)\$(?![{])", text) and text not in (r"\$\{", r"\$$"):
                    yield text


def test_no_pattern_accepts_a_final_newline() -> None:
    patterns_with_dollars = {(module, text) for module in FILES for text in find_patterns_with_dollars(tree(module))}
    assert patterns_with_dollars == set()
    assert list(find_patterns_with_dollars(ast.parse("import re\nre.match('^a$', name)"))) == ["^a$"]


def iterate_patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name == "pattern" and isinstance(value, str))
        for value in schema.values():
            yield from iterate_patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from iterate_patterns(value)


@pytest.mark.parametrize("build_schema", [experiment_schema, protocol_schema])
def test_schema_patterns_are_anchored_at_both_ends(build_schema: Callable[[], dict[str, object]]) -> None:
    """`runner.documents.schema_check` can then read their `$` as editors do: as the end of the text."""
    schema_patterns = set(iterate_patterns(build_schema()))
    assert schema_patterns
    for pattern in schema_patterns:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert "$" not in pattern[1:-1]


def test_no_file_contains_a_path_of_one_machine() -> None:
    process = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if process.returncode != 0:
        pytest.skip("no git checkout")
    local_path = re.compile(r"(?<![\w.:/])/(home|Users|work|root|private|mnt)/\w")
    for name in process.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in (".py", ".yaml", ".md", ".toml", ".jinja", ".json", ".jsonl", ""):
            match = local_path.search(path.read_text("utf-8", errors="replace"))
            assert match is None, f"{name}: {match.group()}"
