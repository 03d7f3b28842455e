"""The tables of a server's database, one schema for SQLite and PostgreSQL.

All modules in `server/` that use the database import their tables from here.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
)

from runner.documents.releases.reference import Kind, Reference

VERSION = 3
"""Schema version. Databases and backups with other versions are refused."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String(60), primary_key=True),
    Column("value", Text, nullable=False),
)  # keys: `schema` (the version), `revision` (see `Database.revision`)

accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("folded", String(100), nullable=False, unique=True),  # `similarity_key` prevents names that look alike
    Column("is_organisation", Boolean, nullable=False),
    Column("created", Float, nullable=False),  # seconds since 1970, like all times in this schema
    Column("disabled", Float),
)

members = Table(
    "members",
    metadata,
    Column("organisation_id", ForeignKey("accounts.id"), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), primary_key=True),
    Column("is_owner", Boolean, nullable=False),  # owners may change members; every member may publish
)

invitations = Table(
    "invitations",
    metadata,
    Column("organisation_id", ForeignKey("accounts.id"), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), primary_key=True),
    Column("is_owner", Boolean, nullable=False),  # whether the account would join as an owner
    Column("created", Float, nullable=False),
)  # an account joins only by accepting an invitation

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),  # the public part of a token
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scope", String(10), nullable=False),
    Column("label", String(200), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Float),
)

acts = Table(
    "acts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("by", String(100), nullable=False),  # an account, or "" for commands on the server's machine
    Column("did", String(40), nullable=False),
    Column("to", String(500), nullable=False),
    Column("why", Text, nullable=False),
)  # audit log of changes to accounts, tokens and visibility; contains no secrets

releases = Table(
    "releases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", String(100), nullable=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("visibility", String(10), nullable=False),  # as in the manifest, or `hidden` by an administrator
    Column("publisher_id", ForeignKey("accounts.id"), nullable=False),
    Column("created", Float, nullable=False),
    UniqueConstraint("kind", "owner", "name", "version"),
    Index("releases_by_owner", "owner", "kind"),
)

files = Table(
    "files",
    metadata,
    # KIND/OWNER/NAME/VERSION/PATH, ordered by bytes, so that paging through a list is the same on both databases
    Column("path", String(800).with_variant(String(800, collation="C"), "postgresql"), primary_key=True),
    Column("release_id", ForeignKey("releases.id"), nullable=False, index=True),
    Column("part", String(10), nullable=False),  # "" for the release itself, `yanked` or `signature`
    Column("sha256", String(64), nullable=False, index=True),
    Column("size", BigInteger, nullable=False),
)

competitions = Table(
    "competitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("title", String(300), nullable=False),
    Column("release_id", ForeignKey("releases.id"), nullable=False),  # the dataset, without labels
    Column("rows_sha256", String(64), nullable=False, index=True),  # hash of all rows; submissions have the same hash
    Column("group_by", String(200)),  # column of the dataset whose values form clusters for the interval
    Column("day_limit", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("closes", Float, nullable=False),
    Column("relabelled", Float),  # when labels were last replaced
    Column("withdrawn", Float),
    Column("why", Text),  # reason for the withdrawal
    UniqueConstraint("owner", "name"),
)

competition_labels = Table(
    "competition_labels",  # secret: read only to score submissions
    metadata,
    Column("competition_id", ForeignKey("competitions.id"), primary_key=True),
    Column("datapoint_id", Text, primary_key=True),
    Column("label", Integer, nullable=False),
    Column("is_held", Boolean, nullable=False),  # held out: the score of these rows is shown only after closing
)

submissions = Table(
    "submissions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("competition_id", ForeignKey("competitions.id"), nullable=False),
    Column("release_id", ForeignKey("releases.id"), nullable=False, index=True),
    Column("owner", String(100), nullable=False),
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("created", Float, nullable=False),
    Column("state", String(10), nullable=False, index=True),  # `waiting`, `scored` or `refused`
    Column("why", Text, nullable=False),  # reason if the submission was refused
    Column("score", Text),  # JSON: all metrics of each part; the API shows only some
    Column("scored", Float),
    UniqueConstraint("competition_id", "release_id"),
    Index("submissions_by_time", "competition_id", "created"),
)

uploads = Table(
    "uploads",
    metadata,
    Column("id", String(32), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), nullable=False, index=True),
    Column("declared", Text, nullable=False),  # JSON: folders and their files
    Column("size", BigInteger, nullable=False),
    Column("state", String(10), nullable=False, index=True),
    Column("problems", Text, nullable=False),  # JSON: a list of texts
    Column("touched", Float, nullable=False),  # when the state changed or bytes were received
)

browsers = Table(
    "browsers",
    metadata,
    Column("id", String(24), primary_key=True),
    Column("token_id", ForeignKey("tokens.id"), nullable=False, index=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("expires", Float, nullable=False),
)  # browser sessions; not in backups, because browsers can sign in again


def reference_of(row: Row[Any]) -> Reference:
    """Return the reference of the release in a row of `releases`."""
    return Reference(Kind(row.kind), row.owner, row.name, row.version)


def is_release(reference: Reference) -> ColumnElement[bool]:
    """Return the condition that a row of `releases` is this release."""
    names = ("kind", "owner", "name", "version")
    return and_(*(releases.c[name] == str(getattr(reference, name)) for name in names))
