"""Changes to an existing competition: a new title, daily limit, closing time or labels, or its withdrawal.

A competition is on the rows of a dataset. Some rows may be held out: the server shows their score only after the
competition has closed. The rows and the choice of held-out rows cannot change, and the closing time can only become
later, because participants rely on them. The server's log of actions records each change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, RowMapping, bindparam, delete, func, select, update

from runner.base.errors import NotFoundError, UsageError
from runner.server.accounts.accounts import Viewer
from runner.server.accounts.administration import log_action
from runner.server.competitions.storage import (
    REFUSED,
    SCORED,
    WAITING,
    can_manage,
    check_closing,
    check_labels,
    competition_name,
    format_time,
)
from runner.server.store.schema import competition_labels, competitions, releases, submissions
from runner.server.visible_releases import visible_to


@dataclass(frozen=True)
class CompetitionChanges:
    """New values for a competition; a value of None changes nothing."""

    title: str | None = None
    day_limit: int | None = None
    closes: float | None = None


def find_for_change(connection: Connection, viewer: Viewer | None, owner: str, name: str) -> RowMapping:
    """Return a competition that the viewer may change. `viewer` is None for the server's administrator.

    Raises:
        NotFoundError: the viewer sees no such competition.
        PermissionError: the viewer is not an owner.
        UsageError: the competition was withdrawn.
    """
    query = select(competitions).where(competitions.c.owner == owner, competitions.c.name == name)
    if viewer is not None:
        query = query.join(releases, releases.c.id == competitions.c.release_id).where(visible_to(viewer))
    competition = connection.execute(query.with_for_update(of=competitions)).mappings().one_or_none()
    if competition is None:
        raise NotFoundError(
            f"this server has no competition {owner}/{name}; GET /api/v1/competitions lists all of them"
        )
    if viewer is not None and not can_manage(connection, viewer, owner):
        raise PermissionError(f"only an owner of {owner} can change its competitions; ask an owner")
    if competition["withdrawn"] is not None:
        withdrawn = format_time(competition["withdrawn"])
        raise UsageError(f"{owner}/{name} was withdrawn at {withdrawn} and cannot change; create a new competition")
    return competition


def change_competition(
    connection: Connection, competition: RowMapping, changes: CompetitionChanges, now: float, *, by: str, reason: str
) -> None:
    """Change the title, the daily limit or the closing time of a competition, and record the change.

    Raises:
        UsageError: the new closing time is earlier than announced, or the competition has closed.
    """
    name = competition_name(competition)
    values = {
        field: value for field, value in vars(changes).items() if value is not None and value != competition[field]
    }
    if "closes" in values:
        announced = format_time(competition["closes"])
        if now >= competition["closes"]:
            raise UsageError(f"{name} closed at {announced} and cannot reopen; create a new competition")
        if values["closes"] < competition["closes"]:
            raise UsageError(f"{name} must stay open until {announced}, as announced; give a later time")
        check_closing(values["closes"], now)
    if not values:
        return
    connection.execute(update(competitions).where(competitions.c.id == competition["id"]).values(**values))
    logged_values = {**values, "closes": format_time(values["closes"])} if "closes" in values else values
    summary = ", ".join(f"{field}={value}" for field, value in logged_values.items())
    log_action(connection, now, "change-competition", f"{name} {summary}", by=by, reason=reason)


def relabel(
    connection: Connection, competition: RowMapping, labels: Mapping[str, int], now: float, *, by: str, reason: str
) -> int:
    """Replace the labels of some rows and queue scored submissions to be scored again; return the number of changes.

    Raises:
        UsageError: a label belongs to no row.
    """
    same_competition = competition_labels.c.competition_id == competition["id"]
    query = select(competition_labels).where(same_competition)
    old_labels = {row.datapoint_id: row.label for row in connection.execute(query)}
    check_labels(labeled=old_labels.keys() | labels.keys(), rows=old_labels.keys())
    changed_labels = {id_: label for id_, label in labels.items() if old_labels[id_] != label}
    if not changed_labels:
        return 0
    same_row = competition_labels.c.datapoint_id == bindparam("id_")
    statement = update(competition_labels).where(same_competition, same_row).values(label=bindparam("new_label"))
    connection.execute(statement, [{"id_": id_, "new_label": label} for id_, label in changed_labels.items()])
    connection.execute(update(competitions).where(competitions.c.id == competition["id"]).values(relabelled=now))
    is_scored = submissions.c.competition_id == competition["id"], submissions.c.state == SCORED
    connection.execute(update(submissions).where(*is_scored).values(state=WAITING, score=None, scored=None))
    summary = f"{competition_name(competition)}: {len(changed_labels)} of {len(old_labels)}"
    log_action(connection, now, "relabel-competition", summary, by=by, reason=reason)
    return len(changed_labels)


def withdraw(connection: Connection, competition: RowMapping, now: float, *, by: str, reason: str) -> bool:
    """Withdraw a competition: delete its labels and scores, and the competition itself if it has no submissions.

    Return whether the competition was deleted. If it has submissions, its name stays reserved and its page shows the
    reason.
    """
    log_action(connection, now, "withdraw-competition", competition_name(competition), by=by, reason=reason)
    connection.execute(delete(competition_labels).where(competition_labels.c.competition_id == competition["id"]))
    same_competition = submissions.c.competition_id == competition["id"]
    if not connection.execute(select(func.count()).select_from(submissions).where(same_competition)).scalar_one():
        connection.execute(delete(competitions).where(competitions.c.id == competition["id"]))
        return True
    withdrawal = {"withdrawn": now, "why": reason}
    connection.execute(update(competitions).where(competitions.c.id == competition["id"]).values(withdrawal))
    refusal_reason = f"the competition was withdrawn at {format_time(now)}: {reason}"
    refusal = {"state": REFUSED, "why": refusal_reason, "score": None, "scored": None}
    connection.execute(update(submissions).where(same_competition, submissions.c.state != REFUSED).values(refusal))
    return False
