"""The shape of the code base: imports point one way, every foreign package has its home, help is cheap."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runner.cli.registry import COMMANDS
from runner.protocols.load import protocol_schema
from runner.spec.experiment import experiment_schema
from tests.support.paths import ROOT
from tests.support.processes import python

FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "runner").rglob("*.py"))
}

ORDER = (
    "version", "exit_codes", "errors", "statistics", "text", "redaction", "hashing", "aio", "builtin", "storage",
    "releases", "documents", "protocols", "prompts", "datasets", "models", "spec", "agents", "rollouts", "results",
    "comparison", "finetune", "runs", "exports", "training", "transports", "registry", "api", "cli",
)  # fmt: skip
"""The rooms of `runner/`, each a package or a file; one may import only those before it."""

HOMES = {
    "aiohttp": {"runner.models.providers.openai", "runner.models.providers.openai_http"},
    "datasets": {"runner.datasets.read"},
    "duckdb": {
        "runner.api.asked",
        "runner.datasets.load",
        "runner.datasets.read",
        "runner.datasets.tasks",
        "runner.datasets.typed",
        "runner.results.board_rows",
        "runner.results.leaderboard",
        "runner.results.questions",
        "runner.results.ranks",
        "runner.runs.result",
        "runner.storage.parquet",
        "runner.storage.queries",
        "runner.storage.read_only",
        "runner.storage.python_values",
    },
    "cryptography": {"runner.registry.signing"},
    "httpx2": {"runner.models.providers.openai", "runner.models.providers.openai_http", "runner.transports.hub_http"},
    "huggingface_hub": {"runner.transports.hub_session"},
    "model_signing": {"runner.registry.signing"},
    "jinja2": {"runner.prompts.sandbox", "runner.prompts.work"},
    "jsonschema": {"runner.documents.check"},
    "numpy": {
        "runner.agents.arrays",
        "runner.agents.environment",
        "runner.agents.nested",
        "runner.agents.observations",
        "runner.agents.whole_agent",
        "runner.results.judged",
        "runner.results.pooled_numbers",
        "runner.statistics.calibration",
        "runner.statistics.detectable",
        "runner.statistics.differences",
        "runner.statistics.paired",
        "runner.statistics.sequences",
        "runner.statistics.shares",
        "runner.statistics.verdicts",
        "runner.training.selection",
    },
    "omegaconf": {"runner.documents.interpolation", "runner.documents.reader"},
    "openai": {"runner.models.providers.openai"},
    "orjson": {
        "runner.datasets.apart",
        "runner.datasets.explode",
        "runner.datasets.read",
        "runner.datasets.tasks",
        "runner.exports.every_eval_ever",
        "runner.exports.inspect_log",
        "runner.exports.scout",
        "runner.finetune.example_file",
        "runner.finetune.files",
        "runner.hashing",
        "runner.models.answers",
        "runner.models.costs",
        "runner.models.layers.cache",
        "runner.models.logprobs",
        "runner.models.providers.dummy",
        "runner.models.providers.lenient_json",
        "runner.models.providers.openai_batch",
        "runner.models.providers.openai_body",
        "runner.models.providers.openai_wire",
        "runner.models.records",
        "runner.registry.board_cache",
        "runner.registry.board_numbers",
        "runner.registry.clean",
        "runner.registry.clean_log",
        "runner.registry.croissant",
        "runner.registry.missing_rows",
        "runner.registry.records",
        "runner.registry.rollout_records",
        "runner.registry.run_bundle",
        "runner.registry.withheld",
        "runner.releases.manifest",
        "runner.results.beginning",
        "runner.results.compared",
        "runner.results.folder",
        "runner.results.inputs",
        "runner.results.tables",
        "runner.results.tasks",
        "runner.rollouts.debates",
        "runner.runs.sinks",
        "runner.storage.log_lines",
        "runner.training.run",
    },
    "rich": {"runner.cli.output"},
    "scipy": {"runner.statistics.detectable", "runner.statistics.differences", "runner.statistics.intervals"},
    "yaml": {
        "runner.documents.dump",
        "runner.documents.reader",
        "runner.documents.scalars",
        "runner.documents.settled",
        "runner.documents.yaml_words",
        "runner.models.prices",
        "runner.registry.clean_yaml",
        "runner.results.board_rows",
    },
}
"""Where each package of others is imported, and nowhere else."""


def imported(path: Path) -> Iterator[str]:
    """Everything a file imports: at its top, inside functions, and for type checkers only."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


GRAPH = {
    module: {name for name in imported(path) if name in FILES and name not in (module, "runner")}
    for module, path in FILES.items()
}


