"""Computes the scores of submissions with the server's secret labels, and selects the numbers to publish.

The rows of a competition have an open and a held-out part. For each part, the server publishes only the accuracy and
its confidence interval, because other numbers would reveal more about the labels: a metric may depend on few rows (such
as the precision of a verifier that accepts once), and several metrics together reveal more than one. The accuracy is
rounded to steps of at least two rows, so it often stays the same if one verdict changes. The interval follows from the
rounded accuracy and the sizes of the groups of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from runner.registry.fetched_release import fetch_release
from runner.results.leaderboard.unranked import Unranked
from runner.results.manifest import Manifest, verifiers_of
from runner.results.metric_computation import Metrics
from runner.results.metric_definitions import RANKING_METRIC, Show, metrics_shown
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.server.accounts.accounts import Viewer
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, competitions, reference_of, releases, submissions
from runner.server.visible_releases import open_registry
from runner.spec.checks.fixed_verdicts import explain_fixed_verdicts
from runner.statistics.intervals import wilson_interval

OPEN_PART, HELD_PART = "open", "held_out"
MIN_ROWS_PER_STEP = 2
"""Minimum number of rows in one step of the published accuracy."""
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""Possible steps for rounding accuracies: a part with fewer rows gets a larger step."""


def compute_result(settings: Settings, work_folder: Path, submission_id: int) -> dict[str, object]:
    """Return the metrics of each part and other facts about a submission, or {"refused": reason}.

    The owner of the competition sees the complete result; `build_published_score` selects the public numbers. Runs in
    an isolated process.
    """
    with closing(Database(settings.database_url)) as database:
        row, labels = _read_submission(database, submission_id)
    if not labels:
        return {"refused": "the competition was withdrawn"}
    with open_registry(settings, Viewer(account_names=frozenset((row.owner,)))) as registry:
        folder = fetch_release(registry, reference_of(row), work_folder / "release").run
    assert folder is not None
    plan, manifest = played_plan(folder), folder.manifest()
    if plan.spec.protocol.lists_answers:
        return {"refused": "competitions score verdicts that accept or reject, but this run's verdicts choose from "
                "listed answers; publish a run of another protocol"}  # fmt: skip
    metrics = {is_held: Metrics.from_plan(plan) for is_held in (False, True)}
    game_counts: Counter[str] = Counter()
    group_sizes: dict[bool, Counter[str]] = {is_held: Counter() for is_held in metrics}
    origin_counts: Counter[str] = Counter()
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in reconstructor.rollouts():
            if rollout.outcome == Outcome.TRANSPORT_FAILED:
                return {"refused": "some games failed because the model's server did not answer; resume the run and "
                        "publish it again"}  # fmt: skip
            game_counts[rollout.job.datapoint.id] += 1
            if (origin := rollout.verdict_origin(*plan.spec.protocol.verifier_names)) is not None:
                origin_counts[origin] += 1
            label, is_held = labels[rollout.job.datapoint.id]
            labelled_rollout = _with_label(rollout, label, row.group_by)
            metrics[is_held].add(labelled_rollout)
            group_sizes[is_held][labelled_rollout.job.datapoint.group] += 1
    if game_counts.keys() != labels.keys() or len(set(game_counts.values())) != 1:
        return {"refused": "the run does not play all rows of the competition equally often; play all rows, then "
                "publish the new run"}  # fmt: skip
    held_rows = sum(is_held for _, is_held in labels.values())
    return {
        OPEN_PART: _select_metrics(metrics[False], len(labels) - held_rows, group_sizes[False].values()),
        HELD_PART: _select_metrics(metrics[True], held_rows, group_sizes[True].values()) if held_rows else None,
        "unranked": _unranked_reason(plan, manifest),
        "origins": {"verdicts": game_counts.total(), "journal": manifest.journal, "copied": dict(origin_counts)},
    }  # `AnswerOrigins` explains the keys of "origins"


