"""What the code may do in one place alone, or nowhere: write and read files, print, name a place on one machine."""

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

# What is written


WRITERS = {
    "runner.base.storage.safe_files",
    "runner.base.storage.duckdb_connections",
    "runner.training.backends.supervisor",
}
"""Where files are opened to write to them, and folders made: by what follows no link. The second makes links in a
temporary folder of its own, the third is a program of its own, which loads nothing of ours."""

_WRITING = {
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to", "symlink", "link", "mkfifo",
    "copyfile", "copy2", "copytree", "rmtree", "move", "FileHandler", "mknod",
}  # fmt: skip
_MODE = re.compile(r"[rwaxbt+]*[wax+][rwaxbt+]*")


def _name(function: ast.expr) -> str:
    """Return the last name of what is called: `open` for `path.open`."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def writes_files(code: ast.AST) -> Iterator[str]:
    """Where code writes a file, or makes or removes a folder, other than by a descriptor that it was given."""
    for node in walk(code):
        if isinstance(node, ast.Attribute) and (node.attr in _WRITING or node.attr == "O_CREAT"):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and _name(node.func).endswith("open") and "fdopen" not in ast.unparse(node):
            modes = [one.value for one in (*node.args, *node.keywords) if isinstance(one, ast.keyword)]
            given = [one for one in (*node.args, *modes) if isinstance(one, ast.Constant)]
            if any(isinstance(one.value, str) and _MODE.fullmatch(one.value) for one in given):
                yield ast.unparse(node)


def test_files_are_written_by_what_follows_no_link_alone() -> None:
    found = {module: set(writes_files(tree(module))) for module in FILES}
    # With O_CREAT our own opener is asked for a file that may be new.
    others = {
        (module, write)
        for module, writes in found.items()
        for write in writes
        if module not in WRITERS and (write != "os.O_CREAT" or "os.open(" in FILES[module].read_text("utf-8"))
    }
    assert others == set()


@pytest.mark.parametrize(
    "code",
    [
        "open(p, 'w')", "p.open('ab')", "p.open(mode='x')", "io.open(p, 'r+')", "p.write_text('a')", "p.mkdir()",
        "os.open(p, os.O_RDWR | os.O_CREAT)", "shutil.rmtree(p)", "logging.FileHandler(p)", "shutil.copyfile(p, q)",
    ],
)  # fmt: skip
def test_a_file_that_is_written_is_seen(code: str) -> None:
    assert list(writes_files(ast.parse(code)))


@pytest.mark.parametrize("code", ["p.open('rb')", "open(p)", "os.fdopen(d, 'wb')", "results.open(plan, 'x y')"])
def test_a_file_that_is_read_is_not_taken_for_written(code: str) -> None:
    assert not list(writes_files(ast.parse(code)))


PLAIN_READERS = {
    "runner.models.retirements", "runner.pages.html", "runner.results.provenance.packages",
    "runner.base.storage.parquet",
    "runner.models.providers.openai_fine_tuning",
    "runner.exports.verifiers_env.core_sources",
    "runner.exports.verifiers_env.package",
}  # fmt: skip
"""Where a file is opened by its path alone: one of a package, one that was just written, one that keeps its name."""


def reads_by_path(code: ast.AST) -> Iterator[str]:
    """Where code opens what a path leads to, be it a FIFO that waits for a writer."""
    for node in walk(code):
        if not isinstance(node, ast.Call):
            continue
        if _name(node.func) not in ("open", "read_bytes", "read_text"):
            continue
        name = ast.unparse(node.func)
        mode = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
        opens = name.endswith(".open") and name != "os.open" and (not node.args or mode in (["r"], ["rb"]))
        if opens or name in ("open", "io.open") or name.endswith((".read_bytes", ".read_text")):
            yield ast.unparse(node)


def test_files_are_read_by_what_waits_for_no_writer() -> None:
    found = {module for module in FILES if set(reads_by_path(tree(module)))}
    assert found == PLAIN_READERS


@pytest.mark.parametrize("code", ["open(p)", "p.open()", "p.open('rb')", "p.open(encoding='x')", "p.read_bytes()"])
def test_a_file_that_is_read_by_its_path_is_seen(code: str) -> None:
    assert list(reads_by_path(ast.parse(code)))


# What reaches a terminal, and what a pattern lets through


_PRINTING = {
    "write", "writelines", "buffer", "__stdout__", "__stderr__", "print", "print_exc", "print_exception", "print_usage",
    "print_last", "print_list", "print_stack", "print_tb",
}  # fmt: skip


def prints(code: ast.AST) -> Iterator[str]:
    """Where code writes to a terminal, or has rich do so, by itself."""
    for node in walk(code):
        if isinstance(node, ast.Name) and node.id == "print":
            yield "print"
        if isinstance(node, ast.Attribute) and node.attr in _PRINTING:
            said = ast.unparse(node)
            if said in ("sys.stdout.write", "sys.stderr.write", "sys.stdout.writelines", "sys.stderr.writelines"):
                yield said
            if said in ("sys.stdout.buffer", "sys.stderr.buffer", "sys.__stdout__", "sys.__stderr__", "console.print"):
                yield said
            if said.startswith("traceback.print_") or node.attr in ("print_exc", "print_exception", "print_usage"):
                yield said
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
            yield from (alias.name for alias in node.names if alias.name in ("Console", "print", "Text"))


def test_one_module_alone_prints() -> None:
    found = {(module, what) for module in FILES for what in prints(tree(module))}
    others = {(module, what) for module, what in found if module != "runner.cli.terminal.output"}
    assert others == {
        ("runner.spec.datasets.subprocess_tasks", "sys.stdout.buffer"),  # the answer of a process of ours to another
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
def test_code_that_prints_is_seen(code: str) -> None:
    assert list(prints(ast.parse(code)))


def dollars(code: ast.AST) -> Iterator[str]:
    """Patterns of Python whose `$` lets a final newline through; those of a schema are `pattern` keywords."""
    for node in walk(code):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and _name(node.func.value) == "re":
            for text in (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)):
                if re.search(r"(?<!\\)\$(?![{])", text) and text not in (r"\$\{", r"\$$"):
                    yield text


def test_no_pattern_lets_a_final_newline_through() -> None:
    found = {(module, text) for module in FILES for text in dollars(tree(module))}
    assert found == set()
    assert list(dollars(ast.parse("import re\nre.match('^a$', name)"))) == ["^a$"]


def patterns(schema: object) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name == "pattern" and isinstance(value, str))
        for value in schema.values():
            yield from patterns(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from patterns(value)


@pytest.mark.parametrize("make", [experiment_schema, protocol_schema])
def test_the_patterns_of_a_schema_are_bound_at_both_ends(make: Callable[[], dict[str, object]]) -> None:
    """So that `runner.documents.schema_check` can read their `$` as an editor does: the end of the text."""
    found = set(patterns(make()))
    assert found
    for pattern in found:
        assert pattern.startswith("^")
        assert pattern.endswith("$")
        assert "$" not in pattern[1:-1]


def test_no_file_of_ours_names_a_place_on_one_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    somewhere = re.compile(r"(?<![\w.:/])/(home|Users|work|root|private|mnt)/\w")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in (".py", ".yaml", ".md", ".toml", ".jinja", ".json", ".jsonl", ""):
            found = somewhere.search(path.read_text("utf-8", errors="replace"))
            assert found is None, f"{name}: {found.group()}"
