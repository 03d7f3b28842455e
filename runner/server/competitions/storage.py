"""Stores competitions: public rows, labels that only the server and the owner have, and submitted runs.

The owner of a dataset without labels creates a competition on it and sends the labels to the server. Every published
run that was played on exactly these rows is a submission, even if the run names another dataset with the same rows.
Some of the rows may be held out: the server shows their score only after the competition has closed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from secrets import SystemRandom
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, func, insert, or_, select, update

from runner.base.errors import NotFoundError, ReleaseError, TakenError, UsageError
from runner.base.problems import Place
from runner.base.text import comma_join, counted
from runner.documents.releases.reference import Kind, Reference, identifier_problem, parse_reference
from runner.registry.components.installed import DATASETS
from runner.server.accounts.accounts import Viewer
from runner.server.competitions.rows import hash_rows
from runner.server.competitions.scores import compute_result
from runner.server.isolated_task import run_with_check_limits
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import (
    accounts,
    competition_labels,
    competitions,
    is_release,
    members,
    releases,
    submissions,
)
from runner.server.visible_releases import open_registry, visible_to
from runner.spec.datasets.loader import load_dataset
from runner.spec.datasets.settings import DatasetSettings

DAY = 24 * 3600.0
"""Seconds of a day."""
MAX_SECONDS_OPEN = 3_653 * DAY
MAX_COMPETITIONS = 100
"""Maximum number of competitions of one owner that are open or were created in the last 24 hours."""
WAITING, SCORED, REFUSED = "waiting", "scored", "refused"
_MAX_LISTED = 3
"""Maximum number of row ids in an error message."""


@dataclass(frozen=True, kw_only=True)
class CompetitionRequest:
    """A competition to create."""

    dataset: str
    """`OWNER/NAME@VERSION`."""
    name: str
    title: str = ""
    labels: Mapping[str, int]
    """The label of every row, by the row's id."""
    day_limit: int
    """Maximum submissions of one owner, and of one account, in 24 hours."""
    closes: float
    """Closing time, in seconds since 1970."""
    held_out: Sequence[str] = ()
    """Ids of the rows to hold out."""
    held_share: float = 0.0
    """Alternative to `held_out`: the share of groups of rows to hold out. The server chooses the groups at random."""
    group_by: str | None = None
    """Column of the dataset. For confidence intervals, rows with the same value form one cluster."""


def create_competition(
    settings: Settings, database: Database, viewer: Viewer, request: CompetitionRequest, now: float
) -> str:
    """Create a competition and return its name, OWNER/NAME.

    Raises:
        PermissionError: the viewer is not an owner of the dataset.
        NotFoundError: there is no such dataset.
        TakenError: a competition of this name exists.
        UsageError: the request is invalid.
    """
    reference = parse_reference(request.dataset, Kind.DATASET)
    if not isinstance(reference, Reference) or not reference.version:
        raise UsageError("a competition needs one release of a dataset: write `dataset` as OWNER/NAME@VERSION")
    if problem := identifier_problem(request.name):
        raise UsageError(problem)
    check_closing(request.closes, now)
    with database.reading() as connection:
        release_id = _find_owned_release(connection, viewer, reference)
    dataset = run_with_check_limits(settings, _read_dataset, reference, request.group_by)
    held_ids = _choose_held_out(request, dataset["groups"])
    with database.writing() as connection:
        same_name = competitions.c.owner == reference.owner, competitions.c.name == request.name
        if connection.execute(select(competitions.c.id).where(*same_name)).scalar() is not None:
            raise TakenError(f"a competition {reference.owner}/{request.name} already exists; choose another name")
        _check_competition_count(connection, reference.owner, now)
        row = {
            "owner": reference.owner, "name": request.name, "title": request.title, "release_id": release_id,
            "rows_sha256": dataset["rows_sha256"], "group_by": request.group_by, "day_limit": request.day_limit,
            "created": now, "closes": request.closes,
        }  # fmt: skip
        competition_id = connection.execute(insert(competitions).returning(competitions.c.id), row).scalar_one()
        labels = [
            {"competition_id": competition_id, "datapoint_id": id_, "label": label, "is_held": id_ in held_ids}
            for id_, label in request.labels.items()
        ]
        connection.execute(insert(competition_labels), labels)
        database.increment_revision(connection)
    return f"{reference.owner}/{request.name}"


def _check_competition_count(connection: Connection, owner: str, now: float) -> None:
    """Raise UsageError if an owner has too many competitions.

    Without this limit, competitions on copies of public rows could fill the disk with labels, and delay the scores of
    other competitions on these rows, because each run is a submission to all of them.
    """
    is_recent = or_(competitions.c.closes > now, competitions.c.created > now - DAY)
    query = select(func.count()).select_from(competitions).where(competitions.c.owner == owner, is_recent)
    query = query.where(competitions.c.withdrawn.is_(None))
    if connection.execute(query).scalar_one() >= MAX_COMPETITIONS:
        raise UsageError(
            f"{owner} has {MAX_COMPETITIONS} competitions that are open or were created in the last 24 hours, the "
            "maximum; withdraw one"
        )


