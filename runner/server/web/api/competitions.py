"""The API for competitions: made by who owns a dataset, entered by publishing a run, and read by all."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime, Field, ValidationError
from sqlalchemy import Connection

from runner.base.errors import UsageError
from runner.documents.releases.reference import Kind, Reference
from runner.server.accounts.accounts import Viewer
from runner.server.accounts.administration import note_act
from runner.server.competitions import board as boards
from runner.server.competitions.editing import Changes, change, owned, relabel, withdraw
from runner.server.competitions.storage import CompetitionRequest, make
from runner.server.web.api.schemas import PRINTED, TEXT, WORD, RequestBody, ResponseBody, faults
from runner.server.web.authentication import Asking, Publisher, publishing, server_of
from runner.server.web.request_bodies import json_of

router = APIRouter(prefix="/api/v1/competitions", tags=["competitions"])

RequestT = TypeVar("RequestT", bound=RequestBody)
PAGE = 100
MOST_ROWS = 1_000_000
Word = Annotated[str, Path(pattern=WORD)]
Id = Annotated[str, Field(min_length=1, max_length=1_000, pattern=TEXT)]
Dataset = Annotated[
    str, Field(max_length=320, pattern=r"^(dataset/)?[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*@[a-z0-9][a-z0-9._-]*$")
]
Title = Annotated[str, Field(max_length=300, pattern=PRINTED)]
Labels = Annotated[dict[Id, Literal[0, 1]], Field(min_length=1, max_length=MOST_ROWS)]
Limit = Annotated[int, Field(ge=1, le=1_000)]
Why = Annotated[str, Field(min_length=1, max_length=2_000, pattern=TEXT)]


class CreateCompetitionRequest(RequestBody):
    """A competition that an owner makes. Labels are kept, and told to nobody."""

    dataset: Dataset
    """`OWNER/NAME@VERSION`: rows whose column `label` is empty."""
    name: Annotated[str, Field(pattern=WORD)]
    title: Title = ""
    labels: Labels
    """Of every row, by its id."""
    day_limit: Limit = 5
    """The most submissions of an owner, and of an account, in 24 hours."""
    closes: AwareDatetime
    held_out: Annotated[list[Id], Field(max_length=MOST_ROWS, fail_fast=True)] = Field(default_factory=list)
    """Ids of the rows whose score is told after closing."""
    held_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In the place of ids: about this share of the rows, drawn by lot."""
    group_by: Annotated[str, Field(max_length=200, pattern=TEXT)] | None = None
    """The column that says which rows belong together: clusters of the errors."""

    def to_request(self) -> CompetitionRequest:
        return CompetitionRequest(**{**self.model_dump(), "closes": self.closes.timestamp()})


class ChangeCompetitionRequest(RequestBody):
    """What of a competition is to be otherwise from now on; what is left out or null stays as it is."""

    title: Title | None = None
    day_limit: Limit | None = None
    closes: AwareDatetime | None = None
    """Later than it was, while it is open."""
    why: Annotated[str, Field(max_length=2_000, pattern=TEXT)] = ""
    """Kept in the server's list of acts."""

    def to_request(self) -> Changes:
        closes = None if self.closes is None else self.closes.timestamp()
        return Changes(title=self.title, day_limit=self.day_limit, closes=closes)


class ReplaceLabelsRequest(RequestBody):
    """Labels in the place of those that were wrong; rows that are not named keep theirs."""

    labels: Labels
    why: Why


def parse_request_file(model: type[RequestT], data: bytes, file: str) -> RequestT:
    """Return the body of a request from a file.

    Raises:
        UsageError: the file is not such a body.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        # Not the values: they may be labels.
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()[:5]]
        raise UsageError(f"{file} is not a `{model.__name__}` of the API: {'; '.join(wrong)}") from None


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
    """When its owner last replaced labels; all submissions were scored again then."""
    withdrawn: datetime | None
    why: str | None
    """It was withdrawn; it has no scores then, and takes no submission."""


class CreatedCompetitionResponse(CompetitionResponse):
    """What was made, as it is kept: what was left out has the value that it has when it is."""

    rows_open: int
    rows_held_out: int
    page: str
    """Where people find it."""


class CompetitionListResponse(ResponseBody):
    competitions: list[CompetitionResponse]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


class SubmissionRow(ResponseBody):
    rank: int | None
    """The first rank that it may have: rows that no test tells apart are tied. null: see `reason`."""
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
    """Of its owner, of those that may be seen."""
    reason: str | None
    """Why it has no rank."""


class OwnerSubmissions(ResponseBody):
    owner: str
    count: int


class CompetitionBoardResponse(CompetitionResponse):
    copied_from: str | None
    """The dataset of another owner that had these rows first, where this competition is on a copy of them."""
    rows_open: int
    rows_held_out: int
    ranked_by: Literal["open", "held_out"]
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
    """Values are rounded to a multiple of this; intervals follow from the rounded value and `clusters`."""
    interval: str
    """How they follow."""
    metrics: list[CompetitionMetric]


class SubmissionResponse(ResponseBody):
    competition: str
    release: str
    owner: str
    created: datetime
    state: Literal["waiting", "scored", "refused"]
    why: str | None
    """Of one that is refused, with when the next is taken."""
    scored: datetime | None
    """By the labels as they were then."""
    relabelled: datetime | None
    """When labels of the competition were last replaced."""
    open: SubmissionScore | None
    held_out: SubmissionScore | None
    """Null until the competition is closed."""
    in_full: dict[str, Any] | None
    """For the competition's own owners, who have the labels: both parts, not rounded."""


