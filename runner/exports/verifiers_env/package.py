"""Writes the games of a spec as an installable Python package for verifiers 0.4 and the Environments Hub.

The package has two modules: the environment, and a core with the modules of nip-run that play a game. It does not need
nip-run, whose dependencies conflict with those of verifiers.
"""

from __future__ import annotations

import ast
import json
import keyword
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from string import Template
from tempfile import TemporaryDirectory

import orjson

import runner
from runner.base import package_data
from runner.base.batches import group_pairs
from runner.base.errors import RunError, SpecError, UsageError
from runner.base.storage.safe_files import create, make_folders
from runner.base.text import in_one_line
from runner.documents.dataclass_schema import to_plain
from runner.exports.verifiers_env.packaged_game import PackagedGame, read_job
from runner.exports.verifiers_env.portability import find_problems
from runner.models.settings import ModelSettings
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.spec.datasets.datapoint import Datapoint
from runner.spec.datasets.settings import DatasetSettings
from runner.spec.experiment import Experiment, ProtocolUse
from runner.version import __version__

VERIFIERS = "verifiers==0.4.*"
_PINNED = ("jinja2", "orjson")
"""Packages whose exact version renders the prompts and reads the answers."""
_UNPINNED = ("numpy>=2.3", "aiohttp>=3.9")
_TEMPLATES = Path(__file__).parent / "templates"
_OTHER_MODULES = (
    "aiohttp", "anthropic", "datasets", "httpx", "jinja2", "numpy", "openai", "orjson", "pydantic", "renderers", "rich",
    "runner", "torch", "transformers", "trl", "verifiers", "vllm",
    "harbor", "nemo_gym", "openenv", "textarena",
)  # fmt: skip
"""Modules that are probably in the environment of a package, and verifiers' own tasksets, which it finds first."""
_SENT_SETTINGS = (
    "model", "chat_format", "system_role", "send_name", "temperature", "top_p", "max_completion_tokens", "max_tokens",
    "seed", "stop", "reasoning_effort", "logprobs", "top_logprobs", "extra_body",
)  # fmt: skip
"""The settings of a model group that determine its requests. A package has no addresses, keys or headers."""


@dataclass(frozen=True)
class WrittenPackage:
    """A package that was written, and its number of datapoints and games."""

    folder: Path
    name: str
    agents: Mapping[str, bool]
    """Whether each agent is trainable."""
    datapoints: int
    games: int
    rows: Path | None
    """The file of the rows, if the package does not include them."""


def write_package(plan: Plan, folder: Path, rows: Path | None = None) -> WrittenPackage:
    """Write a plan's games as a package into a new folder, whose name becomes the name of the environment.

    `rows` is the file for the dataset's rows, if the package must not include them.

    Raises:
        SpecError: the spec cannot be exported; lists all reasons.
        UsageError: the folder is not empty, its name cannot be the name of a Python module, or `rows` exists.
        RunError: a row of the dataset cannot be stored as JSON.
        OSError: the package cannot be written.
    """
    name = _module_name(folder)
    if problems := find_problems(plan):
        raise SpecError(problems)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise UsageError(f"{folder} is not an empty folder; give another one, or remove it")
    if rows is not None:
        _check_rows_file(rows, folder)
    content = b"".join(_row_lines(plan))
    parts = _PackageParts(plan, name, content, rows)
    make_folders(folder.absolute().parent)
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=".export-") as temporary:
        written = Path(temporary) / "package"
        for path, text in parts.files():
            make_folders((written / path).parent)
            with create(written / path) as file:
                file.write(text.encode() if isinstance(text, str) else text)
        if rows is not None:
            make_folders(rows.absolute().parent)
            with create(rows) as file:
                file.write(content)
        written.rename(folder)
    trainable = {agent: not settings.freeze for agent, settings in parts.game.experiment.agents.items()}
    return WrittenPackage(folder, name, trainable, len(plan.points), plan.size, rows)


def _check_rows_file(rows: Path, folder: Path) -> None:
    if os.path.lexists(rows):
        raise UsageError(f"--rows: {rows} exists; give another file, or remove it")
    if rows.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"--rows: {rows} is in the package's folder; give a file outside {folder}")


def _module_name(folder: Path) -> str:
    """Return the name of the environment in a folder.

    Raises:
        UsageError: Python cannot import a module of this name.
    """
    name = folder.absolute().name.replace("-", "_")
    if not re.fullmatch(r"[a-z]([a-z0-9_]*[a-z0-9])?", name) or keyword.iskeyword(name):
        raise UsageError(
            f"the environment gets the name of its folder, and {name!r} cannot be the name of a Python module; use "
            "small letters, digits and, not at the end, _, as in nip_games"
        )
    if name in {*sys.stdlib_module_names, *_OTHER_MODULES}:
        raise UsageError(f"another Python module has the name {name!r}; give another folder, such as {name}_games")
    return name


