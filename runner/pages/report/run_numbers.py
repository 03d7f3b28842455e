"""What a run came to, as the tables of its page: metrics, verdicts beside labels, rounds, and what each agent took."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.game.protocols.protocol import Decision, label_word, stance_word
from runner.pages.numbers import MISSING, count, decimal, dollars, interval, percent, took
from runner.pages.report.run_totals import VERDICTS, AgentTally, RunTally
from runner.results.manifest import Manifest
from runner.results.metric_rows import extra_lines, is_aside, reasons, shown_name, told_metrics
from runner.results.metric_table import ACCURACY, BALANCED_ACCURACY, METRICS
from runner.rollouts.rollout import Outcome
from runner.runs.finished.rollout_details import verdict_word

LABELS = (1, 0)

Headline = tuple[str, ...]
"""A title, a number, and what is to be known of it."""


def headline(
    manifest: Manifest, metrics: Mapping[str, Any] | None, games: Headline, so_far: Headline | None
) -> list[Headline]:
    """The few numbers that come first: `games` of `games_number`; `so_far`, what games took where the run is silent."""
    found = {row["metric"]: row for row in (metrics or {"metrics": ()})["metrics"] if row["agent"] is None}
    shown: list[Headline] = []
    for name, title in ((ACCURACY, "Accuracy"), (BALANCED_ACCURACY, "Balanced accuracy")):
        row = found.get(name)
        if row is not None and row["value"] is not None:
            between = interval(row)
            shown.append((title, decimal(row["value"]), f"95 %: {between}" if between else row.get("reason") or ""))
    shown.append(games)
    if manifest.completions is not None:
        what = "answers of another run" if manifest.is_whole_replay else "calls"
        shown.append(("Cost", dollars(manifest.own_cost_usd), f"{count(manifest.completions)} {what}"))
    elif so_far is not None:
        shown.append(so_far)
    if lasted := took(manifest.started_at, manifest.finished_at):
        shown.append(("Time", lasted, ""))
    return shown


def games_number(
    manifest: Manifest, metrics: Mapping[str, Any] | None, here: int, *, is_part: bool, is_lost: bool
) -> Headline:
    """How many games the run has, of which so many are `here`; its own count where they cannot be read, or not yet."""
    said = manifest.rollouts
    if is_lost:
        known = None if said is None else count(said)
        return "Games", known or "not known", "none of them can be read"
    if is_part and said is not None:
        return "Games", count(said), f"{count(here)} read so far"
    return "Games", count(here), _decided(metrics)


def _decided(metrics: Mapping[str, Any] | None) -> str:
    outcomes = (metrics or {}).get("outcomes")
    return f"{count(outcomes.get(Outcome.DECIDED, 0))} decided" if outcomes else ""


def calls_so_far(tally: RunTally) -> Headline | None:
    """What finished games took."""
    if not tally.games:
        return None
    usd = [one.usd for one in tally.agents]
    known = None if None in usd else sum(one for one in usd if one is not None)
    return "Cost so far", dollars(known), f"{count(sum(one.calls for one in tally.agents))} calls of finished games"


def metrics_table(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """All metrics that say something: the ones that are asked about first, then the others."""
    rows = [row for row in told_metrics(metrics) if row["n"]]
    return {
        "rows": [_metric(row) for row in rows if not is_aside(row["metric"])],
        "aside": [_metric(row) for row in rows if is_aside(row["metric"])],
        "reasons": [*reasons(metrics), *extra_lines(metrics)],
        "how": str(metrics.get("interval", "")),
    }


def _metric(row: Mapping[str, Any]) -> dict[str, Any]:
    metric = METRICS.get(row["metric"])
    drawn = metric is not None and (metric.low, metric.high) == (0.0, 1.0) and row["value"] is not None
    return {
        "of": row["agent"] or "game",
        "name": shown_name(row["metric"], row.get("plays")),
        "value": decimal(row["value"]),
        "interval": interval(row),
        "drawn": _drawn(row) if drawn else None,
        "n": count(row["n"]),
        "clusters": count(row["clusters"]),
    }


def _drawn(row: Mapping[str, Any]) -> dict[str, float]:
    """Where an interval and its value stand between 0 and 100."""
    low, high = (row["value"] if row[end] is None else row[end] for end in ("ci_low", "ci_high"))
    ends = {"low": low, "value": row["value"], "high": high}
    return {name: round(100 * min(max(one, 0.0), 1.0), 1) for name, one in ends.items()}


def outcomes_table(tally: RunTally) -> list[dict[str, Any]]:
    """How games ended, a row for each way that one did, by what the solution is."""
    rows = []
    for outcome in Outcome:
        by_label = [tally.outcomes[str(outcome), label] for label in LABELS]
        total = sum(by_label) + tally.outcomes[str(outcome), None]
        if total:
            rows.append(
                {
                    "name": str(outcome).replace("_", " "),
                    "counts": [count(one) for one in by_label],
                    "total": count(total),
                    "share": percent(total, tally.games),
                    "part": round(100 * total / tally.games, 1),
                }
            )
    return rows


def confusion_table(tally: RunTally) -> list[dict[str, Any]]:
    """Verdicts beside labels: a row for each label, with the share of its games that got each verdict."""
    rows = []
    unlabelled = any(label is None for label, _ in tally.confusion)
    for label in (None,) if unlabelled else LABELS:
        cells = [tally.confusion[label, int(verdict)] for verdict in VERDICTS[1::-1] + VERDICTS[2:]]
        kinds = ("right" if label else "wrong", "wrong" if label else "right", "none")
        kinds = ("none", "none", "none") if label is None else kinds
        rows.append(
            {
                "label": "not known" if label is None else f"{stance_word(label)}ed",
                "cells": [
                    {"count": count(one), "share": percent(one, sum(cells)), "kind": kind}
                    for one, kind in zip(cells, kinds, strict=True)
                ],
                "total": count(sum(cells)),
            }
        )
    return rows


def rounds_table(tally: RunTally) -> list[dict[str, Any]]:
    """After how many rounds games ended: with which verdict, and the share of all that had ended by then."""
    rows, so_far = [], 0
    for number in sorted({rounds for rounds, _ in tally.rounds}):
        by_verdict = {int(verdict): tally.rounds[number, int(verdict)] for verdict in VERDICTS}
        so_far += sum(by_verdict.values())
        rows.append(
            {
                "rounds": count(number),
                "accepted": count(by_verdict[Decision.ACCEPT]),
                "rejected": count(by_verdict[Decision.REJECT]),
                "none": count(by_verdict[Decision.NONE]),
                "by_then": percent(so_far, tally.games),
                "part": round(100 * so_far / tally.games, 1),
            }
        )
    return rows


def agents_table(tally: RunTally) -> list[dict[str, Any]]:
    """What each seat's calls took, and all together."""
    rows = [_agent(one) for one in tally.agents]
    everyone = AgentTally("all")
    for one in tally.agents:
        for name in ("calls", "repeats", "failed", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds"):
            setattr(everyone, name, getattr(everyone, name) + getattr(one, name))
        everyone.usd = None if everyone.usd is None or one.usd is None else everyone.usd + one.usd
    return [*rows, {**_agent(everyone), "all": True}] if len(rows) > 1 else rows


def _agent(one: AgentTally) -> dict[str, Any]:
    return {
        "agent": one.agent,
        **{
            name: count(getattr(one, name))
            for name in ("calls", "repeats", "failed", "prompt_tokens", "completion_tokens", "cached_tokens")
        },
        "cost": dollars(one.usd),
        "seconds": f"{one.seconds / one.calls:.1f}" if one.calls else MISSING,
        "all": False,
    }


def reliability(metrics: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each kind of confidence with its bins: what was said of P(accept), and how many of those solutions are right."""
    curves: Mapping[str, Sequence[Mapping[str, Any]]] = metrics.get("reliability_curves") or {}
    titles = {"stated": "as the verifier stated it", "logprob": "by log-probabilities"}
    return [
        {"kind": kind, "title": titles.get(kind, kind), "bins": bins, "rows": [_bin(one) for one in bins]}
        for kind, bins in curves.items()
    ]


def _bin(one: Mapping[str, Any]) -> dict[str, str]:
    return {
        "from": f"{one['low']:.1f} to {one['high']:.1f}",
        "n": count(one["n"]),
        "confidence": decimal(one["confidence"]),
        "right": decimal(one["right"]),
        "interval": interval(one),
    }


def first_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A game's row of the list that stands in the page itself."""
    decision = row["decision"]
    judged = {True: "right", False: "wrong", None: "decided"}[row["correct"]]
    result = row["outcome"].replace("_", " ") if decision is None else judged
    verdict = verdict_word(int(Decision.NONE) if decision is None else decision)
    kind = "none" if decision is None or row["correct"] is None else result
    return {**row, "label": label_word(row["label"]), "verdict": verdict, "result": result, "kind": kind}