class ReplaceLabelsResponse(ResponseBody):
    changed: int
    """Rows whose label is another one now."""


class WithdrawCompetitionResponse(ResponseBody):
    is_gone: bool
    """Nobody had submitted to it: it is as if it had never been. Else its name stays taken, and its page says why."""


@router.post("", responses=faults(400, 403, 404, 409), status_code=201)
def begin(
    request: Request,
    viewer: Publisher,
    body: Annotated[CreateCompetitionRequest, json_of(CreateCompetitionRequest, publishing)],
) -> CreatedCompetitionResponse:
    """Make a competition of a dataset of one's own."""
    server, now = server_of(request), time.time()
    made = make(server.settings, server.database, viewer, body.to_request(), now)
    with server.database.writing() as connection:
        note_act(connection, now, "add-competition", made, by=viewer.account)
        return created_response(connection, viewer, made, now, server.settings.address)


def created_response(
    connection: Connection, viewer: Viewer, named: str, now: float, address: str
) -> CreatedCompetitionResponse:
    """A competition, for who made it just now."""
    owner, _, name = named.partition("/")
    facts = boards.board(connection, viewer, owner, name, now)
    return CreatedCompetitionResponse.model_validate({**facts, "page": boards.page_of(named, address)})


@router.patch("/{owner}/{name}", responses=faults(400, 403, 404))
def edit(
    request: Request, viewer: Publisher, owner: Word, name: Word,
    body: Annotated[ChangeCompetitionRequest, json_of(ChangeCompetitionRequest, publishing)],
) -> CompetitionResponse:  # fmt: skip
    """Change the title or the limit, or have it close later."""
    server, now = server_of(request), time.time()
    with server.database.writing() as connection:
        one = owned(connection, viewer, owner, name)
        change(connection, one, body.to_request(), now, by=viewer.account, why=body.why)
        server.database.changed(connection)
        return CompetitionResponse(**boards.about(connection, viewer, owner, name, now))


@router.put("/{owner}/{name}/labels", responses=faults(400, 403, 404))
def labels(
    request: Request, viewer: Publisher, owner: Word, name: Word,
    body: Annotated[ReplaceLabelsRequest, json_of(ReplaceLabelsRequest, publishing)],
) -> ReplaceLabelsResponse:  # fmt: skip
    """Replace labels that were wrong: every submission is scored again, and says so."""
    server = server_of(request)
    with server.database.writing() as connection:
        one = owned(connection, viewer, owner, name)
        count = relabel(connection, one, body.labels, time.time(), by=viewer.account, why=body.why)
        server.database.changed(connection)
    server.publishing.scoring.wake()
    return ReplaceLabelsResponse(changed=count)


@router.delete("/{owner}/{name}", responses=faults(400, 403, 404))
def end(
    request: Request, viewer: Publisher, *, owner: Word, name: Word,
    why: Annotated[str, Query(min_length=1, max_length=2_000, pattern=TEXT)],
) -> WithdrawCompetitionResponse:  # fmt: skip
    """Withdraw a competition: its labels and all scores of it are gone, the runs stay."""
    server = server_of(request)
    with server.database.writing() as connection:
        one = owned(connection, viewer, owner, name)
        is_gone = withdraw(connection, one, time.time(), by=viewer.account, why=why)
        server.database.changed(connection)
    return WithdrawCompetitionResponse(is_gone=is_gone)


@router.get("")
def listed(
    request: Request,
    viewer: Asking,
    after: Annotated[str, Query(max_length=201)] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
) -> CompetitionListResponse:
    """The competitions that there are."""
    with server_of(request).database.reading() as connection:
        found = boards.listed(connection, viewer, time.time(), after, limit)
    following = found[-1]["competition"] if len(found) == limit else None
    return CompetitionListResponse(competitions=[CompetitionResponse(**one) for one in found], next=following)


@router.get("/{owner}/{name}", responses=faults(404))
def board(request: Request, viewer: Asking, owner: Word, name: Word) -> CompetitionBoardResponse:
    """A competition and its board."""
    with server_of(request).database.reading() as connection:
        return CompetitionBoardResponse(**boards.board(connection, viewer, owner, name, time.time()))


@router.get("/{owner}/{name}/submissions/{run_owner}/{run_name}/{run_version}", responses=faults(404))
def submission(
    request: Request, viewer: Asking, *, owner: Word, name: Word, run_owner: Word, run_name: Word, run_version: Word
) -> SubmissionResponse:
    """What became of a run that was submitted: it waits, its score, or why it is refused."""
    run = Reference(Kind.RUN, run_owner, run_name, run_version)
    with server_of(request).database.reading() as connection:
        return SubmissionResponse(**boards.submission(connection, viewer, owner, name, run=run, now=time.time()))
