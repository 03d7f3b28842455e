"""Build the draft of a component of any kind, for `nip-run publish` and the Python function `publish`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from runner.base import package_data
from runner.base.errors import UsageError
from runner.base.text import comma_join
from runner.documents.releases.manifest import Release, ReleaseLink
from runner.documents.releases.reference import COMPONENTS, Kind, Reference, identifier_problem
from runner.registry.components.files import UnnamedComponent, build_dataset, build_prompts, build_protocol
from runner.registry.components.spec import build_spec
from runner.registry.components.spec_entries import build_agent, build_model, build_trainer
from runner.registry.draft import Draft, PublisherChoices
from runner.results.provenance.file_pins import find_sources

README = "README.md"

_BUILDERS: Mapping[Kind, Callable[[Path, PublisherChoices, str | None], UnnamedComponent]] = {
    Kind.PROTOCOL: build_protocol,
    Kind.PROMPTS: build_prompts,
    Kind.DATASET: build_dataset,
    Kind.AGENT: build_agent,
    Kind.TRAINER: build_trainer,
    Kind.MODEL: build_model,
    Kind.SPEC: build_spec,
}

_BUILTIN_FOLDERS = (
    package_data.PROTOCOLS, package_data.PROTOCOLS.parent, package_data.root() / "specs", package_data.root()
)  # fmt: skip
"""Folders with the files that come with nip-run."""


def build_component_draft(path: Path, kind: Kind, choices: PublisherChoices, part: str | None = None) -> Draft:
    """Return the draft of a component.

    For a protocol, prompts, a dataset or a spec, `path` is its file or folder. For an agent, a model or a trainer,
    `path` is a spec and `part` names which one: the agent, the model group, or the model group of the trainer. `part`
    may be None if the spec has only one agent or trainer. For a model without `part`, `path` is a model file, or a
    folder with a model file and weights.

    Raises:
        UsageError: the name is missing or invalid, or the spec has no such part.
        SpecError: the files have mistakes; the error lists them all.
        ReleaseError: the component names something that others cannot get, such as a run.
    """
    _check_source(path, kind, part)
    name = _check_names(kind, choices)
    component = _BUILDERS[kind](path, choices, part)
    reference = Reference(kind, choices.owner, name, choices.version)
    release = Release(
        kind=kind,
        owner=choices.owner,
        name=name,
        version=choices.version,
        description=choices.description or component.description,
        licence=choices.licence,
        visibility=choices.visibility,
        identity=component.identity,
        sources=find_sources(component.files_by_kind),
        links=(*component.links, *_parent_links(choices)),
        facts=component.facts,
    )
    readme = _readme(release, reference).encode()
    # The README quotes the description and the licence. Redaction may change them, and then builds the README again.
    rebuilders = {README: lambda redacted_release, _: _readme(redacted_release, reference).encode()}
    return Draft(release, {README: readme, **component.contents}, component.notes, rebuilders)


def _check_source(path: Path, kind: Kind, part: str | None) -> None:
    """Check that a component of this kind can be built from the path and part. Raises: UsageError: it cannot."""
    if kind not in COMPONENTS:
        raise UsageError(f"a {kind} is not a component; components are {comma_join(COMPONENTS)}")
    if part is not None and kind not in (Kind.AGENT, Kind.TRAINER, Kind.MODEL):
        raise UsageError(f"--part names an agent, a trainer or a model group of a spec; omit it for a {kind}")
    if not package_data.exists(path) and any(package_data.exists(folder / path) for folder in _BUILTIN_FOLDERS):
        raise UsageError(
            f"{path} comes with nip-run, so any spec can name it without a release; to publish a changed "
            "version, give the path of your copy"
        )


def _check_names(kind: Kind, choices: PublisherChoices) -> str:
    """Check the owner, name and version of a component, and return the name. Raises: UsageError: one is invalid."""
    if choices.name is None:
        raise UsageError(f"the {kind} has no name; add --as OWNER/NAME@VERSION")
    for problem in filter(None, map(identifier_problem, (choices.owner, choices.name, choices.version))):
        raise UsageError(problem)
    return choices.name


def _parent_links(choices: PublisherChoices) -> tuple[ReleaseLink, ...]:
    if choices.child_of is None:
        return ()
    return (ReleaseLink(role="child_of", release=choices.child_of, sha256=choices.child_of_sha256),)


_SPEC_ENTRIES: Mapping[Kind, str] = {
    Kind.PROTOCOL: "protocol: {{use: {0}}}",
    Kind.PROMPTS: "prompts: {0}",
    Kind.DATASET: "dataset: {{path: {0}}}",
    Kind.AGENT: "agents: {{NAME: {{use: {0}}}}}",
    Kind.TRAINER: "training: {{trainers: {{GROUP: {{use: {0}}}}}}}",
    Kind.SPEC: "extends: {0}",
    Kind.MODEL: "models: {{GROUP: {{use: {0}}}}}",
}


def format_spec_entry(release: Release) -> str:
    """Return the line of YAML that makes a spec use an installed component."""
    return _SPEC_ENTRIES[release.kind].format(f"{release.owner}/{release.name}@{release.version}")


def _readme(release: Release, reference: Reference) -> str:
    licence = release.licence or "none is given"
    return (
        f"# {reference}\n\n{release.description}\n\nLicence: {licence}.\n\nTo use it, install it and name it in a spec:"
        f"\n\n```sh\nnip-run install {reference}\n```\n\n```yaml\n{format_spec_entry(release)}\n```\n"
    )
