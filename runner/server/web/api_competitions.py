"""The API for competitions: made by who owns a dataset, entered by publishing a run, and read by all."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from runner.errors import UsageError
from runner.releases.reference import Kind, Reference
from runner.server.competitions import board as boards
from runner.server.competitions.kept import Wanted, make
from runner.server.web.asking import Asking, Publisher, server_of
from runner.server.web.faults import Fault

router = APIRouter(prefix="/api/v1/competitions", tags=["competitions"])

Word = Annotated[str, Path(pattern="^[a-z0-9][a-z0-9._-]{0,99}$")]
Id = Annotated[str, Field(min_length=1, max_length=1_000, pattern=r"^[^\x00]*$")]
PAGE = 100
MOST_ROWS = 1_000_000


class CompetitionWanted(BaseModel):
    """A competition that an owner makes. Labels are kept, and told to nobody."""

    dataset: Annotated[str, Field(max_length=320)]
    """`OWNER/NAME@VERSION`: rows whose column `label` is empty."""
    name: Annotated[str, Field(max_length=100)]
    title: Annotated[str, Field(max_length=300, pattern=r"^[^\x00-\x1f\x7f]*$")] = ""
    labels: Annotated[dict[Id, Literal[0, 1]], Field(min_length=1, max_length=MOST_ROWS)]
    """Of every row, by its id."""
    day_limit: Annotated[int, Field(ge=1, le=1_000)] = 5
    """The most submissions of an owner, and of an account, in 24 hours."""
    closes: AwareDatetime
    held_out: Annotated[list[Id], Field(max_length=MOST_ROWS)] = []
    """Ids of the rows whose score is told after closing."""
    held_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """In the place of ids: about this share of the rows, drawn by lot."""
    group_by: Annotated[str | None, Field(max_length=200, pattern=r"^[^\x00]*$")] = None
    """The column that says which rows belong together: clusters of the errors."""

    def said(self) -> Wanted:
        return Wanted(**{**self.model_dump(), "closes": self.closes.timestamp()})


def wanted_of(data: bytes, file: str) -> Wanted:
    """A competition out of a file that has what the API is sent.

    Raises:
        UsageError: it is none.
    """
    try:
        return CompetitionWanted.model_validate_json(data).said()
    except ValidationError as error:
        # Not the values: they may be labels.
        wrong = [f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()[:5]]
        raise UsageError(f"{file} is no competition: {'; '.join(wrong)}") from None


class Made(BaseModel):
    competition: str


class Competition(BaseModel):
    competition: str
    """`OWNER/NAME`."""
    title: str
    dataset: str
    day_limit: int
    created: datetime
    closes: datetime
    is_closed: bool


class Competitions(BaseModel):
    competitions: list[Competition]
    next: str | None
    """What to give as `after` for those that follow; null: these are the last."""


class Ranked(BaseModel):
    rank: int
    """The first rank that it may have: rows that no test tells apart are tied."""
    rank_last: int
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


class OfOwner(BaseModel):
    owner: str
    count: int


class Board(Competition):
    rows_open: int
    rows_held_out: int
    ranked_by: Literal["open", "held_out"]
    board: list[Ranked]
    submissions: list[OfOwner]


class Metric(BaseModel):
    metric: str
    value: float | None
    ci_low: float | None
    ci_high: float | None
    n: int | None
    clusters: int | None


class Score(BaseModel):
    rows: int
    rounded_to: float
    """Values are rounded to a multiple of this; intervals follow from the rounded value and `clusters`."""
    interval: str
    """How they follow."""
    metrics: list[Metric]


class Submission(BaseModel):
    competition: str
    release: str
    owner: str
    created: datetime
    state: Literal["waiting", "scored", "refused"]
    why: str | None
    """Of one that is refused, with when the next is taken."""
    open: Score | None
    held_out: Score | None
    """Null until the competition is closed."""
    in_full: dict[str, Any] | None
    """For the competition's own owners, who have the labels: both parts, not rounded."""


_FAULTS: dict[int | str, dict[str, Any]] = {code: {"model": Fault} for code in (400, 401, 403, 404, 409, 422)}


@router.post("", responses=_FAULTS, status_code=201)
def begin(request: Request, viewer: Publisher, wanted: CompetitionWanted) -> Made:
    """Make a competition of a dataset of one's own."""
    server = server_of(request)
    return Made(competition=make(server.settings, server.database, viewer, wanted.said(), time.time()))


@router.get("", responses=_FAULTS)
def listed(
    request: Request,
    viewer: Asking,
    after: Annotated[str, Query(max_length=201)] = "",
    limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE,
) -> Competitions:
    """The competitions that there are."""
    with server_of(request).database.reading() as connection:
        found = boards.listed(connection, viewer, time.time(), after, limit)
    following = found[-1]["competition"] if len(found) == limit else None
    return Competitions(competitions=[Competition(**one) for one in found], next=following)


@router.get("/{owner}/{name}", responses=_FAULTS)
def board(request: Request, viewer: Asking, owner: Word, name: Word) -> Board:
    """A competition and its board."""
    with server_of(request).database.reading() as connection:
        return Board(**boards.board(connection, viewer, owner, name, time.time()))


@router.get("/{owner}/{name}/submissions/{run_owner}/{run_name}/{run_version}", responses=_FAULTS)
def submission(
    request: Request, viewer: Asking, *, owner: Word, name: Word, run_owner: Word, run_name: Word, run_version: Word
) -> Submission:
    """What became of a run that was submitted: it waits, its score, or why it is refused."""
    run = Reference(Kind.RUN, run_owner, run_name, run_version)
    with server_of(request).database.reading() as connection:
        return Submission(**boards.submission(connection, viewer, owner, name, run=run, now=time.time()))
