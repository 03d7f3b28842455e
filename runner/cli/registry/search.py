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

from runner.base.batches import group_pairs
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join, counted, in_one_line, shortened, with_interval
from runner.cli.arguments import add_registry_option, parse_kind
from runner.cli.terminal.output import format_time, note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.documents.releases.manifest import Release
    from runner.registry.lineage.lineage import Lineage
    from runner.registry.lineage.nodes import LineageNode
    from runner.registry.transports.registry import Registry, ReleaseEntry


_COLUMNS = ("release", "license", "description")
_RUN_COLUMNS = (
    "run", "protocol", "benchmark", "models", "accuracy [95%]", "n", "status", "finished", "license", "about"
)  # fmt: skip
_DROPPED_IF_NARROW = ("status", "finished", "protocol", "license", "models")
"""Columns that a narrow terminal leaves out, in this order."""

MAX_DESCRIPTION = 200
"""Maximum number of characters of a description in a table; --json has complete descriptions."""


class _SearchHit(NamedTuple):
    entry: ReleaseEntry
    release: Release
    node: LineageNode | None
    """The run or model in the lineage, which connects models with the runs that trained them; else None."""

    @property
    def is_run(self) -> bool:
        from runner.documents.releases.reference import Kind

        return self.release.kind == Kind.RUN

    @property
    def is_training(self) -> bool:
        return self.node is not None and self.node.kind == "training" and self.node.parent_run_id is None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("words", metavar="WORD", nargs="*", help="words in names, descriptions, models or benchmarks")
    add_registry_option(parser)
    add("--kind", help="only this kind: protocol, prompts, dataset, agent, trainer, spec, model or run")
    add("--all", action="store_true", help="include private and yanked releases and older versions")


def execute(args: argparse.Namespace) -> int:
    from runner.registry.lineage.lineage import Lineage
    from runner.registry.transports.locations import connect_to_read

    kind = parse_kind(args.kind)
    with connect_to_read(args.registry) as registry:
        entries = registry.entries(kind)
        unreadable: list[str] = []
        newest = {entry.reference.unversioned: entry for entry in entries if entry.yanked is None}  # sorted by age
        hits = list(_read_releases(registry, entries if args.all else [*newest.values()], unreadable))
        address = registry.address
    matches = [hit for hit in hits if _matches(hit, args.words, all_=args.all)]
    note(*unreadable)
    lineage = Lineage(hit.node for hit in hits if hit.node is not None)
    if args.json:
        copies = {str(hit.entry.reference): group for group in _group_by_run(matches) for hit in group}
        releases = [_hit_as_json(hit, copies.get(str(hit.entry.reference), []), lineage) for hit in matches]
        print_json({"where": address, "releases": releases, "damaged": unreadable})
        return ExitCode.DONE
    if not matches:
        hint = "" if args.all else "; add --all to include private and yanked releases and older versions"
        say(f"no match among {counted(len(entries), 'release')} in {address}{hint}")
        return ExitCode.DONE
    _print_hits(matches, lineage, all_=args.all)
    return ExitCode.DONE


def _print_hits(hits: Sequence[_SearchHit], lineage: Lineage, *, all_: bool) -> None:
    """Print runs with their results, and components with their descriptions."""
    shown_hits, part_counts = (hits, Counter[tuple[str, str]]()) if all_ else _fold_parts(hits)
    run_rows = [row for copies in _group_by_run(shown_hits) for row in _run_rows(copies, lineage, part_counts)]
    component_rows = [_component_row(hit, lineage) for hit in shown_hits if not hit.is_run]
    if run_rows:
        columns = [name for i, name in enumerate(_RUN_COLUMNS) if name != "about" or any(row[i] for row in run_rows)]
        print_table(columns, [row[: len(columns)] for row in run_rows], drop=_DROPPED_IF_NARROW)
    if run_rows and component_rows:
        say()
    if component_rows:
        print_table(_COLUMNS, component_rows, drop=_DROPPED_IF_NARROW)


def _fold_parts(hits: Sequence[_SearchHit]) -> tuple[list[_SearchHit], Counter[tuple[str, str]]]:
    """Return the hits without the parts of training runs that are hits themselves, and the number of parts of each."""
    trainings = {(hit.release.owner, hit.node.run_id) for hit in hits if hit.node and hit.is_training}
    parents = [(hit.release.owner, (hit.node and hit.node.parent_run_id) or "") for hit in hits]
    part_counts = Counter(parent for parent in parents if parent in trainings)
    return [hit for hit, parent in zip(hits, parents, strict=True) if parent not in trainings], part_counts


def _group_by_run(hits: Sequence[_SearchHit]) -> list[list[_SearchHit]]:
    """Group the releases that have the same run as content."""
    runs: dict[str, list[_SearchHit]] = {}
    for hit in hits:
        if hit.is_run:
            release = hit.release
            content = [dict(release.identity), dict(release.facts), release.visibility, hit.entry.yanked]
            runs.setdefault(json.dumps(content, sort_keys=True), []).append(hit)
    return [sorted(copies, key=_is_renamed) for copies in runs.values()]


def _is_renamed(hit: _SearchHit) -> bool:
    """Return whether a release has another name than the default for its run, as copies have."""
    from runner.registry.lineage.links import release_name

    return hit.node is not None and hit.release.name != release_name(hit.node.run_id)


