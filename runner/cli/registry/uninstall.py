"""Remove installed components.

Examples:
  nip-run uninstall protocol/acme/council@1.2.0
  nip-run uninstall acme/council
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join
from runner.cli.arguments import REF
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.documents.releases.reference import Reference
    from runner.registry.components.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("references", metavar="REF", nargs="+", help=REF)


def execute(args: argparse.Namespace) -> int:
    from runner.registry.components.lockfile import Lock
    from runner.registry.components.store import Store

    store, lock = Store(), Lock.find_nearest(Path.cwd())
    there = [entry.reference for entry in store.entries()]
    meant = [_meant(text, store, there) for text in args.references]
    told = []
    for reference in meant:
        store.remove(reference)
        told.append({"release": str(reference), "pinned_in": str(lock.path) if reference in lock.pins else None})
    left = [reference for reference in there if reference not in meant]
    broken = _needing(store, left, meant)
    if args.json:
        print_json({"store": str(store.root), "uninstalled": told, "needed_by": broken})
        return ExitCode.DONE
    for one in told:
        say(f"uninstalled: {one['release']}")
        if one["pinned_in"] is not None:
            note(f"{one['pinned_in']} still pins it; nip-run install brings it back, or remove its line there")
    for name, needs in broken.items():
        note(f"{name} is still installed, and needs {comma_join(needs)}")
    return ExitCode.DONE


def _meant(text: str, store: Store, there: Sequence[Reference]) -> Reference:
    """The installed release that is meant; of a name without a kind or a version, the only one of it.

    Raises:
        NotPublished: there is none.
        UsageError: there are several.
    """
    from runner.base.errors import NotPublished, UsageError
    from runner.documents.releases.reference import Digest, Reference, parse
    from runner.registry.components.installed import suggest_release

    kinds = {one.kind for one in there if text.partition("@")[0] == f"{one.owner}/{one.name}"}
    named = parse(text, kinds.pop() if len(kinds) == 1 else None)
    if isinstance(named, Digest):
        return store.by_hash(named)
    found = [one for one in there if named in (one, Reference(one.kind, one.owner, one.name))]
    if not found and store.folder(named if named.version else named.at("-")).exists():
        return named  # what is damaged so that it is not listed can be removed, too
    if not found:
        raise NotPublished(f"{named} is not installed{suggest_release(named, there)}")
    if len(found) > 1:
        raise UsageError(
            f"several versions of {named} are installed; name one of {comma_join(str(one.version) for one in found)}"
        )
    return found[0]


def _needing(store: Store, left: Sequence[Reference], gone: Sequence[Reference]) -> dict[str, list[str]]:
    """The installed releases that need some of those that were removed."""
    from runner.base.errors import ReleaseError
    from runner.registry.components.install import find_dependencies

    found = {}
    for reference in left:
        try:
            needs = [str(one) for one, _ in find_dependencies(store.check(reference).release) if one in gone]
        except ReleaseError as error:
            note(str(error))
            continue
        if needs:
            found[str(reference)] = needs
    return found
