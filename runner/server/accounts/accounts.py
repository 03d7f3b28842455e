"""Accounts, organizations and tokens, and their permissions. Only the hashes of tokens are stored.

A `Viewer` is the account that makes a request, with its permissions. All functions run in the caller's transaction.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update

from runner.base.errors import TakenError, UsageError
from runner.documents.releases.reference import identifier_problem
from runner.server.store.schema import accounts, invitations, members, tokens

RESERVED_NAMES = frozenset(
    ("admin", "api", "anonymous", "board", "compare", "docs", "healthz", "login", "logout", "metrics", "nip-run",
     "readyz", "root", "run", "runs", "search", "server", "static", "system")
)  # fmt: skip
"""Names that no account may have, because pages or messages use them for something else."""

_TOKEN_PATTERN = re.compile(r"nip_(?P<id>[a-z0-9]{12})_(?P<secret>[A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """The permission of a token. ADMIN includes PUBLISH, and PUBLISH includes READ."""

    READ = "read"
    PUBLISH = "publish"
    ADMIN = "admin"

    def allows(self, required: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(required)


@dataclass(frozen=True)
class Viewer:
    """The account that makes a request, and what it may see and do."""

    account_id: int | None = None
    """Row id of the account; None for a request without a token, which sees only public data."""
    account: str = ""
    account_names: frozenset[str] = frozenset()
    """The names of the account and its organizations. The viewer sees and publishes private releases of these names."""
    scope: Scope = Scope.READ
    token_id: str = ""
    """The id of the request's token."""

    def can_publish_as(self, owner: str) -> bool:
        """Return whether the viewer may publish under this name; False if the token may only read."""
        return owner in self.account_names and self.scope.allows(Scope.PUBLISH)


ANYBODY = Viewer()


def similarity_key(name: str) -> str:
    """Return a key that is equal for names that look alike.

    The key has no separators, and is the same for 0 and o; 1, i and l; rn and m; vv and w.
    """
    translated = name.lower().translate(str.maketrans("01i_.", "oll--"))
    return re.sub("-+", "", translated).replace("rn", "m").replace("vv", "w")


_RESERVED = {similarity_key(name): name for name in RESERVED_NAMES}


def add_account(connection: Connection, name: str, now: float, *, is_organization: bool = False) -> int:
    """Create an account or an organization and return its id.

    Raises:
        UsageError: the name is invalid or reserved, or looks like a reserved name.
        TakenError: the name exists, or looks like an existing name.
    """
    if problem := identifier_problem(name):
        raise UsageError(problem)
    if (reserved := _RESERVED.get(similarity_key(name))) is not None:
        similar = "" if name == reserved else f"too similar to {reserved!r}, which is "
        raise UsageError(f"the name {name!r} is {similar}reserved; choose another name")
    existing = connection.execute(select(accounts.c.name).where(accounts.c.folded == similarity_key(name))).scalar()
    if existing is not None:
        similar = "" if name == existing else f"too similar to {existing!r}, which is "
        raise TakenError(f"the name {name!r} is {similar}taken; choose another name")
    row = {"name": name, "folded": similarity_key(name), "is_organisation": is_organization, "created": now}
    return int(connection.execute(insert(accounts).returning(accounts.c.id), row).scalar_one())


def find_account_id(connection: Connection, name: str) -> int:
    """Return the id of an account; raise UsageError if it does not exist."""
    account_id = connection.execute(select(accounts.c.id).where(accounts.c.name == name)).scalar()
    if account_id is None:
        raise UsageError(f"there is no account {name!r}; `nip-run server accounts DIR` lists all of them")
    return int(account_id)


def create_token(
    connection: Connection, account: str, scope: Scope, now: float, *, lifetime_seconds: float | None, label: str = ""
) -> str:
    """Create a token that expires after `lifetime_seconds` (None: never), and return its text, which is not stored."""
    token_id = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    expires = None if lifetime_seconds is None else now + lifetime_seconds
    row = {
        "id": token_id, "account_id": find_account_id(connection, account), "secret_sha256": hash_secret(secret),
        "scope": scope, "label": label[:200], "created": now, "expires": expires,
    }  # fmt: skip
    connection.execute(insert(tokens), row)
    return f"nip_{token_id}_{secret}"


