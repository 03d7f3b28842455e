"""Who may do what: accounts, organisations, and tokens, of which only hashes are kept."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, insert, select, update

from runner.base.errors import TakenError, UsageError
from runner.documents.releases.reference import wrong_word
from runner.server.store.schema import accounts, members, tokens

RESERVED_NAMES = frozenset(
    ("admin", "api", "anonymous", "board", "compare", "docs", "healthz", "login", "logout", "metrics", "nip-run",
     "readyz", "root", "run", "runs", "search", "server", "static", "system")
)  # fmt: skip
"""Names that nobody may have, as pages or messages use them for something else."""

_TOKEN = re.compile(r"nip_(?P<id>[a-z0-9]{12})_(?P<secret>[A-Za-z0-9_-]{43})")
_NOBODY = "0" * 64
"""What a secret is compared with where no token is known, so that both take as long."""


class Scope(StrEnum):
    """What a token allows; each allows what those before it do."""

    READ = "read"
    PUBLISH = "publish"
    ADMIN = "admin"

    def allows(self, wanted: Scope) -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(wanted)


@dataclass(frozen=True)
class Viewer:
    """Who asks, and what may be shown to whom."""

    account_id: int | None = None
    """None: anybody, who sees what is public."""
    account: str = ""
    owners: frozenset[str] = frozenset()
    """The account, and the organisations that it is in: whose private releases it sees, and as whom it publishes."""
    scope: Scope = Scope.READ
    token: str = ""
    """The id of the token that was given."""

    def publishes_as(self, owner: str) -> bool:
        return owner in self.owners and self.scope.allows(Scope.PUBLISH)


ANYBODY = Viewer()


def folded(name: str) -> str:
    """A name as eyes may take it: separators are one, and 0 o, 1 i l, rn m, vv w are alike."""
    alike = name.lower().translate(str.maketrans("01i_.", "oll--"))
    return re.sub("-+", "", alike).replace("rn", "m").replace("vv", "w")


_RESERVED = {folded(word): word for word in RESERVED_NAMES}


def add_account(connection: Connection, name: str, now: float, *, organisation: bool = False) -> int:
    """Make an account, or an organisation.

    Raises:
        UsageError: nobody may be called so.
        TakenError: somebody is, or is called nearly so.
    """
    if wrong := wrong_word(name):
        raise UsageError(wrong)
    if (word := _RESERVED.get(folded(name))) is not None:
        raise UsageError(f"{name!r} is a reserved word" if name == word else f"{name!r} cannot be told from {word!r}")
    there = connection.execute(select(accounts.c.name).where(accounts.c.folded == folded(name))).scalar()
    if there is not None:
        raise TakenError(
            f"{name!r} cannot be told from {there!r}, which is there" if there != name else f"{name!r} is there"
        )
    row = {"name": name, "folded": folded(name), "is_organisation": organisation, "created": now}
    return int(connection.execute(insert(accounts).returning(accounts.c.id), row).scalar_one())


def account_id(connection: Connection, name: str) -> int:
    """Raises: UsageError: there is no such account."""
    found = connection.execute(select(accounts.c.id).where(accounts.c.name == name)).scalar()
    if found is None:
        raise UsageError(f"there is no account {name!r}")
    return int(found)


def make_token(
    connection: Connection, account: str, scope: Scope, now: float, *, seconds: float | None, label: str = ""
) -> str:
    """A new token of an account, which is told this once; `seconds` until it expires, None: never."""
    made = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(12))
    secret = secrets.token_urlsafe(32)
    row = {
        "id": made, "account_id": account_id(connection, account), "secret_sha256": hash_secret(secret), "scope": scope,
        "label": label[:200], "created": now, "expires": None if seconds is None else now + seconds,
    }  # fmt: skip
    connection.execute(insert(tokens), row)
    return f"nip_{made}_{secret}"


def revoke_token(connection: Connection, identity: str, now: float) -> None:
    """Raises: UsageError: no token has this id."""
    done = connection.execute(
        update(tokens).where(tokens.c.id == identity, tokens.c.revoked.is_(None)).values(revoked=now)
    )
    if done.rowcount == 0:
        raise UsageError(f"no token {identity!r} can be revoked; is it revoked already?")


def viewer_of(connection: Connection, token: str, now: float) -> Viewer | None:
    """Who holds a token; None where it is none, expired or revoked, or its account disabled, told apart by nothing."""
    shape = _TOKEN.fullmatch(token)
    row = connection.execute(
        select(tokens, accounts.c.name, accounts.c.disabled)
        .join(accounts, accounts.c.id == tokens.c.account_id)
        .where(tokens.c.id == (shape["id"] if shape else ""))
    ).one_or_none()
    is_it = hmac.compare_digest(hash_secret(shape["secret"] if shape else ""), row.secret_sha256 if row else _NOBODY)
    if row is None or not is_it or row.revoked is not None or row.disabled is not None:
        return None
    if row.expires is not None and row.expires <= now:
        return None
    owners = frozenset((row.name, *_organisations(connection, row.account_id)))
    return Viewer(row.account_id, row.name, owners, Scope(row.scope), row.id)


def viewer_of_account(connection: Connection, account: int) -> Viewer:
    """Who an account is, for what it asked for before and is done now."""
    row = connection.execute(select(accounts.c.name, accounts.c.disabled).where(accounts.c.id == account)).one()
    if row.disabled is not None:
        return Viewer(account, row.name)  # who owns nothing, and publishes as nobody
    return Viewer(account, row.name, frozenset((row.name, *_organisations(connection, account))), Scope.PUBLISH)


def _organisations(connection: Connection, account: int) -> Iterator[str]:
    query = select(accounts.c.name).join(members, members.c.organisation_id == accounts.c.id)
    for row in connection.execute(query.where(members.c.account_id == account, accounts.c.disabled.is_(None))):
        yield row.name


def add_member(connection: Connection, organisation: str, account: str, *, is_owner: bool = False) -> None:
    """Let an account publish as an organisation; an owner may say who else does.

    Raises:
        UsageError: one of them is not there, or is of the other kind; or it was the last owner, and would be none.
    """
    kinds = {
        row.name: row.is_organisation
        for row in connection.execute(select(accounts).where(accounts.c.name.in_((organisation, account))))
    }
    pair = {"organisation_id": account_id(connection, organisation), "account_id": account_id(connection, account)}
    if kinds.get(organisation) is not True or kinds.get(account) is not False:
        raise UsageError(f"{account!r} cannot be in {organisation!r}: an account belongs into an organisation")
    there = members.c.organisation_id == pair["organisation_id"], members.c.account_id == pair["account_id"]
    if not is_owner:
        check_not_last(connection, organisation, account)
    if connection.execute(update(members).where(*there).values(is_owner=is_owner)).rowcount == 0:
        connection.execute(insert(members), {**pair, "is_owner": is_owner})


def check_not_last(connection: Connection, organisation: str, account: str) -> None:
    """Raises: UsageError: the account is the last owner of the organisation."""
    of, who = account_id(connection, organisation), account_id(connection, account)
    owners = select(members.c.account_id).where(members.c.organisation_id == of, members.c.is_owner)
    if {row.account_id for row in connection.execute(owners)} == {who}:
        raise UsageError(f"{account!r} is the last owner of {organisation!r}; make somebody else one first")


def hash_secret(secret: str) -> str:
    """Return what is stored of the secret of a token or cookie."""
    return hashlib.sha256(secret.encode()).hexdigest()
