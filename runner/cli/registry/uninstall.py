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

from runner.base.errors import NotFoundError, ReleaseError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join
from runner.cli.arguments import REFERENCE_HELP
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.documents.releases.reference import Reference
    from runner.registry.components.store import Store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("references", metavar="REF", nargs="+", help=REFERENCE_HELP)


def execute(args: argparse.Namespace) -> int:
    from runner.registry.components.lockfile import Lock
    from runner.registry.components.store import Store

    store, lock = Store(), Lock.find_nearest(Path.cwd())
    installed = [entry.reference for entry in store.entries()]
    selected = [_find_installed(text, store, installed) for text in args.references]
    removed = []
    for reference in selected:
        store.remove(reference)
        removed.append({"release": str(reference), "pinned_in": str(lock.path) if reference in lock.pins else None})
    remaining = [reference for reference in installed if reference not in selected]
    dependents = _find_dependents(store, remaining, selected)
    if args.json:
        print_json({"store": str(store.root), "uninstalled": removed, "needed_by": dependents})
        return ExitCode.DONE
    for entry in removed:
        say(f"uninstalled: {entry['release']}")
        if entry["pinned_in"] is not None:
            note(
                f"{entry['pinned_in']} still pins {entry['release']}; remove its line there, or install it again with "
                "nip-run install"
            )
    for name, needs in dependents.items():
        note(
            f"{name} is still installed, and needs {comma_join(needs)}; uninstall {name}, too, or install the "
            "removed releases again with nip-run install"
        )
    return ExitCode.DONE


def _find_installed(text: str, store: Store, installed: Sequence[Reference]) -> Reference:
    """Return the installed release that the text names; kind and version may be omitted if that is unambiguous.

    Raises:
        NotFoundError: no installed release has this name.
        UsageError: several versions are installed.
    """
    from runner.documents.releases.reference import Digest, Reference, parse_reference
    from runner.registry.components.installed import suggest_release

    kinds = {entry.kind for entry in installed if text.partition("@")[0] == f"{entry.owner}/{entry.name}"}
    requested = parse_reference(text, kinds.pop() if len(kinds) == 1 else None)
    if isinstance(requested, Digest):
        return store.find_by_hash(requested)
    matches = [entry for entry in installed if requested in (entry, Reference(entry.kind, entry.owner, entry.name))]
    if not matches and requested.version is not None and store.folder(requested).exists():
        return requested  # a damaged release: it is not among `installed`, but can be removed
    if not matches:
        raise NotFoundError(f"{requested} is not installed{suggest_release(requested, installed)}")
    if len(matches) > 1:
        versions = comma_join(str(entry.version) for entry in matches)
        raise UsageError(f"several versions of {requested} are installed; name one of {versions}")
    return matches[0]


def _find_dependents(
    store: Store, remaining: Sequence[Reference], removed: Sequence[Reference]
) -> dict[str, list[str]]:
    """Return the installed releases that need removed releases, each with the names of those removed releases."""
    from runner.registry.components.install import find_dependencies

    dependents = {}
    for reference in remaining:
        try:
            needs = [str(name) for name, _ in find_dependencies(store.check(reference).release) if name in removed]
        except ReleaseError as error:
            note(str(error))
            continue
        if needs:
            dependents[str(reference)] = needs
    return dependents