def _read_releases(registry: Registry, entries: Sequence[ReleaseEntry], unreadable: list[str]) -> Iterator[_SearchHit]:
    from runner.documents.releases.manifest import MANIFEST
    from runner.documents.releases.reference import Kind
    from runner.registry.lineage.nodes import node_from_release
    from runner.registry.release_errors import describe_error

    registry.plan_prefetch((entry, MANIFEST) for entry in entries)
    for entry in entries:
        try:
            release, _ = registry.read_manifest(entry)
            node = node_from_release(entry, release) if release.kind in (Kind.RUN, Kind.MODEL) else None
            hit = _SearchHit(entry, release, node)
            # Malformed facts must raise their error here, not later in the search.
            "".join(_searchable_texts(release))
        except Exception as error:  # noqa: BLE001 - a damaged release must not hide the others
            unreadable.append(f"left out: {entry.reference}: {describe_error(error)}")
            continue
        yield hit


def _matches(hit: _SearchHit, terms: Sequence[str], *, all_: bool) -> bool:
    text = "\n".join(_searchable_texts(hit.release)).casefold()
    return (all_ or hit.release.visibility == "public") and all(term.casefold() in text for term in terms)


def _searchable_texts(release: Release) -> Iterator[str]:
    """Yield the texts of a release that a search looks through."""
    yield from (str(release.reference), release.description)
    for name in ("benchmark", "name", "protocol", "model", "base_model", "models"):
        fact = release.facts.get(name)
        yield from (str(value) for value in (fact.values() if isinstance(fact, dict) else [fact]) if value is not None)


def _component_row(hit: _SearchHit, lineage: Lineage) -> tuple[object, ...]:
    from runner.registry.lineage.relations import find_parent_release

    parent = find_parent_release(hit.release.links)
    marks = [f"child of {parent}"] if parent is not None and hit.node is None else _describe_relations(hit, lineage)
    return str(hit.release.reference), hit.release.licence, _describe_release(hit, marks)


def _describe_relations(hit: _SearchHit, lineage: Lineage) -> list[str]:
    """Return the relations of a run to other runs, and for a training run the total effort behind its models."""
    from runner.registry.lineage.descriptions import describe_effort
    from runner.registry.lineage.relations import describe_relations

    if hit.node is None:
        return []
    effort = describe_effort(lineage.ancestry(hit.node).total, "rollouts") if hit.node.trains_models else None
    effort_text = "effort unknown" if effort == "not known" else f"{effort} in all"
    return [*describe_relations(hit.node), *([] if effort is None else [effort_text])]


def _run_rows(
    copies: Sequence[_SearchHit], lineage: Lineage, parts: Mapping[tuple[str, str], int]
) -> Iterator[tuple[object, ...]]:
    """Yield a row for each license of a run's copies."""
    by_license = group_pairs((hit.release.licence, hit) for hit in copies)
    for group in by_license.values():
        copy_note = [] if group[0] is copies[0] else [f"the same run as {_short_name(copies[0])}"]
        marks = [*copy_note, *_describe_training(group[0], parts), *_describe_relations(group[0], lineage)]
        yield _run_row(group, marks)


def _describe_training(hit: _SearchHit, parts: Mapping[tuple[str, str], int]) -> list[str]:
    if hit.node is None or not hit.is_training:
        return []
    part_count = parts.get((hit.release.owner, hit.node.run_id))
    return [f"training; {counted(part_count, 'part')}: --all" if part_count else "training"]


def _run_row(copies: Sequence[_SearchHit], marks: Sequence[str]) -> tuple[object, ...]:
    first = copies[0]
    node = first.node
    assert node is not None  # each run has one
    facts = node.facts
    accuracy: Mapping[str, Any] = (facts.get("accuracy") or {}) if node.kind == "benchmark" else {}
    value, low, high = (accuracy.get(name) for name in ("value", "ci_low", "ci_high"))
    return (
        "\n".join(_short_name(hit) for hit in copies),
        in_one_line(facts.get("protocol") or ""),
        in_one_line(facts.get("benchmark") or ""),
        in_one_line(comma_join(dict.fromkeys((facts.get("models") or {}).values()))),
        with_interval(value, low, high) if accuracy else "",
        str(accuracy.get("n") or ""),
        in_one_line(facts.get("status") or ""),
        in_one_line(format_time(facts.get("finished_at"))),
        first.release.licence,
        _describe_release(first, marks),
    )


def _short_name(hit: _SearchHit) -> str:
    return str(hit.release.reference).removeprefix("run/")


def _describe_release(hit: _SearchHit, marks: Sequence[str]) -> str:
    """Describe a release: first its marks, such as yanked or private, then its description."""
    release = hit.release
    description = shortened(" ".join(release.description.split()), MAX_DESCRIPTION)
    yanked = [] if hit.entry.yanked is None else [f"yanked: {hit.entry.yanked}"]
    all_marks = [*yanked, *([] if release.visibility == "public" else [release.visibility]), *marks]
    return in_one_line(" ".join(filter(None, (f"[{'; '.join(all_marks)}]" if all_marks else "", description))))


def _hit_as_json(hit: _SearchHit, copies: Sequence[_SearchHit], lineage: Lineage) -> dict[str, object]:
    from runner.registry.lineage.descriptions import total_to_json
    from runner.registry.lineage.relations import describe_relations

    release, node = hit.release, hit.node
    return {
        "release": str(release.reference),
        "sha256": hit.entry.sha256,
        "kind": release.kind,
        "description": release.description,
        "licence": release.licence,
        "visibility": release.visibility,
        "yanked": hit.entry.yanked,
        "signed": hit.entry.signed,
        "identity": dict(release.identity),
        "facts": dict(release.facts),
        "links": [vars(link) for link in release.links],
        "sources": {part: vars(source) for part, source in release.sources.items()},
        "same_run": [str(copy.release.reference) for copy in copies if copy is not hit],
        "of_other_runs": [] if node is None else describe_relations(node),
        "effort": total_to_json(lineage.ancestry(node)) if node is not None and node.trains_models else None,
        "bytes": release.size,
        "files": len(release.files),
    }
