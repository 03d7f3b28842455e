"""Write runs as one HTML page with results and all games.

Examples:
  nip-run report last -o report.html
  nip-run report RUN RUN -o report.html
  nip-run report last --dir site
  nip-run report --board -o board.html
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError, UsageError, os_errors_as
from runner.base.exit_codes import ExitCode
from runner.base.redaction import current_redactor
from runner.base.text import in_one_line
from runner.cli.arguments import RUNS_HELP, RenamedOption, add_board_options
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.pages.boards.lists import BoardPage
    from runner.pages.site import Site, StorePiece
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUNS_HELP)
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument("-o", "--out", type=Path, metavar="FILE.html", help="write one self-contained page")
    output.add_argument("--output", type=Path, dest="out", action=RenamedOption, new="--out")
    output.add_argument("--dir", type=Path, metavar="DIR", help="write index.html and its data files, for a web server")
    add_board_options(parser, "include the leaderboard; without RUN, only the leaderboard")


def execute(args: argparse.Namespace) -> int:
    from runner.base.storage.atomic_files import atomic_write
    from runner.pages.site import as_one_file
    from runner.pages.site_folder import site_folder

    _check_arguments(args)
    results: Results = args.results
    folders = [results.find(name) for name in args.runs]
    board = _load_board(args.registry, results) if args.board else None
    path: Path = args.out if args.dir is None else args.dir / "index.html"
    with os_errors_as(RunError, f"cannot write {path}", "; choose another path with -o"):
        if args.dir is None:
            data: dict[str, bytes] = {}
            site = _build_redacted_site(folders, board, data.__setitem__)
            atomic_write(path, as_one_file(site, data))
        else:
            with site_folder(args.dir) as folder:
                folder.put(_build_redacted_site(folders, board, folder.store))
    _print_summary(args, folders, board, path, path.stat().st_size)
    return ExitCode.DONE


def _check_arguments(args: argparse.Namespace) -> None:
    """Check that the arguments name something to show, and fit each other.

    Raises:
        UsageError: they do not.
    """
    if not args.runs and not args.board:
        raise UsageError("nothing to show: name runs (`nip-run runs` lists them), or add --board")
    if args.registry is not None and not args.board:
        raise UsageError("--from names the registry of a leaderboard; add --board")
    if args.out is not None and args.out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"-o {args.out}: the file name must end in .html")


def _load_board(address: str | None, results: Results) -> BoardPage:
    from runner.pages.boards.lists import local_board, published_board, without_folders

    if address is None:
        return local_board(results, without_folders(str(results.path)))
    from runner.registry.board.board import registry_board
    from runner.registry.transports.locations import connect_to_read

    with connect_to_read(address) as registry:
        return published_board(registry_board(registry), without_folders(registry.address, address))


def _build_redacted_site(folders: Sequence[RunFolder], board: BoardPage | None, store_piece: StorePiece) -> Site:
    """Return the page without the secrets that this process knows, since users share the page."""
    from runner.pages.redacted import site_without_secrets, without_secrets
    from runner.pages.report.run_site import runs_site

    redactor = current_redactor()
    store_piece = without_secrets(store_piece, redactor)
    if board is None:
        site = runs_site(folders, store_piece)
    else:
        from runner.pages.boards.page import board_site, join_sites

        site = board_site(board, store_piece, {folder.run_id for folder in folders})
        site = join_sites(site, runs_site(folders, store_piece)) if folders else site
    return site_without_secrets(site, redactor)


def _print_summary(
    args: argparse.Namespace, folders: Sequence[RunFolder], board: BoardPage | None, path: Path, size: int
) -> None:
    if args.json:
        facts = {"runs": [folder.run_id for folder in folders], "path": str(path), "bytes": size}
        if board is not None:
            tasks = [{"benchmark": task.benchmark, "task": task.task, "rows": len(task.rows)} for task in board.lists]
            skipped = [{"release": release, "why": reason} for release, reason in board.refused]
            facts["board"] = {"where": board.where, "tasks": tasks, "left_out": skipped}
        print_json(facts)
        return
    if not args.quiet:
        say(f"{in_one_line(str(path))}  {size:,} bytes")
        if board is not None and not board.lists:
            note(in_one_line(board.notes[0]))
