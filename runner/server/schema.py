"""The tables of a server's database, one schema for SQLite and PostgreSQL.

What a manifest says stands in the manifest; what is here of it is `files` and `checks`, which `rebuild` makes again.
The truth that is nowhere else: accounts, members, tokens, and who published what when.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

VERSION = 1
"""Of the schema; a database of an earlier one is upgraded, and one of a later one is refused."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("key", String(60), primary_key=True),
    Column("value", Text, nullable=False),
)  # `schema` (the version), `revision` (counts what was made visible or changed)

accounts = Table(
    "accounts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("folded", String(100), nullable=False, unique=True),  # no two names that look alike
    Column("is_organisation", Boolean, nullable=False),
    Column("created", Float, nullable=False),  # seconds since 1970, as all times here
    Column("disabled", Float),
)

members = Table(
    "members",
    metadata,
    Column("organisation_id", ForeignKey("accounts.id"), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), primary_key=True),
    Column("is_owner", Boolean, nullable=False),  # may say who else is a member; every member may publish
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(16), primary_key=True),  # the part of a token that is no secret
    Column("account_id", ForeignKey("accounts.id"), nullable=False),
    Column("secret_sha256", String(64), nullable=False),
    Column("scope", String(10), nullable=False),
    Column("label", String(200), nullable=False),
    Column("created", Float, nullable=False),
    Column("expires", Float),
    Column("revoked", Float),
)

releases = Table(
    "releases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", String(100), nullable=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("visibility", String(10), nullable=False),
    Column("publisher_id", ForeignKey("accounts.id"), nullable=False),
    Column("created", Float, nullable=False),
    UniqueConstraint("kind", "owner", "name", "version"),
    Index("releases_by_owner", "owner", "kind"),
)

files = Table(
    "files",
    metadata,
    # KIND/OWNER/NAME/VERSION/PATH, ordered by bytes, so that pages of a list follow each other on every database
    Column("path", String(800).with_variant(String(800, collation="C"), "postgresql"), primary_key=True),
    Column("release_id", ForeignKey("releases.id"), nullable=False, index=True),
    Column("part", String(10), nullable=False),  # "" of the release itself, `yanked`, `signature`
    Column("sha256", String(64), nullable=False, index=True),
    Column("size", BigInteger, nullable=False),
)

checks = Table(
    "checks",
    metadata,
    Column("release_id", ForeignKey("releases.id"), primary_key=True),
    Column("by", String(40), nullable=False),  # the version of nip-run that checked it
    Column("tier", String(20), nullable=False),
    Column("said", Text, nullable=False),  # JSON: notes of the check
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
    Column("touched", Float, nullable=False),
)

browsers = Table(
    "browsers",
    metadata,
    Column("id", String(24), primary_key=True),
    Column("token_id", ForeignKey("tokens.id"), nullable=False, index=True),
    Column("secret_sha256", String(64), nullable=False),
    Column("expires", Float, nullable=False),
)  # that are signed in; nothing of it is backed up, since it only says who signs in again