def revoke_token(connection: Connection, token_id: str, now: float) -> None:
    """Revoke a token; raise UsageError if no valid token has this id."""
    query = update(tokens).where(tokens.c.id == token_id, tokens.c.revoked.is_(None)).values(revoked=now)
    if connection.execute(query).rowcount == 0:
        raise UsageError(
            f"token {token_id!r} does not exist or is revoked; `nip-run server tokens DIR` lists valid ones"
        )


def viewer_of_token(connection: Connection, token: str, now: float) -> Viewer | None:
    """Return the viewer of a token; None if the token is unknown, expired or revoked, or its account is disabled.

    Neither the result nor the time that this function takes reveals which of these is the reason.
    """
    match = _TOKEN_PATTERN.fullmatch(token)
    row = connection.execute(
        select(tokens, accounts.c.name, accounts.c.disabled)
        .join(accounts, accounts.c.id == tokens.c.account_id)
        .where(tokens.c.id == (match["id"] if match else ""))
    ).one_or_none()
    is_correct = has_secret(row, match)
    if row is None or not is_correct or row.revoked is not None or row.disabled is not None:
        return None
    if row.expires is not None and row.expires <= now:
        return None
    owners = frozenset((row.name, *_organizations(connection, row.account_id)))
    return Viewer(row.account_id, row.name, owners, Scope(row.scope), row.id)


def viewer_of_account(connection: Connection, account_id: int) -> Viewer:
    """Return the viewer of an account, for work that the account requested earlier."""
    row = connection.execute(select(accounts.c.name, accounts.c.disabled).where(accounts.c.id == account_id)).one()
    if row.disabled is not None:
        return Viewer(account_id, row.name)  # a disabled account sees only public data and publishes nothing
    return Viewer(account_id, row.name, frozenset((row.name, *_organizations(connection, account_id))), Scope.PUBLISH)


def _organizations(connection: Connection, account_id: int) -> Iterator[str]:
    query = select(accounts.c.name).join(members, members.c.organisation_id == accounts.c.id)
    for row in connection.execute(query.where(members.c.account_id == account_id, accounts.c.disabled.is_(None))):
        yield row.name


def add_member(connection: Connection, organization: str, account: str, *, is_owner: bool = False) -> None:
    """Make an account a member of an organization, or change whether a member is an owner.

    Raises:
        UsageError: a name does not exist or is of the wrong kind, or the organization would have no owner.
    """
    is_organization = {
        row.name: row.is_organisation
        for row in connection.execute(select(accounts).where(accounts.c.name.in_((organization, account))))
    }
    membership = {
        "organisation_id": find_account_id(connection, organization),
        "account_id": find_account_id(connection, account),
    }
    if is_organization.get(organization) is not True or is_organization.get(account) is not False:
        raise UsageError(
            f"{account!r} cannot be a member of {organization!r}: name an organization first, then accounts of people"
        )
    invitation, existing = (
        [table.c[column] == value for column, value in membership.items()] for table in (invitations, members)
    )
    if not is_owner:
        check_not_last_owner(connection, organization, account)
    # An unused invitation would let a member who is removed later join again, perhaps as an owner.
    connection.execute(delete(invitations).where(*invitation))
    if connection.execute(update(members).where(*existing).values(is_owner=is_owner)).rowcount == 0:
        connection.execute(insert(members), {**membership, "is_owner": is_owner})


def check_not_last_owner(connection: Connection, organization: str, account: str) -> None:
    """Raise UsageError if an account is the last owner of an organization."""
    organization_id, member_id = find_account_id(connection, organization), find_account_id(connection, account)
    owners = select(members.c.account_id).where(members.c.organisation_id == organization_id, members.c.is_owner)
    if {row.account_id for row in connection.execute(owners)} == {member_id}:
        raise UsageError(f"{account!r} is the last owner of {organization!r}; make another member an owner first")


def has_secret(row: Row[Any] | None, match: re.Match[str] | None) -> bool:
    """Return whether the secret of a token or cookie has the hash in a row of `tokens` or `browsers`.

    The function takes the same time without a row, so this time does not reveal whether a token exists.
    """
    secret, stored_hash = match["secret"] if match else "", row.secret_sha256 if row else "0" * 64
    return hmac.compare_digest(hash_secret(secret), stored_hash)


def hash_secret(secret: str) -> str:
    """Return the hash to store for the secret of a token or cookie."""
    return hashlib.sha256(secret.encode()).hexdigest()
