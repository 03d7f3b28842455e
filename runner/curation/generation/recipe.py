"""A recipe: the YAML file that says how `nip-run make-dataset` makes a dataset of right and wrong programs."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from runner.base import package_data
from runner.base.errors import SpecError
from runner.base.problems import Problem
from runner.base.storage.fetched_markers import fetched_folder
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.curation.benchmark_formats import ProgramFormat
from runner.documents.dataclass_schema import build_schema, from_plain, option
from runner.documents.fetched_files import path_refusal
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.overrides import Override
from runner.documents.schema_check import check_schema
from runner.game.prompts.sandbox import scan
from runner.game.protocols.checkers import CheckerSettings
from runner.models.layers.budget import BudgetSettings
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.spec.datasets.loader import HUB, Dataset, load_dataset
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import NAME_RULE

Task = Literal["bug", "refactoring", "proposal"]
"""The tasks of the model. Each has a template."""

TEMPLATE_VARIABLES: Mapping[str, str] = {
    "question": "the question of the problem",
    "solution": "the right program to edit; empty for `proposal`",
    "inputs": "`shown_inputs` inputs of tests, as a list of texts",
}
"""The variables of a recipe's templates."""

MAX_TEMPLATE = 1 << 20
_BUILTIN_PROMPTS = Path(__file__).resolve().parent / "prompts"
_UNLABELLED = CheckerSettings(by="exact", column="id")
"""A checker, because problems have no labels: tests label what the model writes about them."""


@dataclass(frozen=True, kw_only=True)
class ProgramTests:
    """The tests of the problems, and how programs run."""

    format: ProgramFormat = option(
        "The columns with tests. `apps`: `input_output`, with `inputs`, `outputs` and, for calls, `fn_name`. "
        "`humaneval`: `test` and `entry_point`. `mbpp`: `test_list` and, if set, `test_setup_code`.",
        example="apps",
    )
    cpu_seconds: float = option("CPU time limit of a test in seconds.", default=5.0, exclusiveMinimum=0, maximum=3600)
    memory: int = option("Memory limit of a test in bytes.", default=1 << 30, minimum=1 << 26)
    repetitions: int = option(
        "How often each test is repeated, each time with another order of sets. A program whose verdicts differ is "
        "not used.",
        default=2,
        minimum=1,
        maximum=100,
    )
    fuzzed_inputs: int = option(
        "With `bugs`: number of inputs per problem that nip-run makes by small changes of the tests' inputs. Programs "
        "are compared where all right solutions agree. 0: only the tests count.",
        default=30,
        minimum=0,
        maximum=1000,
    )
    checker: str | None = option(
        "A Python file that defines `check(test_input, output, expected)`, for problems with several right outputs. It "
        "returns True or False, and runs in the sandbox. null: outputs are compared as in APPS.",
        default=None,
        example="checker.py",
        path=True,
    )


