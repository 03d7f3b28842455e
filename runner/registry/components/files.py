"""Build components from a file or folder: protocols, prompts and datasets, with their facts and identity.

`runner.registry.components.drafts` uses the builders. Each component is checked as if a spec named it. Its identity is
the hash that runs record. The identity does not depend on comments and formatting, so it shows whether a release and a
run have the same component.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import ReleaseError, SpecError, UsageError, os_errors_as
from runner.base.hashing import tagged_hash
from runner.base.problems import Place, Problem
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.croissant import FILE as CROISSANT_FILE
from runner.documents.croissant import build_croissant, find_column_kinds, read_rai_fields
from runner.documents.layer_loading import EXTENDS
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind
from runner.documents.yaml_reader import read_yaml
from runner.documents.yaml_writer import dump
from runner.game.prompts.templates import (
    ANSWER_VARIABLES,
    CHECKER,
    MAX_BYTES,
    STATEMENT_VARIABLES,
    SUFFIX,
    VARIABLES,
    PromptSet,
    VariableRules,
    function_problems,
    is_function,
    source_path,
    stored_name,
    template_of_file,
    template_problems,
)
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.game.protocols.schema import file_content, parameter_content
from runner.registry.draft import PublisherChoices
from runner.results.provenance.file_pins import PinnedFiles
from runner.rollouts.identity import protocol_content
from runner.spec.datasets.loader import load_dataset
from runner.spec.datasets.settings import DatasetSettings

_TABLE_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class UnnamedComponent:
    """A component before it gets an owner, a name and a version."""

    files_by_kind: Mapping[str, PinnedFiles]
    """The user's files, by kind. The release records their commits."""
    contents: Mapping[str, Content]
    identity: Mapping[str, str]
    facts: Mapping[str, Any]
    links: tuple[ReleaseLink, ...] = ()
    notes: tuple[str, ...] = ()
    description: str = ""
    """The description of the release, unless the publisher gives another one."""


# Protocols


def load_protocol_file(path: Path) -> tuple[bytes, Protocol]:
    """Return the protocol in a file, and the content of the file for a release.

    If the protocol extends others, the content is merged with them. If not, it is the user's file, unchanged.

    Raises:
        SpecError: the file has mistakes; the error lists them all.
        ReleaseError: the file cannot be read.
    """
    protocol = load_protocol(path.name, folder=path.absolute().parent, where=lambda _: Place(str(path)))
    extends_others = EXTENDS in read_yaml(path).data
    return dump(_protocol_data(protocol)).encode() if extends_others else _read_file(path), protocol


def _protocol_data(protocol: Protocol) -> dict[str, object]:
    data: dict[str, Any] = file_content(protocol.file)
    if not protocol.declares_verifier_first:
        # If the file had this key, it would declare that the parameter can be changed.
        del data["parameters"]["verifier_first"]
    without_null_values: dict[str, Any] = remove_nulls(data)
    return without_null_values


def remove_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: remove_nulls(item) for name, item in value.items() if item is not None}
    return [remove_nulls(item) for item in value] if isinstance(value, list) else value


def build_protocol(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path} is not a protocol file; name a .yaml file")
    data, protocol = load_protocol_file(path)
    parameters = parameter_content(protocol.parameters)
    return UnnamedComponent(
        files_by_kind={Kind.PROTOCOL: PinnedFiles(path, (path,))},
        contents={"protocol.yaml": data},
        identity={"protocol": tagged_hash("protocol", protocol_content(protocol))},
        facts={
            "protocol": protocol.name,
            "agents": {name: agent.role for name, agent in protocol.file.agents.items()},
            "channels": sorted(protocol.file.channels),
            "parameters": parameters,
            "fixed": sorted(protocol.file.fixed),
        },
        description=f"Protocol {protocol.name}: {comma_join(protocol.file.agents)}",
    )


# Prompts


