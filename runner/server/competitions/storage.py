"""Competitions: rows that all may read, labels that the server alone has, and the runs that were submitted.

A competition is of one release of a dataset without labels, and made by its owner. A run that is published, and was
played on just these rows, is a submission: by what it was played on, and not by what it says of itself.
"""

from __future__ import annotations

import math
import random
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

from runner.base.errors import NotPublished, Place, ReleaseError, TakenError, UsageError
from runner.base.text import comma_join, counted
from runner.documents.releases.reference import Kind, Reference, parse, wrong_word
from runner.registry.components.installed import DATASETS
from runner.registry.transports.registry import Registry
from runner.server.accounts.accounts import Viewer
from runner.server.competitions.rows import competition_rows
from runner.server.competitions.scores import scored
from runner.server.isolated_task import run_bounded_check
from runner.server.settings import Settings
from runner.server.store.blob_stores import blobs_of
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
from runner.server.visible_tree import ServerTree, seen_by
from runner.spec.datasets.loader import load_dataset
from runner.spec.datasets.settings import DatasetSettings

DAY = 24 * 3600.0
LONGEST = 3_653 * DAY
WAITING, SCORED, REFUSED = "waiting", "scored", "refused"
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class CompetitionRequest:
    """A competition as its owner asks for it."""

    dataset: str
    """`OWNER/NAME@VERSION`."""
    name: str
    title: str = ""
    labels: Mapping[str, int]
    """Of every row, by its id."""
    day_limit: int
    """The most submissions of one owner, and of one account, in 24 hours."""
    closes: float
    """Seconds since 1970."""
    held_out: Sequence[str] = ()
    """Ids of rows whose score is told after closing."""
    held_share: float = 0.0
    """The share of rows to hold out, in whole groups, chosen at random (alternative to row ids)."""
    group_by: str | None = None
    """The column whose values are clusters of the errors."""


def make(
    settings: Settings,
    database: Database,
    viewer: Viewer,
    wanted: CompetitionRequest,
    now: float,
    *,
    lot: random.Random | None = None,
) -> str:
    """Make a competition, and say what it is called. The lot is drawn where nobody can foresee it.

    Raises:
        PermissionError: the dataset is another's.
        NotPublished: there is no such dataset.
        TakenError: there is a competition of this name.
        UsageError: what is asked for is none.
    """
    reference = parse(wanted.dataset, Kind.DATASET)
    if not isinstance(reference, Reference) or not reference.version:
        raise UsageError("a competition is of one release, OWNER/NAME@VERSION")
    if wrong := wrong_word(wanted.name):
        raise UsageError(wrong)
    check_closing(wanted.closes, now)
    with database.reading() as connection:
        release = _release(connection, viewer, reference)
        if not owns(connection, viewer, reference.owner):
            raise PermissionError(f"only an owner of {reference.owner} makes competitions of its datasets")
    rows = run_bounded_check(settings, _read_rows, str(reference), wanted.group_by)
    held = _held_out(wanted, rows["groups"], lot or SystemRandom())
    with database.writing() as connection:
        _check_name(connection, reference.owner, wanted.name)
        row = {
            "owner": reference.owner, "name": wanted.name, "title": wanted.title, "release_id": release,
            "rows_sha256": rows["sha256"], "group_by": wanted.group_by, "day_limit": wanted.day_limit,
            "created": now, "closes": wanted.closes,
        }  # fmt: skip
        made = connection.execute(insert(competitions).returning(competitions.c.id), row).scalar_one()
        labels = [
            {"competition_id": made, "datapoint_id": id_, "label": label, "is_held": id_ in held}
            for id_, label in wanted.labels.items()
        ]
        connection.execute(insert(competition_labels), labels)
        database.changed(connection)
    return f"{reference.owner}/{wanted.name}"


def check_closing(closes: float, now: float) -> None:
    """Raises: UsageError: no competition closes then."""
    if closes <= now:
        raise UsageError("the closing time has passed; give a later time")
    if closes > now + LONGEST:
        raise UsageError("the competition would be open for more than ten years; give an earlier time")


