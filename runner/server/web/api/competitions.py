"""The API for competitions. Dataset owners create and change them; everyone may read public ones.

There is no operation to submit a run: publishing a run on the competition's rows submits it.
"""

from __future__ import annotations

import time
from datetime import datetime
from threading import Lock
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, HTTPException, Query, Request
from pydantic import Field, ValidationError
from sqlalchemy import Connection

from runner.base.errors import UsageError
from runner.documents.releases.reference import Kind, Reference
from runner.server.accounts.accounts import Viewer
from runner.server.accounts.administration import log_action
from runner.server.competitions import board as competition_board
from runner.server.competitions.editing import (
    CompetitionChanges,
    change_competition,
    find_for_change,
    relabel,
    withdraw,
)
from runner.server.competitions.storage import CompetitionRequest, create_competition
from runner.server.web.api.schemas import (
    LINE_PATTERN,
    NAME_PATTERN,
    TEXT_PATTERN,
    RequestBody,
    ResponseBody,
    Timestamp,
    UrlName,
    errors,
)
from runner.server.web.authentication import AnyViewer, PublishingViewer, require_publisher, server_of
from runner.server.web.request_bodies import json_body

router = APIRouter(prefix="/api/v1/competitions", tags=["competitions"])

RequestT = TypeVar("RequestT", bound=RequestBody)
MAX_LISTED = 100
"""Maximum number of competitions in one response."""
MAX_ROWS = 1_000_000
CREATION_LOCK = Lock()
"""Held while a competition is created. Reading its dataset takes a thread, a process and much memory, so many requests
at once would stop the server."""
RowId = Annotated[str, Field(min_length=1, max_length=1_000, pattern=TEXT_PATTERN)]
Dataset = Annotated[
    str, Field(max_length=320, pattern=r"^(dataset/)?[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*@[a-z0-9][a-z0-9._-]*$")
]
Title = Annotated[str, Field(max_length=300, pattern=LINE_PATTERN)]
Labels = Annotated[dict[RowId, Literal[0, 1]], Field(min_length=1, max_length=MAX_ROWS)]
Limit = Annotated[int, Field(ge=1, le=1_000)]
Reason = Annotated[str, Field(min_length=1, max_length=2_000, pattern=TEXT_PATTERN)]


class CreateCompetitionRequest(RequestBody):
    """A competition to create. The server stores the labels and never shows them."""

    dataset: Dataset
    """`OWNER/NAME@VERSION` of a dataset whose column `label` is empty."""
    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    title: Title = ""
    labels: Labels
    """The label of every row, by the row's id."""
    day_limit: Limit = 5
    """Maximum submissions of one owner, and of one account, in 24 hours."""
    closes: Timestamp
    held_out: Annotated[list[RowId], Field(max_length=MAX_ROWS, fail_fast=True)] = Field(default_factory=list)
    """Ids of the rows whose score is shown only after closing."""
    held_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Alternative to `held_out`: the share of rows to hold out. The server chooses them at random, in whole groups."""
    group_by: Annotated[str, Field(max_length=200, pattern=TEXT_PATTERN)] | None = None
    """Column of the dataset. For confidence intervals, rows with the same value form one cluster."""

    def to_request(self) -> CompetitionRequest:
        return CompetitionRequest(**{**self.model_dump(), "closes": self.closes.timestamp()})


class ChangeCompetitionRequest(RequestBody):
    """Changes to a competition. A field that is missing or null keeps its value."""

    title: Title | None = None
    day_limit: Limit | None = None
    closes: Timestamp | None = None
    """The new closing time, later than the old one. A closed competition cannot reopen."""
    why: Annotated[str, Field(max_length=2_000, pattern=TEXT_PATTERN)] = ""
    """The reason, recorded in the server's log of actions."""

    def to_changes(self) -> CompetitionChanges:
        closes = None if self.closes is None else self.closes.timestamp()
        return CompetitionChanges(title=self.title, day_limit=self.day_limit, closes=closes)


class ReplaceLabelsRequest(RequestBody):
    """New labels for some rows; other rows keep theirs."""

    labels: Labels
    why: Reason


