"""The shape of the code base: imports point one way, every foreign package has its home, help is cheap."""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

from runner.cli.command_line import load_command
from runner.cli.commands import COMMANDS
from runner.models.provider_traits import PROVIDERS
from tests.support.modules import FILES, tree, walk
from tests.support.processes import python
from tests.support.runs import run_spec
from tests.support.specs import spec_file

ORDER = (
    "version", "base", "statistics", "documents", "game", "models", "spec", "rollouts", "agents", "results", "runs",
    "training", "analysis", "curation", "exports", "registry", "pages", "server", "api", "cli",
)  # fmt: skip
"""The rooms of `runner/`, each a package or a file; one may import only those before it."""

HOMES = {
    "anthropic": {"runner.models.providers.anthropic"},
    "aiohttp": {"runner.models.providers.client_errors", "runner.models.providers.openai_http"},
    "multidict": {"runner.models.providers.openai_http"},
    "yarl": {"runner.models.providers.openai_http"},
    "cryptography": {"runner.registry.signing"},
    "datasets": {"runner.spec.datasets.reader"},
    "duckdb": {
        "runner.api.queries",
        "runner.spec.datasets.reader",
        "runner.spec.datasets.subprocess_tasks",
        "runner.spec.datasets.typed_rows",
        "runner.spec.datasets.transcripts.inspect_logs",
        "runner.results.leaderboard.rows",
        "runner.results.leaderboard.database",
        "runner.results.leaderboard.queries",
        "runner.results.leaderboard.ranks",
        "runner.results.leaderboard.schema",
        "runner.runs.finished.result",
        "runner.server.boards.board_file",
        "runner.base.storage.parquet",
        "runner.base.storage.duckdb_values",
        "runner.base.storage.duckdb_connections",
        "runner.base.storage.read_only_sql",
    },
    "genai_prices": {"runner.models.prices"},
    "httpx2": {
        "runner.models.providers.client_errors",
        "runner.models.providers.http_model",
        "runner.models.providers.openai_http",
        "runner.registry.transports.http.api",
        "runner.registry.transports.http.tokens",
        "runner.registry.transports.http_client",
        "runner.registry.transports.hub",
    },
    "huggingface_hub": {"runner.registry.transports.hub"},
    "jinja2": {"runner.pages.html", "runner.game.prompts.sandbox", "runner.game.prompts.work_limit"},
    "jsonschema": {"runner.documents.schema_check"},
    "markupsafe": {
        "runner.pages.report.tournament",
        "runner.pages.boards.charts",
        "runner.pages.boards.page",
        "runner.pages.charts.columns",
        "runner.pages.charts.curve",
        "runner.pages.charts.drawing",
        "runner.pages.charts.frontier",
        "runner.pages.charts.heatmap",
        "runner.pages.charts.lineage",
        "runner.pages.charts.protocol",
        "runner.pages.charts.reliability",
        "runner.pages.charts.rows",
        "runner.pages.figures.figure",
        "runner.pages.report.audit",
        "runner.pages.report.comparison",
        "runner.pages.report.notebook",
        "runner.pages.report.runs_overview",
        "runner.pages.html",
        "runner.pages.report.plain_games",
        "runner.pages.report.run",
        "runner.pages.report.run_numbers",
        "runner.pages.report.served",
        "runner.pages.report.training",
        "runner.pages.site",
        "runner.pages.redacted",
        "runner.server.web.views",
        "runner.server.web.pages.boards",
        "runner.server.web.pages.games",
        "runner.server.web.pages.runs",
        "runner.pages.live.live_runs",
        "runner.pages.live.question_page",
    },
    "mlflow": {"runner.exports.mlflow.client", "runner.exports.mlflow.sender"},
    "model_signing": {"runner.registry.signing"},
    "packaging": {"runner.registry.licenses"},
    "numpy": {
        "runner.analysis.validation",
        "runner.statistics.answer_verdicts",
        "runner.statistics.instrument.crossed_components",
        "runner.statistics.instrument.level_test",
        "runner.statistics.instrument.noise_floor",
        "runner.statistics.instrument.permuted_sums",
        "runner.results.gauge.gauge",
        "runner.runs.tournaments.games",
        "runner.rollouts.agents.arrays",
        "runner.rollouts.agents.environment",
        "runner.rollouts.agents.nested_arrays",
        "runner.rollouts.agents.observations",
        "runner.rollouts.agents.whole_agent",
        "runner.results.answer_games",
        "runner.results.verdict_columns",
        "runner.results.leaderboard.pooled_numbers",
        "runner.results.comparison.paired_test",
        "runner.statistics.monitoring.ranked_games",
        "runner.statistics.agreement",
        "runner.statistics.calibration",
        "runner.statistics.minimum_detectable_effect",
        "runner.statistics.differences",
        "runner.statistics.gap_recovered",
        "runner.statistics.prediction_powered",
        "runner.statistics.signal_detection",
        "runner.statistics.equivalence",
        "runner.statistics.ratings",
        "runner.statistics.sign_flip",
        "runner.statistics.confidence_sequences",
        "runner.statistics.clustered_means",
        "runner.statistics.verdicts",
        "runner.training.selection",
        "runner.curation.audit.label_tests",
        "runner.curation.audit.predictors",
        "runner.curation.audit.report",
        "runner.curation.generation.program_edits",
    },
    "omegaconf": {"runner.documents.interpolation", "runner.documents.yaml_reader"},
    "openai": {"runner.models.providers.openai"},
    "orjson": {
        "runner.results.gauge.readings",
        "runner.results.gauge.stored",
        "runner.runs.session.session_of_parts",
        "runner.spec.datasets.candidates",
        "runner.spec.datasets.subprocess",
        "runner.spec.datasets.explode",
        "runner.spec.datasets.reader",
        "runner.spec.datasets.subprocess_tasks",
        "runner.exports.every_eval_ever",
        "runner.exports.inspect_log",
        "runner.exports.mlflow.limits",
        "runner.exports.mlflow.sender",
        "runner.exports.verifiers_env.package",
        "runner.exports.verifiers_env.packaged_game",
        "runner.exports.scout",
        "runner.exports.scout_results",
        "runner.exports.scout_scans",
        "runner.spec.datasets.transcripts.json_parts",
        "runner.spec.datasets.transcripts.source",
        "runner.analysis.published",
        "runner.registry.bundles.analyses",
        "runner.results.finetune.example_file",
        "runner.results.finetune.files",
        "runner.base.hashing",
        "runner.models.answers",
        "runner.models.costs",
        "runner.models.layers.answer_form",
        "runner.models.layers.cache",
        "runner.models.logprobs",
        "runner.models.providers.anthropic_body",
        "runner.models.providers.dummy",
        "runner.models.providers.lenient_json",
        "runner.models.providers.openai_batch",
        "runner.models.providers.openai_body",
        "runner.models.providers.answer_reader",
        "runner.models.journal_records",
        "runner.pages.figures.figure",
        "runner.pages.packing",
        "runner.pages.html",
        "runner.pages.report.plain_games",
        "runner.pages.redacted",
        "runner.registry.board.cache",
        "runner.registry.board.run_check",
        "runner.registry.redaction.draft_redaction",
        "runner.registry.redaction.journal_redaction",
        "runner.documents.croissant",
        "runner.registry.bundles.missing_rows",
        "runner.registry.rollouts_file",
        "runner.registry.rollout_checker",
        "runner.registry.bundles.runs",
        "runner.registry.bundles.withheld_rows",
        "runner.documents.releases.manifest",
        "runner.results.provenance.sources_snapshot",
        "runner.results.baseline_scores",
        "runner.results.folder",
        "runner.results.provenance.input_files",
        "runner.results.tables",
        "runner.results.tasks",
        "runner.rollouts.recorded_debates",
        "runner.runs.shards.merge",
        "runner.runs.execution.rollout_writer",
        "runner.server.isolated_task",
        "runner.server.boards.copied_answers",
        "runner.server.boards.board_file",
        "runner.server.boards.builder",
        "runner.server.boards.snapshot",
        "runner.server.boards.verification_tiers",
        "runner.server.competitions.board",
        "runner.server.competitions.storage",
        "runner.server.competitions.rows",
        "runner.server.uploads.declaration",
        "runner.server.uploads.uploads",
        "runner.server.store.backup",
        "runner.server.web.api.releases",
        "runner.server.web.pages.run_cache",
        "runner.base.storage.log_lines",
        "runner.base.storage.strict_json",
        "runner.training.run",
        "runner.registry.transports.http.prefetch",
        "runner.registry.transports.http.api",
        "runner.registry.transports.http.tokens",
        "runner.pages.live.board",
        "runner.pages.live.live_runs",
        "runner.pages.live.server",
    },
    "obstore": {"runner.server.store.object_store"},
    "pydantic_core": {"runner.server.web.api.schemas"},
    "ray": {"runner.runs.workers.cluster.actor", "runner.runs.workers.cluster.connection"},
    "rich": {"runner.cli.terminal.output"},
    "shtab": {"runner.cli.completion"},
    "scipy": {
        "runner.curation.audit.label_tests",
        "runner.statistics.calibration",
        "runner.statistics.minimum_detectable_effect",
        "runner.statistics.intervals",
        "runner.statistics.signal_detection",
    },
    "uvicorn": {"runner.server.web.connections", "runner.server.web.serving"},
    "vl_convert": {"runner.pages.figures.figure"},
    "yaml": {
        "runner.documents.yaml_writer",
        "runner.documents.yaml_reader",
        "runner.documents.yaml_edits",
        "runner.documents.simple_yaml",
        "runner.documents.yaml_errors",
        "runner.models.retirements",
        "runner.registry.redaction.yaml_redaction",
        "runner.results.saved_spec",
    },
}
"""Where each package of others is imported, and nowhere else."""

