"""The API for the holders of accounts: their tokens and organizations."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from runner.server.accounts import organizations
from runner.server.accounts.accounts import Scope
from runner.server.accounts.own_tokens import MAX_DAYS, create_own_token, list_own_tokens, revoke_own_token
from runner.server.web.api.schemas import LINE_PATTERN, RequestBody, ResponseBody, UrlName, errors
from runner.server.web.authentication import AccountViewer, PublishingViewer, require_publisher, server_of
from runner.server.web.request_bodies import json_body

router = APIRouter(prefix="/api/v1", tags=["people"])

TokenId = Annotated[
    str, Path(pattern="^[a-z0-9]{12}$", description="The part of a token between nip_ and the second _")
]


class CreateTokenRequest(RequestBody):
    """A token to create. Its scope and lifetime cannot exceed those of the token that makes the request."""

    scope: Scope = Scope.PUBLISH
    days: Annotated[float, Field(ge=0.01, le=MAX_DAYS)] = 365.0
    label: Annotated[str, Field(max_length=200, pattern=LINE_PATTERN)] = ""
    """The purpose of the token, for the list of tokens."""


class TokenResponse(ResponseBody):
    id: str
    scope: Scope
    label: str
    created: datetime
    expires: datetime | None


class CreateTokenResponse(TokenResponse):
    token: str
    """The token itself. The server shows it only once, because it stores only a hash."""


class TokenListResponse(ResponseBody):
    tokens: list[TokenResponse]
    """The tokens that are neither revoked nor expired, newest first."""


class MemberResponse(ResponseBody):
    account: str
    place: organizations.MemberRole = Field(validation_alias="role")
    as_owner: bool
    """Whether the account is an owner, or becomes one if it accepts the invitation."""


class OrganizationResponse(ResponseBody):
    name: str
    place: organizations.MemberRole = Field(validation_alias="role")
    """The role of the account that makes the request."""
    members: list[MemberResponse]
    """Empty for an account that is only invited."""


class OrganizationListResponse(ResponseBody):
    organisations: list[OrganizationResponse]


class SetMemberRequest(RequestBody):
    is_owner: bool = False
    """Owners may change the members; every member may publish under the organization's name."""


class MemberRoleResponse(ResponseBody):
    place: organizations.MemberRole


@router.get("/tokens", responses=errors(401))
def list_tokens(request: Request, viewer: AccountViewer) -> TokenListResponse:
    """List the tokens of your account, without their secrets."""
    with server_of(request).database.reading() as connection:
        valid_tokens = list_own_tokens(connection, viewer, time.time())
    return TokenListResponse.model_validate({"tokens": [vars(token) for token in valid_tokens]})


@router.post("/tokens", status_code=201, responses=errors(400, 401, 403))
def create_token(
    request: Request,
    viewer: PublishingViewer,
    body: Annotated[CreateTokenRequest, json_body(CreateTokenRequest, require_publisher)],
) -> CreateTokenResponse:
    """Create a token for your account."""
    with server_of(request).database.writing() as connection:
        token, text = create_own_token(connection, viewer, body.scope, body.days, body.label)
    return CreateTokenResponse.model_validate({**vars(token), "token": text})


@router.delete("/tokens/{token}", status_code=204, responses=errors(401, 403, 404))
def revoke_token(request: Request, viewer: AccountViewer, token: TokenId) -> None:
    """Revoke a token of your account. A token may also revoke itself."""
    with server_of(request).database.writing() as connection:
        revoke_own_token(connection, viewer, token)


@router.get("/organisations", responses=errors(401))
def list_organisations(request: Request, viewer: AccountViewer) -> OrganizationListResponse:
    """List the organizations that you belong to or are invited to."""
    with server_of(request).database.reading() as connection:
        views = organizations.list_organizations(connection, viewer)
    return OrganizationListResponse.model_validate({"organisations": views}, from_attributes=True)


@router.get("/organisations/{name}", responses=errors(401, 404))
def get_organisation(request: Request, viewer: AccountViewer, name: UrlName) -> OrganizationResponse:
    """Get an organization that you belong to or are invited to."""
    with server_of(request).database.reading() as connection:
        view = organizations.find_organization(connection, viewer, name)
    return OrganizationResponse.model_validate(view, from_attributes=True)


@router.put("/organisations/{name}/members/{account}", responses=errors(400, 401, 403, 404))
def set_member(
    request: Request, viewer: PublishingViewer, name: UrlName, account: UrlName,
    body: Annotated[SetMemberRequest, json_body(SetMemberRequest, require_publisher)],
) -> MemberRoleResponse:  # fmt: skip
    """Invite an account, or change whether a member is an owner. The last owner must remain an owner."""
    with server_of(request).database.writing() as connection:
        role = organizations.set_member(connection, viewer, name, account, is_owner=body.is_owner)
    return MemberRoleResponse(place=role)


@router.post("/organisations/{name}/accept", responses=errors(401, 403, 404))
def accept_invitation(request: Request, viewer: PublishingViewer, name: UrlName) -> MemberRoleResponse:
    """Accept an invitation to an organization."""
    server = server_of(request)
    with server.database.writing() as connection:
        role = organizations.accept_invitation(connection, viewer, name)
        server.database.increment_revision(connection)  # membership decides which runs count as reproductions by others
    return MemberRoleResponse(place=role)


@router.delete("/organisations/{name}/members/{account}", status_code=204, responses=errors(400, 401, 403, 404))
def remove_member(request: Request, viewer: PublishingViewer, name: UrlName, account: UrlName) -> None:
    """Remove a member or an invitation. You can always remove yourself, unless you are the last owner."""
    server = server_of(request)
    with server.database.writing() as connection:
        organizations.remove_from_organization(connection, viewer, name, account)
        server.database.increment_revision(connection)
