"""Describes competitions, their boards and submissions for the API and the pages, as far as the viewer may see them.

A board is the ranked list of a competition's scored submissions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, func, select

from runner.base.errors import NotFoundError
from runner.documents.releases.reference import Kind, Reference
from runner.registry.components.installed import DATASETS
from runner.results.answer_origins import AnswerOrigins
from runner.results.leaderboard.model import RankedRow, describe_ranks, rank
from runner.results.leaderboard.unranked import Unranked
from runner.results.metric_definitions import RANKING_METRIC
from runner.server.accounts.accounts import ANYBODY, Viewer
from runner.server.competitions.scores import HELD_PART, OPEN_PART, build_published_score
from runner.server.competitions.storage import REFUSED, SCORED, can_manage, competition_name, count_submissions
from runner.server.store.schema import (
    competition_labels,
    competitions,
    files,
    is_release,
    reference_of,
    releases,
    submissions,
)
from runner.server.visible_releases import visible_to

_Z_95 = 1.959963984540054
"""Half the width of a 95 % confidence interval, in standard errors."""


@dataclass(slots=True, kw_only=True)
class CompetitionRow(RankedRow):
    """A submission on the board of a competition."""

    release: str
    owner: str
    created: float
    submissions: int
    """Number of submissions of the same owner."""


def list_competitions(
    connection: Connection, viewer: Viewer, now: float, after: str, limit: int
) -> list[dict[str, Any]]:
    """Return the next `limit` competitions after the one named `after`, sorted by `OWNER/NAME`."""
    descriptions = [
        describe_competition(competition, now) for competition in connection.execute(_select_visible(viewer)).mappings()
    ]
    following = (description for description in descriptions if description["competition"] > after)
    return sorted(following, key=lambda description: description["competition"])[:limit]


def find_competition(connection: Connection, viewer: Viewer, owner: str, name: str) -> RowMapping:
    """Return a competition.

    Raises:
        NotFoundError: the viewer sees no such competition.
    """
    query = _select_visible(viewer).where(competitions.c.owner == owner, competitions.c.name == name)
    competition = connection.execute(query).mappings().one_or_none()
    if competition is None:
        raise NotFoundError(
            f"this server has no competition {owner}/{name}; GET /api/v1/competitions lists all of them"
        )
    return competition


def describe_board(connection: Connection, viewer: Viewer, owner: str, name: str, now: float) -> dict[str, Any]:
    """Return a competition with its board.

    Until the competition closes, submissions are ranked by the accuracy on the open rows. After that, the accuracy on
    the held-out rows decides, if there are any.
    """
    competition = find_competition(connection, viewer, owner, name)
    description = describe_competition(competition, now)
    held_rows, rows = _count_rows(connection, competition["id"])  # both are 0 after withdrawal
    part = HELD_PART if description["is_closed"] and held_rows else OPEN_PART
    owner_counts = count_submissions(connection, competition["id"], viewer)
    query = (
        _select_submissions(competition["id"], viewer).where(submissions.c.state == SCORED).order_by(submissions.c.id)
    )
    scored_submissions = [
        _build_submission(
            row, orjson.loads(row["score"]), part, is_closed=description["is_closed"], owner_counts=owner_counts
        )
        for row in connection.execute(query).mappings()
    ]
    board = _rank_rows(scored_submissions)
    ranked = sum(row.rank is not None for row in board)
    return {
        **description, "copied_from": find_original_dataset(connection, viewer, competition["id"]),
        "rows_open": rows - held_rows, "rows_held_out": held_rows, "ranked_by": part,
        "rank_method": describe_ranks(ranked, "unpaired tests (by the published numbers)"),
        "board": [row.to_json() for row in board],
        "submissions": [{"owner": name, "count": count} for name, count in sorted(owner_counts.items())],
    }  # fmt: skip


def describe_submission(
    connection: Connection, viewer: Viewer, owner: str, name: str, *, run: Reference, now: float
) -> dict[str, Any]:
    """Return the state of a submitted run. Only the run's owner sees a refused submission.

    Raises:
        NotFoundError: the viewer sees no such submission.
    """
    competition = find_competition(connection, viewer, owner, name)
    query = _select_submissions(competition["id"], viewer).where(is_release(run))
    row = connection.execute(query).mappings().one_or_none()
    if row is None or (row["state"] == REFUSED and row["owner"] not in viewer.account_names):
        raise NotFoundError(
            f"{run} is not a submission to {owner}/{name}; publish a run that plays exactly the rows of the competition"
        )
    is_closed = now >= competition["closes"]
    score = None if row["score"] is None else orjson.loads(row["score"])
    parts = {} if score is None else _published_parts(score, is_closed=is_closed)
    full_score = score if score is not None and can_manage(connection, viewer, owner) else None
    return {
        "competition": f"{owner}/{name}", "release": str(run), "owner": row["owner"], "created": row["created"],
        "state": row["state"], "why": row["why"] or None, "scored": row["scored"],
        "relabelled": competition["relabelled"], "open": parts.get(OPEN_PART),
        "held_out": parts.get(HELD_PART), "in_full": full_score,
    }  # fmt: skip


def competition_url(competition: str, address: str) -> str:
    """Return the URL of a competition's page."""
    return f"{address}/competitions/{competition}"


