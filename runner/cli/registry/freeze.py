"""Pin everything that a spec names, or explain what cannot be pinned.

Examples:
  nip-run freeze spec.yaml
  nip-run freeze spec.yaml -o frozen.yaml
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.registry.components.freeze import FrozenPin
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("spec", metavar="SPEC", help="a spec file")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write the spec with every reference pinned")


def execute(args: argparse.Namespace) -> int:
    from runner.registry.components.freeze import list_pins, write_frozen
    from runner.registry.components.lookup import make_finder_for
    from runner.spec.loader import load_specs

    results: Results = args.results
    specs = load_specs(args.spec, (), results.path_of, make_finder_for(args.spec))
    pins = list_pins(specs)
    unpinned = [pin for pin in pins if not pin.is_pinned]
    out_path = None
    if args.out is not None:
        write_frozen(specs[0].path or Path(args.spec), specs, args.out)
        out_path = str(args.out)
    if args.json:
        print_json({"ok": not unpinned, "spec": args.spec, "pins": list(map(_as_json, pins)), "written": out_path})
    else:
        rows = [
            (pin.part, "pinned" if pin.is_pinned else "not pinned", pin.description or pin.why_not or "")
            for pin in pins
        ]
        print_table(("part", "", "how, or why not"), rows)
        if out_path is not None:
            say(f"wrote the spec with a version in every reference: {out_path}")
    if unpinned and not args.quiet:
        note(f"{counted(len(unpinned), 'part')} cannot be pinned; see the reasons above")
    return ExitCode.FAILED if unpinned else ExitCode.DONE


def _as_json(pin: FrozenPin) -> dict[str, object]:
    from runner.documents.releases.manifest import FileSource

    source = pin.source or FileSource(repository=None, commit=None, path=None, clean=False)
    return {
        "part": pin.part,
        "pinned": pin.is_pinned,
        "repository": source.repository,
        "commit": source.commit,
        "path": source.path,
        "release": pin.release,
        "sha256": pin.sha256,
        "why": pin.why_not,
    }