def parse_request_file(model: type[RequestT], data: bytes, file: str) -> RequestT:
    """Return the request body that a file contains.

    Raises:
        UsageError: the file is not a body of this type.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        # The values are left out, because they may be labels.
        problems = [f"{'.'.join(map(str, item['loc'])) or 'the file'}: {item['msg']}" for item in error.errors()[:5]]
        advice = f"correct the file; the server's /api/v1/openapi.json describes its fields as `{model.__name__}`"
        raise UsageError(f"{file}: {'; '.join(problems)}; {advice}") from None


class CompetitionResponse(ResponseBody):
    competition: str
    """`OWNER/NAME`."""
    title: str
    dataset: str
    day_limit: int
    created: datetime
    closes: datetime
    is_closed: bool
    relabelled: datetime | None
    """Time of the last change of labels, after which the server scored all submissions again."""
    withdrawn: datetime | None
    why: str | None
    """The reason for withdrawal. A withdrawn competition has no scores and accepts no submissions."""


class CreatedCompetitionResponse(CompetitionResponse):
    """The new competition, with the default values of fields that the request left out."""

    rows_open: int
    rows_held_out: int
    page: str
    """URL of the competition's page."""


class CompetitionListResponse(ResponseBody):
    competitions: list[CompetitionResponse]
    next: str | None
    """The value of `after` for the next request; null if there are no more."""


class SubmissionRow(ResponseBody):
    rank: int | None
    """The best rank that the submission may have; rows without a significant difference are tied. Null: unranked."""
    rank_last: int | None
    release: str
    owner: str
    created: datetime
    accuracy: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    clusters: int | None
    submissions: int
    """Number of submissions of the same owner that the account may see."""
    reason: str | None
    """The reason if the submission is unranked."""


class OwnerSubmissions(ResponseBody):
    owner: str
    count: int


class CompetitionBoardResponse(CompetitionResponse):
    copied_from: str | None
    """The dataset of another owner that had these rows first, if this competition uses a copy of them."""
    rows_open: int
    rows_held_out: int
    ranked_by: Literal["open", "held_out"]
    rank_method: str
    """The method of ranking: unpaired tests, of all pairs or, with many submissions, of each with the first only."""
    board: list[SubmissionRow]
    submissions: list[OwnerSubmissions]


class CompetitionMetric(ResponseBody):
    metric: str
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    clusters: int | None


class SubmissionScore(ResponseBody):
    rows: int
    rounded_to: float
    """Values are rounded to a multiple of this number; intervals follow from it and the sizes of groups."""
    interval: str
    """The method for the intervals."""
    metrics: list[CompetitionMetric]


class SubmissionResponse(ResponseBody):
    competition: str
    release: str
    owner: str
    created: datetime
    state: Literal["waiting", "scored", "refused"]
    why: str | None
    """The reason if the submission was refused. After the daily limit, it says when the next one will be accepted."""
    scored: datetime | None
    """Time when the submission was scored, with the labels of that time."""
    relabelled: datetime | None
    """Time of the last change of the competition's labels."""
    open: SubmissionScore | None
    held_out: SubmissionScore | None
    """Null until the competition is closed."""
    in_full: dict[str, Any] | None
    """Unrounded metrics of the open and the held-out rows, only for owners of the competition, who have the labels."""


class ReplaceLabelsResponse(ResponseBody):
    changed: int
    """Number of rows whose label changed."""


class WithdrawCompetitionResponse(ResponseBody):
    is_gone: bool
    """True if the competition had no submissions and was deleted. If it had submissions, its name stays reserved, and
    its page shows the reason."""


@router.post("", responses=errors(400, 403, 404, 409), status_code=201)
def create(
    request: Request,
    viewer: PublishingViewer,
    body: Annotated[CreateCompetitionRequest, json_body(CreateCompetitionRequest, require_publisher)],
) -> CreatedCompetitionResponse:
    """Create a competition on a dataset that you own."""
    if not CREATION_LOCK.acquire(blocking=False):
        message = "the server is creating another competition; try again in a few seconds"
        raise HTTPException(503, message, {"retry-after": "5"})
    try:
        server, now = server_of(request), time.time()
        competition = create_competition(server.settings, server.database, viewer, body.to_request(), now)
    finally:
        CREATION_LOCK.release()
    with server.database.writing() as connection:
        log_action(connection, now, "add-competition", competition, by=viewer.account)
        return created_response(connection, viewer, competition, now, server.settings.address)


