"""`nip-run view`: a page on this machine that follows runs while they play, and keeps notes of their games."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import webbrowser

from runner.cli.output import note, print_json, say
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.results.results import LAST, Results
from runner.viewing.live import LiveRuns
from runner.viewing.server import Server

MAX_PORT = 65_535


def execute(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= MAX_PORT:
        raise UsageError(f"--port {args.port}: a port is from 1 to {MAX_PORT}; 0, or none, takes a free one")
    results = Results(args.results)
    folders = list({folder.run_id: folder for folder in map(results.find, args.runs or [LAST])}.values())
    live = LiveRuns(folders)
    server = Server(live, args.port)
    following = threading.Thread(target=live.follow, name="nip-run-follow", daemon=True)
    try:
        following.start()
        _tell(server.address, [folder.run_id for folder in folders], args)
        server.serve_forever()
    finally:
        live.close()
        server.server_close()
        following.join(5.0)
    return ExitCode.DONE


def _tell(address: str, runs: list[str], args: argparse.Namespace) -> None:
    if args.json:
        print_json({"address": address, "runs": runs})
    else:
        say(address)
        if not args.quiet:
            note("only this machine can open it, and only by this address; Ctrl-C ends it")
    sys.stdout.flush()
    if args.open and _has_display():
        webbrowser.open(address)


def _has_display() -> bool:
    """Whether there is a screen that a browser could open on: else one might take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