def submission_notes(connection: Connection, runs: Sequence[Reference], address: str) -> list[str]:
    """Return a message for each competition that these published runs were submitted to."""
    messages = []
    query = select(submissions.c.state, submissions.c.why, competitions.c.owner, competitions.c.name, competitions.c.id)
    query = query.join(competitions, competitions.c.id == submissions.c.competition_id)
    query = query.join(releases, releases.c.id == submissions.c.release_id)
    for run in runs:
        for row in connection.execute(query.where(is_release(run))):
            competition = f"{row.owner}/{row.name}"
            original = find_original_dataset(connection, ANYBODY, row.id)
            copy = f", which {row.owner} created on the rows of {original}" if original else ""
            if row.state == REFUSED:
                messages.append(f"{run} was published, but {competition}{copy} did not accept it: {row.why}")
            else:
                url = f"{address}/api/v1/competitions/{competition}/submissions/{run.owner}/{run.name}/{run.version}"
                messages.append(
                    f"{run} is submitted to {competition}{copy}; the score will be at "
                    f"{competition_url(competition, address)} and, as JSON, at {url}"
                )
    return messages


def _select_visible(viewer: Viewer) -> Select[Any]:
    query = select(competitions, releases.c.name.label("dataset_name"), releases.c.version.label("dataset_version"))
    return query.join(releases, releases.c.id == competitions.c.release_id).where(visible_to(viewer))


def _select_submissions(competition_id: int, viewer: Viewer) -> Select[Any]:
    query = select(submissions, releases.c.name.label("run_name"), releases.c.version.label("run_version"))
    query = query.join(releases, releases.c.id == submissions.c.release_id)
    return query.where(submissions.c.competition_id == competition_id, visible_to(viewer))


def describe_competition(competition: RowMapping, now: float) -> dict[str, Any]:
    """Return the description of a competition from `find_competition`."""
    columns = ("title", "day_limit", "created", "closes", "relabelled", "withdrawn", "why")
    return {
        "competition": competition_name(competition),
        "dataset": f"dataset/{competition['owner']}/{competition['dataset_name']}@{competition['dataset_version']}",
        "is_closed": now >= competition["closes"],
        **{column: competition[column] for column in columns},
    }


def _count_rows(connection: Connection, competition_id: int) -> tuple[int, int]:
    """Return the number of held-out rows and of all rows."""
    held_sum = func.coalesce(func.sum(case((competition_labels.c.is_held, 1), else_=0)), 0)
    query = select(held_sum, func.count()).where(competition_labels.c.competition_id == competition_id)
    held_rows, all_rows = connection.execute(query).one()
    return int(held_rows), int(all_rows)


def _published_parts(score: Mapping[str, Any], *, is_closed: bool) -> dict[str, Any]:
    published_parts = (OPEN_PART, HELD_PART) if is_closed else (OPEN_PART,)
    return {part: build_published_score(score[part]) for part in published_parts if score[part] is not None}


@dataclass
class _Submission:
    """A scored submission, with the origins of its answers: the runs whose journals first recorded them.

    A submission is unranked if most of its answers have the same origins as those of an earlier submission.
    """

    row: CompetitionRow
    origins: AnswerOrigins | None
    """The origins. If an earlier version of nip-run scored the submission, this is None and nothing is compared."""


def _build_submission(
    row: RowMapping, score: Mapping[str, Any], part: str, *, is_closed: bool, owner_counts: Mapping[str, int]
) -> _Submission:
    metrics = _published_parts(score, is_closed=is_closed)[part]["metrics"]
    (accuracy,) = (metric for metric in metrics if metric["metric"] == RANKING_METRIC)
    board_row = CompetitionRow(
        release=f"run/{row['owner']}/{row['run_name']}@{row['run_version']}",
        owner=row["owner"],
        created=row["created"],
        accuracy=accuracy["value"],
        **{name: accuracy[name] for name in ("ci_low", "ci_high", "n", "clusters")},
        submissions=owner_counts[row["owner"]],
        reason=score.get("unranked"),
    )
    return _Submission(board_row, AnswerOrigins(**score["origins"]) if "origins" in score else None)


