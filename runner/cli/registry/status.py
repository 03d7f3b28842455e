"""Show what can be published, and what prevents the rest.

Examples:
  nip-run status
  nip-run status RUN
  nip-run status spec.yaml
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from runner.base import package_data
from runner.base.errors import SpecError, UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.registry.publishing.publish import ReadyRelease
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Manifest


PUBLISH_ONLY_CHECKS = ("terms", "name")
"""Checks of options of `publish`, which are left out here."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", metavar="RUN|SPEC", nargs="?", help="only this run, or the components of this spec")


def execute(args: argparse.Namespace) -> int:
    results: Results = args.results
    if args.what is None:
        return _list_runs(results, args)
    try:
        folder = results.find(args.what)
    except UsageError:
        spec_path = package_data.find_file(args.what, Path())
        if spec_path is None or not spec_path.is_file():
            raise
        return _show_spec(args, results)
    return _show_run(folder, args)


class _CheckedRun(NamedTuple):
    """A run whose manifest was checked."""

    manifest: Manifest
    problems: list[str]
    """The reasons why the run cannot be published."""
    notes: list[str]


def _check_manifests(results: Results) -> Iterator[_CheckedRun]:
    from runner.registry.check_notes import CheckNote
    from runner.registry.publishing.publishable import find_obstacles

    for folder, manifest in results.runs_with_manifests():
        if manifest.parent_run_id is not None and results.run(manifest.parent_run_id).manifest_path.is_file():
            continue  # a part of a training run, which is published with it
        findings = list(find_obstacles(folder, manifest))
        problems = [line for line in findings if not isinstance(line, CheckNote)]
        notes = [*_describe_reused_answers(manifest), *(line for line in findings if isinstance(line, CheckNote))]
        yield _CheckedRun(manifest, problems, notes)


def _list_runs(results: Results, args: argparse.Namespace) -> int:
    """List all runs and whether they can be published. Only their manifests are checked."""
    runs = sorted(
        _check_manifests(results), key=lambda run: (run.manifest.started_at, run.manifest.run_id), reverse=True
    )
    note(*results.damaged())
    if args.json:
        print_json(
            [
                {
                    "run_id": manifest.run_id,
                    "kind": manifest.kind,
                    "status": manifest.status,
                    "publishable": not problems,
                    "why_not": problems,
                    "notes": notes,
                }
                for manifest, problems, notes in runs
            ]
        )
        return ExitCode.DONE
    if not runs:
        say(f"no runs in {results.path}")
        return ExitCode.DONE
    rows = [
        (manifest.run_id, manifest.kind, "no" if problems else "yes", "; ".join((*problems, *notes)))
        for manifest, problems, notes in runs
    ]
    print_table(("run", "kind", "publishable", "why"), rows)
    if not args.quiet:
        note("only manifests were checked; `nip-run status RUN` runs every check on one run")
    return ExitCode.DONE


def _describe_reused_answers(manifest: Manifest) -> Iterator[str]:
    """Yield a note if a run reuses the answers of another run."""
    if manifest.is_whole_replay and manifest.replay_of is not None:
        yield f"a replay of {manifest.replay_of.run_id}"
    if manifest.rejudge_of is not None:
        yield f"judges the debates of {manifest.rejudge_of.run_id}"


def _show_run(folder: RunFolder, args: argparse.Namespace) -> int:
    """Run the checks of `publish` on one run, and print their results."""
    from runner.registry.bundles.runs import build_run_drafts
    from runner.registry.draft import PublisherChoices
    from runner.registry.publishing.publish import PublishOptions, prepare_releases
    from runner.registry.redaction.machine_names import MachineNames
    from runner.results.leaderboard.results_folder import Results

    results = Results.of(folder)
    drafts = build_run_drafts(folder, results, PublisherChoices(owner=os.environ.get("NIP_RUN_OWNER") or "owner"))
    with prepare_releases([drafts], None, PublishOptions(names=MachineNames.of_process(results.path))) as releases:
        outcomes = [outcome for release in releases for outcome in release.outcomes]
        has_failed = any(not outcome.passed for outcome in outcomes if outcome.check not in PUBLISH_ONLY_CHECKS)
        if args.json:
            checks = [_checks_as_json(release) for release in releases]
            print_json({"run_id": folder.run_id, "publishable": not has_failed, "releases": checks})
            return ExitCode.FAILED if has_failed else ExitCode.DONE
        for release in releases:
            _show_checks(release, several=len(releases) > 1)
    say(f"run {folder.run_id} {'cannot be published as it is' if has_failed else 'can be published'}")
    return ExitCode.FAILED if has_failed else ExitCode.DONE


def _checks_as_json(ready_release: ReadyRelease) -> dict[str, object]:
    json_data = ready_release.to_json(None)
    return {"name": ready_release.draft.release.name, "checks": json_data["checks"], "cleaned": json_data["cleaned"]}


def _show_checks(ready_release: ReadyRelease, *, several: bool) -> None:
    outcomes = [outcome for outcome in ready_release.outcomes if outcome.check not in PUBLISH_ONLY_CHECKS]
    rows = [
        (outcome.check, "passed" if outcome.passed else "FAILED", line)
        for outcome in outcomes
        for line in (*outcome.failures, *outcome.notes)
    ]
    if rows:
        print_table(("check", "result", "what"), rows, ready_release.draft.release.name if several else None)
    passed_checks = [outcome.check for outcome in outcomes if not outcome.failures and not outcome.notes]
    if passed_checks:
        prefix = f"{ready_release.draft.release.name}: " if several and not rows else ""
        say(f"{prefix}passed: {', '.join(passed_checks)}")


def _show_spec(args: argparse.Namespace, results: Results) -> int:
    """Print which components of a spec are pinned, so that others can get them, and why the others are not."""
    from runner.registry.components.freeze import list_pins
    from runner.registry.components.lookup import make_finder_for
    from runner.spec.loader import load_specs

    specs = load_specs(args.what, (), results.path_of, make_finder_for(args.what))
    if not specs:
        raise SpecError([])
    pins = list_pins(specs[:1])
    if args.json:
        print_json([{"part": pin.part, "what": pin.label, "state": pin.state, "pinned": pin.is_pinned} for pin in pins])
        return ExitCode.DONE
    rows = [(pin.part, "yes" if pin.is_pinned else "no", pin.label, pin.state) for pin in pins]
    print_table(("part", "pinned", "what", "state"), rows)
    return ExitCode.DONE
