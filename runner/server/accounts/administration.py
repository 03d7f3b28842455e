"""Administers a server: lists accounts and tokens, disables accounts, removes members, and hides releases.

The commands `nip-run server` and the API use these functions. All functions run in the caller's transaction. The caller
records each change in the log of actions with `log_action`. No function returns a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from runner.base.errors import NotFoundError, UsageError
from runner.documents.releases.reference import Reference
from runner.server.accounts.accounts import check_not_last_owner, find_account_id
from runner.server.store.schema import accounts, acts, invitations, is_release, members, releases, tokens

HIDDEN, PUBLIC = "hidden", "public"


@dataclass(frozen=True)
class Account:
    """An account or organization in a list."""

    name: str
    kind: str
    created: float
    disabled: float | None
    members: tuple[str, ...]
    """The members of an organization; an owner's name ends with `*`."""
    releases: int


@dataclass(frozen=True)
class Token:
    """A token in a list, without its secret, which the server does not store."""

    id: str
    account: str
    scope: str
    label: str
    created: float
    expires: float | None
    revoked: float | None

    def state(self, now: float) -> str:
        """Return "revoked", "expired" or, if the token is valid, "good"."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "good"


def log_action(connection: Connection, at: float, action: str, target: str, *, by: str = "", reason: str = "") -> None:
    """Record an administrative action. `by` is the account, or "" for a command on the server's machine."""
    connection.execute(insert(acts), {"at": at, "by": by, "did": action, "to": target[:500], "why": reason})


def list_accounts(connection: Connection) -> Iterator[Account]:
    """Yield all accounts, sorted by name."""
    members_of: dict[int, list[str]] = {}
    query = select(members, accounts.c.name).join(accounts, accounts.c.id == members.c.account_id)
    for row in connection.execute(query.order_by(accounts.c.name)):
        members_of.setdefault(row.organisation_id, []).append(row.name + ("*" if row.is_owner else ""))
    count_query = select(releases.c.owner, func.count().label("count")).group_by(releases.c.owner)
    release_counts = {row.owner: int(row[1]) for row in connection.execute(count_query)}
    for row in connection.execute(select(accounts).order_by(accounts.c.name)):
        kind = "organisation" if row.is_organisation else "account"
        account_members = tuple(members_of.get(row.id, ()))
        yield Account(row.name, kind, row.created, row.disabled, account_members, release_counts.get(row.name, 0))


def list_tokens(connection: Connection, account: str | None = None) -> Iterator[Token]:
    """Yield the tokens of an account, or all tokens, newest first."""
    query = select(tokens, accounts.c.name).join(accounts, accounts.c.id == tokens.c.account_id)
    if account is not None:
        query = query.where(accounts.c.id == find_account_id(connection, account))
    for row in connection.execute(query.order_by(tokens.c.created.desc(), tokens.c.id)):
        yield Token(row.id, row.name, row.scope, row.label, row.created, row.expires, row.revoked)


def list_actions(connection: Connection) -> list[dict[str, object]]:
    """Return all actions, newest first."""
    return [dict(row) for row in connection.execute(select(acts).order_by(acts.c.id.desc())).mappings()]


def set_disabled(connection: Connection, name: str, at: float | None) -> None:
    """Disable an account or organization at the time `at`, or enable it if `at` is None.

    The server refuses tokens of a disabled account.
    """
    connection.execute(update(accounts).where(accounts.c.id == find_account_id(connection, name)).values(disabled=at))


def remove_member(connection: Connection, organization: str, account: str) -> None:
    """Remove a member from an organization; raise UsageError for the last owner and for a non-member."""
    organization_id, member_id = find_account_id(connection, organization), find_account_id(connection, account)
    check_not_last_owner(connection, organization, account)
    membership = members.c.organisation_id == organization_id, members.c.account_id == member_id
    invitation = invitations.c.organisation_id == organization_id, invitations.c.account_id == member_id
    connection.execute(delete(invitations).where(*invitation))
    if connection.execute(delete(members).where(*membership)).rowcount == 0:
        raise UsageError(
            f"{account!r} is not a member of {organization!r}; `nip-run server accounts DIR` lists members"
        )


def set_hidden(connection: Connection, reference: Reference, *, hidden: bool) -> None:
    """Hide a public release from everyone but its owner, or make a hidden release public again.

    The name and version of a hidden release stay reserved.

    Raises:
        NotFoundError: there is no public release of this name to hide, or no hidden one to show.
    """
    old_state, new_state = (PUBLIC, HIDDEN) if hidden else (HIDDEN, PUBLIC)
    query = update(releases).where(is_release(reference), releases.c.visibility == old_state)
    if connection.execute(query.values(visibility=new_state)).rowcount == 0:
        raise NotFoundError(f"there is no {old_state} release {reference}; check KIND/OWNER/NAME and the version")
