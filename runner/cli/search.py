"""`nip-run search`: what a registry has, by words in its names, descriptions, benchmarks and models."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.cli.output import note, print_json, print_table, say, with_interval
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.registry.kinship import kin_in_words
from runner.registry.left_out import in_words
from runner.registry.sessions import Session, session_of_release
from runner.releases.manifest import Release
from runner.releases.reference import Kind
from runner.text import comma_join, did_you_mean, in_one_line
from runner.transports.connect import to_read
from runner.transports.registry import Entry, Registry

_COLUMNS = ("release", "licence", "description")
_OF_RUNS = ("run", "benchmark", "models", "accuracy [95%]", "status", "licence", "about")
_DROPPED = ("licence", "status")
"""What a narrow terminal does without, the first of it first."""

LONGEST = 200
"""So much of a description is shown in a table; --json has all of it."""


@dataclass(frozen=True)
class _Found:
    entry: Entry
    release: Release
    session: Session | None
    """What it is as a run; None of a component."""


def execute(args: argparse.Namespace) -> int:
    kind = _kind(args.kind)
    with to_read(args.where) as registry:
        entries = registry.entries(kind)
        damaged: list[str] = []
        found = list(_matching(registry, entries if args.all else _newest(entries), args.words, damaged, all_=args.all))
        where = registry.where
    for line in damaged:
        note(line)
    if args.json:
        copies = {str(one.entry.reference): group for group in _by_run(found) for one in group}
        releases = [_json(one, copies.get(str(one.entry.reference), [])) for one in found]
        print_json({"where": where, "releases": releases, "damaged": damaged})
        return ExitCode.DONE
    if not found:
        more = "" if args.all else "; --all shows private and yanked ones and older versions, too"
        say(f"nothing of {len(entries)} in {where} is found{more}")
        return ExitCode.DONE
    _show(found)
    return ExitCode.DONE


def _show(found: Sequence[_Found]) -> None:
    """Runs by what they came to, and components by what is said of them."""
    runs = [_row_of_run(copies) for copies in _by_run(found)]
    others = [_row(one) for one in found if one.session is None]
    if runs:
        columns = [name for at, name in enumerate(_OF_RUNS) if name != "about" or any(row[at] for row in runs)]
        print_table(columns, [row[: len(columns)] for row in runs], drop=_DROPPED)
    if runs and others:
        say()
    if others:
        print_table(_COLUMNS, others, drop=_DROPPED)


def _by_run(found: Sequence[_Found]) -> list[list[_Found]]:
    """The releases of each run, as far as they say the same of it: what differs is told of each."""
    runs: dict[str, list[_Found]] = {}
    for one in found:
        if one.session is not None:
            release = one.release
            said = [dict(release.identity), dict(release.facts), release.visibility, one.entry.yanked]
            runs.setdefault(json.dumps(said, sort_keys=True), []).append(one)
    return list(runs.values())


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
            session = session_of_release(entry, release) if release.kind == Kind.RUN else None
            text = "\n".join(_texts(release)).casefold()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
            damaged.append(f"left out: {entry.reference}: {in_words(error)}")
            continue
        if (all_ or release.visibility == "public") and all(word in text for word in wanted):
            yield _Found(entry, release, session)


def _texts(release: Release) -> Iterator[str]:
    """What is looked through."""
    yield from (str(release.reference), release.description)
    for name in ("benchmark", "name", "protocol", "model", "base_model", "models"):
        said = release.facts.get(name)
        yield from (str(one) for one in (said.values() if isinstance(said, dict) else [said]) if one is not None)


def _row(found: _Found) -> tuple[object, ...]:
    return str(found.release.reference), found.release.licence, _about(found, ())


def _row_of_run(copies: Sequence[_Found]) -> tuple[object, ...]:
    first = copies[0]
    session = first.session
    assert session is not None
    facts = session.facts
    accuracy: Mapping[str, Any] = facts.get("accuracy") or {}
    value, low, high = (accuracy.get(name) for name in ("value", "ci_low", "ci_high"))
    is_whole_training = session.kind == "training" and session.parent_run_id is None
    return (
        "\n".join(_called(one) for one in copies),
        in_one_line(facts.get("benchmark") or ""),
        in_one_line(comma_join(dict.fromkeys((facts.get("models") or {}).values()))),
        with_interval(value, low, high) if session.kind == "benchmark" else "",
        in_one_line(facts.get("status") or ""),
        first.release.licence,
        _about(first, [*(["training"] if is_whole_training else []), *kin_in_words(session)]),
    )


def _called(found: _Found) -> str:
    return str(found.release.reference).removeprefix("run/")


def _about(found: _Found, marks: Sequence[str]) -> str:
    """What is said of a release, what must be known of it first."""
    release = found.release
    told = " ".join(release.description.split())
    told = told if len(told) <= LONGEST else f"{told[: LONGEST - 3]}..."
    yanked = [] if found.entry.yanked is None else [f"yanked: {found.entry.yanked}"]
    said = [*yanked, *([] if release.visibility == "public" else [release.visibility]), *marks]
    return in_one_line(" ".join(filter(None, (f"[{'; '.join(said)}]" if said else "", told))))


def _json(found: _Found, copies: Sequence[_Found]) -> dict[str, Any]:
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
        "links": [vars(link) for link in release.links],
        "sources": {part: vars(source) for part, source in release.sources.items()},
        "same_run": [str(one.release.reference) for one in copies if one is not found],
        "of_other_runs": [] if found.session is None else kin_in_words(found.session),
        "bytes": release.size,
        "files": len(release.files),
    }