def check_closing(closes: float, now: float) -> None:
    """Raise UsageError if a closing time is in the past or more than ten years away."""
    if closes <= now:
        raise UsageError("the closing time has passed: set `closes` to a time in the future")
    if closes > now + MAX_SECONDS_OPEN:
        raise UsageError("the competition would be open for more than ten years: set `closes` to an earlier time")


def _find_owned_release(connection: Connection, viewer: Viewer, reference: Reference) -> int:
    """Return the row id of a dataset release; raise PermissionError if the viewer is not an owner of it."""
    release_id = connection.execute(select(releases.c.id).where(is_release(reference), visible_to(viewer))).scalar()
    if release_id is None:
        raise NotFoundError(f"this server has no {reference}; publish the dataset first")
    if not can_manage(connection, viewer, reference.owner):
        raise PermissionError(
            f"only an owner of {reference.owner} can create competitions on its datasets; ask an owner to create it"
        )
    return int(release_id)


def can_manage(connection: Connection, viewer: Viewer, owner: str) -> bool:
    """Return whether the viewer may manage the competitions of an account or organization.

    The viewer must be this account or an owner of this organization, and must use a token that may publish.
    """
    if viewer.account_id is None or not viewer.can_publish_as(owner):
        return False
    if viewer.account == owner:
        return True
    query = (
        select(members.c.is_owner)
        .join(accounts, accounts.c.id == members.c.organisation_id)
        .where(accounts.c.name == owner, members.c.account_id == viewer.account_id)
    )
    return bool(connection.execute(query).scalar())


def _read_dataset(settings: Settings, folder: Path, reference: Reference, group_by: str | None) -> dict[str, Any]:
    """Return the hash of a dataset's rows and the group of each row. Runs in an isolated process.

    Raises:
        UsageError: the rows have labels, or the column does not exist.
        SpecError: the dataset cannot be read.
    """
    with open_registry(settings, Viewer(account_names=frozenset((reference.owner,)))) as registry:
        registry.unpack(registry.find(reference), folder / "dataset")
    paths = [folder / "dataset" / name for name in DATASETS if (folder / "dataset" / name).is_file()]
    if not paths:
        raise UsageError(f"{reference} has no table of rows; publish a dataset that contains {' or '.join(DATASETS)}")
    options = DatasetSettings(path=paths[0].name, group_by=group_by)
    dataset = load_dataset(options, paths[0], 0, lambda _: Place(str(reference)))
    if dataset.is_labelled:
        raise UsageError(f"{reference} has labels, which everyone can read; publish it with an empty column 'label'")
    rows_sha256 = hash_rows(point.content_hash for point in dataset.datapoints)
    return {"rows_sha256": rows_sha256, "groups": {point.id: point.group for point in dataset.datapoints}}


def _choose_held_out(request: CompetitionRequest, groups: Mapping[str, str]) -> set[str]:
    """Return the ids of the rows to hold out; `groups` maps the id of each row to its group.

    Raises:
        UsageError: a row has no label, or the request's held-out rows are invalid.
    """
    check_labels(labeled=request.labels.keys(), rows=groups.keys())
    held_ids = set(request.held_out)
    if held_ids and request.held_share:
        raise UsageError("set either `held_out` (ids of rows) or `held_share` (a share of the rows), not both")
    if unknown_ids := held_ids - groups.keys():
        ids = comma_join(sorted(unknown_ids)[:_MAX_LISTED])
        raise UsageError(f"`held_out` has ids of rows that do not exist: {ids}; use ids of the dataset's rows")
    if request.held_share:
        names = sorted(set(groups.values()))
        SystemRandom().shuffle(names)  # unpredictable, so that participants cannot find out which rows are held out
        held_groups = set(names[: math.ceil(len(names) * request.held_share)])
        held_ids = {id_ for id_, group in groups.items() if group in held_groups}
    if len(held_ids) == len(groups):
        raise UsageError("all rows would be held out, so no score would be shown before closing; hold out fewer rows")
    return held_ids


def check_labels(*, labeled: AbstractSet[str], rows: AbstractSet[str]) -> None:
    """Raise UsageError if a row has no label or a label belongs to no row."""
    for problem, ids in (("rows without a label", rows - labeled), ("labels without a row", labeled - rows)):
        if ids:
            more = f" and {len(ids) - _MAX_LISTED} more" if len(ids) > _MAX_LISTED else ""
            listed = comma_join(sorted(ids)[:_MAX_LISTED])
            raise UsageError(f"{problem}: {listed}{more}; `labels` must have the ids of the dataset's rows")


# Submissions