def room(module: str) -> str:
    """The room that a module stands in; that of the package's own face is the last."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "cli"


def test_no_room_imports_by_the_face_of_the_package() -> None:
    """`from runner import run` would be an import of a later room that the order does not see."""
    faces = {
        f"{module} imports {name}"
        for module, path in FILES.items()
        for name in imported(path)
        if name.split(".")[0] == "runner" and name.count(".") == 1 and name not in FILES
    }
    assert faces <= {"runner.version imports runner.__version__"}


def test_every_room_stands_in_the_order_and_nothing_else_does() -> None:
    assert {room(module) for module in FILES} == set(ORDER)


def test_imports_go_down_the_order() -> None:
    rank = {name: index for index, name in enumerate(ORDER)}
    wrong = [
        f"{module} imports {name}"
        for module, names in GRAPH.items()
        for name in sorted(names)
        if rank[room(name)] > rank[room(module)]
    ]
    assert wrong == []


def test_the_longest_chain_of_rooms_has_at_most_16() -> None:
    below = {name: {room(n) for m, ns in GRAPH.items() if room(m) == name for n in ns} - {name} for name in ORDER}
    length: dict[str, int] = {}
    for name in ORDER:
        length[name] = 1 + max((length[other] for other in below[name]), default=0)
    assert max(length.values()) <= 16


def test_files_make_no_circle() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(GRAPH[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in GRAPH:
        visit(module, ())


def test_each_foreign_package_is_imported_at_home_and_only_there() -> None:
    users: dict[str, set[str]] = {}
    for module, path in FILES.items():
        for package in {name.split(".")[0] for name in imported(path)} - {"runner", *sys.stdlib_module_names}:
            users.setdefault(package, set()).add(module)
    assert users == HOMES


def test_every_connection_to_duckdb_is_opened_in_one_place() -> None:
    def opens(tree: ast.AST) -> bool:
        called = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
        return any(name.split(".")[0] == "duckdb" for name in called)

    opening = {module for module, path in FILES.items() if opens(ast.parse(path.read_text("utf-8")))}
    assert opening == {"runner.storage.queries"}
    assert not [module for module in FILES if "duckdb.connect" in imported(FILES[module])]


# The results folder


def paths_of_results(tree: ast.AST) -> Iterator[str]:
    """Where a results folder is taken as a path, or as nothing said: parameters, and fields of classes."""

    def is_path(name: str, kind: ast.expr | None) -> bool:
        kinds = {"Path"} if kind is None else {one.strip(" '\"") for one in ast.unparse(kind).split("|")}
        return "results" in name and not kinds.isdisjoint(("Path", "str", "Any", "object", "PathLike[str]"))

    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield from (node.name for one in given if is_path(one.arg, one.annotation))
        elif isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{one.target.id}"
                for one in node.body
                if isinstance(one, ast.AnnAssign)
                and isinstance(one.target, ast.Name)
                and is_path(one.target.id, one.annotation)
            )


def test_only_the_public_functions_take_the_results_folder_as_a_path() -> None:
    takers = {
        f"{m}.{name}" for m, path in FILES.items() for name in paths_of_results(ast.parse(path.read_text("utf-8")))
    }
    public = {
        "api.specs": ("load_spec", "load_specs", "sample_size"),
        "api.runs": ("run", "run_sweep", "open_run"),
        "api.asked": ("query", "compare"),
        "api.judging": ("rejudge",),
    }
    assert takers == {f"runner.{module}.{name}" for module, names in public.items() for name in names}


@pytest.mark.parametrize(
    "code",
    [
        "def f(results: Path): ...",
        "def f(*, results_dir: str | Path = 'results'): ...",
        "async def f(results): ...",
        "class A:\n    results: Path",
    ],
)
def test_a_results_folder_that_is_taken_as_a_path_is_seen(code: str) -> None:
    assert len(list(paths_of_results(ast.parse(code)))) == 1


def layout_of_results(tree: ast.AST) -> bool:
    """Whether code finds a run in a results folder, or the results folder of a run, by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            named = node.right.value if isinstance(node.right, ast.Constant) else getattr(node.right, "id", None)
            if named in ("runs", "RUNS"):
                return True
        if isinstance(node, ast.Attribute) and (node.attr == "parents" or "parent.parent" in ast.unparse(node)):
            return True
    return False


def test_only_results_know_where_a_run_stands_in_them() -> None:
    knowing = {module for module, path in FILES.items() if layout_of_results(ast.parse(path.read_text("utf-8")))}
    assert knowing == {"runner.results.results"}


# What is written


WRITERS = {"runner.storage.files", "runner.storage.queries", "runner.training.backends.supervise"}
"""Where files are opened to write to them, and folders made: by what follows no link. The second makes links in a
temporary folder of its own, the third is a program of its own, which loads nothing of ours."""

