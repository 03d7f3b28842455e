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
    from runner.server.database import Database
    from runner.server.settings import Settings

_MOST = 1 << 30


def add(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    """Make it, as an account that owns the dataset."""
    from pydantic import ValidationError

    from runner.server.accounts import account_id, viewer_of_account
    from runner.server.competitions import make
    from runner.server.keeping import note_act
    from runner.server.web.api_competitions import CompetitionWanted

    account, file = args.names[0], Path(args.names[1])
    try:
        wanted = CompetitionWanted.model_validate_json(read_bounded(file, _MOST))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()[:5]]
        raise UsageError(f"{file} is no competition: {'; '.join(wrong)}") from None
    with database.reading() as connection:
        viewer = viewer_of_account(connection, account_id(connection, account))
    try:
        made = make(settings, database, viewer, wanted.said(), time.time())
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