def _check_name(connection: Connection, owner: str, name: str) -> None:
    there = select(competitions.c.id).where(competitions.c.owner == owner, competitions.c.name == name)
    if connection.execute(there).scalar() is not None:
        raise TakenError(f"there is a competition {owner}/{name}")


def _release(connection: Connection, viewer: Viewer, reference: Reference) -> int:
    found = connection.execute(select(releases.c.id).where(is_release(reference), seen_by(viewer))).scalar()
    if found is None:
        raise NotPublished(f"there is no {reference} here")
    return int(found)


def owns(connection: Connection, viewer: Viewer, owner: str) -> bool:
    """Whether who asks is the owner, or an owner of the organisation, with a token that may publish."""
    if viewer.account_id is None or not viewer.publishes_as(owner):
        return False
    if viewer.account == owner:
        return True
    query = (
        select(members.c.is_owner)
        .join(accounts, accounts.c.id == members.c.organisation_id)
        .where(accounts.c.name == owner, members.c.account_id == viewer.account_id)
    )
    return bool(connection.execute(query).scalar())


def _read_rows(settings: Settings, place: Path, named: str, group_by: str | None) -> dict[str, Any]:
    """The hash of a dataset's rows, and the group of each; in a process of its own.

    Raises:
        UsageError: its rows have labels, or no such column.
        SpecError: it cannot be read.
    """
    reference = parse(named)
    assert isinstance(reference, Reference)
    database = Database(settings.database_url)
    tree = ServerTree(database, blobs_of(settings), Viewer(owners=frozenset((reference.owner,))))
    registry = Registry(tree, settings.limits)
    registry.unpack(registry.find(reference), place / "dataset")
    path = next((place / "dataset" / name for name in DATASETS if (place / "dataset" / name).is_file()), None)
    if path is None:
        raise UsageError(f"{named} has no table of rows")
    found = load_dataset(DatasetSettings(path=path.name, group_by=group_by), path, 0, lambda _: Place(named))
    if found.is_labelled:
        raise UsageError(f"{named} has labels, which all can read; publish its rows with an empty column 'label'")
    sha256 = competition_rows(point.content_hash for point in found.datapoints)
    return {"sha256": sha256, "groups": {point.id: point.group for point in found.datapoints}}


def _held_out(wanted: CompetitionRequest, groups: Mapping[str, str], lot: random.Random) -> set[str]:
    """The ids of the part that is held out; see also that all rows have a label, and no others."""
    check_labels(wanted.labels.keys(), groups.keys())
    held = set(wanted.held_out)
    if held and wanted.held_share:
        raise UsageError("give either the ids of the held-out rows or their share, not both")
    if unknown := held - groups.keys():
        raise UsageError(f"no row is {comma_join(sorted(unknown)[:_SHOWN])}, which is to be held out")
    if wanted.held_share:
        names = sorted(set(groups.values()))
        lot.shuffle(names)
        taken = set(names[: math.ceil(len(names) * wanted.held_share)])
        held = {id_ for id_, group in groups.items() if group in taken}
    if len(held) == len(groups):
        raise UsageError("all rows would be held out, so no score would be shown before closing")
    return held


def check_labels(labelled: AbstractSet[str], rows: AbstractSet[str]) -> None:
    """Raises: UsageError: a row has no label, or a label no row."""
    for what, ids in (("no label is given of", rows - labelled), ("no row is", labelled - rows)):
        if ids:
            shown = comma_join(sorted(ids)[:_SHOWN])
            raise UsageError(f"{what} {shown}{f' and {len(ids) - _SHOWN} more' if len(ids) > _SHOWN else ''}")


# Submissions


def enter(connection: Connection, viewer: Viewer, rows: str, *, release: int, owner: str, now: float) -> None:
    """Take a run that is published as a submission to each competition of its rows, or say there why it is none.

    `now` is when its publisher ended sending it: how long a check waits and takes makes nobody late.
    """
    query = select(competitions).join(releases, releases.c.id == competitions.c.release_id)
    # One at a time for each competition, so that the limit holds where several are published at once.
    query = query.where(competitions.c.rows_sha256 == rows, seen_by(viewer)).with_for_update(of=competitions)
    for one in connection.execute(query).mappings().all():
        why = _hindrance(connection, one, owner, viewer.account_id, now)
        row = {
            "competition_id": one["id"], "release_id": release, "owner": owner, "account_id": viewer.account_id,
            "created": now, "state": REFUSED if why else WAITING, "why": why,
        }  # fmt: skip
        connection.execute(insert(submissions), row)


