"""`nip-run install`: the components that specs name, into the store, pinned in `nip-run.lock`."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.terminal.output import note, print_json, say, warn
from runner.registry.components.install import Install, Installer
from runner.registry.components.lockfile import LOCK, Lock
from runner.registry.components.store import Store


def execute(args: argparse.Namespace) -> int:
    lock, store = Lock.above(Path.cwd()), Store()
    if not args.references and not lock.pins:
        raise UsageError(f"which components? No {LOCK} here pins any; nip-run install KIND/OWNER/NAME@VERSION")
    with Installer(store, lock, args.where) as installer:
        done = installer.install(args.references) if args.references else installer.restore()
        lock = installer.lock
    if args.json:
        print_json({"lock": str(lock.path), "store": str(store.root), "installed": [_json(one) for one in done]})
        return ExitCode.DONE
    for one in done:
        for line in one.notes:
            warn(f"warning: {line}")
        say(f"{'there already' if one.was_there else 'installed'}: {one.reference}  sha256:{one.sha256[:12]}")
    if not args.quiet:
        note(f"{counted(len(done), 'release')} pinned in {lock.path}; a spec names one as OWNER/NAME@VERSION")
    return ExitCode.DONE


def _json(one: Install) -> dict[str, object]:
    return {
        "release": str(one.reference),
        "sha256": one.sha256,
        "where": one.where,
        "was_there": one.was_there,
        "notes": list(one.notes),
    }