ROOMS = {
    "fastapi": "runner.server.web.",
    "pydantic": "runner.server.web.",
    "sqlalchemy": "runner.server.",
    "starlette": "runner.server.web.",
}
"""Packages that a whole room is written in."""


@cache
def imported(module: str) -> frozenset[str]:
    """Everything a module imports: at its top, inside functions, and for type checkers only."""
    return frozenset(_imported(module))


def _imported(module: str) -> Iterator[str]:
    for node in walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def graph() -> dict[str, set[str]]:
    """Which modules each imports."""
    return {
        module: {name for name in imported(module) if name in FILES and name not in (module, "runner")}
        for module in FILES
    }


def room(module: str) -> str:
    """The room that a module stands in; that of the package's own face is the last."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "cli"


@pytest.mark.full
def test_no_room_imports_by_the_face_of_the_package() -> None:
    """`from runner import run` would be an import of a later room that the order does not see."""
    faces = {
        f"{module} imports {name}"
        for module in FILES
        for name in imported(module)
        if name.split(".")[0] == "runner" and name.count(".") == 1 and name not in FILES
    }
    assert faces <= {"runner.version imports runner.__version__"}


def test_every_room_stands_in_the_order_and_nothing_else_does() -> None:
    assert {room(module) for module in FILES} == set(ORDER)


def test_imports_go_down_the_order() -> None:
    rank = {name: index for index, name in enumerate(ORDER)}
    wrong = [
        f"{module} imports {name}"
        for module, names in graph().items()
        for name in sorted(names)
        if rank[room(name)] > rank[room(module)]
    ]
    assert wrong == []


MAX_FILES = 25
"""Python files in one folder, `__init__.py` included."""

INNER_ORDERS: Mapping[str, Sequence[str]] = {
    "base": ("storage",),
    "statistics": ("monitoring", "instrument"),
    "documents": ("releases",),
    "game": ("protocols", "prompts"),
    "models": ("providers", "layers"),
    "spec": ("datasets", "checks", "warnings"),
    "spec.datasets": ("transcripts",),
    "rollouts": ("agents",),
    "results": ("provenance", "finetune", "leaderboard", "gauge", "comparison"),
    "runs": ("finished", "execution", "workers", "session", "shards", "planning", "tournaments"),
    "runs.workers": ("cluster",),
    "training": ("backends",),
    "curation": ("audit", "sandbox", "generation"),
    "exports": ("mlflow", "verifiers_env"),
    "registry": (
        "redaction", "transports", "components", "lineage", "bundles", "verification", "board", "publishing",
    ),
    "registry.transports": ("git", "http"),
    "pages": ("charts", "figures", "report", "boards", "live"),
    "server": ("store", "accounts", "boards", "competitions", "uploads", "web"),
    "server.web": ("api", "pages"),
    "cli": ("terminal", "registry", "results", "server", "experiments", "curation"),
}  # fmt: skip
"""The subpackages of each package; one may import only those before it, also by way of the modules beside them."""


def test_every_subpackage_stands_in_an_order() -> None:
    packages = [module for module, file in FILES.items() if file.name == "__init__.py" and module.count(".") > 1]
    found: dict[str, set[str]] = {}
    for package in packages:
        parent, _, name = package.removeprefix("runner.").rpartition(".")
        found.setdefault(parent, set()).add(name)
    assert found == {parent: set(names) for parent, names in INNER_ORDERS.items()}


def parts_below(parent: str) -> dict[str, set[str]]:
    """The subpackages and modules of a package, each with those of them that it imports."""
    start = f"runner.{parent}."
    found: dict[str, set[str]] = {}
    for module, names in graph().items():
        if module.startswith(start):
            part = module.removeprefix(start).split(".")[0]
            others = {name.removeprefix(start).split(".")[0] for name in names if name.startswith(start)}
            found.setdefault(part, set()).update(others - {part})
    return found


@pytest.mark.parametrize("parent", INNER_ORDERS)
def test_subpackages_import_down_their_order(parent: str) -> None:
    parts, order = parts_below(parent), INNER_ORDERS[parent]
    for place, name in enumerate(order):
        seen, waiting = set[str](), list(parts[name])
        while waiting:
            if (one := waiting.pop()) not in seen:
                seen.add(one)
                waiting += parts.get(one, ())
        assert not seen.intersection(order[place:]), (
            f"{parent}.{name} imports {sorted(seen.intersection(order[place:]))}"
        )


def test_no_folder_has_more_files_than_a_reader_can_hold() -> None:
    sizes = Counter(file.parent for file in FILES.values())
    assert {str(folder): size for folder, size in sizes.items() if size > MAX_FILES} == {}


def test_the_longest_chain_of_rooms_has_at_most_17() -> None:
    below = {name: {room(n) for m, ns in graph().items() if room(m) == name for n in ns} - {name} for name in ORDER}
    length: dict[str, int] = {}
    for name in ORDER:
        length[name] = 1 + max((length[other] for other in below[name]), default=0)
    assert max(length.values()) <= 17


def test_files_make_no_circle() -> None:
    done: set[str] = set()

    def visit(module: str, way: tuple[str, ...]) -> None:
        assert module not in way, " -> ".join((*way[way.index(module) :], module))
        if module not in done:
            for name in sorted(graph()[module]):
                visit(name, (*way, module))
            done.add(module)

    for module in graph():
        visit(module, ())


def test_each_foreign_package_is_imported_at_home_and_only_there() -> None:
    users: dict[str, set[str]] = {}
    for module in FILES:
        for package in {name.split(".")[0] for name in imported(module)} - {"runner", *sys.stdlib_module_names}:
            users.setdefault(package, set()).add(module)
    assert {package: using for package, using in users.items() if package not in ROOMS} == HOMES
    for package, room_of_it in ROOMS.items():
        assert all(module.startswith(room_of_it) for module in users[package]), package


def test_only_models_import_a_provider() -> None:
    outside = [module for module in FILES if not module.startswith("runner.models.")]
    assert not [
        f"{module} imports {name}"
        for module in outside
        for name in imported(module)
        if name.startswith("runner.models.providers")
    ]


def compared_provider_names(code: ast.AST) -> Iterator[str]:
    """Yield each comparison with the name of a provider: capabilities are declared in `provider_traits`."""
    for node in walk(code):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared += [node.value] if isinstance(node, ast.MatchValue) else []
        constants = (part for side in compared for part in ast.walk(side) if isinstance(part, ast.Constant))
        if any(constant.value in PROVIDERS for constant in constants):
            yield ast.unparse(node)


def test_no_module_but_its_own_compares_the_name_of_a_provider() -> None:
    assert not [
        f"{module}: {code}"
        for module in FILES
        if not module.startswith("runner.models.providers.")
        for code in compared_provider_names(tree(module))
    ]


@pytest.mark.parametrize(
    "code", ["p == 'openai'", "p in ('dummy', 'x')", "'replay' != p", "match p:\n    case 'openai': ..."]
)
def test_a_comparison_with_a_provider_name_is_found(code: str) -> None:
    assert list(compared_provider_names(ast.parse(code)))


def test_every_connection_to_duckdb_is_opened_in_one_place() -> None:
    def opens(code: ast.AST) -> bool:
        called = [ast.unparse(node.func) for node in walk(code) if isinstance(node, ast.Call)]
        return any(name.split(".")[0] == "duckdb" for name in called)

    using = [module for module in FILES if "duckdb" in imported(module)]
    assert {module for module in using if opens(tree(module))} == {"runner.base.storage.duckdb_connections"}
    assert not [module for module in FILES if "duckdb.connect" in imported(module)]


def test_every_public_class_has_a_name_of_its_own() -> None:
    modules: dict[str, list[str]] = {}
    for module in FILES:
        for node in walk(tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(module)
    assert {name: users for name, users in modules.items() if len(users) > 1} == {}


# The results folder


def paths_of_results(code: ast.AST) -> Iterator[str]:
    """Where a results folder is taken as a path, or as nothing said: parameters, and fields of classes."""

    def is_path(name: str, kind: ast.expr | None) -> bool:
        kinds = {"Path"} if kind is None else {one.strip(" '\"") for one in ast.unparse(kind).split("|")}
        return "results" in name and not kinds.isdisjoint(("Path", "str", "Any", "object", "PathLike[str]"))

    for node in walk(code):
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
    takers = {f"{module}.{name}" for module in FILES for name in paths_of_results(tree(module))}
    public = {
        "api.specs": ("duration", "load_spec", "load_specs", "sample_size"),
        "api.runs": ("run", "run_sweep", "open_run", "merge"),
        "api.queries": ("query", "compare"),
        "api.judging": ("rejudge",),
        "api.analysis": ("analyze",),
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


def layout_of_results(code: ast.AST) -> bool:
    """Whether code finds a run in a results folder, or the results folder of a run, by itself."""
    for node in walk(code):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            named = node.right.value if isinstance(node.right, ast.Constant) else getattr(node.right, "id", None)
            if named in ("runs", "RUNS"):
                return True
        if isinstance(node, ast.Attribute) and (node.attr == "parents" or "parent.parent" in ast.unparse(node)):
            return True
    return False


def test_only_results_know_where_a_run_stands_in_them() -> None:
    knowing = {module for module in FILES if layout_of_results(tree(module))}
    assert knowing == {"runner.results.leaderboard.results_folder"}


# What is loaded


HEAVY = (
    "dataclasses", "numpy", "duckdb", "openai", "omegaconf", "jinja2", "rich", "scipy", "jsonschema", "aiohttp",
    "fastapi", "sqlalchemy", "uvicorn",
)  # fmt: skip


def _loaded(code: str) -> set[str]:
    """The heavy packages that a fresh process has loaded after some code."""
    done = python(f"import sys\n{code}\nprint('|', *sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("|", 1)[1].split()) & set(HEAVY)


def test_help_loads_nothing_heavy() -> None:
    assert _loaded("from runner.cli.main import main; assert main(['--help']) == 0") == set()


LOADED: Mapping[str, frozenset[str]] = {
    "--help": frozenset(),
    "check specs/quickstart.yaml": frozenset({"jinja2", "markupsafe", "orjson", "yaml"}),
    "sql 'select 1'": frozenset({"_duckdb", "duckdb", "orjson"}),
    "sql": frozenset({"_duckdb", "duckdb", "orjson"}),
    "show last": frozenset({"_duckdb", "duckdb", "orjson"}),
    "leaderboard": frozenset({"_duckdb", "duckdb", "orjson"}),
}
"""The packages of others that each command may load."""


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    run_spec(spec_file(folder), folder / "results")
    return folder


@pytest.mark.parametrize("command", LOADED)
def test_a_command_loads_only_the_packages_that_it_uses(command: str, folder_with_a_run: Path) -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom runner.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print('|', *(set(sys.modules) - before))\nsys.exit(code)"
    )
    done = python(code, *shlex.split(command), cwd=folder_with_a_run)
    assert done.returncode == 0, done.stderr
    packages = {name.split(".")[0] for name in done.stdout.rsplit("|", 1)[1].split() if "cython_" not in name}
    assert packages - {"runner", *sys.stdlib_module_names} <= LOADED[command]


def test_a_commands_help_loads_nothing_heavy() -> None:
    code = f"""from runner.cli.main import main
for command in {list(COMMANDS)}:
    assert main([command, "--help"]) == 0
    assert not {set(HEAVY)} & set(sys.modules), command
"""
    assert _loaded(code) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_the_module_of_every_command_executes_it(name: str) -> None:
    assert inspect.signature(load_command(name).execute).return_annotation == "int"


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert _loaded("import runner; assert runner.__version__") == set()


def test_the_table_of_fine_tune_backends_loads_no_client() -> None:
    assert _loaded("from runner.training.backends.registry import BACKENDS; assert BACKENDS") <= {"dataclasses"}


def test_printing_a_schema_asks_no_dataset_and_no_model() -> None:
    loaded = _loaded("from runner.cli.main import main; assert main(['schema']) == 0")
    assert not loaded & {"duckdb", "openai", "aiohttp", "scipy"}
