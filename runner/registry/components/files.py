"""A file or folder of somebody's project into the release of a component: its files, its facts, its identity.

Each kind is checked as it is when a spec names it. The identity is the hash that runs have of the same thing, so that
two releases, or a release and a run, can be seen to be of one game, however their files are written.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.errors import Place, Problem, ReleaseError, RunError, SpecError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.storage.safe_files import read_bounded
from runner.base.text import comma_join
from runner.documents.dataclass_schema import to_plain
from runner.documents.layer_merge import EXTENDS
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind
from runner.documents.yaml_reader import read
from runner.documents.yaml_writer import dump
from runner.game.prompts.templates import (
    CONFIDENCE,
    FORBIDDEN,
    LAST_ROUND,
    MAX_BYTES,
    SUFFIX,
    VARIABLES,
    PromptSet,
    template_problems,
)
from runner.game.protocols.loader import load_protocol
from runner.game.protocols.protocol import Protocol
from runner.registry.components.croissant import column_kinds, croissant_of
from runner.registry.draft import Naming
from runner.results.provenance.file_pins import PinnedFiles
from runner.rollouts.identity import protocol_content
from runner.spec.datasets.loader import load_dataset
from runner.spec.datasets.settings import DatasetSettings

GOLDEN = "golden.json"
"""Beside prompts: what they give for one set of values, so that a change of the template engine shows."""


_SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")


@dataclass(frozen=True)
class UnnamedComponent:
    """A component before it is named."""

    parts: Mapping[str, PinnedFiles]
    """The files that it was made of, by what they are."""
    contents: Mapping[str, Content]
    identity: Mapping[str, str]
    facts: Mapping[str, Any]
    links: tuple[ReleaseLink, ...] = ()
    notes: tuple[str, ...] = ()
    description: str = ""
    """What it is, where its publisher does not say it."""


# Protocols


def protocol_identity(protocol: Protocol) -> str:
    """As a run's manifest has it in `protocol_sha256`."""
    return tagged_hash("protocol", protocol_content(protocol))


def protocol_file(path: Path) -> tuple[bytes, Protocol]:
    """A protocol's file as a release has it: as written where it stands alone, else with what it extends put in.

    Raises:
        SpecError: with everything that is wrong with it.
        ReleaseError: it cannot be read.
    """
    protocol = load_protocol(path.name, folder=path.absolute().parent, where=lambda _: Place(str(path)))
    stands_alone = EXTENDS not in read(path).data
    return _read(path) if stands_alone else dump(_plain_protocol(protocol)).encode(), protocol


def _plain_protocol(protocol: Protocol) -> dict[str, Any]:
    data: dict[str, Any] = to_plain(protocol.file)
    if not protocol.is_turned:  # which a file declares by giving it
        del data["parameters"]["verifier_first"]
    cleaned: dict[str, Any] = _without_nulls(data)
    return cleaned


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def protocol(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path} is no protocol's file; give a .yaml file")
    data, protocol = protocol_file(path)
    parameters = to_plain(protocol.parameters)
    return UnnamedComponent(
        {Kind.PROTOCOL: PinnedFiles(path, (path,))},
        {"protocol.yaml": data},
        {"protocol": protocol_identity(protocol)},
        {
            "protocol": protocol.name,
            "agents": {name: agent.role for name, agent in protocol.file.agents.items()},
            "channels": sorted(protocol.file.channels),
            "parameters": parameters,
            "fixed": sorted(protocol.file.fixed),
        },
        description=f"Protocol {protocol.name}: {comma_join(protocol.file.agents)}",
    )


# Prompts


def prompts_identity(hashes: Mapping[str, str]) -> str:
    """One hash of a set of templates, by the hashes that a run's manifest has in `prompts_sha256`."""
    return tagged_hash("prompts", dict(sorted(hashes.items())))


def template_hashes(sources: Mapping[str, str]) -> dict[str, str]:
    """As a run's manifest has them in `prompts_sha256`."""
    return {name: tagged_hash("prompt", text) for name, text in sorted(sources.items())}


def template_files(folder: Path) -> dict[str, bytes]:
    """The templates of a folder, by their files' names.

    Raises:
        UsageError: there are none.
        SpecError: with everything that is wrong with them.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; prompts are a folder of *{SUFFIX} files")
    files = sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and not path.name.startswith("."))
    if not files:
        raise UsageError(f"{folder} has no *{SUFFIX} file; prompts are one for each agent")
    problems: list[Problem] = []
    found = {}
    for path in files:
        data = found[path.name] = _read(path, MAX_BYTES)
        try:
            problems.extend(template_problems(data.decode("utf-8-sig"), Place(str(path)), None, names_columns=True))
        except UnicodeDecodeError as error:
            problems.append(Problem(Place(str(path)), "", f"not UTF-8 at byte {error.start}"))
    if problems:
        raise SpecError(problems)
    return found


def sources_of(files: Mapping[str, bytes]) -> dict[str, str]:
    """Templates' texts by name, as a prompt set has them."""
    return {name.removesuffix(SUFFIX): data.decode("utf-8-sig") for name, data in files.items()}