def package_game(plan: Plan) -> PackagedGame:
    """Return the game of a plan as a package stores it."""
    spec, protocol = plan.spec, plan.spec.protocol
    experiment = spec.experiment
    groups = {agent.model for agent in experiment.agents.values()}
    checker = experiment.dataset.checker
    return PackagedGame(
        protocol.file,
        protocol.parameters,
        Experiment(
            name=experiment.name, dataset=DatasetSettings(path="rows.jsonl", checker=checker),
            protocol=ProtocolUse(use=protocol.name), prompts="prompts",
            models={group: _without_server(experiment.models[group]) for group in sorted(groups)},
            agents={name: replace(agent, selector=None) for name, agent in experiment.agents.items()},
            decision_format=experiment.decision_format, verdict=experiment.verdict, votes=experiment.votes,
            retry=experiment.retry,
        ),
        dict(spec.prompts.sources),
        protocol.declares_verifier_first,
        protocol.exchanges_stances,
        plan.seats or (),
    )  # fmt: skip


def _without_server(settings: ModelSettings) -> ModelSettings:
    sent = {name: getattr(settings, name) for name in _SENT_SETTINGS}
    return ModelSettings(**{**sent, "chat_format": settings.resolved_chat_format})


def _row_lines(plan: Plan) -> Iterator[bytes]:
    """Yield a line for each datapoint, with its games.

    Raises:
        RunError: a datapoint has a value that JSON does not have.
    """
    games = group_pairs((job.datapoint.id, job) for job in plan.jobs())
    for point in plan.points:
        jobs = games.get(point.id, [])
        line = {"datapoint": to_plain(point), "games": [_describe_job(job) for job in jobs]}
        try:
            content = orjson.dumps(line)
        except (TypeError, ValueError) as error:
            raise RunError(f"datapoint {point.id!r} cannot be stored as JSON: {error}; change its columns") from error
        _check_row(content, point, jobs)
        yield content + b"\n"


def _describe_job(job: Job) -> dict[str, object]:
    return {field.name: getattr(job, field.name) for field in fields(job) if field.name != "datapoint"}


def _check_row(content: bytes, point: Datapoint, jobs: Iterable[Job]) -> None:
    """Check that a row has the same datapoint and games once it is read.

    Raises:
        RunError: a value differs, such as a date that became a text.
    """
    line = orjson.loads(content)
    for job, game in zip(jobs, line["games"], strict=True):
        if read_job({"datapoint": line["datapoint"], **game}) != job:
            raise RunError(f"datapoint {point.id!r} has values that JSON changes; change its columns")


class _PackageParts:
    """The files of a package."""

    def __init__(self, plan: Plan, name: str, rows: bytes, rows_file: Path | None) -> None:
        self.plan, self.name, self.core, self.rows, self.rows_file = plan, name, f"{name}_core", rows, rows_file
        self.game = package_game(plan)

    def files(self) -> Iterator[tuple[Path, str | bytes]]:
        """Yield the path in the package and the content of each file."""
        core, values = Path(self.core), self._values()
        for name in ("README.md", "pyproject.toml", "eval.toml"):
            yield Path(name), _fill(name, values)
        yield Path("LICENSE"), (package_data.root() / "LICENSE").read_bytes()
        yield Path(self.name) / "__init__.py", _fill("environment.py", values)
        yield core / "__init__.py", f"from {self.core}.harness import ChatHarness\n\n__all__ = ['ChatHarness']\n"
        yield core / "harness.py", _fill("harness.py", values)
        yield core / "game.json", orjson.dumps(to_plain(self.game), option=orjson.OPT_INDENT_2)
        if self.rows_file is None:
            yield core / "rows.jsonl", self.rows
        for path, text in collect_sources(self.core).items():
            yield core / path, text

    def _values(self) -> Mapping[str, str]:
        """Return the values of the variables in the templates."""
        spec, points = self.plan.spec, len(self.plan.points)
        title = _plain_line(spec.experiment.description or spec.protocol.file.description or "A game of nip-run.")
        dependencies = [VERIFIERS, *(f"{package}=={version(package)}" for package in _PINNED), *_UNPINNED]
        option, rows_text = "", f"`{self.core}/rows.jsonl` has the {points} rows of the dataset"
        if self.rows_file is not None:
            option = "taskset.rows ROWS"
            rows_text = f"ROWS is the file that was written with this package, with the {points} rows of the dataset"
        return {
            "name": self.name,
            "core": self.core,
            "distribution": self.name.replace("_", "-"),
            "title": title,
            "description": json.dumps(title, ensure_ascii=False),
            "version": __version__,
            "protocol": spec.protocol.name,
            "spec": spec.experiment.name,
            "seats": "\n".join(f"    {name}: _Seat = _seat()" for name in self.game.experiment.agents),
            "seat_table": "\n".join(self._seat_lines()),
            "dependencies": "\n".join(f'    "{dependency}",' for dependency in dependencies),
            "rows_sha256": sha256(self.rows).hexdigest(),
            "rows_text": rows_text,
            "games": str(self.plan.size),
            "validate_rows": f" --{option}" if option else "",
            "eval_rows": f" --env.{option}" if option else "",
        }

    def _seat_lines(self) -> Iterator[str]:
        parameters = self.plan.spec.protocol.parameters
        for name, agent in self.game.experiment.agents.items():
            is_prover = name in self.plan.spec.protocol.prover_names
            reward = f"{parameters.prover_reward:g} if the verdict is its stance"
            if not is_prover:
                right, wrong = parameters.verifier_reward, parameters.verifier_incorrect_penalty
                reward = f"{right:g} for a right and {wrong:g} for a wrong verdict"
                reward += f", {parameters.verifier_terminated_penalty:g} without a verdict after the last round"
                if parameters.verifier_no_guess_reward:
                    reward += f", {parameters.verifier_no_guess_reward:g} for each question instead of a verdict"
            if parameters.shared_reward:
                reward = "that of the verifier" if is_prover else reward
            role, trainable = "prover" if is_prover else "verifier", "no" if agent.freeze else "yes"
            yield f"| `{name}` | {role} | {trainable} | {reward} |"


