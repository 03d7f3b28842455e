"""`nip-run server add-competition`: a competition out of a file, which has what the API is sent."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.output import note, print_json, say
from runner.errors import UsageError
from runner.exit_codes import ExitCode
from runner.storage.files import read_bounded

if TYPE_CHECKING:
    from runner.server.settings import Settings
    from runner.server.store.database import Database

_MOST = 1 << 30


def add(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    """Make it, as an account that owns the dataset."""
    from runner.server.competitions.kept import make
    from runner.server.people.accounts import account_id, viewer_of_account
    from runner.server.people.keeping import note_act
    from runner.server.web.api_competitions import wanted_of

    account, file = args.names[0], Path(args.names[1])
    try:
        wanted = wanted_of(read_bounded(file, _MOST), str(file))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    with database.reading() as connection:
        viewer = viewer_of_account(connection, account_id(connection, account))
    try:
        made = make(settings, database, viewer, wanted, time.time())
    except PermissionError as error:
        raise UsageError(str(error)) from error
    with database.writing() as connection:
        note_act(connection, time.time(), args.action, made, why=args.why)
    if args.json:
        print_json({"competition": made})
    else:
        say(made)
        if not args.quiet:
            note(f"its board is the page /competitions/{made} of the server; the labels are in its records alone")
    return ExitCode.DONE
