"""`nip-run report`: a run as one page that opens from the disk and asks nobody for anything."""

from __future__ import annotations

import argparse

from runner.cli.output import print_json, say
from runner.errors import RunError, UsageError
from runner.exit_codes import ExitCode
from runner.pages.run_page import run_page
from runner.results.results import Results
from runner.storage.atomic import atomic_write
from runner.text import in_one_line


def execute(args: argparse.Namespace) -> int:
    if args.output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {args.output}: the name of a page ends in .html")
    folder = Results(args.results).find(args.run)
    page = run_page(folder).encode("utf-8", "backslashreplace")
    try:
        atomic_write(args.output, page)
    except OSError as error:
        raise RunError(f"cannot write {args.output}: {error.strerror}") from error
    if args.json:
        print_json({"run_id": folder.run_id, "path": str(args.output), "bytes": len(page)})
    elif not args.quiet:
        say(f"{in_one_line(str(args.output))}  {len(page):,} bytes")
    return ExitCode.DONE
