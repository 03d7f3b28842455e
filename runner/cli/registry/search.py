"""Search a registry.

Examples:
  nip-run search debate --from DIR
  nip-run search --kind protocol --all
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, did_you_mean, in_one_line, with_interval
from runner.cli.arguments import add_registry
from runner.cli.terminal.output import note, print_json, print_table, say, short_time

if TYPE_CHECKING:
    from runner.documents.releases.manifest import Release
    from runner.documents.releases.reference import Kind
    from runner.registry.lineage.lineage import Lineage
    from runner.registry.lineage.sessions import LineageSession
    from runner.registry.transports.registry import Registry, ReleaseEntry


_COLUMNS = ("release", "licence", "description")
_OF_RUNS = (
    "run", "protocol", "benchmark", "models", "accuracy [95%]", "n", "status", "finished", "licence", "about"
)  # fmt: skip
_DROPPED = ("status", "finished", "protocol", "licence", "models")
"""What a narrow terminal does without, the first of it first."""

LONGEST = 200
"""So much of a description is shown in a table; --json has all of it."""


class _Found(NamedTuple):
    entry: ReleaseEntry
    release: Release
    session: LineageSession | None
    """What it is as a run, or as a model that one made; None of other components."""

    @property
    def is_run(self) -> bool:
        from runner.documents.releases.reference import Kind

        return self.release.kind == Kind.RUN

    @property
    def is_training(self) -> bool:
        return self.session is not None and self.session.kind == "training" and self.session.parent_run_id is None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("words", metavar="WORD", nargs="*", help="words in names, descriptions, models or benchmarks")
    add_registry(parser)
    add("--kind", help="only this kind: protocol, prompts, dataset, agent, trainer, spec, model or run")
    add("--all", action="store_true", help="include private and yanked releases and older versions")


def execute(args: argparse.Namespace) -> int:
    from runner.registry.lineage.lineage import Lineage
    from runner.registry.transports.locations import connect_to_read

    kind = _kind(args.kind)
    with connect_to_read(args.where) as registry:
        entries = registry.entries(kind)
        damaged: list[str] = []
        read = list(_read(registry, entries if args.all else _newest(entries), damaged))
        where = registry.where
    found = [one for one in read if _is_meant(one, args.words, all_=args.all)]
    for line in damaged:
        note(line)
    lineage = Lineage(one.session for one in read if one.session is not None)
    if args.json:
        copies = {str(one.entry.reference): group for group in _by_run(found) for one in group}
        releases = [_json(one, copies.get(str(one.entry.reference), []), lineage) for one in found]
        print_json({"where": where, "releases": releases, "damaged": damaged})
        return ExitCode.DONE
    if not found:
        more = "" if args.all else "; --all shows private and yanked ones and older versions, too"
        say(f"nothing of {len(entries)} in {where} is found{more}")
        return ExitCode.DONE
    _show(found, lineage, all_=args.all)
    return ExitCode.DONE


def _show(found: Sequence[_Found], lineage: Lineage, *, all_: bool) -> None:
    """Runs by what they came to, and components by what is said of them."""
    shown, parts = (found, Counter[tuple[str, str]]()) if all_ else _without_parts(found)
    runs = [row for copies in _by_run(shown) for row in _rows_of_run(copies, lineage, parts)]
    others = [_row(one, lineage) for one in shown if not one.is_run]
    if runs:
        columns = [name for at, name in enumerate(_OF_RUNS) if name != "about" or any(row[at] for row in runs)]
        print_table(columns, [row[: len(columns)] for row in runs], drop=_DROPPED)
    if runs and others:
        say()
    if others:
        print_table(_COLUMNS, others, drop=_DROPPED)


def _without_parts(found: Sequence[_Found]) -> tuple[list[_Found], Counter[tuple[str, str]]]:
    """Without the parts of training runs that are there themselves, and how many each of those has."""
    trainings = {(one.release.owner, one.session.run_id) for one in found if one.session and one.is_training}
    parents = [(one.release.owner, (one.session and one.session.parent_run_id) or "") for one in found]
    folded = Counter(parent for parent in parents if parent in trainings)
    return [one for one, parent in zip(found, parents, strict=True) if parent not in trainings], folded


def _by_run(found: Sequence[_Found]) -> list[list[_Found]]:
    """The releases of each run, as far as they say the same of it: what differs is told of each."""
    runs: dict[str, list[_Found]] = {}
    for one in found:
        if one.is_run:
            release = one.release
            said = [dict(release.identity), dict(release.facts), release.visibility, one.entry.yanked]
            runs.setdefault(json.dumps(said, sort_keys=True), []).append(one)
    return [sorted(copies, key=_is_renamed) for copies in runs.values()]


def _is_renamed(found: _Found) -> bool:
    """Whether it has another name than a run's release has by itself, as a copy has."""
    from runner.registry.lineage.links import release_name

    return found.session is not None and found.release.name != release_name(found.session.run_id)


