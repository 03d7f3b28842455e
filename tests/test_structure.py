"""The structure of the code base: import order, modules that import third-party packages, and fast help."""

from __future__ import annotations

import ast
import inspect
import shlex
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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
"""The packages and modules of `runner/`. Each may import only those before it."""

IMPORTING_MODULES = {
    "anthropic": {"runner.models.providers.anthropic"},
    "aiohttp": {"runner.models.providers.client_errors", "runner.models.providers.openai_http"},
    "multidict": {"runner.models.providers.openai_http"},
    "yarl": {"runner.models.providers.openai_http"},
    "cryptography": {"runner.registry.signing"},
    "datasets": {"runner.spec.datasets.reader"},
    "_duckdb": {
        "runner.base.storage.duckdb_connections",
        "runner.base.storage.duckdb_values",
        "runner.base.storage.parquet",
        "runner.base.storage.read_only_sql",
        "runner.results.leaderboard.database",
        "runner.results.leaderboard.queries",
        "runner.spec.datasets.reader",
        "runner.spec.datasets.subprocess_tasks",
        "runner.spec.datasets.transcripts.inspect_logs",
    },
    "duckdb": {
        "runner.api.queries",
        "runner.base.storage.duckdb_connections",
        "runner.results.leaderboard.database",
        "runner.results.leaderboard.queries",
        "runner.results.leaderboard.ranks",
        "runner.results.leaderboard.rows",
        "runner.results.leaderboard.schema",
        "runner.runs.finished.result",
        "runner.server.boards.board_file",
        "runner.spec.datasets.reader",
        "runner.spec.datasets.subprocess_tasks",
        "runner.spec.datasets.typed_rows",
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
        "runner.statistics.differences",
        "runner.statistics.minimum_detectable_effect",
        "runner.statistics.gap_recovered",
        "runner.statistics.prediction_powered",
        "runner.statistics.signal_detection",
        "runner.statistics.equivalence",
        "runner.statistics.ratings",
        "runner.statistics.sign_flip",
        "runner.statistics.confidence_sequences",
        "runner.statistics.clustered_means",
        "runner.statistics.verdicts",
        "runner.training.dataset_building",
        "runner.curation.audit.label_tests",
        "runner.curation.audit.predictors",
        "runner.curation.audit.report",
        "runner.curation.generation.program_edits",
    },
    "omegaconf": {"runner.documents.interpolation", "runner.documents.yaml_reader"},
    "openai": {"runner.models.providers.openai"},
    "orjson": {
        "runner.pages.report.plain_games",
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
        "runner.registry.bundles.runs",
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
        "runner.pages.redacted",
        "runner.registry.board.cache",
        "runner.registry.board.run_check",
        "runner.registry.redaction.draft_redaction",
        "runner.documents.croissant",
        "runner.registry.bundles.missing_rows",
        "runner.registry.rollouts_file",
        "runner.registry.rollout_checker",
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
    "ray": {"runner.runs.workers.cluster.pool", "runner.runs.workers.cluster.connection"},
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
        "runner.registry.components.freeze",
        "runner.documents.simple_yaml",
        "runner.documents.yaml_errors",
        "runner.models.retirements",
        "runner.registry.redaction.yaml_redaction",
        "runner.results.saved_spec",
    },
}
"""The only modules that may import each third-party package."""

IMPORTING_PACKAGES = {
    "fastapi": "runner.server.web.",
    "pydantic": "runner.server.web.",
    "sqlalchemy": "runner.server.",
    "starlette": "runner.server.web.",
}
"""Third-party packages that all modules with a prefix may import."""


@cache
def find_imports(module: str) -> frozenset[str]:
    """Return all imports of a module: at its top, inside functions, and for type checkers only."""
    return frozenset(iterate_imports(module))


def iterate_imports(module: str) -> Iterator[str]:
    for node in walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def build_import_graph() -> dict[str, set[str]]:
    """Return the imported modules of each module."""
    return {
        module: {name for name in find_imports(module) if name in FILES and name not in (module, "runner")}
        for module in FILES
    }


