"""A spec as its user wrote it: its files, each by its exact bytes, and what was changed on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from runner.documents.layered_data import FileRead
from runner.documents.overrides import Override
from runner.documents.plain_values import to_plain_values
from runner.documents.yaml_writer import dump_inline


@dataclass(frozen=True)
class SpecSources:
    """What a spec was loaded from."""

    files: tuple[FileRead, ...] = ()
    """Its own first, where it has one, then those that it extends; one that is extended twice stands there twice."""
    overrides: tuple[str, ...] = ()
    """As they are given on the command line, those of a point of a sweep too."""


@dataclass(frozen=True)
class NamedFiles:
    """Where a spec found what it names."""

    protocol: tuple[Path, ...] = ()
    """The protocol's file, then those that it extends."""
    prompts: Path | None = None
    """The folder of templates."""
    templates: tuple[Path, ...] = ()
    dataset: Path | None = None
    """None: on the Hub."""


@dataclass(frozen=True)
class Origin:
    """Where all of a spec came from; of one that was made in another way than by loading it, nothing is known."""

    written: SpecSources = field(default_factory=SpecSources)
    named: NamedFiles = field(default_factory=NamedFiles)


def as_words(overrides: Sequence[Override]) -> tuple[str, ...]:
    """Overrides as words of a command line."""
    return tuple(_word(override) for override in overrides)


def _word(override: Override) -> str:
    if override.value is None:
        return override.text
    # What no YAML can hold was refused before, or is refused by who loads it.
    return f"{override.text.removesuffix('...')}{dump_inline(to_plain_values(override.value[0], []))}"