def prompts(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    files = template_files(path)
    prompts = PromptSet(sources_of(files))
    hashes = template_hashes(prompts.sources)
    own = {name: sorted(used & VARIABLES.keys()) for name, used in prompts.variables.items()}
    columns = sorted({name for used in prompts.variables.values() for name in used - VARIABLES.keys()})
    agents = sorted(name for name in prompts.sources if not name.endswith((LAST_ROUND, CONFIDENCE)))
    return UnnamedComponent(
        {Kind.PROMPTS: PinnedFiles(path, tuple(path / name for name in files))},
        {**files, GOLDEN: _golden(prompts, columns)},
        {"prompts": prompts_identity(hashes)},
        {
            "agents": agents,
            "columns": columns,
            "templates": {name: {"sha256": hashes[name], "variables": own[name]} for name in sorted(hashes)},
        },
        description=f"Prompts of {comma_join(agents)}",
    )


_GOLDEN_VALUES: Mapping[str, Any] = {
    "agent": "prover0", "agent_name": "Expert_1", "stance": "accept", "max_response_words": 150,
    "max_message_rounds": 8, "max_verifier_questions": 4, "questions_left": 3,
    "headers": ["Question for Expert_1:", "Question for Expert_2:"], "accept": "Decision: accept",
    "reject": "Decision: reject", "confidence_marker": "Confidence:",
}  # fmt: skip
"""One datapoint's worth of every variable of ours; a column is a text that says which it is."""


def _golden(prompts: PromptSet, columns: list[str]) -> bytes:
    """The templates as they render here with given values; null where these are none that a template can take."""
    values = {**_GOLDEN_VALUES, **{name: f"<{name}>\n  2 & 3" for name in columns if name not in FORBIDDEN}}
    rendered = {name: _rendered(prompts, name, values) for name in sorted(prompts.sources)}
    said = {"values": values, "rendered": rendered}
    return json.dumps(said, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"


def _rendered(prompts: PromptSet, name: str, values: Mapping[str, Any]) -> str | None:
    try:
        return prompts.render(name, {one: value for one, value in values.items() if one in prompts.variables[name]})
    except RunError:
        return None


def changed_renderings(folder: Path) -> list[str]:
    """The templates of a release that this nip-run, with its template engine, renders otherwise than who published it.

    Raises:
        ReleaseError: what is to be compared with is missing or damaged.
    """
    try:
        said = json.loads(_read(folder / GOLDEN, 64 << 20))
        values, rendered = dict(said["values"]), dict(said["rendered"])
        prompts = PromptSet(sources_of(template_files(folder)))
    except (ValueError, KeyError, TypeError) as error:
        raise ReleaseError(f"{folder / GOLDEN} is damaged: {error}") from error
    return [name for name in sorted(prompts.sources) if _rendered(prompts, name, values) != rendered.get(name)]


# Datasets


def dataset(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    if path.suffix not in _SUFFIXES:
        raise UsageError(f"{path} is no dataset's file; it is one of {comma_join(_SUFFIXES)}")
    settings = DatasetSettings(path=path.name)
    dataset = load_dataset(settings, path, 0, lambda _: Place(str(path)))
    name = f"dataset{path.suffix}"
    licence = naming.dataset_licence or naming.licence
    labels = Counter("none" if point.label is None else str(point.label) for point in dataset.datapoints)
    splits = Counter(str(split) for split in (point.columns.get("split") for point in dataset.datapoints) if split)
    description = naming.description or f"{len(dataset.datapoints):,} datapoints: {comma_join(dataset.columns)}"
    columns = {"id": "text", **column_kinds({"label": p.label, **p.columns} for p in dataset.datapoints)}
    croissant = croissant_of(naming.name or path.stem, description, licence, {name: path}, columns)
    return UnnamedComponent(
        {Kind.DATASET: PinnedFiles(path, (path,))},
        {name: path, "croissant.json": croissant},
        {"dataset": dataset.sha256, "source": dataset.source_sha256},
        {
            "rows": len(dataset.datapoints),
            "columns": list(dataset.columns),
            "labels": dict(sorted(labels.items())),
            "splits": dict(sorted(splits.items())),
            "licence": licence,
        },
        notes=() if licence else ("no licence is given, so that nobody may assume anything; say --licence",),
        description=description,
    )


def _read(path: Path, most: int = 1 << 20) -> bytes:
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise ReleaseError(f"cannot read {path}: {error.strerror}") from error