def _plain_line(text: str) -> str:
    """Return a text in one line, without characters that end or escape a string in Python and TOML."""
    return in_one_line(" ".join(text.split())).replace("\\", "/").replace('"', "'")


def _fill(name: str, values: Mapping[str, str]) -> str:
    return Template((_TEMPLATES / f"{name}.txt").read_text("utf-8")).substitute(values)


ROOT = "runner.exports.verifiers_env.packaged_game"
"""The module that plays the games of a package."""

_PACKAGE = Path(runner.__file__).resolve().parent
_NAME = runner.__name__


def collect_sources(package: str) -> Mapping[Path, str]:
    """Return the source of each module below a package of this name, by its path in the package's folder.

    The modules are `ROOT` and every module of nip-run that it imports, directly or not, also inside functions. So the
    package plays by the same code, without nip-run. An `__init__.py` of nip-run is replaced by an empty one, since it
    may import more than the game needs.
    """
    sources: dict[Path, str] = {}
    names, visited = [ROOT], {ROOT}
    while names:
        path = _module_path(names.pop())
        text = (_PACKAGE / path).read_text("utf-8")
        sources[path] = _rename_imports(text, package)
        new = {name for node in _find_imports(ast.parse(text)) for name in _imported_modules(node)} - visited
        visited |= new
        names += sorted(new)
    packages = {Path(*path.parts[:depth]) for path in sources for depth in range(1, len(path.parts))}
    return dict(sorted({**{folder / "__init__.py": "" for folder in packages}, **sources}.items()))


def _module_path(name: str) -> Path:
    """Return the path of a module in nip-run's folder, if it is a module and no package."""
    return Path(*name.split(".")[1:]).with_suffix(".py")


def _is_module(name: str) -> bool:
    return "." in name and (_PACKAGE / _module_path(name)).is_file()


def _find_imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield each statement that imports from nip-run when the program runs."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            for part in child.orelse:
                yield from _find_imports(part)
        elif isinstance(child, ast.ImportFrom):
            if (child.module or "").split(".")[0] == _NAME:
                yield child
        elif isinstance(child, ast.Import):
            if any(alias.name.split(".")[0] == _NAME for alias in child.names):
                yield child
        else:
            yield from _find_imports(child)


def _imported_modules(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Yield the modules of nip-run that a statement imports."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_module(alias.name))
        return
    for alias in node.names:
        submodule = f"{node.module}.{alias.name}"
        yield from (name for name in (submodule, node.module or "") if _is_module(name))


def _rename_imports(text: str, package: str) -> str:
    """Return the source with `package` instead of nip-run's name in each statement that imports from nip-run."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if any(module.split(".")[0] == _NAME for module in modules):
            line = lines[node.lineno - 1]
            lines[node.lineno - 1] = line.replace(f" {_NAME}.", f" {package}.", 1)
    return "".join(lines)