def find_top_package(module: str) -> str:
    """Return the top-level package of a module. `runner` itself counts as part of the last one."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "cli"


@pytest.mark.full
def test_no_module_imports_from_the_root_package() -> None:
    """`from runner import run` would import a later package without violating the checked order."""
    package_imports = {
        f"{module} imports {name}"
        for module in FILES
        for name in find_imports(module)
        if name.split(".")[0] == "runner" and name.count(".") == 1 and name not in FILES
    }
    assert package_imports <= {"runner.version imports runner.__version__"}


def test_package_order_lists_every_package() -> None:
    assert {find_top_package(module) for module in FILES} == set(ORDER)


def test_imports_follow_the_package_order() -> None:
    rank = {name: index for index, name in enumerate(ORDER)}
    wrong = [
        f"{module} imports {name}"
        for module, names in build_import_graph().items()
        for name in sorted(names)
        if rank[find_top_package(name)] > rank[find_top_package(module)]
    ]
    assert wrong == []


MAX_FILES = 25
"""Maximum number of Python files in one folder, including `__init__.py`."""

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
"""The subpackages of each package. Each may import only those before it, directly or through other modules."""


def test_subpackage_orders_list_every_subpackage() -> None:
    packages = [module for module, file in FILES.items() if file.name == "__init__.py" and module.count(".") > 1]
    subpackages: dict[str, set[str]] = {}
    for package in packages:
        parent, _, name = package.removeprefix("runner.").rpartition(".")
        subpackages.setdefault(parent, set()).add(name)
    assert subpackages == {parent: set(names) for parent, names in INNER_ORDERS.items()}


def find_subpackage_imports(parent: str) -> dict[str, set[str]]:
    """Return the subpackages and modules of a package with their imports among each other."""
    start = f"runner.{parent}."
    imports: dict[str, set[str]] = {}
    for module, names in build_import_graph().items():
        if module.startswith(start):
            part = module.removeprefix(start).split(".")[0]
            imported_parts = {name.removeprefix(start).split(".")[0] for name in names if name.startswith(start)}
            imports.setdefault(part, set()).update(imported_parts - {part})
    return imports


@pytest.mark.parametrize("parent", INNER_ORDERS)
def test_imports_follow_the_subpackage_order(parent: str) -> None:
    parts, order = find_subpackage_imports(parent), INNER_ORDERS[parent]
    for position, name in enumerate(order):
        reachable, pending = set[str](), list(parts[name])
        while pending:
            if (part := pending.pop()) not in reachable:
                reachable.add(part)
                pending += parts.get(part, ())
        assert not reachable.intersection(order[position:]), (
            f"{parent}.{name} imports {sorted(reachable.intersection(order[position:]))}"
        )


def test_no_folder_has_too_many_files() -> None:
    sizes = Counter(file.parent for file in FILES.values())
    assert {str(folder): size for folder, size in sizes.items() if size > MAX_FILES} == {}


def test_longest_import_chain_has_at_most_17_packages() -> None:
    below = {
        name: {find_top_package(n) for m, ns in build_import_graph().items() if find_top_package(m) == name for n in ns}
        - {name}
        for name in ORDER
    }
    length: dict[str, int] = {}
    for name in ORDER:
        length[name] = 1 + max((length[imported_name] for imported_name in below[name]), default=0)
    assert max(length.values()) <= 17


def test_modules_have_no_import_cycles() -> None:
    visited: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in visited:
            for name in sorted(build_import_graph()[module]):
                visit(name, (*path, module))
            visited.add(module)

    for module in build_import_graph():
        visit(module, ())


def test_third_party_packages_are_imported_only_in_their_modules() -> None:
    users: dict[str, set[str]] = {}
    for module in FILES:
        for package in {name.split(".")[0] for name in find_imports(module)} - {"runner", *sys.stdlib_module_names}:
            users.setdefault(package, set()).add(module)
    assert {
        package: modules for package, modules in users.items() if package not in IMPORTING_PACKAGES
    } == IMPORTING_MODULES
    for package, prefix in IMPORTING_PACKAGES.items():
        assert all(module.startswith(prefix) for module in users[package]), package


def test_only_models_import_providers() -> None:
    outside = [module for module in FILES if not module.startswith("runner.models.")]
    assert not [
        f"{module} imports {name}"
        for module in outside
        for name in find_imports(module)
        if name.startswith("runner.models.providers")
    ]


OTHER_MEANINGS: Mapping[str, Collection[str]] = {
    "cli.results.export": {"openai"},  # the chat format
    "exports.formats": {"openai"},
    "exports.verifiers_env.package": {"openai", "anthropic"},  # packages
    "game.prompts.chat_format": {"openai"},
    "pages.boards.marks": {"replay"},  # a kind of run
    "registry.lineage.history": {"replay"},  # a kind of run
    "registry.redaction.machine_names": {"openai"},  # a part of host names
    "results.finetune.formats": {"openai"},
    "results.finetune.rollout_examples": {"openai"},  # the chat format
    "runs.planning.calibration": {"dummy"},  # the provider of a new model group
    "runs.planning.server_overhead": {"openai", "dummy"},  # the providers of new model groups
    "spec.backend_traits": {"openai", "dummy"},
    "spec.chat_formats": {"openai"},
    "spec.experiment": {"openai"},  # the format of examples
    "spec.model_sources": {"openai"},  # the chat format
    "training.backends.registry": {"openai", "dummy"},
}
"""The words in modules outside `models/` that equal the name of a provider. Two of the modules build model groups; in
the others, the words mean something else."""


def find_provider_names(code: ast.AST) -> Iterator[str]:
    """Yield each string that equals the name of a provider: capabilities are declared in `provider_traits`."""
    for node in walk(code):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in PROVIDERS:
            yield node.value


def find_provider_comparisons(code: ast.AST) -> Iterator[str]:
    """Yield each comparison with the name of a provider or with `DEFAULT_PROVIDER`."""
    for node in walk(code):
        compared = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        compared += [node.value] if isinstance(node, ast.MatchValue) else []
        parts = [part for side in compared for part in ast.walk(side)]
        is_default = any("DEFAULT_PROVIDER" in (getattr(part, "id", ""), getattr(part, "attr", "")) for part in parts)
        if is_default or any(name for part in compared for name in find_provider_names(part)):
            yield ast.unparse(node)


def test_only_providers_compare_provider_names() -> None:
    assert not [
        f"{module}: {code}"
        for module in FILES
        if not module.startswith("runner.models.providers.")
        for code in find_provider_comparisons(tree(module))
    ]


def test_provider_names_are_only_in_models() -> None:
    names = {
        module.removeprefix("runner."): set(find_provider_names(tree(module)))
        for module in FILES
        if not module.startswith("runner.models.")
    }
    assert {module: found for module, found in names.items() if found} == OTHER_MEANINGS


@pytest.mark.parametrize(
    "code",
    [
        "p == 'openai'", "p in ('dummy', 'x')", "'replay' != p", "match p:\n    case 'openai': ...",
        "p == DEFAULT_PROVIDER", "p in (provider_traits.DEFAULT_PROVIDER, 'x')",
    ],
)  # fmt: skip
def test_comparison_with_a_provider_name_is_detected(code: str) -> None:
    assert list(find_provider_comparisons(ast.parse(code)))


@pytest.mark.parametrize("code", ["{'human': 'text'}[p]", "NAMES = ('openai', 'x')", "f'{p or \"openai\"}:{model}'"])
def test_name_of_a_provider_is_detected(code: str) -> None:
    assert len(list(find_provider_names(ast.parse(code)))) == 1


def test_duckdb_connections_are_opened_in_one_module() -> None:
    def opens(code: ast.AST) -> bool:
        called = [ast.unparse(node.func) for node in walk(code) if isinstance(node, ast.Call)]
        return bool({"duckdb.connect", "_duckdb.connect"} & set(called))

    assert {module for module in FILES if opens(tree(module))} == {"runner.base.storage.duckdb_connections"}
    assert not [module for module in FILES if {"duckdb.connect", "_duckdb.connect"} & find_imports(module)]


def test_every_public_class_name_is_unique() -> None:
    modules: dict[str, list[str]] = {}
    for module in FILES:
        for node in walk(tree(module)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules.setdefault(node.name, []).append(module)
    assert {name: users for name, users in modules.items() if len(users) > 1} == {}


# The results folder


def find_results_paths(code: ast.AST) -> Iterator[str]:
    """Yield functions and class fields that take a results folder as a path, or without a type."""

    def is_path(name: str, kind: ast.expr | None) -> bool:
        kinds = {"Path"} if kind is None else {type_name.strip(" '\"") for type_name in ast.unparse(kind).split("|")}
        return "results" in name and not kinds.isdisjoint(("Path", "str", "Any", "object", "PathLike[str]"))

    for node in walk(code):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            parameters = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield from (node.name for parameter in parameters if is_path(parameter.arg, parameter.annotation))
        elif isinstance(node, ast.ClassDef):
            yield from (
                f"{node.name}.{statement.target.id}"
                for statement in node.body
                if isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and is_path(statement.target.id, statement.annotation)
            )


def test_only_public_functions_take_the_results_folder_as_a_path() -> None:
    functions = {f"{module}.{name}" for module in FILES for name in find_results_paths(tree(module))}
    public = {
        "api.specs": ("duration", "load_spec", "load_specs", "sample_size"),
        "api.runs": ("run", "run_sweep", "open_run", "merge", "rejudge"),
        "api.queries": ("query", "compare"),
        "api.analysis": ("analyze",),
    }
    assert functions == {f"runner.{module}.{name}" for module, names in public.items() for name in names}


@pytest.mark.parametrize(
    "code",
    [
        "def f(results: Path): ...",
        "def f(*, results_dir: str | Path = 'results'): ...",
        "async def f(results): ...",
        "class A:\n    results: Path",
    ],
)
def test_results_folder_taken_as_a_path_is_detected(code: str) -> None:
    assert len(list(find_results_paths(ast.parse(code)))) == 1


def computes_results_path(code: ast.AST) -> bool:
    """Return whether code computes the path of a run in a results folder, or the results folder of a run."""
    for node in walk(code):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            name = node.right.value if isinstance(node.right, ast.Constant) else getattr(node.right, "id", None)
            if name in ("runs", "RUNS"):
                return True
        if isinstance(node, ast.Attribute) and (node.attr == "parents" or "parent.parent" in ast.unparse(node)):
            return True
    return False


def test_only_one_module_computes_paths_in_the_results_folder() -> None:
    modules = {module for module in FILES if computes_results_path(tree(module))}
    assert modules == {"runner.results.leaderboard.results_folder"}


# Loaded packages


HEAVY_PACKAGES = (
    "dataclasses", "numpy", "duckdb", "openai", "omegaconf", "jinja2", "rich", "scipy", "jsonschema", "aiohttp",
    "fastapi", "sqlalchemy", "uvicorn",
)  # fmt: skip


def find_loaded_packages(code: str) -> set[str]:
    """Return the heavy packages that a new process has loaded after running some code."""
    done = python(f"import sys\n{code}\nprint('|', *sys.modules)")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rsplit("|", 1)[1].split()) & set(HEAVY_PACKAGES)


def test_help_loads_no_heavy_packages() -> None:
    assert find_loaded_packages("from runner.cli.main import main; assert main(['--help']) == 0") == set()


PACKAGES_BY_COMMAND: Mapping[str, frozenset[str]] = {
    "--help": frozenset(),
    "check specs/quickstart.yaml": frozenset({"jinja2", "markupsafe", "orjson", "yaml"}),
    "sql 'select 1'": frozenset({"_duckdb", "orjson"}),
    "sql": frozenset({"_duckdb", "orjson"}),
    "show last": frozenset({"_duckdb", "orjson"}),
    "leaderboard": frozenset({"_duckdb", "orjson"}),
}
"""The third-party packages that each command may load."""


@pytest.fixture(scope="module")
def folder_with_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loaded")
    run_spec(spec_file(folder), folder / "results")
    return folder


@pytest.mark.parametrize("command", PACKAGES_BY_COMMAND)
def test_command_loads_only_the_packages_that_it_uses(command: str, folder_with_a_run: Path) -> None:
    code = (
        "import sys\nbefore = set(sys.modules)\nfrom runner.cli.main import main\ncode = main(sys.argv[1:])\n"
        "print('|', *(set(sys.modules) - before))\nsys.exit(code)"
    )
    done = python(code, *shlex.split(command), cwd=folder_with_a_run)
    assert done.returncode == 0, done.stderr
    packages = {name.split(".")[0] for name in done.stdout.rsplit("|", 1)[1].split() if "cython_" not in name}
    assert packages - {"runner", *sys.stdlib_module_names} <= PACKAGES_BY_COMMAND[command]


def test_help_of_commands_loads_no_heavy_packages() -> None:
    code = f"""from runner.cli.main import main
for command in {list(COMMANDS)}:
    assert main([command, "--help"]) == 0
    assert not {set(HEAVY_PACKAGES)} & set(sys.modules), command
"""
    assert find_loaded_packages(code) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_module_has_an_execute_function(name: str) -> None:
    assert inspect.signature(load_command(name).execute).return_annotation == "int"


def test_importing_the_package_loads_no_heavy_packages() -> None:
    assert find_loaded_packages("import runner; assert runner.__version__") == set()


def test_registry_of_fine_tuning_backends_loads_no_clients() -> None:
    assert find_loaded_packages("from runner.training.backends.registry import BACKENDS; assert BACKENDS") <= {
        "dataclasses"
    }


def test_building_boards_loads_neither_the_engine_nor_the_training_loop() -> None:
    done = python("import sys, runner.server.boards.builder; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert not {"runner.rollouts.engine", "runner.training.dispatch"}.intersection(done.stdout.split())


def test_printing_a_schema_loads_no_dataset_or_model_packages() -> None:
    loaded = find_loaded_packages("from runner.cli.main import main; assert main(['schema']) == 0")
    assert not loaded & {"duckdb", "openai", "aiohttp", "scipy"}