def _kind(said: str | None) -> Kind | None:
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Kind

    if said is not None and said not in set(Kind):
        raise UsageError(f"no kind {said!r}{did_you_mean(said, Kind) or f'; there are {comma_join(Kind)}'}")
    return None if said is None else Kind(said)


def _newest(entries: Sequence[ReleaseEntry]) -> list[ReleaseEntry]:
    """The newest of each name that is not yanked; they come oldest first."""
    return list({entry.reference.at(""): entry for entry in entries if entry.yanked is None}.values())


def _read(registry: Registry, entries: Sequence[ReleaseEntry], damaged: list[str]) -> Iterator[_Found]:
    from runner.documents.releases.manifest import MANIFEST
    from runner.documents.releases.reference import Kind
    from runner.registry.lineage.sessions import session_of_release
    from runner.registry.skipped_releases import describe_error

    registry.expect((entry, MANIFEST) for entry in entries)
    for entry in entries:
        try:
            release, _ = registry.read(entry)
            session = session_of_release(entry, release) if release.kind in (Kind.RUN, Kind.MODEL) else None
            found = _Found(entry, release, session)
            "\n".join(_texts(release))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this release's
            damaged.append(f"left out: {entry.reference}: {describe_error(error)}")
            continue
        yield found


def _is_meant(found: _Found, words: Sequence[str], *, all_: bool) -> bool:
    text = "\n".join(_texts(found.release)).casefold()
    return (all_ or found.release.visibility == "public") and all(word.casefold() in text for word in words)


def _texts(release: Release) -> Iterator[str]:
    """What is looked through."""
    yield from (str(release.reference), release.description)
    for name in ("benchmark", "name", "protocol", "model", "base_model", "models"):
        said = release.facts.get(name)
        yield from (str(one) for one in (said.values() if isinstance(said, dict) else [said]) if one is not None)


def _row(found: _Found, lineage: Lineage) -> tuple[object, ...]:
    from runner.registry.lineage.relations import parent_release

    child = parent_release(found.release.links)
    marks = [f"child of {child}"] if child is not None and found.session is None else _kin(found, lineage)
    return str(found.release.reference), found.release.licence, _about(found, marks)


def _kin(found: _Found, lineage: Lineage) -> list[str]:
    """What it is of others; of training all that is behind what it made, too."""
    from runner.registry.lineage.descriptions import describe_effort
    from runner.registry.lineage.relations import describe_relations

    if found.session is None:
        return []
    effort = describe_effort(lineage.ancestry(found.session).total, "rollouts") if found.session.trains else None
    said = "effort not known" if effort == "not known" else f"{effort} in all"
    return [*describe_relations(found.session), *([] if effort is None else [said])]


def _rows_of_run(
    copies: Sequence[_Found], lineage: Lineage, parts: Mapping[tuple[str, str], int]
) -> Iterator[tuple[object, ...]]:
    """A run's row; those of its releases that have another licence have their own, below it."""
    licences: dict[str | None, list[_Found]] = {}
    for one in copies:
        licences.setdefault(one.release.licence, []).append(one)
    for alike in licences.values():
        other = [] if alike[0] is copies[0] else [f"the same run as {_called(copies[0])}"]
        yield _row_of_run(alike, [*other, *_training(alike[0], parts), *_kin(alike[0], lineage)])


def _training(found: _Found, parts: Mapping[tuple[str, str], int]) -> list[str]:
    if found.session is None or not found.is_training:
        return []
    number = parts.get((found.release.owner, found.session.run_id))
    return [f"training; {counted(number, 'part')}: --all" if number else "training"]


def _row_of_run(copies: Sequence[_Found], marks: Sequence[str]) -> tuple[object, ...]:
    first = copies[0]
    session = first.session
    assert session is not None
    facts = session.facts
    accuracy: Mapping[str, Any] = (facts.get("accuracy") or {}) if session.kind == "benchmark" else {}
    value, low, high = (accuracy.get(name) for name in ("value", "ci_low", "ci_high"))
    return (
        "\n".join(_called(one) for one in copies),
        in_one_line(facts.get("protocol") or ""),
        in_one_line(facts.get("benchmark") or ""),
        in_one_line(comma_join(dict.fromkeys((facts.get("models") or {}).values()))),
        with_interval(value, low, high) if accuracy else "",
        str(accuracy.get("n") or ""),
        in_one_line(facts.get("status") or ""),
        in_one_line(short_time(facts.get("finished_at"))),
        first.release.licence,
        _about(first, marks),
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


def _json(found: _Found, copies: Sequence[_Found], lineage: Lineage) -> dict[str, Any]:
    from runner.registry.lineage.descriptions import total_json
    from runner.registry.lineage.relations import describe_relations

    release, session = found.release, found.session
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
        "of_other_runs": [] if session is None else describe_relations(session),
        "effort": total_json(lineage.ancestry(session)) if session is not None and session.trains else None,
        "bytes": release.size,
        "files": len(release.files),
    }