def _unrank_shared_answers(scored_submissions: Sequence[_Submission]) -> None:
    """Make a submission unranked, by setting its `reason`, if most of its answers are also in an earlier submission."""
    earlier_submissions: list[tuple[str, AnswerOrigins]] = []
    indexes_by_origin: dict[str, list[int]] = {}  # the indexes in `earlier_submissions`, by the name of an origin
    for submission in scored_submissions:
        if submission.origins is None or submission.row.reason is not None:
            continue
        verdicts = submission.origins.verdicts
        names = submission.origins.names
        for index in sorted({index for name in names for index in indexes_by_origin.get(name, ())}):
            release, origins = earlier_submissions[index]
            shared = submission.origins.shared_with(origins)
            if shared > verdicts / 2:
                submission.row.reason = Unranked.SHARED_ANSWERS.format(shared=shared, verdicts=verdicts, other=release)
                break
        else:
            for name in names:
                indexes_by_origin.setdefault(name, []).append(len(earlier_submissions))
            earlier_submissions.append((submission.row.release, submission.origins))


def _rank_rows(scored_submissions: Sequence[_Submission]) -> list[CompetitionRow]:
    """Return the rows with their ranges of ranks, best first.

    Ranks follow from the published, rounded numbers only, because ranks from exact numbers would reveal more about the
    labels. These numbers permit only an unpaired significance test, which finds fewer differences than a paired one.
    """
    _unrank_shared_answers(scored_submissions)
    rows = (submission.row for submission in scored_submissions)
    order = sorted(rows, key=lambda row: (-(row.accuracy or 0.0), row.created, row.release))
    rows_by_release = {row.release: row for row in order}

    def p_values(pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [_p_value(rows_by_release[first], rows_by_release[second]) for first, second in pairs]

    accuracies = ((row.release, row.accuracy or 0.0) for row in order if row.reason is None)
    for name, (first, last) in rank(accuracies, p_values).items():
        rows_by_release[name].rank, rows_by_release[name].rank_last = first, last
    return sorted(order, key=lambda row: row.rank is None)


def _p_value(first: CompetitionRow, second: CompetitionRow) -> float:
    """Return the p-value of the difference of two accuracies, from their intervals; 1 if an interval is missing."""
    if first.ci_low is None or first.ci_high is None or second.ci_low is None or second.ci_high is None:
        return 1.0
    standard_error = math.hypot(first.ci_high - first.ci_low, second.ci_high - second.ci_low) / (2 * _Z_95)
    difference = abs((first.accuracy or 0.0) - (second.accuracy or 0.0))
    return 1.0 if standard_error == 0 else math.erfc(difference / standard_error / math.sqrt(2))


def find_original_dataset(connection: Connection, viewer: Viewer, competition_id: int) -> str | None:
    """Return the oldest visible dataset of another owner with the same rows as a competition, or None.

    Competitions on copies are allowed, but pages and messages name the dataset that had the rows first.
    Datasets of other competitions are compared by the hash of their rows, other datasets by the hash of their file.
    """
    query = select(competitions.c.rows_sha256, competitions.c.release_id, releases.c.owner, releases.c.id)
    query = query.join(releases, releases.c.id == competitions.c.release_id)
    dataset = connection.execute(query.where(competitions.c.id == competition_id)).one()
    same_rows = select(competitions.c.release_id).where(competitions.c.rows_sha256 == dataset.rows_sha256)
    own_files = select(files).where(files.c.release_id == dataset.release_id, files.c.part == "")
    tables = [row.sha256 for row in connection.execute(own_files) if row.path.rpartition("/")[2] in DATASETS]
    same_file = select(files.c.release_id).where(files.c.sha256.in_(tables))
    originals = [
        original
        for condition in (releases.c.id.in_(same_rows), releases.c.id.in_(same_file))
        if (original := _find_oldest_dataset(connection, viewer, dataset.owner, dataset.id, condition)) is not None
    ]
    return min(originals)[1] if originals else None


def _find_oldest_dataset(
    connection: Connection, viewer: Viewer, owner: str, release_id: int, condition: ColumnElement[bool]
) -> tuple[int, str] | None:
    """Return the id and reference of the oldest matching dataset of another owner that is older than this release."""
    query = select(releases).where(condition, releases.c.kind == str(Kind.DATASET), visible_to(viewer))
    query = query.where(releases.c.owner != owner, releases.c.id < release_id)
    row = connection.execute(query.order_by(releases.c.id).limit(1)).one_or_none()
    return row and (row.id, str(reference_of(row)))
