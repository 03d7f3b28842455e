"""What a viewer may know of competitions: which there are, their boards, and a submission's score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, Select, case, func, select

from runner.base.errors import NotPublished
from runner.documents.releases.reference import Kind, Reference
from runner.results.answer_origins import NO_OWN_SAMPLE, AnswerOrigins
from runner.results.metric_table import RANKING_METRIC
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.competitions.row_copies import copied_from
from runner.server.competitions.scores import HELD_PART, OPEN_PART, told
from runner.server.competitions.storage import REFUSED, SCORED, counts, owns
from runner.server.store.schema import competition_labels, competitions, releases, submissions
from runner.server.visible_tree import seen_by
from runner.statistics.sign_flip import ranges_in_order

_Z = 1.959963984540054


def listed(connection: Connection, viewer: Viewer, now: float, after: str, most: int) -> list[dict[str, Any]]:
    """The competitions that a viewer may know of, in the order of `OWNER/NAME`, those that follow `after`."""
    found = [_about(one, now) for one in connection.execute(_seen(viewer)).mappings()]
    return sorted((one for one in found if one["competition"] > after), key=lambda one: one["competition"])[:most]


def found(connection: Connection, viewer: Viewer, owner: str, name: str) -> RowMapping:
    """A competition.

    Raises:
        NotPublished: there is none that the viewer may know of.
    """
    query = _seen(viewer).where(competitions.c.owner == owner, competitions.c.name == name)
    one = connection.execute(query).mappings().one_or_none()
    if one is None:
        raise NotPublished(f"there is no competition {owner}/{name} here")
    return one


def about(connection: Connection, viewer: Viewer, owner: str, name: str, now: float) -> dict[str, Any]:
    """What a competition says of itself. Raises as `found`."""
    return _about(found(connection, viewer, owner, name), now)


def board(connection: Connection, viewer: Viewer, owner: str, name: str, now: float) -> dict[str, Any]:
    """A competition with its ranks: by the open part, and once it is closed by the part that was held out."""
    one = found(connection, viewer, owner, name)
    said = _about(one, now)
    held, rows = _sizes(connection, one["id"])  # of one that was withdrawn, none
    part = HELD_PART if said["is_closed"] and held else OPEN_PART
    taken = counts(connection, one["id"], viewer)
    query = _submissions(one["id"], viewer).where(submissions.c.state == SCORED).order_by(submissions.c.id)
    found_rows = [
        (_row(row, part, is_closed=said["is_closed"], taken=taken), orjson.loads(row["score"]))
        for row in connection.execute(query).mappings()
    ]
    return {
        **said, "copied_from": copied_from(connection, viewer, one["id"]), "rows_open": rows - held,
        "rows_held_out": held, "ranked_by": part, "board": _ranked(found_rows),
        "submissions": [{"owner": name, "count": count} for name, count in sorted(taken.items())],
    }  # fmt: skip


def submission(
    connection: Connection, viewer: Viewer, owner: str, name: str, *, run: Reference, now: float
) -> dict[str, Any]:
    """What became of a run that was submitted. Why one is refused is told to its own owners.

    Raises:
        NotPublished: there is none that the viewer may know of.
    """
    one = found(connection, viewer, owner, name)
    mine = [getattr(releases.c, at) == getattr(run, at) for at in ("owner", "name", "version")]
    row = connection.execute(_submissions(one["id"], viewer).where(*mine)).mappings().one_or_none()
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
    """Where people find a competition, of a server at an address."""
    return f"{address}/competitions/{competition}"


def notes(connection: Connection, runs: Sequence[Reference], address: str) -> list[str]:
    """What whoever published some runs is told of what they were submitted to by that."""
    found = []
    query = select(submissions.c.state, submissions.c.why, competitions.c.owner, competitions.c.name, competitions.c.id)
    query = query.join(competitions, competitions.c.id == submissions.c.competition_id)
    query = query.join(releases, releases.c.id == submissions.c.release_id)
    for run in runs:
        mine = [getattr(releases.c, at) == getattr(run, at) for at in ("owner", "name", "version")]
        for row in connection.execute(query.where(releases.c.kind == str(Kind.RUN), *mine)):
            competition = f"{row.owner}/{row.name}"
            first = copied_from(connection, ANYBODY, row.id)
            copy = f", which {row.owner} made on the rows of {first}" if first else ""
            if row.state == REFUSED:
                found.append(f"{run} is no submission to {competition}{copy}: {row.why}")
            else:
                at = f"{address}/api/v1/competitions/{competition}/submissions/{run.owner}/{run.name}/{run.version}"
                found.append(
                    f"{run} is submitted to {competition}{copy}; once it is scored, it stands at "
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
    """How many rows are held out, and how many there are."""
    held = func.coalesce(func.sum(case((competition_labels.c.is_held, 1), else_=0)), 0)
    query = select(held, func.count()).where(competition_labels.c.competition_id == competition)
    found = connection.execute(query).one()
    return int(found[0]), int(found[1])


def _parts(score: Mapping[str, Any], *, is_closed: bool) -> dict[str, Any]:
    shown = (OPEN_PART, HELD_PART) if is_closed else (OPEN_PART,)
    return {part: told(score[part]) for part in shown if score[part] is not None}


def _row(row: RowMapping, part: str, *, is_closed: bool, taken: Mapping[str, int]) -> dict[str, Any]:
    parts = _parts(orjson.loads(row["score"]), is_closed=is_closed)
    (accuracy,) = (one for one in parts[part]["metrics"] if one["metric"] == RANKING_METRIC)
    return {
        "release": f"run/{row['owner']}/{row['run_name']}@{row['run_version']}",
        "owner": row["owner"],
        "created": row["created"],
        RANKING_METRIC: accuracy["value"],
        **{name: accuracy[name] for name in ("ci_low", "ci_high", "n", "clusters")},
        "submissions": taken[row["owner"]],
    }


def _reasons(rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, str]:
    """Return why rows have no rank, by release. `rows` are in the order of submission, each with its score.

    Earlier versions did not store where answers came from: such a row ranks.
    """
    reasons: dict[str, str] = {}
    before: list[tuple[str, AnswerOrigins]] = []
    for row, score in rows:
        origins = AnswerOrigins(**score["origins"]) if "origins" in score else None
        reason = score.get("unranked")
        for release, other in before:
            if reason is None and origins is not None and 2 * (shared := origins.shared_with(other)) > origins.verdicts:
                share = f"{shared} of its {origins.verdicts} verdicts come from answers that it shares with {release}"
                reason = f"{NO_OWN_SAMPLE}: {share}"
        if reason is not None:
            reasons[row["release"]] = reason
        elif origins is not None:
            before.append((row["release"], origins))
    return reasons


def _ranked(found_rows: Sequence[tuple[dict[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The rows from the best, with the ranks that each may have, or why it has none.

    By what is told of each alone, since order and ties would tell more than that otherwise; so the test is unpaired,
    and tells fewer apart than one by row would.
    """
    reasons, rows = _reasons(found_rows), [row for row, _ in found_rows]
    order = sorted(rows, key=lambda row: (-(row[RANKING_METRIC] or 0.0), row["created"], row["release"]))
    by_name = {row["release"]: row for row in order}

    def p_values(leader: str, others: Sequence[str]) -> list[float]:
        return [_p(by_name[leader], by_name[other]) for other in others]

    ranges = ranges_in_order([name for name in by_name if name not in reasons], p_values)
    shown = [(*ranges.get(name, (None, None)), row, reasons.get(name)) for name, row in by_name.items()]
    shown.sort(key=lambda of: of[0] is None)
    return [{"rank": first, "rank_last": last, **row, "reason": reason} for first, last, row, reason in shown]


def _p(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """That two accuracies differ, by their intervals; 1 where one has none."""
    ends = [row[name] for row in (one, other) for name in ("ci_low", "ci_high")]
    if any(end is None for end in ends):
        return 1.0
    error = math.hypot(ends[1] - ends[0], ends[3] - ends[2]) / (2 * _Z)
    apart = abs((one[RANKING_METRIC] or 0.0) - (other[RANKING_METRIC] or 0.0))
    return 1.0 if error == 0 else math.erfc(apart / error / math.sqrt(2))
