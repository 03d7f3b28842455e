"""Organisations as their own people keep them: an owner invites, whoever is invited accepts, an owner stays.

Nobody is made a member by another's word alone: whose runs are each other's, and what a limit counts, follows from it.
Every function is one act within a transaction of the caller's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, delete, insert, select, update

from runner.base.errors import NotPublished
from runner.server.accounts.accounts import Viewer, add_member
from runner.server.accounts.administration import note_act, remove_member
from runner.server.store.schema import accounts, invitations, members


class MemberRole(StrEnum):
    """What an account is in an organisation."""

    OWNER = "owner"
    MEMBER = "member"
    INVITED = "invited"


@dataclass(frozen=True)
class OrganizationMember:
    """One account of an organisation, as its members see it."""

    account: str
    place: MemberRole
    as_owner: bool
    """Whether it is an owner, or would be one."""


@dataclass(frozen=True)
class OrganizationView:
    """An organisation, as somebody who is in it or invited sees it."""

    id: int
    name: str
    place: MemberRole
    """What who asks is there."""
    members: tuple[OrganizationMember, ...]
    """Who is invited sees nobody."""


def organisations_of(connection: Connection, viewer: Viewer) -> list[OrganizationView]:
    """Those that the viewer is in, or invited to, by name."""
    found: set[str] = set()
    for table in (members, invitations):
        query = select(accounts.c.name).join(table, table.c.organisation_id == accounts.c.id)
        mine = table.c.account_id == viewer.account_id, accounts.c.disabled.is_(None)
        found |= {row.name for row in connection.execute(query.where(*mine))}
    return [organisation(connection, viewer, name) for name in sorted(found)]


def organisation(connection: Connection, viewer: Viewer, name: str) -> OrganizationView:
    """Raises: NotPublished: there is none that the viewer is in or invited to."""
    query = select(accounts.c.id).where(accounts.c.name == name, accounts.c.is_organisation)
    of = connection.execute(query.where(accounts.c.disabled.is_(None))).scalar()
    inside = [] if of is None else list(_inside(connection, of))
    mine = next((one for one in inside if one.account == viewer.account), None)
    if of is None or mine is None:
        raise NotPublished(f"you are in no organisation {name!r}")
    return OrganizationView(of, name, mine.place, () if mine.place == MemberRole.INVITED else tuple(inside))


def _inside(connection: Connection, of: int) -> list[OrganizationMember]:
    found = []
    for table in (members, invitations):
        query = select(accounts.c.name, table.c.is_owner).join(table, table.c.account_id == accounts.c.id)
        for row in connection.execute(query.where(table.c.organisation_id == of)):
            place = (
                MemberRole.INVITED if table is invitations else MemberRole.OWNER if row.is_owner else MemberRole.MEMBER
            )
            found.append(OrganizationMember(row.name, place, row.is_owner))
    return sorted(found, key=lambda one: one.account)


def set_member(connection: Connection, viewer: Viewer, name: str, account: str, *, is_owner: bool) -> MemberRole:
    """Invite an account, or have a member be an owner or be none; what it is then.

    Raises:
        PermissionError: the viewer is no owner.
        NotPublished: there is no such organisation for the viewer, or no such account.
        UsageError: it would have no owner any more.
    """
    of = _owned(connection, viewer, name)
    who = _account(connection, account)
    there = members.c.organisation_id == of.id, members.c.account_id == who
    if connection.execute(select(members.c.account_id).where(*there)).scalar() is not None:
        add_member(connection, name, account, is_owner=is_owner)
        _note(connection, viewer, "add-member", f"{name} {account}{' (owner)' if is_owner else ''}")
        return MemberRole.OWNER if is_owner else MemberRole.MEMBER
    pair = invitations.c.organisation_id == of.id, invitations.c.account_id == who
    if connection.execute(update(invitations).where(*pair).values(is_owner=is_owner)).rowcount == 0:
        row = {"organisation_id": of.id, "account_id": who, "is_owner": is_owner, "created": time.time()}
        connection.execute(insert(invitations), row)
    _note(connection, viewer, "invite", f"{name} {account}{' (owner)' if is_owner else ''}")
    return MemberRole.INVITED


def accept(connection: Connection, viewer: Viewer, name: str) -> MemberRole:
    """Be what one was invited to be; who is in it already stays what it is.

    Raises:
        NotPublished: the viewer is not invited.
    """
    of = organisation(connection, viewer, name)
    if of.place != MemberRole.INVITED:
        return of.place
    pair = invitations.c.organisation_id == of.id, invitations.c.account_id == viewer.account_id
    is_owner = bool(connection.execute(select(invitations.c.is_owner).where(*pair)).scalar_one())
    connection.execute(delete(invitations).where(*pair))
    add_member(connection, name, viewer.account, is_owner=is_owner)
    _note(connection, viewer, "join", name)
    return MemberRole.OWNER if is_owner else MemberRole.MEMBER


def remove(connection: Connection, viewer: Viewer, name: str, account: str) -> None:
    """Have an account be in an organisation no more, or no more invited: an owner anybody, everybody oneself.

    Raises:
        PermissionError: it is another's account, and the viewer is no owner.
        NotPublished: there is no such organisation for the viewer, or the account is not in it.
        UsageError: it is the last owner.
    """
    of = organisation(connection, viewer, name) if account == viewer.account else _owned(connection, viewer, name)
    who = _account(connection, account)
    pair = invitations.c.organisation_id == of.id, invitations.c.account_id == who
    if connection.execute(delete(invitations).where(*pair)).rowcount == 0:
        if account != viewer.account and account not in {one.account for one in of.members}:
            raise NotPublished(f"{account!r} is not in {name!r}")
        remove_member(connection, name, account)
    _note(connection, viewer, "remove-member", f"{name} {account}")


def _owned(connection: Connection, viewer: Viewer, name: str) -> OrganizationView:
    found = organisation(connection, viewer, name)
    if found.place != MemberRole.OWNER:
        raise PermissionError(f"only an owner of {name!r} says who else is in it")
    return found


def _account(connection: Connection, name: str) -> int:
    query = select(accounts.c.id).where(accounts.c.name == name, accounts.c.is_organisation.is_(False))
    found = connection.execute(query.where(accounts.c.disabled.is_(None))).scalar()
    if found is None:
        raise NotPublished(f"there is no account {name!r}")
    return int(found)


def _note(connection: Connection, viewer: Viewer, did: str, to: str) -> None:
    note_act(connection, time.time(), did, to, by=viewer.account)
