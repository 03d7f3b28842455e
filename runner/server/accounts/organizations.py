"""Organizations and their members: owners invite accounts, the accounts accept, and at least one owner remains.

An account joins only by accepting an invitation, because membership has effects: the runs of two members do not count
as reproductions of each other, and submissions to a competition count for the organization's daily limit. All functions
run in the caller's transaction. The API and the page `/mine/account` use this module; the commands `nip-run server` use
`runner.server.accounts.administration`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, delete, insert, select, update

from runner.base.errors import NotFoundError
from runner.server.accounts.accounts import Viewer, add_member
from runner.server.accounts.administration import log_action, remove_member
from runner.server.store.schema import accounts, invitations, members


class MemberRole(StrEnum):
    """The role of an account in an organization."""

    OWNER = "owner"
    MEMBER = "member"
    INVITED = "invited"


@dataclass(frozen=True)
class OrganizationMember:
    """An account in an organization, as its members see it."""

    account: str
    role: MemberRole
    as_owner: bool
    """Whether the account is an owner, or is invited as one."""


@dataclass(frozen=True)
class OrganizationView:
    """An organization, as a member or an invited account sees it."""

    id: int
    name: str
    role: MemberRole
    """The viewer's own role."""
    members: tuple[OrganizationMember, ...]
    """Empty for a viewer who is only invited."""


def list_organizations(connection: Connection, viewer: Viewer) -> list[OrganizationView]:
    """Return the organizations that the viewer belongs to or is invited to, sorted by name."""
    names: set[str] = set()
    for table in (members, invitations):
        query = select(accounts.c.name).join(table, table.c.organisation_id == accounts.c.id)
        own_rows = table.c.account_id == viewer.account_id, accounts.c.disabled.is_(None)
        names |= {row.name for row in connection.execute(query.where(*own_rows))}
    return [find_organization(connection, viewer, name) for name in sorted(names)]


def find_organization(connection: Connection, viewer: Viewer, name: str) -> OrganizationView:
    """Return an organization; raise NotFoundError if the viewer is neither a member nor invited."""
    query = select(accounts.c.id).where(accounts.c.name == name, accounts.c.is_organisation)
    organization_id = connection.execute(query.where(accounts.c.disabled.is_(None))).scalar()
    all_members = [] if organization_id is None else _members_and_invited(connection, organization_id)
    own_membership = next((member for member in all_members if member.account == viewer.account), None)
    if organization_id is None or own_membership is None:
        raise NotFoundError(f"you are not in an organization {name!r}; ask one of its owners for an invitation")
    role = own_membership.role
    return OrganizationView(organization_id, name, role, () if role == MemberRole.INVITED else tuple(all_members))


def _members_and_invited(connection: Connection, organization_id: int) -> list[OrganizationMember]:
    """Return the members of an organization and the invited accounts, sorted by name."""
    people = []
    for table in (members, invitations):
        query = select(accounts.c.name, table.c.is_owner).join(table, table.c.account_id == accounts.c.id)
        for row in connection.execute(query.where(table.c.organisation_id == organization_id)):
            member_role = MemberRole.OWNER if row.is_owner else MemberRole.MEMBER
            role = MemberRole.INVITED if table is invitations else member_role
            people.append(OrganizationMember(row.name, role, row.is_owner))
    return sorted(people, key=lambda member: member.account)


def set_member(connection: Connection, viewer: Viewer, name: str, account: str, *, is_owner: bool) -> MemberRole:
    """Invite an account, or change whether a member is an owner; return the account's new role.

    Raises:
        PermissionError: the viewer is not an owner.
        NotFoundError: there is no such account, or no such organization for the viewer.
        UsageError: the organization would have no owner.
    """
    organization_id = _owned_organization(connection, viewer, name).id
    account_id = _account_id(connection, account)
    membership = members.c.organisation_id == organization_id, members.c.account_id == account_id
    if connection.execute(select(members.c.account_id).where(*membership)).scalar() is not None:
        add_member(connection, name, account, is_owner=is_owner)  # sets the role of the existing member
        _record(connection, viewer, "add-member", f"{name} {account}{' (owner)' if is_owner else ''}")
        return MemberRole.OWNER if is_owner else MemberRole.MEMBER
    invitation = invitations.c.organisation_id == organization_id, invitations.c.account_id == account_id
    if connection.execute(update(invitations).where(*invitation).values(is_owner=is_owner)).rowcount == 0:
        row = {
            "organisation_id": organization_id, "account_id": account_id, "is_owner": is_owner, "created": time.time(),
        }  # fmt: skip
        connection.execute(insert(invitations), row)
    _record(connection, viewer, "invite", f"{name} {account}{' (owner)' if is_owner else ''}")
    return MemberRole.INVITED


def accept_invitation(connection: Connection, viewer: Viewer, name: str) -> MemberRole:
    """Accept an invitation and return the viewer's role. If the viewer is a member already, nothing changes.

    Raises:
        NotFoundError: the viewer is neither invited nor a member.
    """
    organization = find_organization(connection, viewer, name)
    if organization.role != MemberRole.INVITED:
        return organization.role
    invitation = invitations.c.organisation_id == organization.id, invitations.c.account_id == viewer.account_id
    is_owner = bool(connection.execute(select(invitations.c.is_owner).where(*invitation)).scalar_one())
    connection.execute(delete(invitations).where(*invitation))
    add_member(connection, name, viewer.account, is_owner=is_owner)
    _record(connection, viewer, "join", name)
    return MemberRole.OWNER if is_owner else MemberRole.MEMBER


def remove_from_organization(connection: Connection, viewer: Viewer, name: str, account: str) -> None:
    """Remove a member or an invitation. An owner may remove any account, other viewers only themselves.

    Raises:
        PermissionError: a viewer who is not an owner tries to remove another account.
        NotFoundError: there is no such organization for the viewer, or the account is not in it.
        UsageError: the account is the last owner.
    """
    find_view = find_organization if account == viewer.account else _owned_organization
    view = find_view(connection, viewer, name)
    removed_id = _account_id(connection, account)
    invitation = invitations.c.organisation_id == view.id, invitations.c.account_id == removed_id
    is_invited = connection.execute(delete(invitations).where(*invitation)).rowcount > 0
    # Databases of earlier versions may have an invitation of a member.
    if not is_invited or any(
        member.account == account and member.role != MemberRole.INVITED for member in view.members
    ):
        if account != viewer.account and account not in {member.account for member in view.members}:
            raise NotFoundError(f"{account!r} is neither a member of {name!r} nor invited; check the name")
        remove_member(connection, name, account)
    _record(connection, viewer, "remove-member", f"{name} {account}")


def _owned_organization(connection: Connection, viewer: Viewer, name: str) -> OrganizationView:
    """Return an organization; raise PermissionError if the viewer is not one of its owners."""
    view = find_organization(connection, viewer, name)
    if view.role != MemberRole.OWNER:
        raise PermissionError(f"only an owner of {name!r} can change the members of {name!r}; ask an owner")
    return view


def _account_id(connection: Connection, name: str) -> int:
    """Return the id of an account; raise NotFoundError if the name is unknown, disabled or an organization."""
    query = select(accounts.c.id).where(accounts.c.name == name, accounts.c.is_organisation.is_(False))
    account_id = connection.execute(query.where(accounts.c.disabled.is_(None))).scalar()
    if account_id is None:
        raise NotFoundError(f"there is no account {name!r}; ask the server's administrator to create it")
    return int(account_id)


def _record(connection: Connection, viewer: Viewer, action: str, target: str) -> None:
    log_action(connection, time.time(), action, target, by=viewer.account)
