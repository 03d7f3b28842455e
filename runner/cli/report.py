"""`nip-run report`: runs as one page that opens from the disk, or as a folder for a web server."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.output import print_json, say
from runner.errors import RunError, UsageError
from runner.exit_codes import ExitCode
from runner.pages.run_page import runs_site
from runner.pages.site import as_index, as_one_file, into
from runner.results.results import Results
from runner.storage.atomic import atomic_write
from runner.text import in_one_line


def execute(args: argparse.Namespace) -> int:
    if args.output is not None and args.output.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {args.output}: the name of a page ends in .html")
    results = Results(args.results)
    folders = [results.find(name) for name in args.runs]
    path: Path = args.output if args.dir is None else args.dir / "index.html"
    try:
        if args.dir is None:
            data: dict[str, bytes] = {}
            page = as_one_file(runs_site(folders, data.__setitem__), data)
        else:
            page = as_index(runs_site(folders, into(args.dir)))
        atomic_write(path, page)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    if args.json:
        print_json({"runs": [folder.run_id for folder in folders], "path": str(path), "bytes": len(page)})
    elif not args.quiet:
        say(f"{in_one_line(str(path))}  {len(page):,} bytes")
    return ExitCode.DONE