_WRITING = {
    "write_text", "write_bytes", "touch", "mkdir", "makedirs", "symlink_to", "hardlink_to", "symlink", "link", "mkfifo",
    "copyfile", "copy2", "copytree", "rmtree", "move", "FileHandler", "mknod",
}  # fmt: skip
_MODE = re.compile(r"[rwaxbt+]*[wax+][rwaxbt+]*")


def writes_files(tree: ast.AST) -> Iterator[str]:
    """Where code writes a file, or makes or removes a folder, other than by a descriptor that it was given."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (node.attr in _WRITING or node.attr == "O_CREAT"):
            yield ast.unparse(node)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("open") and "fdopen" not in ast.unparse(node):
            modes = [one.value for one in (*node.args, *node.keywords) if isinstance(one, ast.keyword)]
            given = [one for one in (*node.args, *modes) if isinstance(one, ast.Constant)]
            if any(isinstance(one.value, str) and _MODE.fullmatch(one.value) for one in given):
                yield ast.unparse(node)


def test_files_are_written_by_what_follows_no_link_alone() -> None:
    found = {module: set(writes_files(ast.parse(path.read_text("utf-8")))) for module, path in FILES.items()}
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
    "runner.models.prices", "runner.results.environment", "runner.storage.parquet", "runner.training.backends.openai",
}  # fmt: skip
"""Where a file is opened by its path alone: one of a package, one that was just written, one that keeps its name."""


def reads_by_path(tree: ast.AST) -> Iterator[str]:
    """Where code opens what a path leads to, be it a FIFO that waits for a writer."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        mode = [one.value for one in node.args[:1] if isinstance(one, ast.Constant)]
        opens = name.endswith(".open") and name != "os.open" and (not node.args or mode in (["r"], ["rb"]))
        if opens or name in ("open", "io.open") or name.endswith((".read_bytes", ".read_text")):
            yield ast.unparse(node)


def test_files_are_read_by_what_waits_for_no_writer() -> None:
    found = {module for module, path in FILES.items() if set(reads_by_path(ast.parse(path.read_text("utf-8"))))}
    assert found == PLAIN_READERS


@pytest.mark.parametrize("code", ["open(p)", "p.open()", "p.open('rb')", "p.open(encoding='x')", "p.read_bytes()"])
def test_a_file_that_is_read_by_its_path_is_seen(code: str) -> None:
    assert list(reads_by_path(ast.parse(code)))


# What is loaded


HEAVY = (
    "dataclasses", "numpy", "duckdb", "openai", "omegaconf", "jinja2", "rich", "scipy", "jsonschema", "aiohttp",
)  # fmt: skip


def _loaded(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after some code."""
    done = python(f"import sys\n{code}\nprint('|', *sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("|", 1)[1].split()) & set(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    assert _loaded("from runner.cli.main import main; assert main(['--help']) == 0") == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_commands_help_loads_nothing_heavy(command: str) -> None:
    assert _loaded(f"from runner.cli.main import main; assert main(['{command}', '--help']) == 0") == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_module_of_every_command_executes_it(name: str) -> None:
    assert inspect.signature(importlib.import_module(COMMANDS[name].module).execute).return_annotation == "int"


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded("import runner; assert runner.__version__") == set()


def test_the_table_of_fine_tune_backends_loads_no_client() -> None:
    assert _loaded("from runner.training.backends.connect import BACKENDS; assert BACKENDS") <= {"dataclasses"}


def test_printing_a_schema_asks_no_dataset_and_no_model() -> None:
    loaded = _loaded("from runner.cli.main import main; assert main(['schema']) == 0")
    assert not loaded & {"duckdb", "openai", "aiohttp", "scipy"}


# What reaches a terminal, and what a pattern lets through


def prints(tree: ast.AST) -> Iterator[str]:
    """Where code writes to a terminal, or has rich do so, by itself."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "print":
            yield "print"
        if isinstance(node, ast.Attribute):
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
    found = {(module, what) for module, path in FILES.items() for what in prints(ast.parse(path.read_text("utf-8")))}
    others = {(module, what) for module, what in found if module != "runner.cli.output"}
    assert others == {
        ("runner.datasets.tasks", "sys.stdout.buffer"),  # the answer of a process of ours to another
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


def dollars(tree: ast.AST) -> Iterator[str]:
    """Patterns of Python whose `$` lets a final newline through; those of a schema are `pattern` keywords."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            for text in (n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)):
                if re.search(r"(?<!\\)\$(?![{])", text) and text not in (r"\$\{", r"\$$"):
                    yield text


def test_no_pattern_lets_a_final_newline_through() -> None:
    found = {(m, text) for m, path in FILES.items() for text in dollars(ast.parse(path.read_text("utf-8")))}
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
    """So that `runner.documents.check` can read their `$` as an editor does: the end of the text."""
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
