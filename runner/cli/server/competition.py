"""`nip-run server add-competition` and what changes one: out of files that have what the API is sent."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.storage.safe_files import read_bounded
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from runner.server.settings import Settings
    from runner.server.store.database import Database

_MOST = 1 << 30


def add(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    """Make it, as an account that owns the dataset."""
    from runner.server.accounts.accounts import account_id, viewer_of_account
    from runner.server.accounts.administration import record_act
    from runner.server.competitions.storage import create_competition
    from runner.server.web.api.competitions import CreateCompetitionRequest, created_response, parse_request_file

    account, file = args.names[0], Path(args.names[1])
    wanted = parse_request_file(CreateCompetitionRequest, _read(file), str(file)).to_request()
    with database.reading() as connection:
        viewer = viewer_of_account(connection, account_id(connection, account))
    try:
        made = create_competition(settings, database, viewer, wanted, time.time())
    except PermissionError as error:
        from runner.base.errors import UsageError

        raise UsageError(str(error)) from error
    now = time.time()
    with database.writing() as connection:
        record_act(connection, now, args.action, made, reason=args.why)
        told = created_response(connection, viewer, made, now, "").model_dump(mode="json")
    if args.json:
        print_json(told)
    else:
        say(made)
        for key in ("title", "dataset", "day_limit", "closes", "rows_open", "rows_held_out"):
            say(f"  {key:<14} {told[key]}")
        if not args.quiet:
            note(f"its board is the page {told['page']} of the server; the labels are in its records alone")
    return ExitCode.DONE


def _read(file: Path) -> bytes:
    try:
        return read_bounded(file, _MOST)
    except OSError as error:
        from runner.base.errors import UsageError

        raise UsageError(f"{file} cannot be read: {error.strerror}") from error


def change(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """Change a competition's title or limit, or have it close later."""
    from runner.server.competitions import editing
    from runner.server.web.api.competitions import ChangeCompetitionRequest, parse_request_file

    file = Path(args.names[1])
    wanted = parse_request_file(ChangeCompetitionRequest, _read(file), str(file))

    def act(connection: Any, one: Any, now: float) -> dict[str, object]:
        editing.change(connection, one, wanted.to_request(), now, by="", reason=args.why or wanted.why)
        return {}

    return _acted(database, args, act)


def relabel(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """Replace labels; the server that runs scores all submissions again, soon."""
    from runner.server.competitions import editing
    from runner.server.web.api.competitions import ReplaceLabelsRequest, parse_request_file

    file = Path(args.names[1])
    wanted = parse_request_file(ReplaceLabelsRequest, _read(file), str(file))

    def act(connection: Any, one: Any, now: float) -> dict[str, object]:
        return {"changed": editing.relabel(connection, one, wanted.labels, now, by="", reason=args.why or wanted.why)}

    return _acted(database, args, act)


def withdraw(database: Database, _: Settings, args: argparse.Namespace) -> int:
    """End a competition, with all labels and scores."""
    from runner.base.errors import UsageError
    from runner.server.competitions import editing

    if not args.why:
        raise UsageError("--why is missing: give the reason that participants see")

    def act(connection: Any, one: Any, now: float) -> dict[str, object]:
        return {"is_gone": editing.withdraw(connection, one, now, by="", reason=args.why)}

    return _acted(database, args, act)


def _acted(database: Database, args: argparse.Namespace, act: Callable[[Any, Any, float], dict[str, object]]) -> int:
    from runner.server.competitions.editing import find_for_change

    owner, _, name = args.names[0].partition("/")
    with database.writing() as connection:
        one = find_for_change(connection, None, owner, name)
        said = {"competition": f"{owner}/{name}", **act(connection, one, time.time())}
        database.changed(connection)
    if args.json:
        print_json(said)
    else:
        say(", ".join(f"{key} {value}" for key, value in said.items()))
    return ExitCode.DONE