def load_template_files(folder: Path) -> dict[str, bytes]:
    """Return the templates and Python functions of a folder, by the names of their files in a release.

    Raises:
        UsageError: the folder has no templates.
        SpecError: templates or functions have mistakes; the error lists them all.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder; name a folder with *{SUFFIX} files")
    file_names = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
    names = {name for file_name in file_names if (name := template_of_file(file_name)) is not None}
    if all(map(is_function, names)):
        raise UsageError(f"{folder} has no *{SUFFIX} file; add a template for each agent")
    problems: list[Problem] = []
    contents = {}
    for name in sorted(names):
        path = source_path(folder, name)
        data, place = _read_file(path, MAX_BYTES), Place(str(path))
        contents[stored_name(name)] = data
        try:
            text = data.decode("utf-8-sig")
            if is_function(name) and not name.endswith(CHECKER):  # the spec names the function of a checker
                problems.extend(function_problems(text, place))
            elif not is_function(name):
                problems.extend(template_problems(text, place, VariableRules()))
        except UnicodeDecodeError as error:
            problems.append(Problem(place, "", f"not UTF-8 at byte {error.start}; save the file as UTF-8"))
    if problems:
        raise SpecError(problems)
    return contents


def build_prompts(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    files = load_template_files(path)
    prompts = PromptSet({str(template_of_file(name)): data.decode("utf-8-sig") for name, data in files.items()})
    hashes = {name: tagged_hash("prompt", text) for name, text in sorted(prompts.sources.items())}
    lists_answers = any("decision_line" in used for used in prompts.variables.values())
    runner_variables = VARIABLES.keys() | ANSWER_VARIABLES.keys() if lists_answers else VARIABLES.keys()
    if any(used & {"states", "sub_claim"} for used in prompts.variables.values()):
        runner_variables |= STATEMENT_VARIABLES.keys()
    variables = {name: sorted(used & runner_variables) for name, used in prompts.variables.items()}
    columns = sorted({name for used in prompts.variables.values() for name in used - runner_variables})
    agents = sorted({name.partition(".")[0] for name in prompts.sources})
    return UnnamedComponent(
        files_by_kind={Kind.PROMPTS: PinnedFiles(path, tuple(source_path(path, name) for name in prompts.sources))},
        contents=files,
        identity={"prompts": tagged_hash("prompts", hashes)},
        facts={
            "agents": agents,
            "columns": columns,
            "templates": {name: {"sha256": hashes[name], "variables": variables[name]} for name in sorted(hashes)},
        },
        description=f"Prompts of {comma_join(agents)}",
    )


# Datasets


def build_dataset(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    if path.suffix not in _TABLE_SUFFIXES:
        raise UsageError(f"{path} is not a dataset file; name a file with suffix {comma_join(_TABLE_SUFFIXES)}")
    settings = DatasetSettings(path=path.name)
    dataset = load_dataset(settings, path, 0, lambda _: Place(str(path)))
    name = f"dataset{path.suffix}"
    licence = choices.dataset_licence or choices.licence
    labels = Counter("none" if point.label is None else str(point.label) for point in dataset.datapoints)
    splits = Counter(str(point.columns["split"]) for point in dataset.datapoints if point.columns.get("split"))
    description = choices.description or f"{len(dataset.datapoints):,} datapoints: {comma_join(dataset.columns)}"
    columns = {
        "id": "text",
        **find_column_kinds({"label": point.label, **point.columns} for point in dataset.datapoints),
    }
    rai = read_rai_fields(path.with_name(CROISSANT_FILE))
    croissant = build_croissant(choices.name or path.stem, description, licence, {name: path}, columns, rai=rai)
    return UnnamedComponent(
        files_by_kind={Kind.DATASET: PinnedFiles(path, (path,))},
        contents={name: path, "croissant.json": croissant},
        identity={"dataset": dataset.sha256, "source": dataset.source_sha256},
        facts={
            "rows": len(dataset.datapoints),
            "columns": list(dataset.columns),
            "labels": dict(sorted(labels.items())),
            "splits": dict(sorted(splits.items())),
            "licence": licence,
        },
        notes=() if licence else ("no license is given, so no one may use it; add --license",),
        description=description,
    )


def _read_file(path: Path, max_bytes: int = 1 << 20) -> bytes:
    with os_errors_as(ReleaseError, f"cannot read {path}"):
        return read_bounded(path, max_bytes)
