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
from runner.server.web.api.schemas import PRINTED, WORD, AnswerBody, RequestBody, faults
from runner.server.web.authentication import Known, Publisher, publishing, server_of
from runner.server.web.request_bodies import json_of

router = APIRouter(prefix="/api/v1", tags=["people"])

TokenId = Annotated[
    str, Path(pattern="^[a-z0-9]{12}$", description="The part of a token between nip_ and the second _")
]
Name = Annotated[str, Path(pattern=WORD)]


class TokenWanted(RequestBody):
    """A token that may no more, and lasts no longer, than the one that asks."""

    scope: Scope = Scope.PUBLISH
    days: Annotated[float, Field(ge=0.01, le=LONGEST_DAYS)] = 365.0
    label: Annotated[str, Field(max_length=200, pattern=PRINTED)] = ""
    """What it is for, in the list."""


class OwnToken(AnswerBody):
    id: str
    scope: Scope
    label: str
    created: datetime
    expires: datetime | None


class MadeToken(OwnToken):
    token: str
    """Shown this once: the server keeps its hash alone."""


class OwnTokens(AnswerBody):
    tokens: list[OwnToken]
    """Those that are neither revoked nor expired, the newest first."""


class Member(AnswerBody):
    account: str
    place: people.MemberRole
    as_owner: bool
    """Whether it is an owner, or would be one once it accepts."""


class Organisation(AnswerBody):
    name: str
    place: people.MemberRole
    """What who asks is in it."""
    members: list[Member]
    """Who is invited sees nobody yet."""


class Organisations(AnswerBody):
    organisations: list[Organisation]


class PlaceWanted(RequestBody):
    is_owner: bool = False
    """An owner says who else is in the organisation; every member publishes as it."""


class PlaceNow(AnswerBody):
    place: people.MemberRole


@router.get("/tokens", responses=faults(401))
def tokens(request: Request, viewer: Known) -> OwnTokens:
    """The tokens of one's own account, without their secrets."""
    with server_of(request).database.reading() as connection:
        found = own_tokens(connection, viewer, time.time())
    return OwnTokens.model_validate({"tokens": [vars(one) for one in found]})


@router.post("/tokens", status_code=201, responses=faults(400, 401, 403))
def make_token(
    request: Request, viewer: Publisher, wanted: Annotated[TokenWanted, json_of(TokenWanted, publishing)]
) -> MadeToken:
    """Make a token of one's own."""
    with server_of(request).database.writing() as connection:
        one, token = make_own(connection, viewer, wanted.scope, wanted.days, wanted.label)
    return MadeToken.model_validate({**vars(one), "token": token})


@router.delete("/tokens/{token}", status_code=204, responses=faults(401, 403, 404))
def revoke_token(request: Request, viewer: Known, token: TokenId) -> None:
    """Revoke a token of one's own, which may be the one that asks."""
    with server_of(request).database.writing() as connection:
        revoke_own(connection, viewer, token)


@router.get("/organisations", responses=faults(401))
def organisations(request: Request, viewer: Known) -> Organisations:
    """The organisations that one is in, or invited to."""
    with server_of(request).database.reading() as connection:
        found = people.organisations_of(connection, viewer)
    return Organisations.model_validate({"organisations": found}, from_attributes=True)


@router.get("/organisations/{name}", responses=faults(401, 404))
def organisation(request: Request, viewer: Known, name: Name) -> Organisation:
    """An organisation that one is in, or invited to."""
    with server_of(request).database.reading() as connection:
        return Organisation.model_validate(people.organisation(connection, viewer, name), from_attributes=True)


@router.put("/organisations/{name}/members/{account}", responses=faults(400, 401, 403, 404))
def set_member(
    request: Request, viewer: Publisher, name: Name, account: Name,
    wanted: Annotated[PlaceWanted, json_of(PlaceWanted, publishing)],
) -> PlaceNow:  # fmt: skip
    """Invite an account, or have a member be an owner, or be one no more. The last owner stays one."""
    server = server_of(request)
    with server.database.writing() as connection:
        return PlaceNow(place=people.set_member(connection, viewer, name, account, is_owner=wanted.is_owner))


@router.post("/organisations/{name}/accept", responses=faults(401, 403, 404))
def accept(request: Request, viewer: Publisher, name: Name) -> PlaceNow:
    """Be in an organisation that one is invited to."""
    server = server_of(request)
    with server.database.writing() as connection:
        place = people.accept(connection, viewer, name)
        server.database.changed(connection)  # whose runs are each other's may be otherwise now
    return PlaceNow(place=place)


@router.delete("/organisations/{name}/members/{account}", status_code=204, responses=faults(400, 401, 403, 404))
def remove_member(request: Request, viewer: Publisher, name: Name, account: Name) -> None:
    """Have an account be in an organisation no more, or no more invited; everybody oneself. The last owner stays."""
    server = server_of(request)
    with server.database.writing() as connection:
        people.remove(connection, viewer, name, account)
        server.database.changed(connection)
