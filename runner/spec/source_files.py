"""The files that a spec was loaded from, with their exact bytes, its overrides, and the files that it names.

Runs and releases store them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from runner.documents.merged_data import ReadFile
from runner.documents.overrides import Override
from runner.documents.plain_values import to_plain_values
from runner.documents.yaml_writer import dump_inline


@dataclass(frozen=True)
class SpecSources:
    """The files and overrides that a spec was loaded from."""

    files: tuple[ReadFile, ...] = ()
    """The spec's own file, if it has one, then the files that it extends. A file extended twice is listed twice."""
    overrides: tuple[str, ...] = ()
    """Overrides in the form of command-line arguments, including those for a point of a sweep."""


@dataclass(frozen=True)
class NamedFiles:
    """The paths of the files that a spec names."""

    protocol: tuple[Path, ...] = ()
    """The protocol's file, then the files that it extends."""
    prompts: Path | None = None
    """The folder of templates."""
    templates: tuple[Path, ...] = ()
    """The templates in this folder that agents use."""
    dataset: Path | None = None
    """The dataset's file; None if the dataset is on the Hugging Face Hub."""


@dataclass(frozen=True)
class SpecOrigin:
    """The files of a spec and the files that it names; empty if the spec was not loaded from files."""

    sources: SpecSources = field(default_factory=SpecSources)
    named_files: NamedFiles = field(default_factory=NamedFiles)


def as_argument(override: Override) -> str:
    """Return an override as an argument of a command line."""
    if override.value is None:
        return override.text
    # The loader rejects values that YAML cannot represent.
    return f"{override.text.removesuffix('...')}{dump_inline(to_plain_values(override.value[0], []))}"
