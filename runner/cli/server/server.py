"""Administer a served registry: accounts, organizations, tokens, backups.

Examples:
  nip-run server add-account registry alice
  nip-run server add-organisation registry acme alice bob
  nip-run server add-token registry alice --scope publish --days 90 --label laptop
  nip-run server backup registry monday.backup
  nip-run server restore new monday.backup
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.cli.server import competition
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.server.settings import Settings
    from runner.server.store.database import Database

_DAY = 24 * 3600.0
_MOST_ACTS = 200


ACTIONS = {
    "accounts": "list accounts and organisations",
    "add-account": "NAME...: create accounts",
    "add-organisation": "NAME OWNER...: create an organization owned by these accounts",
    "add-member": "ORGANIZATION ACCOUNT...: allow accounts to publish as it; with --owner, also to manage members",
    "remove-member": "ORGANIZATION ACCOUNT...: remove accounts from it",
    "disable": "NAME...: reject their tokens; their releases stay",
    "enable": "NAME...: accept their tokens again",
    "tokens": "[ACCOUNT]: list tokens, without their secrets",
    "add-token": "ACCOUNT: create a token, which is shown only once; --scope, --days, --label",
    "revoke-token": "ID...: the part of a token between nip_ and the second _",
    "hide": "KIND/OWNER/NAME@VERSION...: show them only to their owner; --why",
    "show": "KIND/OWNER/NAME@VERSION...: show hidden releases to everybody again",
    "acts": "list administrative acts, by these commands and over the API",
    "backup": "FILE: write a consistent backup of all records, also while the server runs",
    "restore": "FILE: load a backup into a server without records",
    "add-competition": "ACCOUNT FILE: create a competition that scores runs by the labels in FILE",
    "change-competition": "OWNER/NAME FILE: change title or limit, or close later",
    "relabel-competition": "OWNER/NAME FILE: replace wrong labels; all submissions are scored again",
    "withdraw-competition": "OWNER/NAME: delete its labels and scores; --why",
    "check": "list missing files of releases",
}

DATABASE = (
    "records in PostgreSQL, such as postgresql+psycopg://USER@HOST/NAME (password from PGPASSWORD or ~/.pgpass); "
    "default: SQLite in DIR"
)

BLOBS = "files in an object store, such as s3://BUCKET/PREFIX (keys from AWS_... variables); default: in DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    width = max(map(len, ACTIONS))
    parser.add_argument_group("actions", "\n".join(f"{name:<{width}}  {what}" for name, what in ACTIONS.items()))
    add("action", metavar="ACTION", choices=tuple(ACTIONS), help="one of the actions listed below")
    add("folder", type=Path, metavar="DIR", help="the folder of `nip-run serve`")
    add("names", nargs="*", metavar="NAME", help="arguments of the action")
    add("--database", metavar="URL", help=DATABASE)
    add("--blobs", metavar="URL", help=f"with check, restore: {BLOBS}")
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
        help="with add-token: days until it expires; default: 365; 0: never",
    )
    add("--label", default="", metavar="TEXT", help="with add-token: label shown in the list")
    add(
        "--why",
        default="",
        metavar="TEXT",
        help="with hide, show, disable and competitions: the reason, recorded in the list of acts",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError
    from runner.cli.server.serve import NEEDS

    try:
        from runner.server.settings import Settings
        from runner.server.store.database import Database
        from runner.server.store.permissions import restrict_access
    except ImportError as error:
        raise UsageError(NEEDS.format(error)) from error
    settings = Settings(folder=args.folder, database=args.database, blobs=args.blobs)
    least = _NAMES.get(args.action, 0)
    if len(args.names) < least or (args.action in _ALONE and args.names):
        raise UsageError(f"`server {args.action}` takes {least or 'no'} names after DIR, not {len(args.names)}")
    if args.database is None and not (args.folder / "registry.sqlite").is_file() and args.action not in _BEGINNING:
        raise UsageError(f"there is no server in {args.folder}; `nip-run serve {args.folder}` makes one")
    with ExitStack() as own:
        if args.database is None or args.folder.is_dir():
            own.enter_context(restrict_access(settings.folder))
        database = own.enter_context(closing(Database(settings.database_url)))
        if args.action in _FILES:
            return _FILES[args.action](database, settings, args)
        if args.action in _LISTS:
            return _LISTS[args.action](database, args)
        with database.writing() as connection:
            _ACTS[args.action](connection, database, args)
    return ExitCode.DONE


# What is done


def _noted(connection: Any, args: argparse.Namespace, to: str, did: str | None = None) -> None:
    from runner.server.accounts.administration import record_act

    record_act(connection, time.time(), did or args.action, to, reason=args.why)
    if not args.json and not args.quiet:
        note(f"{did or args.action}: {to}")


def _add_account(connection: Any, _: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.accounts import add_account

    for name in args.names:
        add_account(connection, name, time.time())
        _noted(connection, args, name)


def _add_organisation(connection: Any, _: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.accounts import add_account, add_member

    name, *owners = args.names
    add_account(connection, name, time.time(), organisation=True)
    for owner in owners:
        add_member(connection, name, owner, is_owner=True)
    _noted(connection, args, f"{name} of {', '.join(owners)}")


def _add_member(connection: Any, _: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.accounts import add_member

    organisation, *names = args.names
    for name in names:
        add_member(connection, organisation, name, is_owner=args.owner)
        _noted(connection, args, f"{organisation} {name}{' (owner)' if args.owner else ''}")


def _remove_member(connection: Any, database: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.administration import remove_member

    organisation, *names = args.names
    for name in names:
        remove_member(connection, organisation, name)
        _noted(connection, args, f"{organisation} {name}")
    database.changed(connection)


def _disable(connection: Any, database: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.administration import set_disabled

    for name in args.names:
        set_disabled(connection, name, time.time() if args.action == "disable" else None)
        _noted(connection, args, name)
    database.changed(connection)


def _add_token(connection: Any, _: Database, args: argparse.Namespace) -> None:
    from runner.base.errors import UsageError
    from runner.server.accounts.accounts import Scope, create_token

    if args.days < 0 or len(args.names) != 1:
        raise UsageError("add-token takes one account, and --days must be 0 or more")
    seconds = args.days * _DAY or None
    token = create_token(
        connection, args.names[0], Scope(args.scope), time.time(), seconds=seconds, label=args.label
    )  # fmt: skip
    identity = token.split("_")[1]
    _noted(connection, args, f"{args.names[0]} {identity} ({args.scope})")
    if args.json:
        print_json({"token": token, "id": identity, "scope": args.scope, "days": args.days or None})
    else:
        say(token)
        if not args.quiet:
            note("it is shown this once; whoever has it is this account. `nip-run login` or NIP_RUN_TOKEN takes it")


def _revoke_token(connection: Any, _: Database, args: argparse.Namespace) -> None:
    from runner.server.accounts.accounts import revoke_token

    for name in args.names:
        identity = name.removeprefix("nip_").partition("_")[0]  # a whole token, too, whose secret goes nowhere
        revoke_token(connection, identity, time.time())
        _noted(connection, args, identity)


def _hide(connection: Any, database: Database, args: argparse.Namespace) -> None:
    from runner.base.errors import UsageError
    from runner.documents.releases.reference import Reference, parse
    from runner.server.accounts.administration import set_hidden

    for name in args.names:
        reference = parse(name)
        if not isinstance(reference, Reference) or not reference.version:
            raise UsageError(f"{name!r} is not the name of a release; write KIND/OWNER/NAME@VERSION")
        set_hidden(connection, reference, hidden=args.action == "hide")
        _noted(connection, args, str(reference))
    database.changed(connection)


# What is listed


def _accounts(database: Database, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_accounts

    with database.reading() as connection:
        found = list(list_accounts(connection))
    rows = [
        {"name": one.name, "kind": one.kind, "since": _day(one.created), "members": " ".join(one.members),
         "releases": one.releases, "state": "good" if one.disabled is None else "disabled"}
        for one in found
    ]  # fmt: skip
    return _listed(rows, args)


def _tokens(database: Database, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_tokens

    now = time.time()
    with database.reading() as connection:
        found = list(list_tokens(connection, args.names[0] if args.names else None))
    rows = [
        {"id": one.id, "account": one.account, "scope": one.scope, "label": one.label, "made": _day(one.created),
         "expires": "never" if one.expires is None else _day(one.expires), "state": one.state(now)}
        for one in found
    ]  # fmt: skip
    return _listed(rows, args)


def _acts(database: Database, args: argparse.Namespace) -> int:
    from runner.server.accounts.administration import list_acts

    with database.reading() as connection:
        found = list_acts(connection, _MOST_ACTS)
    rows = [
        {"at": _time(float(str(one["at"]))), "by": one["by"] or "a command", "did": one["did"], "to": one["to"],
         "why": one["why"]}
        for one in found
    ]  # fmt: skip
    return _listed(rows, args)


def _listed(rows: list[dict[str, Any]], args: argparse.Namespace) -> int:
    if args.json:
        print_json(rows)
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    elif not args.quiet:
        note("none")
    return ExitCode.DONE


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


# Files


def _backup(database: Database, _: Settings, args: argparse.Namespace) -> int:
    from runner.server.store.backup import back_up

    return _counted(back_up(database, Path(args.names[0])), args)


def _restore(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    from runner.server.boards.paths import forget_boards
    from runner.server.rebuild import exclusive_access
    from runner.server.store.backup import restore

    with exclusive_access(settings):
        counts = restore(database, Path(args.names[0]))
        forget_boards(settings)  # of what may have been in the folder before
    _counted(counts, args)
    return ExitCode.DONE if args.json else _check(database, settings, args)


def _counted(counts: Mapping[str, int], args: argparse.Namespace) -> int:
    if args.json:
        print_json({"rows": counts})
    else:
        say(", ".join(f"{count:,} {table}" for table, count in counts.items()) or "nothing")
    return ExitCode.DONE


def _check(database: Database, settings: Settings, args: argparse.Namespace) -> int:
    from runner.server.store.backup import find_missing_blobs
    from runner.server.store.blob_stores import open_blob_store

    missing = find_missing_blobs(database, open_blob_store(settings))
    if args.json:
        print_json({"missing": missing})
    elif missing:
        say(
            f"{len(missing):,} files are missing, such as {missing[0]}; copy the blobs of the server that was backed up"
        )
    elif not args.quiet:
        note("all files are there")
    return ExitCode.FAILED if missing else ExitCode.DONE


_ACTS: Mapping[str, Callable[[Any, Database, argparse.Namespace], None]] = {
    "add-account": _add_account, "add-organisation": _add_organisation, "add-member": _add_member,
    "remove-member": _remove_member, "disable": _disable, "enable": _disable, "add-token": _add_token,
    "revoke-token": _revoke_token, "hide": _hide, "show": _hide,
}  # fmt: skip
_LISTS: Mapping[str, Callable[[Database, argparse.Namespace], int]] = {
    "accounts": _accounts, "tokens": _tokens, "acts": _acts
}  # fmt: skip
_FILES: Mapping[str, Callable[[Database, Settings, argparse.Namespace], int]] = {
    "backup": _backup, "restore": _restore, "check": _check, "add-competition": competition.add,
    "change-competition": competition.change, "relabel-competition": competition.relabel,
    "withdraw-competition": competition.withdraw,
}  # fmt: skip
_NAMES = {
    "add-account": 1, "add-organisation": 2, "add-member": 2, "remove-member": 2, "disable": 1, "enable": 1,
    "add-token": 1, "revoke-token": 1, "hide": 1, "show": 1, "backup": 1, "restore": 1, "add-competition": 2,
    "change-competition": 2, "relabel-competition": 2, "withdraw-competition": 1,
}  # fmt: skip
"""The fewest words that an action takes."""
_ALONE = frozenset({"accounts", "acts", "check"})
_BEGINNING = frozenset({"add-account", "add-organisation", "restore"})
"""What may be done before the server has begun."""