def _read_submission(database: Database, submission_id: int) -> tuple[Row[Any], dict[str, tuple[int, bool]]]:
    """Return a submission's release and grouping column, and for each row its label and whether it is held out."""
    with database.reading() as connection:
        row = connection.execute(
            select(submissions.c.competition_id, competitions.c.group_by, releases)
            .join(competitions, competitions.c.id == submissions.c.competition_id)
            .join(releases, releases.c.id == submissions.c.release_id)
            .where(submissions.c.id == submission_id)
        ).one()
        query = select(competition_labels).where(competition_labels.c.competition_id == row.competition_id)
        labels = {label.datapoint_id: (label.label, label.is_held) for label in connection.execute(query)}
    return row, labels


def _unranked_reason(plan: Plan, manifest: Manifest) -> str | None:
    """Return why a submission is unranked regardless of other submissions, or None."""
    if manifest.is_whole_replay:
        return str(Unranked.REPLAYED_ANSWERS)
    return explain_fixed_verdicts(plan.spec.protocol.parameters.force_guess, verifiers_of(manifest))


def _with_label(rollout: Rollout, label: int, group_by: str | None) -> Rollout:
    """Return a rollout with the label and the group of its datapoint, which the run itself does not have."""
    point = rollout.job.datapoint
    group = point.id if group_by is None else str(point.columns[group_by])
    return replace(rollout, job=replace(rollout.job, datapoint=replace(point, label=label, group=group)))


def effective_groups(sizes: Collection[int]) -> float:
    """Return the number of groups of equal size whose mean has the same error, if all rows of a group are alike."""
    return sum(sizes) ** 2 / max(sum(size**2 for size in sizes), 1)


def _select_metrics(metrics: Metrics, row_count: int, group_sizes: Collection[int]) -> dict[str, Any]:
    """Return the metrics of a part for the owner of the competition.

    Rewards are left out, because the run's rewards were computed without the labels.
    """
    summary, names = metrics.summary(), metrics_shown(Show.COMPETITION)
    selected = [metric for metric in summary["metrics"] if metric["agent"] is None and metric["metric"] in names]
    return {
        "rows": row_count, "effective_groups": effective_groups(group_sizes), "interval": summary["interval"],
        "outcomes": summary["outcomes"], "metrics": selected,
    }  # fmt: skip


# Published scores


def rounding_step(row_count: int) -> float:
    """Return the step for rounding an accuracy on this number of rows."""
    return next((step for step in _STEPS if step * row_count >= MIN_ROWS_PER_STEP - 1e-9), 1.0)


INTERVAL_METHOD = (
    "95%, Wilson over the effective number of groups of rows; contains the intervals of all values that round to the "
    "shown value"
)


def build_published_score(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the published score of a part: the rounded accuracy and its interval."""
    step = rounding_step(part["rows"])
    groups = part.get("effective_groups")  # earlier versions of nip-run took all groups to have the same size
    metrics = [_round_metric(metric, step, groups) for metric in part["metrics"] if metric["metric"] == RANKING_METRIC]
    return {"rows": part["rows"], "rounded_to": step, "interval": INTERVAL_METHOD, "metrics": metrics}


def _round_metric(metric: Mapping[str, Any], step: float, groups: float | None) -> dict[str, object]:
    """Return a metric with a rounded value. Numbers of games and groups stay exact: they do not depend on labels."""
    groups = metric["clusters"] if groups is None else groups
    value = None if metric["value"] is None else round(round(metric["value"] / step) * step, 6)
    low, high = (None, None) if value is None else _interval_of_rounded(value, step, groups)
    return {
        "metric": metric["metric"], "value": value, "ci_low": low, "ci_high": high, "n": metric["n"],
        "clusters": metric["clusters"],
    }  # fmt: skip


def _interval_of_rounded(value: float, step: float, group_count: float) -> tuple[float | None, float | None]:
    """Return the union of the Wilson intervals of all shares that round to `value`.

    Return (None, None) for less than two groups.
    """
    if group_count < 2:
        return None, None
    lowest, highest = max(0.0, value - step / 2), min(1.0, value + step / 2)
    low, _ = wilson_interval(lowest, _standard_error(lowest, group_count), group_count, group_count)
    _, high = wilson_interval(highest, _standard_error(highest, group_count), group_count, group_count)
    return math.floor(low * 1e6) / 1e6, math.ceil(high * 1e6) / 1e6


def _standard_error(share: float, group_count: float) -> float:
    """Return the standard error of a share over independent groups."""
    return math.sqrt(share * (1 - share) / (group_count - 1))
