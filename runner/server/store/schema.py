"""The tables of a server's database, one schema for SQLite and PostgreSQL.

What a manifest says stands in the manifest; what is here of it is `files` and `checks`, which `rebuild` makes again.
The truth that is nowhere else: accounts, members, tokens, and who published what when.
"""

from __future__ import annotations

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
    String,
    Table,
    Text,
    UniqueConstraint,
    and_,
)

from runner.documents.releases.reference import Reference

VERSION = 3
"""Of the schema; a database of an earlier one is upgraded (`upgrades.py`), and one of a later one is refused."""

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

invitations = Table(
    "invitations",
    metadata,
    Column("organisation_id", ForeignKey("accounts.id"), primary_key=True),
    Column("account_id", ForeignKey("accounts.id"), primary_key=True),
    Column("is_owner", Boolean, nullable=False),  # what it would be
    Column("created", Float, nullable=False),
)  # nobody is in an organisation by another's word alone

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

acts = Table(
    "acts",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("by", String(100), nullable=False),  # an account, or "" for the server's own commands
    Column("did", String(40), nullable=False),
    Column("to", String(500), nullable=False),
    Column("why", Text, nullable=False),
)  # what was done to accounts, tokens and visibility: never a secret

releases = Table(
    "releases",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("kind", String(20), nullable=False),
    Column("owner", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("version", String(100), nullable=False),
    Column("sha256", String(64), nullable=False, index=True),
    Column("visibility", String(10), nullable=False),  # as the manifest says, or `hidden` by who keeps the server
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

competitions = Table(
    "competitions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("owner", String(100), nullable=False),
    Column("name", String(100), nullable=False),
    Column("title", String(300), nullable=False),
    Column("release_id", ForeignKey("releases.id"), nullable=False),  # of the dataset, whose rows have no labels
    Column("rows_sha256", String(64), nullable=False, index=True),  # of all rows; a submission has played just these
    Column("group_by", String(200)),  # the column whose values are clusters of the errors
    Column("day_limit", Integer, nullable=False),
    Column("created", Float, nullable=False),
    Column("closes", Float, nullable=False),
    Column("relabelled", Float),  # when its labels were last replaced
    Column("withdrawn", Float),
    Column("why", Text),  # it was withdrawn
    UniqueConstraint("owner", "name"),
)

competition_labels = Table(
    "competition_labels",  # a secret: what scores a submission reads it, and nothing else
    metadata,
    Column("competition_id", ForeignKey("competitions.id"), primary_key=True),
    Column("datapoint_id", Text, primary_key=True),
    Column("label", Integer, nullable=False),
    Column("is_held", Boolean, nullable=False),  # told after closing only
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
    Column("state", String(10), nullable=False, index=True),
    Column("why", Text, nullable=False),  # of one that is refused
    Column("score", Text),  # JSON: the metrics of each part in full, of which the API tells less
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


def is_release(reference: Reference) -> ColumnElement[bool]:
    """Return the condition that a row of `releases` is this release."""
    names = ("kind", "owner", "name", "version")
    return and_(*(releases.c[name] == str(getattr(reference, name)) for name in names))
