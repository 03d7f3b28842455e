"""A submission's verdicts into its scores, by the labels that the server alone has; and what is told of a score.

What is told of a part is one number, its accuracy, rounded to a step of two rows or more, so that an answer says at
most as much as the steps between 0 and 1 can. Its interval follows from that number, and from how many groups of rows
there are, which all know: the ends of an exact one would move where the number stays. Other metrics may depend on few
rows, such as the precision of who accepts one, and several together tell more than each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import select

from runner.documents.releases.reference import parse
from runner.registry.fetched_release import get
from runner.registry.transports.registry import Registry
from runner.results.leaderboard.model import Unranked
from runner.results.manifest import Manifest, verifiers_of
from runner.results.metric_table import RANKING_METRIC, Show, metrics_shown
from runner.results.metrics import Metrics
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Outcome, Rollout
from runner.runs.finished.reconstruction import Reconstructor, played_plan
from runner.server.accounts.accounts import Viewer
from runner.server.settings import Settings
from runner.server.store.blob_stores import blobs_of
from runner.server.store.database import Database
from runner.server.store.schema import competition_labels, competitions, releases, submissions
from runner.server.visible_tree import ServerTree
from runner.spec.checks.fixed_verdicts import fixed_verdicts
from runner.statistics.intervals import wilson

OPEN_PART, HELD_PART = "open", "held_out"
FEWEST_ROWS = 2
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def scored(settings: Settings, place: Path, submission: int) -> dict[str, Any]:
    """The metrics of a submission on each part in full, or why it is refused; in a process of its own."""
    database = Database(settings.database_url)
    with database.reading() as connection:
        row = connection.execute(
            select(submissions.c.competition_id, competitions.c.group_by, releases)
            .join(competitions, competitions.c.id == submissions.c.competition_id)
            .join(releases, releases.c.id == submissions.c.release_id)
            .where(submissions.c.id == submission)
        ).one()
        found = select(competition_labels).where(competition_labels.c.competition_id == row.competition_id)
        labels = {one.datapoint_id: (one.label, one.is_held) for one in connection.execute(found)}
    if not labels:
        return {"refused": "its competition was withdrawn"}
    viewer = Viewer(owners=frozenset((row.owner,)))
    registry = Registry(ServerTree(database, blobs_of(settings), viewer), settings.limits)
    got = get(registry, parse(f"{row.kind}/{row.owner}/{row.name}@{row.version}"), place / "got")
    folder = got.run
    assert folder is not None
    plan, manifest = played_plan(folder), folder.manifest()
    parts = {is_held: Metrics(plan.spec.protocol, plan.seats) for is_held in (False, True)}
    plays: Counter[str] = Counter()
    copied: Counter[str] = Counter()
    with closing(Reconstructor(folder, plan)) as journal:
        for rollout in journal.rollouts():
            if rollout.outcome == Outcome.TRANSPORT_FAILED:
                return {"refused": "games of it were lost in transport; all rows are scored, or none"}
            plays[rollout.job.datapoint.id] += 1
            if (origin := rollout.verdict_origin(plan.spec.protocol.verifier_name)) is not None:
                copied[origin] += 1
            label, is_held = labels[rollout.job.datapoint.id]
            parts[is_held].add(_labelled(rollout, label, row.group_by))
    if plays.keys() != labels.keys() or len(set(plays.values())) != 1:
        return {
            "refused": "it has not played all rows, each as often as the others; all rows are scored alike, or none"
        }
    held = sum(is_held for _, is_held in labels.values())
    return {
        OPEN_PART: _summary(parts[False], len(labels) - held),
        HELD_PART: _summary(parts[True], held) if held else None,
        "unranked": _unranked(plan, manifest),
        "origins": {"verdicts": plays.total(), "journal": manifest.journal, "copied": dict(copied)},
    }


def _unranked(plan: Plan, manifest: Manifest) -> str | None:
    """Return why a submission has no rank, whatever the others are."""
    if manifest.is_whole_replay:
        return str(Unranked.REPLAYED_ANSWERS)
    return fixed_verdicts(plan.spec.protocol.parameters.force_guess, verifiers_of(manifest))


def _labelled(rollout: Rollout, label: int, group_by: str | None) -> Rollout:
    point = rollout.job.datapoint
    group = point.id if group_by is None else str(point.columns[group_by])
    return replace(rollout, job=replace(rollout.job, datapoint=replace(point, label=label, group=group)))


def _summary(metrics: Metrics, rows: int) -> dict[str, Any]:
    # Owners have the labels. Of the other metrics the reward is one, which is not computed again.
    summary, shown = metrics.summary(), metrics_shown(Show.COMPETITION)
    kept = [row for row in summary["metrics"] if row["agent"] is None and row["metric"] in shown]
    return {"rows": rows, "interval": summary["interval"], "outcomes": summary["outcomes"], "metrics": kept}


# What is told


def step_of(rows: int) -> float:
    """The step that numbers over so many rows are rounded to."""
    return next((step for step in _STEPS if step * rows >= FEWEST_ROWS - 1e-9), 1.0)


METHOD = "95%, Wilson over groups of rows, of all values that are rounded to this one"


def told(part: Mapping[str, Any]) -> dict[str, Any]:
    """What is told of the metrics of a part."""
    step = step_of(part["rows"])
    metrics = [_told(row, step) for row in part["metrics"] if row["metric"] == RANKING_METRIC]
    return {"rows": part["rows"], "rounded_to": step, "interval": METHOD, "metrics": metrics}


def _told(row: Mapping[str, Any], step: float) -> dict[str, Any]:
    """How many games and groups there are is of the rows, and of how often each is played, and of no label."""
    value = None if row["value"] is None else round(round(row["value"] / step) * step, 6)
    low, high = (None, None) if value is None else _around(value, step, row["clusters"])
    return {
        "metric": row["metric"], "value": value, "ci_low": low, "ci_high": high, "n": row["n"],
        "clusters": row["clusters"],
    }  # fmt: skip


def _around(value: float, step: float, groups: int) -> tuple[float | None, float | None]:
    """Wilson's interval of a rounded share, from its lowest end to its highest; none of a single group."""
    if groups < 2:
        return None, None
    lowest, highest = max(0.0, value - step / 2), min(1.0, value + step / 2)
    low, _ = wilson(lowest, _error(lowest, groups), groups, groups)
    _, high = wilson(highest, _error(highest, groups), groups, groups)
    return math.floor(low * 1e6) / 1e6, math.ceil(high * 1e6) / 1e6


def _error(share: float, groups: int) -> float:
    """Where each group is one draw."""
    return math.sqrt(share * (1 - share) / (groups - 1))
