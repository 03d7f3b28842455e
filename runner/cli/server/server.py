"""Administer a served registry: accounts, organizations, tokens, backups.

Examples:
  nip-run server add-account registry alice
  nip-run server add-organization registry acme alice bob
  nip-run server add-token registry alice --scope publish --days 90 --label laptop
  nip-run server backup registry monday.backup
  nip-run server restore new monday.backup
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.server import competition
from runner.cli.server.serve import BLOBS_HELP, DATABASE_HELP, MISSING_PACKAGES
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.server.settings import Settings
    from runner.server.store.database import Database

DAY_SECONDS = 24 * 3600.0
MAX_TOKEN_DAYS = 36_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    width = max(map(len, ACTIONS))
    parser.add_argument_group(
        "actions", "\n".join(f"{name:<{width}}  {action.help}" for name, action in ACTIONS.items())
    )
    add("action", metavar="ACTION", choices=_ActionNames(ACTIONS), help="one of the actions listed below")
    add("folder", type=Path, metavar="DIR", help="the folder of `nip-run serve`")
    add("names", nargs="*", default=[], metavar="NAME", help="arguments of the action")
    add("--database", metavar="URL", help=DATABASE_HELP)
    add("--blobs", metavar="URL", help=f"with check, restore: {BLOBS_HELP}")
    add("--owner", action="store_true", help="with add-member: add as an owner")
    add(
        "--scope",
        choices=("read", "publish", "admin"),
        default="publish",
        help="with add-token: read: see private releases of the account; publish: also publish (default); admin: "
        "also hide any release and read /metrics",
    )
    add(
        "--days",
        type=float,
        default=365.0,
        metavar="N",
        help="with add-token: days until the token expires; default: 365; 0: never",
    )
    add("--label", default="", metavar="TEXT", help="with add-token: label shown in the list")
    add(
        "--why",
        default="",
        metavar="TEXT",
        help="with hide, show, disable and competitions: the reason, which `acts` lists",
    )


def execute(args: argparse.Namespace) -> int:
    try:
        from runner.server.settings import Settings
        from runner.server.store.database import Database, database_errors
        from runner.server.store.permissions import restrict_access
    except ImportError as error:
        raise UsageError(MISSING_PACKAGES.format(error)) from error
    settings = Settings(folder=args.folder, database=args.database, blobs=args.blobs)
    if new_name := RENAMED_ACTIONS.get(args.action):
        if not args.quiet:
            note(f"note: {args.action!r} is now called {new_name!r}")
        args.action = new_name
    action = ACTIONS[args.action]
    if len(args.names) < (action.min_names or 0) or (action.min_names is None and args.names):
        raise UsageError(
            f"`server {args.action}` takes {action.min_names or 'no'} names after DIR, not {len(args.names)}; see "
            "`nip-run server --help`"
        )
    if args.database is None and not (args.folder / "registry.sqlite").is_file() and action.needs_server:
        raise UsageError(f"no server in {args.folder}; create one with: nip-run serve {args.folder}")
    with ExitStack() as resources:
        if args.database is None or args.folder.is_dir():
            resources.enter_context(restrict_access(settings.folder))
        database = resources.enter_context(closing(Database(settings.database_url)))
        resources.enter_context(database_errors())
        return action.execute(database, settings, args)


# Acts: changes, which are recorded


def _in_transaction(
    act: Callable[[Any, Database, argparse.Namespace], Iterator[str]],
) -> Callable[[Database, Settings, argparse.Namespace], int]:
    """Return a function that calls `act` in a transaction, and commits it unless `act` raises an error.

    `act` yields the name of each object that it changed. The names are printed only after the commit, because an error
    undoes all changes.
    """

    def execute_action(database: Database, _: Settings, args: argparse.Namespace) -> int:
        with database.writing() as connection:
            targets = [_record_act(connection, args, target) for target in act(connection, database, args)]
        _confirm(targets, args)
        return ExitCode.DONE

    return execute_action


def _record_act(connection: Any, args: argparse.Namespace, target: str) -> str:
    from runner.server.accounts.administration import log_action

    log_action(connection, time.time(), args.action, target, reason=args.why)
    return target


def _confirm(targets: list[str], args: argparse.Namespace) -> None:
    if not args.json and not args.quiet:
        for target in targets:
            note(f"{args.action}: {target}")


@_in_transaction
def _add_account(connection: Any, _: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.accounts import add_account

    for name in args.names:
        add_account(connection, name, time.time())
        yield name


@_in_transaction
def _add_organization(connection: Any, database: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.accounts import add_account, add_member

    name, *owners = args.names
    add_account(connection, name, time.time(), is_organization=True)
    for owner in owners:
        add_member(connection, name, owner, is_owner=True)
    database.increment_revision(connection)
    yield f"{name} of {', '.join(owners)}"


@_in_transaction
def _add_member(connection: Any, database: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.accounts import add_member

    organization, *names = args.names
    for name in names:
        add_member(connection, organization, name, is_owner=args.owner)
        yield f"{organization} {name}{' (owner)' if args.owner else ''}"
    database.increment_revision(connection)


@_in_transaction
def _remove_member(connection: Any, database: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.administration import remove_member

    organization, *names = args.names
    for name in names:
        remove_member(connection, organization, name)
        yield f"{organization} {name}"
    database.increment_revision(connection)


@_in_transaction
def _set_disabled(connection: Any, database: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.administration import set_disabled

    for name in args.names:
        set_disabled(connection, name, time.time() if args.action == "disable" else None)
        yield name
    database.increment_revision(connection)


def _add_token(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.accounts.accounts import Scope, create_token

    if len(args.names) != 1:
        raise UsageError("add-token takes exactly one account")
    if not 0 <= args.days <= MAX_TOKEN_DAYS:
        raise UsageError(f"--days {args.days:g}: must be from 0 to {MAX_TOKEN_DAYS:,}; 0: the token never expires")
    seconds = args.days * DAY_SECONDS or None
    with database.writing() as connection:
        token = create_token(
            connection, args.names[0], Scope(args.scope), time.time(), lifetime_seconds=seconds, label=args.label
        )  # fmt: skip
        token_id = token.split("_")[1]
        target = _record_act(connection, args, f"{args.names[0]} {token_id} ({args.scope})")
    _confirm([target], args)
    if args.json:
        print_json({"token": token, "id": token_id, "scope": args.scope, "days": args.days or None})
    else:
        say(token)
        if not args.quiet:
            note("this token is shown only once; use it with `nip-run login` or NIP_RUN_TOKEN, and keep it secret")
    return ExitCode.DONE


@_in_transaction
def _revoke_token(connection: Any, _: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.server.accounts.accounts import revoke_token

    for name in args.names:
        token_id = name.removeprefix("nip_").partition("_")[0]  # A full token is accepted too, without its secret part.
        revoke_token(connection, token_id, time.time())
        yield token_id


@_in_transaction
def _set_hidden(connection: Any, database: Database, args: argparse.Namespace) -> Iterator[str]:
    from runner.documents.releases.reference import Reference, parse_reference
    from runner.server.accounts.administration import set_hidden

    for name in args.names:
        reference = parse_reference(name)
        if not isinstance(reference, Reference) or not reference.version:
            raise UsageError(f"{name!r} is not the name of a release; write KIND/OWNER/NAME@VERSION")
        set_hidden(connection, reference, hidden=args.action == "hide")
        yield str(reference)
    database.increment_revision(connection)


# Lists


def _list_accounts(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_accounts

    with database.reading() as connection:
        accounts = list(list_accounts(connection))
    rows = [
        {"name": row.name, "kind": row.kind, "since": _format_day(row.created), "members": " ".join(row.members),
         "releases": row.releases, "state": "good" if row.disabled is None else "disabled"}
        for row in accounts
    ]  # fmt: skip
    return _print_rows(rows, args)


def _list_tokens(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_tokens

    now = time.time()
    with database.reading() as connection:
        tokens = list(list_tokens(connection, args.names[0] if args.names else None))
    rows = [
        {"id": row.id, "account": row.account, "scope": row.scope, "label": row.label, "made": _format_day(row.created),
         "expires": "never" if row.expires is None else _format_day(row.expires), "state": row.state(now)}
        for row in tokens
    ]  # fmt: skip
    return _print_rows(rows, args)


def _list_acts(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_actions

    with database.reading() as connection:
        acts = list_actions(connection)
    rows = [
        {"at": datetime.fromtimestamp(float(str(act["at"])), UTC).strftime("%Y-%m-%d %H:%M:%S"),
         "by": act["by"] or "a command", "did": act["did"], "to": act["to"], "why": act["why"]}
        for act in acts
    ]  # fmt: skip
    return _print_rows(rows, args)


def _print_rows(rows: list[dict[str, Any]], args: argparse.Namespace) -> int:
    if args.json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    elif not args.quiet:
        note(f"no {args.action}")
    return ExitCode.DONE


def _format_day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


# Files


def _back_up(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.store.backup import back_up

    return _print_counts(back_up(database, Path(args.names[0])), args)


def _restore(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    from runner.server.boards.paths import delete_boards
    from runner.server.rebuild import exclusive_access
    from runner.server.store.backup import restore

    with exclusive_access(settings):
        counts = restore(database, Path(args.names[0]))
        delete_boards(settings)  # An earlier server may have left boards in this folder.
    _print_counts(counts, args)
    return ExitCode.DONE if args.json else _check_files(database, settings, args)


def _print_counts(counts: Mapping[str, int], args: argparse.Namespace) -> int:
    if args.json:
        print_json({"rows": counts})
    else:
        say(", ".join(f"{table}: {count:,}" for table, count in counts.items()) or "nothing")
    return ExitCode.DONE


def _check_files(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    from runner.server.store.backup import find_missing_blobs
    from runner.server.store.blob_stores import open_blob_store

    missing = find_missing_blobs(database, open_blob_store(settings))
    if args.json:
        print_json({"missing": missing})
    elif missing:
        say(f"{len(missing):,} files are missing, such as {missing[0]}; copy the blobs of the backed-up server")
    elif not args.quiet:
        note("no files are missing")
    return ExitCode.FAILED if missing else ExitCode.DONE


class _Action(NamedTuple):
    """An action of `nip-run server`."""

    help: str
    execute: Callable[[Database, Settings, argparse.Namespace], int]
    min_names: int | None = None
    """Minimum number of names after DIR; None if the action takes no names."""
    needs_server: bool = True
    """Whether `nip-run serve` must have been started in DIR before."""


ACTIONS = {
    "accounts": _Action("list accounts and organizations", _list_accounts),
    "add-account": _Action("NAME...: create accounts", _add_account, 1, needs_server=False),
    "add-organization": _Action(
        "NAME OWNER...: create an organization owned by these accounts", _add_organization, 2, needs_server=False
    ),
    "add-member": _Action(
        "ORGANIZATION ACCOUNT...: let accounts publish for it; with --owner, also manage its members", _add_member, 2
    ),
    "remove-member": _Action("ORGANIZATION ACCOUNT...: remove accounts from an organization", _remove_member, 2),
    "disable": _Action("NAME...: reject the tokens of accounts; their releases stay", _set_disabled, 1),
    "enable": _Action("NAME...: accept the tokens of accounts again", _set_disabled, 1),
    "tokens": _Action("[ACCOUNT]: list tokens, without their secrets", _list_tokens, 0),
    "add-token": _Action("ACCOUNT: create a token, which is shown only once; --scope, --days, --label", _add_token, 1),
    "revoke-token": _Action("ID...: the part of a token between nip_ and the second _", _revoke_token, 1),
    "hide": _Action("KIND/OWNER/NAME@VERSION...: show releases only to their owner; --why", _set_hidden, 1),
    "show": _Action("KIND/OWNER/NAME@VERSION...: show hidden releases to everybody again", _set_hidden, 1),
    "acts": _Action("list administrative changes that were made by these commands or over the API", _list_acts),
    "backup": _Action("FILE: write a consistent backup of all records, also while the server runs", _back_up, 1),
    "restore": _Action("FILE: load a backup into a server without records", _restore, 1, needs_server=False),
    "add-competition": _Action(
        "ACCOUNT FILE: create a competition that scores runs by the labels in FILE", competition.add, 2
    ),
    "change-competition": _Action("OWNER/NAME FILE: change title or limit, or close later", competition.change, 2),
    "relabel-competition": _Action(
        "OWNER/NAME FILE: replace wrong labels; all submissions are scored again", competition.relabel, 2
    ),
    "withdraw-competition": _Action(
        "OWNER/NAME: delete the labels and scores of a competition; --why", competition.withdraw, 1
    ),
    "check": _Action("list missing files of releases", _check_files),
}
RENAMED_ACTIONS = {"add-organisation": "add-organization"}
"""Old names of actions, which still work, with the new names."""


class _ActionNames(tuple[str, ...]):
    """The names of all actions. Old names are accepted, but not listed in errors and completions."""

    __slots__ = ()

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in RENAMED_ACTIONS
