"""The competitions that a viewer may see, their boards, and the scores of submissions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, Select, case, func, select

from runner.base.errors import NotPublished
from runner.documents.releases.reference import Reference
from runner.results.answer_origins import AnswerOrigins
from runner.results.leaderboard.model import RankedRow, Unranked, rank
from runner.results.metric_table import RANKING_METRIC
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.competitions.row_copies import copied_from
from runner.server.competitions.scores import HELD_PART, OPEN_PART, told
from runner.server.competitions.storage import REFUSED, SCORED, counts, owns
from runner.server.store.schema import competition_labels, competitions, is_release, releases, submissions
from runner.server.visible_tree import seen_by

_Z = 1.959963984540054


@dataclass(slots=True, kw_only=True)
class CompetitionRow(RankedRow):
    """A submission on the board of a competition."""

    release: str
    owner: str
    created: float
    submissions: int
    """The submissions of its owner."""


def listed(connection: Connection, viewer: Viewer, now: float, after: str, most: int) -> list[dict[str, Any]]:
    """Return the competitions that a viewer may see, sorted by `OWNER/NAME`, beginning after `after`."""
    found = [_about(one, now) for one in connection.execute(_seen(viewer)).mappings()]
    return sorted((one for one in found if one["competition"] > after), key=lambda one: one["competition"])[:most]


def found(connection: Connection, viewer: Viewer, owner: str, name: str) -> RowMapping:
    """Return a competition.

    Raises:
        NotPublished: there is none that the viewer may see.
    """
    query = _seen(viewer).where(competitions.c.owner == owner, competitions.c.name == name)
    one = connection.execute(query).mappings().one_or_none()
    if one is None:
        raise NotPublished(f"there is no competition {owner}/{name} here")
    return one


def about(connection: Connection, viewer: Viewer, owner: str, name: str, now: float) -> dict[str, Any]:
    """Return the description of a competition. Raises as `found`."""
    return _about(found(connection, viewer, owner, name), now)


def board(connection: Connection, viewer: Viewer, owner: str, name: str, now: float) -> dict[str, Any]:
    """Return a competition with its board, ranked by the open part or, once it is closed, by the held-out part."""
    one = found(connection, viewer, owner, name)
    said = _about(one, now)
    held, rows = _sizes(connection, one["id"])  # of one that was withdrawn, none
    part = HELD_PART if said["is_closed"] and held else OPEN_PART
    taken = counts(connection, one["id"], viewer)
    query = _submissions(one["id"], viewer).where(submissions.c.state == SCORED).order_by(submissions.c.id)
    rows_in_order = [
        _row(row, orjson.loads(row["score"]), part, is_closed=said["is_closed"], taken=taken)
        for row in connection.execute(query).mappings()
    ]
    return {
        **said, "copied_from": copied_from(connection, viewer, one["id"]), "rows_open": rows - held,
        "rows_held_out": held, "ranked_by": part, "board": [row.to_json() for row in _ranked(rows_in_order)],
        "submissions": [{"owner": name, "count": count} for name, count in sorted(taken.items())],
    }  # fmt: skip


def submission(
    connection: Connection, viewer: Viewer, owner: str, name: str, *, run: Reference, now: float
) -> dict[str, Any]:
    """Return the state of a submitted run. Only its own owners see why it was refused.

    Raises:
        NotPublished: there is none that the viewer may see.
    """
    one = found(connection, viewer, owner, name)
    row = connection.execute(_submissions(one["id"], viewer).where(is_release(run))).mappings().one_or_none()
    if row is None or (row["state"] == REFUSED and row["owner"] not in viewer.owners):
        raise NotPublished(f"{run} is no submission to {owner}/{name}")
    is_closed = now >= one["closes"]
    score = None if row["score"] is None else orjson.loads(row["score"])
    parts = {} if score is None else _parts(score, is_closed=is_closed)
    in_full = score if score is not None and owns(connection, viewer, owner) else None
    return {
        "competition": f"{owner}/{name}", "release": str(run), "owner": row["owner"], "created": row["created"],
        "state": row["state"], "why": row["why"] or None, "scored": row["scored"], "relabelled": one["relabelled"],
        "open": parts.get(OPEN_PART),
        "held_out": parts.get(HELD_PART), "in_full": in_full,
    }  # fmt: skip


def page_of(competition: str, address: str) -> str:
    """Return the address of the page of a competition."""
    return f"{address}/competitions/{competition}"


def notes(connection: Connection, runs: Sequence[Reference], address: str) -> list[str]:
    """Return a message for each competition that some runs were submitted to by publishing them."""
    found = []
    query = select(submissions.c.state, submissions.c.why, competitions.c.owner, competitions.c.name, competitions.c.id)
    query = query.join(competitions, competitions.c.id == submissions.c.competition_id)
    query = query.join(releases, releases.c.id == submissions.c.release_id)
    for run in runs:
        for row in connection.execute(query.where(is_release(run))):
            competition = f"{row.owner}/{row.name}"
            first = copied_from(connection, ANYBODY, row.id)
            copy = f", which {row.owner} made on the rows of {first}" if first else ""
            if row.state == REFUSED:
                found.append(f"{run} is no submission to {competition}{copy}: {row.why}")
            else:
                at = f"{address}/api/v1/competitions/{competition}/submissions/{run.owner}/{run.name}/{run.version}"
                found.append(
                    f"{run} is submitted to {competition}{copy}; once it is scored, it is at "
                    f"{page_of(competition, address)}, and for programs at {at}"
                )
    return found


def _seen(viewer: Viewer) -> Select[Any]:
    query = select(competitions, releases.c.name.label("dataset_name"), releases.c.version.label("dataset_version"))
    return query.join(releases, releases.c.id == competitions.c.release_id).where(seen_by(viewer))


def _submissions(competition: int, viewer: Viewer) -> Select[Any]:
    query = select(submissions, releases.c.name.label("run_name"), releases.c.version.label("run_version"))
    query = query.join(releases, releases.c.id == submissions.c.release_id)
    return query.where(submissions.c.competition_id == competition, seen_by(viewer))


def _about(one: RowMapping, now: float) -> dict[str, Any]:
    return {
        "competition": f"{one['owner']}/{one['name']}",
        "title": one["title"],
        "dataset": f"dataset/{one['owner']}/{one['dataset_name']}@{one['dataset_version']}",
        "day_limit": one["day_limit"],
        "created": one["created"],
        "closes": one["closes"],
        "is_closed": now >= one["closes"],
        "relabelled": one["relabelled"],
        "withdrawn": one["withdrawn"],
        "why": one["why"],
    }


def _sizes(connection: Connection, competition: int) -> tuple[int, int]:
    """Return the number of held-out rows, and of all rows."""
    held = func.coalesce(func.sum(case((competition_labels.c.is_held, 1), else_=0)), 0)
    query = select(held, func.count()).where(competition_labels.c.competition_id == competition)
    found = connection.execute(query).one()
    return int(found[0]), int(found[1])


def _parts(score: Mapping[str, Any], *, is_closed: bool) -> dict[str, Any]:
    shown = (OPEN_PART, HELD_PART) if is_closed else (OPEN_PART,)
    return {part: told(score[part]) for part in shown if score[part] is not None}


@dataclass
class _Submission:
    """A scored submission, with what decides whether it ranks."""

    row: CompetitionRow
    origins: AnswerOrigins | None
    """None: an earlier version did not store where answers came from, and the row ranks."""


def _row(
    row: RowMapping, score: Mapping[str, Any], part: str, *, is_closed: bool, taken: Mapping[str, int]
) -> _Submission:
    (accuracy,) = (
        one for one in _parts(score, is_closed=is_closed)[part]["metrics"] if one["metric"] == RANKING_METRIC
    )
    shown = CompetitionRow(
        release=f"run/{row['owner']}/{row['run_name']}@{row['run_version']}",
        owner=row["owner"],
        created=row["created"],
        accuracy=accuracy["value"],
        **{name: accuracy[name] for name in ("ci_low", "ci_high", "n", "clusters")},
        submissions=taken[row["owner"]],
        reason=score.get("unranked"),
    )
    return _Submission(shown, AnswerOrigins(**score["origins"]) if "origins" in score else None)


def _refuse_shared_answers(found: Sequence[_Submission]) -> None:
    """Give a reason to rows that share most answers with an earlier one; `found` is in the order of submission."""
    earlier: list[tuple[str, AnswerOrigins]] = []
    for one in found:
        if one.origins is None or one.row.reason is not None:
            continue
        verdicts = one.origins.verdicts
        for release, other in earlier:
            if 2 * (shared := one.origins.shared_with(other)) > verdicts:
                one.row.reason = Unranked.SHARED_ANSWERS.format(shared=shared, verdicts=verdicts, other=release)
                break
        else:
            earlier.append((one.row.release, one.origins))


def _ranked(found: Sequence[_Submission]) -> list[CompetitionRow]:
    """Return the rows from the best, with the ranks that each may have.

    Ranks follow from the published numbers alone, since order and ties would tell more than that otherwise; so the test
    is unpaired, and tells fewer rows apart than one by row would.
    """
    _refuse_shared_answers(found)
    order = sorted((one.row for one in found), key=lambda row: (-(row.accuracy or 0.0), row.created, row.release))
    by_name = {row.release: row for row in order}

    def p_values(leader: str, others: Sequence[str]) -> list[float]:
        return [_p(by_name[leader], by_name[other]) for other in others]

    values = ((row.release, row.accuracy or 0.0) for row in order if row.reason is None)
    for name, (first, last) in rank(values, p_values).items():
        by_name[name].rank, by_name[name].rank_last = first, last
    return sorted(order, key=lambda row: row.rank is None)


def _p(one: CompetitionRow, other: CompetitionRow) -> float:
    """Return the p-value of the difference of two accuracies, by their intervals; 1 if one has none."""
    if one.ci_low is None or one.ci_high is None or other.ci_low is None or other.ci_high is None:
        return 1.0
    error = math.hypot(one.ci_high - one.ci_low, other.ci_high - other.ci_low) / (2 * _Z)
    difference = abs((one.accuracy or 0.0) - (other.accuracy or 0.0))
    return 1.0 if error == 0 else math.erfc(difference / error / math.sqrt(2))
