"""Tell what can be published, and what prevents the rest.

Examples:
  nip-run status
  nip-run status RUN
  nip-run status spec.yaml
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base import package_data
from runner.base.exit_codes import ExitCode
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.registry.publishing.publish import ReadyRelease
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Manifest


OF_A_PUBLISH = ("terms", "name")
"""Checks of what only the command that publishes says."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|SPEC", nargs="?", help="only this run, or the components of this spec")


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.results.leaderboard.results_folder import Results

    results = Results(args.results)
    if args.what is None:
        return _list(results, args)
    try:
        folder = results.find(args.what)
    except UsageError:
        found = package_data.find_file(args.what, Path())
        if found is None or not found.is_file():
            raise
        return _spec(args, results)
    return _run(folder, args)


def _list(results: Results, args: argparse.Namespace) -> int:
    """All runs, by their manifests alone."""
    from runner.registry.check_notes import CheckNote
    from runner.registry.publishing.publishable import find_obstacles

    found = []
    for folder in results.runs():
        manifest = folder.manifest()
        if manifest.parent_run_id is not None and results.run(manifest.parent_run_id).manifest_path.is_file():
            continue  # published with the training run that it is a part of
        said = list(find_obstacles(folder, manifest))
        wrong = [line for line in said if not isinstance(line, CheckNote)]
        notes = [*_of_another(manifest), *(line for line in said if isinstance(line, CheckNote))]
        found.append((manifest, wrong, notes))
    found.sort(key=lambda row: (row[0].started_at, row[0].run_id), reverse=True)
    for damage in results.damaged():
        note(damage)
    if args.json:
        print_json(
            [
                {
                    "run_id": manifest.run_id,
                    "kind": manifest.kind,
                    "status": manifest.status,
                    "publishable": not wrong,
                    "why_not": wrong,
                    "notes": notes,
                }
                for manifest, wrong, notes in found
            ]
        )
        return ExitCode.DONE
    if not found:
        say(f"no runs in {results.path}")
        return ExitCode.DONE
    rows = [
        (manifest.run_id, manifest.kind, "no" if wrong else "yes", "; ".join((*wrong, *notes)))
        for manifest, wrong, notes in found
    ]
    print_table(("run", "kind", "publishable", "why"), rows)
    if not args.quiet:
        note("by the manifests alone; `nip-run status RUN` makes every check of one run")
    return ExitCode.DONE


def _of_another(manifest: Manifest) -> Iterator[str]:
    """Whose answers a run has that others would take for new ones."""
    if manifest.is_whole_replay and manifest.replay_of is not None:
        yield f"a replay of {manifest.replay_of.run_id}"
    if manifest.rejudge_of is not None:
        yield f"judges the debates of {manifest.rejudge_of.run_id}"


def _run(folder: RunFolder, args: argparse.Namespace) -> int:
    """All checks of one run, as a publish would make them."""
    from runner.registry.bundles.runs import drafts_of
    from runner.registry.draft import Naming
    from runner.registry.publishing.publish import Options, prepare_releases
    from runner.registry.redaction.machine_names import MachineNames
    from runner.results.leaderboard.results_folder import Results

    results = Results.of(folder)
    naming = Naming(owner=os.environ.get("NIP_RUN_OWNER") or "owner")
    with ExitStack() as held:
        made = held.enter_context(
            prepare_releases(
                [drafts_of(folder, results, naming)], None, Options(names=MachineNames.of_process(results.path))
            )
        )
        wrong = any(not outcome.passed for one in made for outcome in one.outcomes if outcome.check not in OF_A_PUBLISH)
        if args.json:
            print_json({"run_id": folder.run_id, "publishable": not wrong, "releases": [_as_json(one) for one in made]})
            return ExitCode.FAILED if wrong else ExitCode.DONE
        for one in made:
            _say(one, several=len(made) > 1)
    say(f"run {folder.run_id} {'cannot be published as it is' if wrong else 'can be published'}")
    return ExitCode.FAILED if wrong else ExitCode.DONE


def _as_json(one: ReadyRelease) -> dict[str, object]:
    shown = one.to_json(None)
    return {"name": one.draft.release.name, "checks": shown["checks"], "cleaned": shown["cleaned"]}


def _say(one: ReadyRelease, *, several: bool) -> None:
    outcomes = [outcome for outcome in one.outcomes if outcome.check not in OF_A_PUBLISH]
    rows = [
        (outcome.check, "passed" if outcome.passed else "FAILED", line)
        for outcome in outcomes
        for line in (*outcome.failures, *outcome.notes)
    ]
    if rows:
        print_table(("check", "result", "what"), rows, one.draft.release.name if several else None)
    quiet = [outcome.check for outcome in outcomes if not outcome.failures and not outcome.notes]
    if quiet:
        say(f"{f'{one.draft.release.name}: ' if several and not rows else ''}passed: {', '.join(quiet)}")


def _spec(args: argparse.Namespace, results: Results) -> int:
    """The components of a spec: which others can find, and why not the others."""
    from runner.base.errors import SpecError
    from runner.registry.components.freeze import pins_of
    from runner.registry.components.lookup import finder_of
    from runner.spec.loader import load_all

    specs = load_all(args.what, (), results.path_of, finder_of(args.what))
    if not specs:
        raise SpecError([])
    pins = pins_of(specs[:1])
    if args.json:
        print_json([{"part": pin.part, "what": pin.label, "state": pin.state, "pinned": pin.is_pinned} for pin in pins])
        return ExitCode.DONE
    rows = [(pin.part, "yes" if pin.is_pinned else "no", pin.label, pin.state) for pin in pins]
    print_table(("part", "pinned", "what", "state"), rows)
    return ExitCode.DONE
