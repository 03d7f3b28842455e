"""What may change of a competition once it is there: its title, limit, a later closing, its labels; and its end.

Whoever takes part relies on the rest: the rows, which of them are held out, and no earlier closing than was said.
Each change is an act that is written down, by its owner or by who keeps the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, select, update

from runner.base.errors import NotPublished, UsageError
from runner.server.accounts.accounts import Viewer
from runner.server.accounts.administration import note_act
from runner.server.competitions.storage import (
    REFUSED,
    SCORED,
    WAITING,
    check_closing,
    check_labels,
    owns,
    shown_time,
)
from runner.server.store.schema import competition_labels, competitions, releases, submissions
from runner.server.visible_tree import seen_by


@dataclass(frozen=True)
class Changes:
    """What is to be otherwise; None: as it is."""

    title: str | None = None
    day_limit: int | None = None
    closes: float | None = None


def owned(connection: Connection, viewer: Viewer | None, owner: str, name: str) -> RowMapping:
    """A competition that the viewer may change; None: who keeps the server.

    Raises:
        NotPublished: there is none that the viewer may know of.
        PermissionError: it is another's.
        UsageError: it was withdrawn.
    """
    query = select(competitions).where(competitions.c.owner == owner, competitions.c.name == name)
    if viewer is not None:
        query = query.join(releases, releases.c.id == competitions.c.release_id).where(seen_by(viewer))
    one = connection.execute(query.with_for_update(of=competitions)).mappings().one_or_none()
    if one is None:
        raise NotPublished(f"there is no competition {owner}/{name} here")
    if viewer is not None and not owns(connection, viewer, owner):
        raise PermissionError(f"only an owner of {owner} changes its competitions")
    if one["withdrawn"] is not None:
        raise UsageError(f"{owner}/{name} was withdrawn at {shown_time(one['withdrawn'])}")
    return one


def change(connection: Connection, one: RowMapping, changes: Changes, now: float, *, by: str, why: str) -> None:
    """Change what a competition says of itself, from now on.

    Raises:
        UsageError: it would close earlier than was said, or again.
    """
    values = {name: value for name, value in vars(changes).items() if value is not None and value != one[name]}
    if "closes" in values:
        if now >= one["closes"]:
            raise UsageError(f"it closed at {shown_time(one['closes'])}, and scores of the held-out part are told")
        if values["closes"] < one["closes"]:
            raise UsageError(f"it closes at {shown_time(one['closes'])}, as was said, and no earlier")
        check_closing(values["closes"], now)
    if not values:
        return
    connection.execute(update(competitions).where(competitions.c.id == one["id"]).values(**values))
    shown = {**values, "closes": shown_time(values["closes"])} if "closes" in values else values
    said = ", ".join(f"{name}={value}" for name, value in shown.items())
    note_act(connection, now, "change-competition", f"{one['owner']}/{one['name']} {said}", by=by, why=why)


def relabel(
    connection: Connection, one: RowMapping, labels: Mapping[str, int], now: float, *, by: str, why: str
) -> int:
    """Replace the labels of some rows, and have every submission be scored again; how many labels are others now.

    Raises:
        UsageError: a label is of no row.
    """
    of = competition_labels.c.competition_id == one["id"]
    query = select(competition_labels).where(of)
    there = {row.datapoint_id: row.label for row in connection.execute(query)}
    check_labels(there.keys() | labels.keys(), there.keys())
    others = {id_: label for id_, label in labels.items() if there[id_] != label}
    if not others:
        return 0
    for id_, label in others.items():
        mine = of, competition_labels.c.datapoint_id == id_
        connection.execute(update(competition_labels).where(*mine).values(label=label))
    connection.execute(update(competitions).where(competitions.c.id == one["id"]).values(relabelled=now))
    again = submissions.c.competition_id == one["id"], submissions.c.state == SCORED
    connection.execute(update(submissions).where(*again).values(state=WAITING, score=None, scored=None))
    named = f"{one['owner']}/{one['name']}: {len(others)} of {len(there)}"
    note_act(connection, now, "relabel-competition", named, by=by, why=why)
    return len(others)


def withdraw(connection: Connection, one: RowMapping, now: float, *, by: str, why: str) -> bool:
    """End a competition: it has no scores and no labels any more. One that nobody has submitted to is gone as a whole.

    Returns whether it is gone; else its name stays taken, and its page says why it was withdrawn.
    """
    note_act(connection, now, "withdraw-competition", f"{one['owner']}/{one['name']}", by=by, why=why)
    connection.execute(delete(competition_labels).where(competition_labels.c.competition_id == one["id"]))
    of = submissions.c.competition_id == one["id"]
    if not connection.execute(select(func.count()).select_from(submissions).where(of)).scalar_one():
        connection.execute(delete(competitions).where(competitions.c.id == one["id"]))
        return True
    values: dict[str, Any] = {"withdrawn": now, "why": why}
    connection.execute(update(competitions).where(competitions.c.id == one["id"]).values(**values))
    said = f"the competition was withdrawn at {shown_time(now)}: {why}"
    taken = of, submissions.c.state != REFUSED
    connection.execute(update(submissions).where(*taken).values(state=REFUSED, why=said, score=None, scored=None))
    return False
