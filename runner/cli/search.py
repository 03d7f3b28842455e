"""`nip-run search`: what a registry has, by words in its names, descriptions, benchmarks and models."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from runner.cli.output import note, print_json, print_table, say
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.registry.left_out import in_words
from runner.releases.manifest import Release
from runner.releases.reference import Kind
from runner.text import comma_join, did_you_mean
from runner.transports.connect import connect
from runner.transports.registry import Entry, Registry

_COLUMNS = ("release", "licence", "description")
_DROPPED = ("licence",)

LONGEST = 200
"""So much of a description is shown in a table; --json has all of it."""


@dataclass(frozen=True)
class _Found:
    entry: Entry
    release: Release


def execute(args: argparse.Namespace) -> int:
    kind = _kind(args.kind)
    with connect(args.where) as registry:
        entries = registry.entries(kind)
        damaged: list[str] = []
        found = list(_matching(registry, entries if args.all else _newest(entries), args.words, damaged, all_=args.all))
        where = registry.where
    for line in damaged:
        note(line)
    if args.json:
        print_json({"where": where, "releases": [_json(one) for one in found], "damaged": damaged})
        return ExitCode.DONE
    if not found:
        more = "" if args.all else "; --all shows private and yanked ones and older versions, too"
        say(f"nothing of {len(entries)} in {where} is found{more}")
        return ExitCode.DONE
    print_table(_COLUMNS, [_row(one) for one in found], drop=_DROPPED)
    return ExitCode.DONE


def _kind(said: str | None) -> Kind | None:
    if said is not None and said not in set(Kind):
        raise UsageError(f"no kind {said!r}{did_you_mean(said, Kind) or f'; there are {comma_join(Kind)}'}")
    return None if said is None else Kind(said)


def _newest(entries: Sequence[Entry]) -> list[Entry]:
    """The newest of each name that is not yanked; they come oldest first."""
    return list({entry.reference.at(""): entry for entry in entries if entry.yanked is None}.values())


def _matching(
    registry: Registry, entries: Sequence[Entry], words: Sequence[str], damaged: list[str], *, all_: bool
) -> Iterator[_Found]:
    wanted = [word.casefold() for word in words]
    for entry in entries:
        try:
            release, _ = registry.read(entry)
            text = "\n".join(_texts(release)).casefold()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
            damaged.append(f"left out: {entry.reference}: {in_words(error)}")
            continue
        if (all_ or release.visibility == "public") and all(word in text for word in wanted):
            yield _Found(entry, release)


def _texts(release: Release) -> Iterator[str]:
    """What is looked through."""
    yield from (str(release.reference), release.description)
    for name in ("benchmark", "name", "protocol", "model", "base_model", "models"):
        said = release.facts.get(name)
        yield from (str(one) for one in (said.values() if isinstance(said, dict) else [said]) if one is not None)


def _row(found: _Found) -> tuple[object, ...]:
    release, marks = found.release, []
    if found.entry.yanked is not None:
        marks.append(f"yanked: {found.entry.yanked}")
    if release.visibility != "public":
        marks.append(release.visibility)
    told = " ".join(release.description.split())
    told = told if len(told) <= LONGEST else f"{told[: LONGEST - 3]}..."
    return str(release.reference), release.licence, f"[{'; '.join(marks)}] {told}" if marks else told


def _json(found: _Found) -> dict[str, Any]:
    release = found.release
    return {
        "release": str(release.reference),
        "sha256": found.entry.sha256,
        "kind": release.kind,
        "description": release.description,
        "licence": release.licence,
        "visibility": release.visibility,
        "yanked": found.entry.yanked,
        "signed": found.entry.signed,
        "identity": dict(release.identity),
        "facts": dict(release.facts),
        "bytes": release.size,
        "files": len(release.files),
    }
