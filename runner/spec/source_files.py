"""The files that a spec was loaded from, with their exact bytes, its overrides, and the files that it names.

Runs and releases store them.
"""

from __future__ import annotations

from collections.abc import Sequence
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
    """The templates in this folder that the spec uses."""
    dataset: Path | None = None
    """The dataset's file; None if the dataset is on the Hugging Face Hub."""


@dataclass(frozen=True)
class SpecOrigin:
    """The files of a spec and the files that it names; empty if the spec was not loaded from files."""

    written: SpecSources = field(default_factory=SpecSources)
    named_files: NamedFiles = field(default_factory=NamedFiles)


def as_arguments(overrides: Sequence[Override]) -> tuple[str, ...]:
    """Return overrides as arguments of a command line."""
    return tuple(_as_argument(override) for override in overrides)


def _as_argument(override: Override) -> str:
    if override.value is None:
        return override.text
    # The loader rejects values that YAML cannot represent.
    return f"{override.text.removesuffix('...')}{dump_inline(to_plain_values(override.value[0], []))}"
