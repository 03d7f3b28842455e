"""What who keeps a server does: accounts, members and tokens listed and changed, releases hidden; each written down.

Every function is one act within a transaction of the caller's; `note_act` says who did it. Nothing here shows a secret.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection, delete, func, insert, select, update

from runner.base.errors import NotPublished, UsageError
from runner.documents.releases.reference import Reference
from runner.server.accounts.accounts import account_id, check_not_last
from runner.server.store.schema import accounts, acts, is_release, members, releases, tokens

HIDDEN, PUBLIC = "hidden", "public"


@dataclass(frozen=True)
class Account:
    """An account, or an organisation, as it is listed."""

    name: str
    kind: str
    created: float
    disabled: float | None
    members: tuple[str, ...]
    """Of an organisation; an owner with a `*` behind the name."""
    releases: int


@dataclass(frozen=True)
class Token:
    """A token as it is listed: all but its secret, which is nowhere."""

    id: str
    account: str
    scope: str
    label: str
    created: float
    expires: float | None
    revoked: float | None

    def state(self, now: float) -> str:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= now else "good"


def note_act(connection: Connection, at: float, did: str, to: str, *, by: str = "", why: str = "") -> None:
    """Write down what was done; `by` an account, or nobody's: by a command on the server's own machine."""
    connection.execute(insert(acts), {"at": at, "by": by, "did": did, "to": to[:500], "why": why})


def listed_accounts(connection: Connection) -> Iterator[Account]:
    """All accounts by name."""
    inside: dict[int, list[str]] = {}
    query = select(members, accounts.c.name).join(accounts, accounts.c.id == members.c.account_id)
    for row in connection.execute(query.order_by(accounts.c.name)):
        inside.setdefault(row.organisation_id, []).append(row.name + ("*" if row.is_owner else ""))
    counted = select(releases.c.owner, func.count().label("count")).group_by(releases.c.owner)
    published = {row.owner: int(row[1]) for row in connection.execute(counted)}
    for row in connection.execute(select(accounts).order_by(accounts.c.name)):
        kind = "organisation" if row.is_organisation else "account"
        its_members = tuple(inside.get(row.id, ()))
        yield Account(row.name, kind, row.created, row.disabled, its_members, published.get(row.name, 0))


def listed_tokens(connection: Connection, account: str | None = None) -> Iterator[Token]:
    """The tokens of an account, or all, the newest first."""
    query = select(tokens, accounts.c.name).join(accounts, accounts.c.id == tokens.c.account_id)
    if account is not None:
        query = query.where(accounts.c.id == account_id(connection, account))
    for row in connection.execute(query.order_by(tokens.c.created.desc(), tokens.c.id)):
        yield Token(row.id, row.name, row.scope, row.label, row.created, row.expires, row.revoked)


def listed_acts(connection: Connection, most: int) -> list[dict[str, object]]:
    """What was done last, the newest first."""
    query = select(acts).order_by(acts.c.id.desc()).limit(most)
    return [dict(row) for row in connection.execute(query).mappings()]


def set_disabled(connection: Connection, name: str, at: float | None) -> None:
    """Have an account, and what it publishes as, take no token any more; None: take them again."""
    connection.execute(update(accounts).where(accounts.c.id == account_id(connection, name)).values(disabled=at))


def remove_member(connection: Connection, organisation: str, account: str) -> None:
    """Raises: UsageError: it is no member, or the last owner."""
    of, who = account_id(connection, organisation), account_id(connection, account)
    check_not_last(connection, organisation, account)
    done = connection.execute(delete(members).where(members.c.organisation_id == of, members.c.account_id == who))
    if done.rowcount == 0:
        raise UsageError(f"{account!r} is no member of {organisation!r}")


def set_hidden(connection: Connection, reference: Reference, *, hidden: bool) -> None:
    """Have a public release be seen by its owner alone, or by everybody again. Its name and version stay taken.

    Raises:
        NotPublished: there is no such release that is public, or hidden.
    """
    now, then = (PUBLIC, HIDDEN) if hidden else (HIDDEN, PUBLIC)
    done = connection.execute(
        update(releases).where(is_release(reference), releases.c.visibility == now).values(visibility=then)
    )
    if done.rowcount == 0:
        raise NotPublished(f"there is no {now} release {reference}")