def _hindrance(connection: Connection, one: RowMapping, owner: str, account: int | None, now: float) -> str:
    if one["withdrawn"] is not None:
        return f"{one['owner']}/{one['name']} was withdrawn at {shown_time(one['withdrawn'])}: {one['why']}"
    if now >= one["closes"]:
        return f"{one['owner']}/{one['name']} closed at {shown_time(one['closes'])}, and takes no more submissions"
    for column, value, who in (
        (submissions.c.owner, owner, owner),
        (submissions.c.account_id, account, "this account"),
    ):
        query = select(submissions.c.created).where(
            submissions.c.competition_id == one["id"], column == value, submissions.c.created > now - DAY,
            or_(submissions.c.state != REFUSED, submissions.c.scored.is_not(None)),  # what took a score to refuse, too
        )  # fmt: skip
        times = sorted(row.created for row in connection.execute(query))
        if len(times) >= one["day_limit"]:
            following = times[len(times) - one["day_limit"]] + DAY
            when = (
                "none is taken before it closes"
                if following >= one["closes"]
                else f"the next is taken at {shown_time(following)}"
            )
            return f"{counted(len(times), 'submission')} of {who} in 24 hours, of {one['day_limit']}: {when}"
    return ""


def shown_time(seconds: float) -> str:
    """In UTC, up to the second that it has surely begun in."""
    return datetime.fromtimestamp(math.ceil(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waiting(database: Database) -> dict[int, int]:
    """The submissions that wait for their score, those too that a server left which was killed, each with its account.

    The oldest first.
    """
    query = select(submissions.c.id, submissions.c.account_id).where(submissions.c.state == WAITING)
    with database.reading() as connection:
        return {row.id: row.account_id for row in connection.execute(query.order_by(submissions.c.id))}


def score(settings: Settings, database: Database, submission: int) -> None:
    """Score one that waits, and note what came of it; once, however often it is asked for.

    Raises:
        IsolatedTaskError: the server could not, and it waits as before.
    """
    while not _scored(settings, database, submission):
        pass  # its labels were replaced in the meantime


def _scored(settings: Settings, database: Database, submission: int) -> bool:
    """Score one; False where that was by labels that are no more."""
    query = select(competitions.c.relabelled, submissions.c.state)
    query = query.join(submissions, submissions.c.competition_id == competitions.c.id)
    query = query.where(submissions.c.id == submission)
    with database.reading() as connection:
        before = connection.execute(query).one_or_none()
    if before is None or before.state != WAITING:
        return True
    try:
        found = run_bounded_check(settings, scored, submission)
    except ReleaseError as error:
        found = {"refused": str(error)}
    refused = found.get("refused", "")
    values: dict[str, Any] = {"state": REFUSED if refused else SCORED, "why": refused, "scored": time.time()}
    if not refused:
        values["score"] = orjson.dumps(found).decode()
    with database.writing() as connection:
        now = connection.execute(query).one_or_none()
        if now is not None and now.relabelled != before.relabelled:
            return False
        chosen = submissions.c.id == submission, submissions.c.state == WAITING
        connection.execute(update(submissions).where(*chosen).values(**values))
        database.changed(connection)
    return True


def counts(connection: Connection, competition: int, viewer: Viewer) -> dict[str, int]:
    """How many submissions were taken of each owner, of those that the viewer may know of."""
    query = (
        select(submissions.c.owner, func.count().label("taken"))
        .join(releases, releases.c.id == submissions.c.release_id)
        .where(submissions.c.competition_id == competition, submissions.c.state != REFUSED, seen_by(viewer))
        .group_by(submissions.c.owner)
    )
    return {row.owner: row.taken for row in connection.execute(query)}
