"""The API for who has an account: the tokens of one's own, and the organisations that one is in."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from runner.server.accounts import organizations as people
from runner.server.accounts.accounts import Scope
from runner.server.accounts.own_tokens import LONGEST_DAYS, make_own, own_tokens, revoke_own
from runner.server.web.api.schemas import PRINTED, WORD, RequestBody, ResponseBody, faults
from runner.server.web.authentication import Known, Publisher, publishing, server_of
from runner.server.web.request_bodies import json_of

router = APIRouter(prefix="/api/v1", tags=["people"])

TokenId = Annotated[
    str, Path(pattern="^[a-z0-9]{12}$", description="The part of a token between nip_ and the second _")
]
Name = Annotated[str, Path(pattern=WORD)]


class CreateTokenRequest(RequestBody):
    """A token that may no more, and lasts no longer, than the one that asks."""

    scope: Scope = Scope.PUBLISH
    days: Annotated[float, Field(ge=0.01, le=LONGEST_DAYS)] = 365.0
    label: Annotated[str, Field(max_length=200, pattern=PRINTED)] = ""
    """What it is for, in the list."""


class TokenResponse(ResponseBody):
    id: str
    scope: Scope
    label: str
    created: datetime
    expires: datetime | None


class CreateTokenResponse(TokenResponse):
    token: str
    """Shown this once: the server keeps its hash alone."""


class TokenListResponse(ResponseBody):
    tokens: list[TokenResponse]
    """Those that are neither revoked nor expired, the newest first."""


class MemberResponse(ResponseBody):
    account: str
    place: people.MemberRole
    as_owner: bool
    """Whether it is an owner, or would be one once it accepts."""


class OrganizationResponse(ResponseBody):
    name: str
    place: people.MemberRole
    """What who asks is in it."""
    members: list[MemberResponse]
    """Who is invited sees nobody yet."""


class OrganizationListResponse(ResponseBody):
    organisations: list[OrganizationResponse]


class SetMemberRequest(RequestBody):
    is_owner: bool = False
    """An owner says who else is in the organisation; every member publishes as it."""


class MemberRoleResponse(ResponseBody):
    place: people.MemberRole


@router.get("/tokens", responses=faults(401))
def tokens(request: Request, viewer: Known) -> TokenListResponse:
    """The tokens of one's own account, without their secrets."""
    with server_of(request).database.reading() as connection:
        found = own_tokens(connection, viewer, time.time())
    return TokenListResponse.model_validate({"tokens": [vars(one) for one in found]})


@router.post("/tokens", status_code=201, responses=faults(400, 401, 403))
def make_token(
    request: Request, viewer: Publisher, body: Annotated[CreateTokenRequest, json_of(CreateTokenRequest, publishing)]
) -> CreateTokenResponse:
    """Make a token of one's own."""
    with server_of(request).database.writing() as connection:
        one, token = make_own(connection, viewer, body.scope, body.days, body.label)
    return CreateTokenResponse.model_validate({**vars(one), "token": token})


@router.delete("/tokens/{token}", status_code=204, responses=faults(401, 403, 404))
def revoke_token(request: Request, viewer: Known, token: TokenId) -> None:
    """Revoke a token of one's own, which may be the one that asks."""
    with server_of(request).database.writing() as connection:
        revoke_own(connection, viewer, token)


@router.get("/organisations", responses=faults(401))
def organisations(request: Request, viewer: Known) -> OrganizationListResponse:
    """The organisations that one is in, or invited to."""
    with server_of(request).database.reading() as connection:
        found = people.organisations_of(connection, viewer)
    return OrganizationListResponse.model_validate({"organisations": found}, from_attributes=True)


@router.get("/organisations/{name}", responses=faults(401, 404))
def organisation(request: Request, viewer: Known, name: Name) -> OrganizationResponse:
    """An organisation that one is in, or invited to."""
    with server_of(request).database.reading() as connection:
        return OrganizationResponse.model_validate(people.organisation(connection, viewer, name), from_attributes=True)


@router.put("/organisations/{name}/members/{account}", responses=faults(400, 401, 403, 404))
def set_member(
    request: Request, viewer: Publisher, name: Name, account: Name,
    body: Annotated[SetMemberRequest, json_of(SetMemberRequest, publishing)],
) -> MemberRoleResponse:  # fmt: skip
    """Invite an account, or have a member be an owner, or be one no more. The last owner stays one."""
    server = server_of(request)
    with server.database.writing() as connection:
        return MemberRoleResponse(place=people.set_member(connection, viewer, name, account, is_owner=body.is_owner))


@router.post("/organisations/{name}/accept", responses=faults(401, 403, 404))
def accept(request: Request, viewer: Publisher, name: Name) -> MemberRoleResponse:
    """Be in an organisation that one is invited to."""
    server = server_of(request)
    with server.database.writing() as connection:
        place = people.accept(connection, viewer, name)
        server.database.changed(connection)  # whose runs are each other's may be otherwise now
    return MemberRoleResponse(place=place)


@router.delete("/organisations/{name}/members/{account}", status_code=204, responses=faults(400, 401, 403, 404))
def remove_member(request: Request, viewer: Publisher, name: Name, account: Name) -> None:
    """Have an account be in an organisation no more, or no more invited; everybody oneself. The last owner stays."""
    server = server_of(request)
    with server.database.writing() as connection:
        people.remove(connection, viewer, name, account)
        server.database.changed(connection)