def submit_run(
    connection: Connection, viewer: Viewer, rows_sha256: str, release_id: int, *, owner: str, now: float
) -> None:
    """Record a published run as a submission, accepted or refused, to each competition on the same rows.

    `rows_sha256` is from `hash_rows`. `now` is the time when the upload was complete, so a slow check does not make a
    submission late.
    """
    query = select(competitions).join(releases, releases.c.id == competitions.c.release_id)
    # The lock on the competition makes concurrent publishers respect the daily limit.
    query = query.where(competitions.c.rows_sha256 == rows_sha256, visible_to(viewer)).with_for_update(of=competitions)
    for competition in connection.execute(query).mappings().all():
        reason = _refusal_reason(connection, competition, owner, viewer.account_id, now)
        row = {
            "competition_id": competition["id"], "release_id": release_id, "owner": owner,
            "account_id": viewer.account_id, "created": now, "state": REFUSED if reason else WAITING, "why": reason,
        }  # fmt: skip
        connection.execute(insert(submissions), row)


def _refusal_reason(
    connection: Connection, competition: RowMapping, owner: str, account_id: int | None, now: float
) -> str:
    """Return why a competition does not accept a run, or "" if it does."""
    name = competition_name(competition)
    if competition["withdrawn"] is not None:
        return f"{name} was withdrawn at {format_time(competition['withdrawn'])}: {competition['why']}"
    if now >= competition["closes"]:
        return f"{name} closed at {format_time(competition['closes'])} and accepts no more submissions"
    for column, value, submitter in (
        (submissions.c.owner, owner, owner),
        (submissions.c.account_id, account_id, "this account"),
    ):
        # Submissions that were refused after scoring count, too.
        query = select(submissions.c.created).where(
            submissions.c.competition_id == competition["id"], column == value, submissions.c.created > now - DAY,
            or_(submissions.c.state != REFUSED, submissions.c.scored.is_not(None)),
        )  # fmt: skip
        times = sorted(row.created for row in connection.execute(query))
        if len(times) >= competition["day_limit"]:
            # The limit allows the next submission once fewer than `day_limit` submissions are younger than a day.
            next_time = times[len(times) - competition["day_limit"]] + DAY
            hint = (
                "the competition closes before the next one would be accepted"
                if next_time >= competition["closes"]
                else f"publish the next one from {format_time(next_time)} on"
            )
            count = counted(len(times), "submission")
            return f"{submitter} has {count} in 24 hours, and the limit is {competition['day_limit']}; {hint}"
    return ""


def competition_name(competition: RowMapping) -> str:
    return f"{competition['owner']}/{competition['name']}"


def format_time(timestamp: float) -> str:
    """Format a time (in seconds since 1970) in UTC, rounded up to a second."""
    return datetime.fromtimestamp(math.ceil(timestamp), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def list_waiting_submissions(database: Database) -> dict[int, int]:
    """Return the account's id for the id of each submission that is not scored yet, oldest first."""
    query = select(submissions.c.id, submissions.c.account_id).where(submissions.c.state == WAITING)
    with database.reading() as connection:
        return {row.id: row.account_id for row in connection.execute(query.order_by(submissions.c.id))}


def score_submission(settings: Settings, database: Database, submission_id: int) -> None:
    """Score a waiting submission and store the result. Do nothing if the submission is not waiting.

    Raises:
        IsolatedTaskError: the server failed, and the submission is still waiting.
    """
    while not _try_to_score(settings, database, submission_id):
        pass  # the owner replaced labels during the scoring, so the score must be computed again


def _try_to_score(settings: Settings, database: Database, submission_id: int) -> bool:
    """Score a submission and store the result; return False if labels were replaced, so that the result is outdated."""
    query = select(competitions.c.relabelled, submissions.c.state)
    query = query.join(submissions, submissions.c.competition_id == competitions.c.id)
    query = query.where(submissions.c.id == submission_id)
    with database.reading() as connection:
        row_before = connection.execute(query).one_or_none()
    if row_before is None or row_before.state != WAITING:
        return True
    try:
        result = run_with_check_limits(settings, compute_result, submission_id)
    except ReleaseError as error:
        result = {"refused": str(error)}
    refused = result.get("refused", "")
    values: dict[str, Any] = {"state": REFUSED if refused else SCORED, "why": refused, "scored": time.time()}
    if not refused:
        values["score"] = orjson.dumps(result).decode()
    with database.writing() as connection:
        row_after = connection.execute(query).one_or_none()
        if row_after is not None and row_after.relabelled != row_before.relabelled:
            return False
        still_waiting = submissions.c.id == submission_id, submissions.c.state == WAITING
        connection.execute(update(submissions).where(*still_waiting).values(**values))
        database.increment_revision(connection)
    return True


def count_submissions(connection: Connection, competition_id: int, viewer: Viewer) -> dict[str, int]:
    """Return the number of accepted submissions that the viewer may see, by owner."""
    query = (
        select(submissions.c.owner, func.count().label("accepted"))
        .join(releases, releases.c.id == submissions.c.release_id)
        .where(submissions.c.competition_id == competition_id, submissions.c.state != REFUSED, visible_to(viewer))
        .group_by(submissions.c.owner)
    )
    return {row.owner: row.accepted for row in connection.execute(query)}