@dataclass(frozen=True, kw_only=True)
class RecipeFile:
    """A recipe for a dataset of right and wrong programs."""

    name: str = option("The dataset's name.", example="subtle-bugs", **NAME_RULE)
    description: str = option("A description for readers.", default="", example="Programs with one subtle error.")
    seed: int = option("The random seed, for splits and fuzzed inputs.", default=0, minimum=0)
    make: Literal["bugs", "proposals"] = option(
        "`bugs`: a model inserts an error into a right solution, and refactors the solution without an error. "
        "`proposals`: a model solves the problems, and the tests label its programs.",
        default="bugs",
    )
    dataset: DatasetSettings = option(
        "The problems: a file or a dataset of the Hub with the columns `id`, `question`, `solutions` (a list of right "
        "programs, or one program; not needed for `proposals`), and the tests.",
        example={"path": "data/problems.jsonl"},
    )
    tests: ProgramTests = option("The tests of the problems.", example={"format": "apps"})
    model: ModelSettings = option("The model that writes programs.", example={"model": "gpt-6-luna"})
    prompts: str | None = option(
        "A folder with the templates `bug.jinja`, `refactoring.jinja` and `proposal.jinja`; missing "
        "templates are the built-in ones. null: only built-in templates.",
        default=None,
        example="prompts/edits",
        path=True,
    )
    versions: int = option(
        "Number of programs that the model writes for each problem and task.", default=4, minimum=1, maximum=1000
    )
    refactor: bool = option(
        "With `bugs`: the right program of a pair is a refactored one, so that being edited does not reveal the label. "
        "false: it is the given solution.",
        default=True,
    )
    shown_inputs: int = option(
        "Number of inputs of tests that the templates can show the model.", default=0, minimum=0, maximum=100
    )
    max_failing: float = option(
        "With `bugs`: do not use a program that fails more than this share of the tests or, if it fails none, of the "
        "fuzzed inputs.",
        default=0.5,
        exclusiveMinimum=0,
        maximum=1,
    )
    max_edit: float = option(
        "With `bugs`: do not use a program whose edit distance from the given solution exceeds this share of the "
        "longer program.",
        default=0.6,
        exclusiveMinimum=0,
        maximum=1,
    )
    splits: Mapping[str, float] = option(
        "The splits, each with its share of the problems. All programs of a problem are in one split. Empty: the "
        "dataset has no column `split`.",
        factory=lambda: {"train": 0.8, "test": 0.2},
        example={"train": 0.8, "test": 0.2},
        additionalProperties={"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    )
    format: Literal["jsonl", "parquet"] = option("The format of the dataset's file.", default="jsonl")
    concurrency: int = option("Maximum number of calls at the same time.", default=64, minimum=1, maximum=100_000)
    retry: Retry = option("What nip-run does after each kind of failure.", factory=Retry)
    budget: BudgetSettings = option("Limits on what the calls may cost.", factory=BudgetSettings)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """The tasks that the model gets about each problem."""
        if self.make == "proposals":
            return ("proposal",)
        return ("bug", "refactoring") if self.refactor else ("bug",)


@dataclass(frozen=True)
class Recipe:
    """A loaded recipe, with its templates, its checker's source, and the rows of its problems."""

    file: RecipeFile
    path: Path
    templates: Mapping[Task, str]
    checker: str | None
    problems: Dataset


def recipe_schema() -> dict[str, Any]:
    """Return the JSON Schema of a recipe."""
    return build_schema(RecipeFile, "nip-run dataset recipe")


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Load a recipe with its problems.

    Raises:
        SpecError: the recipe, a file that it names, or the dataset has errors; lists all of them.
    """
    schema = recipe_schema()
    file_path = package_data.find_file(str(path), Path())
    rules = KeyRules(schema["properties"])
    layered = load_layers(file_path or path, str(path), [Override(text) for text in overrides], _find_base, rules)
    problems = layered.problems or [*layered.wrong_nulls, *check_schema(layered, schema)]
    if fetched_folder([(file_path or path).absolute().parent]) is not None:
        message = "a downloaded recipe is not run where it is; read it, and copy it to a folder of your own"
        problems = [layered.problem_at((), message)]
    if problems:
        raise SpecError(problems)
    file = from_plain(RecipeFile, layered.data)
    templates, checker, problems = _read_files(file, layered)
    problems += [*_value_problems(file, layered), *_template_problems(templates, layered)]
    try:
        dataset = _load_problems(file, layered)
    except SpecError as error:
        raise SpecError([*problems, *error.problems]) from error
    if problems:
        raise SpecError(problems)
    return Recipe(file, file_path or path, templates, checker, dataset)


def _find_base(name: str, folder: Path) -> Path | None:
    path = folder / name
    return path if package_data.is_file(path) and not path_refusal(folder, path) else None


def _load_problems(file: RecipeFile, layered: LayeredData) -> Dataset:
    settings = replace(file.dataset, checker=_UNLABELLED)
    path = None
    if not settings.path.startswith(HUB):
        path = package_data.find_file(settings.path, layered.folder(("dataset", "path")))
        if path is None:
            message = f"no file {settings.path!r} next to the recipe or among the built-in files"
            raise SpecError([layered.problem_at(("dataset", "path"), message)])
    return load_dataset(settings, path, file.seed, lambda key: layered.place(tuple(key.split("."))))


def _read_files(file: RecipeFile, layered: LayeredData) -> tuple[dict[Task, str], str | None, list[Problem]]:
    """Return the templates, the source of the checker, and the problems of these files."""
    problems: list[Problem] = []

    def read(path: Path, key: tuple[str, ...]) -> str:
        try:
            return read_bounded(path, MAX_TEMPLATE).decode()
        except (OSError, UnicodeDecodeError) as error:
            message = f"cannot read {path}: {getattr(error, 'strerror', None) or error}; correct the name or the file"
            problems.append(layered.problem_at(key, message))
            return ""

    folder = None
    if file.prompts is not None:
        folder = package_data.find_file(file.prompts, layered.folder(("prompts",)))
        if folder is None or not folder.is_dir():
            problems.append(layered.problem_at(("prompts",), f"no folder {file.prompts!r} next to the recipe"))
            folder = None
    templates: dict[Task, str] = {}
    for task in file.tasks:
        name = f"{task}.jinja"
        path = folder / name if folder is not None and (folder / name).is_file() else _BUILTIN_PROMPTS / name
        templates[task] = read(path, ("prompts",))
    checker = None
    if file.tests.checker is not None:
        checker = read(layered.folder(("tests", "checker")) / file.tests.checker, ("tests", "checker"))
        if checker and (message := _checker_problem(checker)):
            problems.append(layered.problem_at(("tests", "checker"), message))
    return templates, checker, problems


def _checker_problem(source: str) -> str:
    """Return what is wrong with the source of a checker; empty if nothing is."""
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"the file is not Python: {error}; correct it"
    if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in statements):
        return ""
    return "the file defines no function check(test_input, output, expected); define it"


def _template_problems(templates: Mapping[Task, str], layered: LayeredData) -> Iterator[Problem]:
    for task, source in templates.items():
        scanned = scan(source)
        for line, message in scanned.refused:
            yield layered.problem_at(("prompts",), f"{task}.jinja, line {line}: {message}")
        for name in () if scanned.refused else sorted(scanned.variables.keys() - TEMPLATE_VARIABLES.keys()):
            message = f"{task}.jinja: no variable {name!r}; use {comma_join(TEMPLATE_VARIABLES)}"
            yield layered.problem_at(("prompts",), message)


def _value_problems(file: RecipeFile, layered: LayeredData) -> list[Problem]:
    """Return the problems of keys that the schema does not find."""
    problems = []
    total = sum(file.splits.values())
    if file.splits and abs(total - 1) > 1e-9:
        message = f"the shares add up to {total:g}; they must add up to 1"
        problems.append(layered.problem_at(("splits",), message))
    for key in ("answers", "checker", "explode"):
        if getattr(file.dataset, key):
            message = "a recipe's problems have no answers and labels; remove this key"
            problems.append(layered.problem_at(("dataset", key), message))
    if file.dataset.balance != "none":
        problems.append(layered.problem_at(("dataset", "balance"), "the made dataset is always balanced; remove it"))
    return problems