def created_response(
    connection: Connection, viewer: Viewer, competition: str, now: float, address: str
) -> CreatedCompetitionResponse:
    """Return the response for a new competition; `competition` is OWNER/NAME."""
    owner, _, name = competition.partition("/")
    description = competition_board.describe_board(connection, viewer, owner, name, now)
    return CreatedCompetitionResponse.model_validate(
        {**description, "page": competition_board.competition_url(competition, address)}
    )


@router.patch("/{owner}/{name}", responses=errors(400, 403, 404))
def update(
    request: Request, viewer: PublishingViewer, owner: UrlName, name: UrlName,
    body: Annotated[ChangeCompetitionRequest, json_body(ChangeCompetitionRequest, require_publisher)],
) -> CompetitionResponse:  # fmt: skip
    """Change the title, the daily limit, or the closing time to a later one."""
    server, now = server_of(request), time.time()
    with server.database.writing() as connection:
        competition = find_for_change(connection, viewer, owner, name)
        change_competition(connection, competition, body.to_changes(), now, by=viewer.account, reason=body.why)
        server.database.increment_revision(connection)
        changed_competition = competition_board.find_competition(connection, viewer, owner, name)
    return CompetitionResponse(**competition_board.describe_competition(changed_competition, now))


@router.put("/{owner}/{name}/labels", responses=errors(400, 403, 404))
def replace_labels(
    request: Request, viewer: PublishingViewer, owner: UrlName, name: UrlName,
    body: Annotated[ReplaceLabelsRequest, json_body(ReplaceLabelsRequest, require_publisher)],
) -> ReplaceLabelsResponse:  # fmt: skip
    """Replace wrong labels. All submissions are scored again, and their responses show when labels were replaced."""
    server = server_of(request)
    with server.database.writing() as connection:
        competition = find_for_change(connection, viewer, owner, name)
        count = relabel(connection, competition, body.labels, time.time(), by=viewer.account, reason=body.why)
        server.database.increment_revision(connection)
    server.publishing.scoring.wake()
    return ReplaceLabelsResponse(changed=count)


@router.delete("/{owner}/{name}", responses=errors(400, 403, 404))
def withdraw_competition(
    request: Request, viewer: PublishingViewer, *, owner: UrlName, name: UrlName,
    why: Annotated[str, Query(min_length=1, max_length=2_000, pattern=TEXT_PATTERN)],
) -> WithdrawCompetitionResponse:  # fmt: skip
    """Withdraw a competition. Its labels and scores are deleted; the submitted runs stay."""
    server = server_of(request)
    with server.database.writing() as connection:
        competition = find_for_change(connection, viewer, owner, name)
        is_gone = withdraw(connection, competition, time.time(), by=viewer.account, reason=why)
        server.database.increment_revision(connection)
    return WithdrawCompetitionResponse(is_gone=is_gone)


@router.get("")
def list_competitions(
    request: Request,
    viewer: AnyViewer,
    after: Annotated[str, Query(max_length=201)] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_LISTED)] = MAX_LISTED,
) -> CompetitionListResponse:
    """List competitions, sorted by OWNER/NAME."""
    with server_of(request).database.reading() as connection:
        page = competition_board.list_competitions(connection, viewer, time.time(), after, limit)
    next_after = page[-1]["competition"] if len(page) == limit else None
    competitions = [CompetitionResponse(**description) for description in page]
    return CompetitionListResponse(competitions=competitions, next=next_after)


@router.get("/{owner}/{name}", responses=errors(404))
def get_competition(request: Request, viewer: AnyViewer, owner: UrlName, name: UrlName) -> CompetitionBoardResponse:
    """Get a competition with its board."""
    with server_of(request).database.reading() as connection:
        return CompetitionBoardResponse(
            **competition_board.describe_board(connection, viewer, owner, name, time.time())
        )


@router.get("/{owner}/{name}/submissions/{run_owner}/{run_name}/{run_version}", responses=errors(404))
def get_submission(
    request: Request, viewer: AnyViewer, *, owner: UrlName, name: UrlName, run_owner: UrlName, run_name: UrlName,
    run_version: UrlName,
) -> SubmissionResponse:  # fmt: skip
    """Get the state of a submitted run: waiting, its score, or why it was refused."""
    run = Reference(Kind.RUN, run_owner, run_name, run_version)
    with server_of(request).database.reading() as connection:
        state = competition_board.describe_submission(connection, viewer, owner, name, run=run, now=time.time())
    return SubmissionResponse(**state)
