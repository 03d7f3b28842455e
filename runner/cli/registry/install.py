"""Install components that specs refer to, and record their hashes in nip-run.lock.

Examples:
  nip-run install protocol/acme/council@1.2.0 --from DIR
  nip-run install
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import REFERENCE_HELP, add_registry_option
from runner.cli.terminal.output import note, print_json, say, warn

if TYPE_CHECKING:
    from runner.registry.components.install import InstallResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "references", metavar="REF", nargs="*", help=f"{REFERENCE_HELP}; default: everything in nip-run.lock"
    )
    add_registry_option(parser)


def execute(args: argparse.Namespace) -> int:
    from runner.registry.components.install import Installer
    from runner.registry.components.lockfile import LOCK, Lock
    from runner.registry.components.store import Store

    lock, store = Lock.find_nearest(Path.cwd()), Store()
    if not args.references and not lock.pins:
        raise UsageError(
            f"nothing to install, since no {LOCK} pins components here; name one with nip-run install "
            "KIND/OWNER/NAME@VERSION"
        )
    with Installer(store, lock, args.registry) as installer:
        installed = installer.install(args.references) if args.references else installer.restore()
        lock = installer.lock
    if args.json:
        print_json({"lock": str(lock.path), "store": str(store.root), "installed": list(map(_as_json, installed))})
        return ExitCode.DONE
    for install in installed:
        for line in install.notes:
            warn(f"warning: {line}")
        state = "already installed" if install.already_existed else "installed"
        say(f"{state}: {install.reference}  sha256:{install.sha256[:12]}")
    if not args.quiet:
        note(f"{counted(len(installed), 'release')} pinned in {lock.path}; a spec names one as OWNER/NAME@VERSION")
    return ExitCode.DONE


def _as_json(install: InstallResult) -> dict[str, object]:
    return {
        "release": str(install.reference),
        "sha256": install.sha256,
        "where": install.address,
        "was_there": install.already_existed,
        "notes": list(install.notes),
    }
