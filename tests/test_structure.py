"""The shape of the code base: imports point one way, every foreign package has its home, help is cheap."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "runner").rglob("*.py"))
}

HOMES = {
    "duckdb": {
        "runner.datasets.load", "runner.datasets.read", "runner.leaderboard", "runner.parquet", "runner.metrics",
        "runner.rederive", "runner.commands.sql", "runner.commands.show", "runner.commands.leaderboard",
    },
    "openai": {"runner.models.openai"},
    "httpx2": {"runner.models.openai"},
    "httpx": set(),
    "jinja2": {"runner.prompts.templates"},
    "omegaconf": {"runner.documents.layers", "runner.documents.reader"},
    "jsonschema": {"runner.documents.check"},
    "scipy": {"runner.metrics"},
    "datasets": {"runner.datasets.read"},
    "rich": {"runner.commands.common", "runner.commands.progress"},
}  # fmt: skip
"""Where each package may be imported: tables are read and written in few places, everything else in one or two."""


def imported(path: Path) -> Iterator[str]:
    """Everything a file imports, at its top or inside functions; what is for type checkers only is left out."""

    def walk(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.orelse:
                yield from walk(child)
            return
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            module = node.module or ""
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from walk(child)

    yield from walk(ast.parse(path.read_text("utf-8")))


GRAPH = {
    module: {name for name in imported(path) if name in FILES and name not in (module, "runner")}
    for module, path in FILES.items()
}


def test_imports_make_no_circle():
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(GRAPH[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in GRAPH:
        visit(module, ())


LAYERS = ("runner.errors", "runner.text", "runner.ids", "runner.files")


@pytest.mark.parametrize("module", LAYERS)
def test_the_lowest_modules_import_nothing_of_ours_but_each_other(module):
    assert GRAPH[module] <= set(LAYERS)


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ("runner.documents", ("runner.protocols", "runner.spec", "runner.models", "runner.datasets", "runner.prompts")),
        ("runner.protocols", ("runner.spec", "runner.models", "runner.datasets", "runner.prompts", "runner.agents")),
        ("runner.prompts", ("runner.spec", "runner.models", "runner.datasets", "runner.agents")),
        ("runner.models", ("runner.spec", "runner.agents", "runner.plan", "runner.runs")),
        ("runner.spec", ("runner.agents", "runner.plan", "runner.runs")),
        ("runner", ("runner.commands",)),
    ],
)
def test_imports_point_down(below, above):
    for module, names in GRAPH.items():
        if module.startswith(below + ".") and not module.startswith(("runner.commands", "runner.main")):
            assert not [name for name in names if name.startswith(above)], module


@pytest.mark.parametrize("package", HOMES)
def test_a_foreign_package_is_imported_at_home_only(package):
    users = {module for module, path in FILES.items() if any(name.split(".")[0] == package for name in imported(path))}
    assert users <= HOMES[package]


def test_a_file_has_at_most_400_lines():
    lengths = {module: len(path.read_text("utf-8").splitlines()) for module, path in FILES.items()}
    assert {module: length for module, length in lengths.items() if length > 400} == {}


HEAVY = ("numpy", "duckdb", "openai", "omegaconf", "jinja2", "rich", "scipy", "jsonschema", "aiohttp")


def _loaded(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint('|', *sys.modules)"],
        capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    return set(done.stdout.rsplit("|", 1)[1].split()) & set(HEAVY)


def test_help_loads_nothing_heavy():
    assert _loaded("from runner.main import main; assert main(['--help']) == 0") == set()


@pytest.mark.parametrize(
    "command", ["run", "check", "render", "schema", "runs", "show", "leaderboard", "sql", "export"]
)
def test_a_commands_help_loads_nothing_heavy(command):
    assert _loaded(f"from runner.main import main; assert main(['{command}', '--help']) == 0") == set()


def test_importing_the_package_loads_nothing_heavy():
    assert _loaded("import runner; assert runner.__version__") == set()


def test_printing_a_schema_asks_no_dataset_and_no_model():
    loaded = _loaded("from runner.main import main; assert main(['schema']) == 0")
    assert not loaded & {"duckdb", "openai", "aiohttp", "scipy"}


def test_no_file_of_ours_names_a_place_on_one_machine():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    somewhere = re.compile(r"(?<![\w.:/])/(home|Users|work|root|private|mnt)/\w")
    for name in listed.stdout.decode().split("\0"):
        path = ROOT / name
        if name and path.is_file() and path.suffix in (".py", ".yaml", ".md", ".toml", ".jinja", ".json", ".jsonl", ""):
            found = somewhere.search(path.read_text("utf-8", errors="replace"))
            assert not found, f"{name}: {found and found.group()}"
