"""Open runs in a browser and follow them while they play.

Examples:
  nip-run view
  nip-run view RUN RUN
  nip-run view last --port 8080 --no-open
  nip-run view --board
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.arguments import RUNS_HELP, add_board_options, add_shard_option, port
from runner.cli.terminal.output import note, print_json, say
from runner.cli.terminal.page_file import open_in_browser, page_file

if TYPE_CHECKING:
    from runner.pages.live.server import PageServer
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("runs", nargs="*", metavar="RUN", help=f"{RUNS_HELP}; default: last, the newest run")
    add_shard_option(parser, "shard K of N of runs that are played in shards")
    add("--port", type=port, default=0, metavar="N", help="default: a free port")
    add("--no-open", dest="open", action="store_false", help="print the address, but open no browser")
    add_board_options(parser, "show the leaderboard instead, updated whenever the page is loaded")


def execute(args: argparse.Namespace) -> int:
    if args.registry is not None and not args.board:
        raise UsageError("--from names the registry of a leaderboard; add --board")
    if args.board and args.runs:
        raise UsageError("--board shows only the leaderboard; omit RUN, or view the runs separately")
    results: Results = args.results
    return _view_board(results, args) if args.board else _view_runs(results, args)


def _view_runs(results: Results, args: argparse.Namespace) -> int:
    from runner.pages.live.live_runs import LiveRuns
    from runner.pages.live.server import PageServer
    from runner.results.leaderboard.results_folder import LAST
    from runner.runs.execution.shard_consistency import parse_shard

    find_run: Callable[[str], RunFolder] = results.find
    if args.shard is not None:
        find_run = partial(results.find_part, shard=parse_shard(args.shard))
    folders = list({folder.run_id: folder for folder in map(find_run, args.runs or [LAST])}.values())
    live = LiveRuns(folders)
    server = PageServer(live, args.port)
    follower = threading.Thread(target=live.follow, name="nip-run-follow", daemon=True)
    follower.start()
    try:
        return _serve_until_interrupted(server, [folder.run_id for folder in folders], args)
    finally:
        live.close()
        follower.join(5.0)


def _view_board(results: Results, args: argparse.Namespace) -> int:
    """Serve the leaderboard until Ctrl-C. A registry is read only once, so newer releases need a new `view`."""
    from runner.pages.boards.lists import local_board, published_board
    from runner.pages.live.board import BoardPages
    from runner.pages.live.server import PageServer

    if args.registry is None:
        return _serve_until_interrupted(PageServer(BoardPages(lambda: local_board(results)), args.port), [], args)
    from runner.registry.board.board import registry_board
    from runner.registry.transports.locations import connect_to_read

    with connect_to_read(args.registry) as registry:
        board = published_board(registry_board(registry))
    return _serve_until_interrupted(PageServer(BoardPages(lambda: board), args.port), [], args)


def _serve_until_interrupted(server: PageServer, runs: list[str], args: argparse.Namespace) -> int:
    """Serve pages until Ctrl-C."""
    from runner.runs.execution.process import sigterm_as_keyboard_interrupt

    try:
        with sigterm_as_keyboard_interrupt(), page_file(server) as page:
            _announce_page(server, page, runs, args)
            server.serve_forever()
    finally:
        server.server_close()
    return ExitCode.DONE


def _announce_page(server: PageServer, page: str, runs: list[str], args: argparse.Namespace) -> None:
    """Print the URI of the local file that redirects to the page, and open it."""
    if args.json:
        print_json({"page": page, "port": server.server_port, "runs": runs})
    else:
        say(page)
        if not args.quiet:
            note("open this file in a browser on this machine (only you can read it); Ctrl-C stops the server")
    sys.stdout.flush()
    if args.open:
        open_in_browser(page)
