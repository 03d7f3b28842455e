"""Create and change competitions from request files, for `nip-run server add-competition` and related actions."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError, os_errors_as
from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.server.settings import Settings
    from runner.server.store.database import Database

MAX_FILE_BYTES = 1 << 30


def add(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    """Create a competition, owned by the account, from a request file."""
    from runner.server.accounts.accounts import find_account_id, viewer_of_account
    from runner.server.accounts.administration import log_action
    from runner.server.competitions.storage import create_competition
    from runner.server.web.api.competitions import CreateCompetitionRequest, created_response, parse_request_file

    account, file = args.names[0], Path(args.names[1])
    request = parse_request_file(CreateCompetitionRequest, _read_file(file), str(file)).to_request()
    with database.reading() as connection:
        viewer = viewer_of_account(connection, find_account_id(connection, account))
    try:
        name = create_competition(settings, database, viewer, request, time.time())
    except PermissionError as error:
        raise UsageError(str(error)) from error
    now = time.time()
    with database.writing() as connection:
        log_action(connection, now, args.action, name, reason=args.why)
        response = created_response(connection, viewer, name, now, "").model_dump(mode="json")
    if args.json:
        print_json(response)
    else:
        say(name)
        for key in ("title", "dataset", "day_limit", "closes", "rows_open", "rows_held_out"):
            say(f"  {key:<14} {response[key]}")
        if not args.quiet:
            note(f"leaderboard: page {response['page']} of the server; only the server's database has the labels")
    return ExitCode.DONE


def _read_file(file: Path) -> bytes:
    with os_errors_as(UsageError, f"cannot read {file}"):
        return read_bounded(file, MAX_FILE_BYTES)


def change(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """Change a competition's title, limit or closing time."""
    from runner.server.competitions import editing
    from runner.server.web.api.competitions import ChangeCompetitionRequest, parse_request_file

    file = Path(args.names[1])
    request = parse_request_file(ChangeCompetitionRequest, _read_file(file), str(file))
    with _editing(database, args) as (connection, competition, _result):
        changes, reason = request.to_changes(), args.why or request.why
        editing.change_competition(connection, competition, changes, time.time(), by="", reason=reason)
    return ExitCode.DONE


def relabel(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """Replace labels of a competition. The running server then scores all submissions again."""
    from runner.server.competitions import editing
    from runner.server.web.api.competitions import ReplaceLabelsRequest, parse_request_file

    file = Path(args.names[1])
    request = parse_request_file(ReplaceLabelsRequest, _read_file(file), str(file))
    with _editing(database, args) as (connection, competition, result):
        labels, reason = request.labels, args.why or request.why
        result["changed"] = editing.relabel(connection, competition, labels, time.time(), by="", reason=reason)
    return ExitCode.DONE


def withdraw(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """End a competition and delete all its labels and scores."""
    from runner.server.competitions import editing

    if not args.why:
        raise UsageError("--why is missing; add --why TEXT, the reason that participants see")
    with _editing(database, args) as (connection, competition, result):
        result["is_gone"] = editing.withdraw(connection, competition, time.time(), by="", reason=args.why)
    if not (args.json or result["is_gone"]):
        note("its name stays taken, because it has submissions")
    return ExitCode.DONE


@contextmanager
def _editing(database: Database, args: argparse.Namespace) -> Iterator[tuple[Any, Any, dict[str, object]]]:
    """Open a transaction and find the competition. Then print its name and what the context added to the result."""
    from runner.server.competitions.editing import find_for_change

    owner, _, name = args.names[0].partition("/")
    result: dict[str, object] = {"competition": f"{owner}/{name}"}
    with database.writing() as connection:
        yield connection, find_for_change(connection, None, owner, name), result
        database.increment_revision(connection)
    if args.json:
        print_json(result)
    else:
        say(", ".join(f"{key} {value}" for key, value in result.items() if key != "is_gone"))
