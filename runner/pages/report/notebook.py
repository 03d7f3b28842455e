"""Renders a run and a game as HTML for notebooks, without a script, a style sheet or links.

Styles are attributes of the elements, so that they do not change the notebook's own style. Colors come from the
notebook, so that its dark theme applies, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.pages.charts.labels import format_count, format_dollars, format_interval
from runner.pages.html import render_template
from runner.results.manifest import Manifest
from runner.results.metric_definitions import Show, metrics_shown
from runner.rollouts.transcript import RolloutTranscript, describe_confidence, describe_variant

_RESULTS = {True: "✓ right", False: "✗ wrong", None: "decided"}


@dataclass(frozen=True)
class RunSummary:
    """The content of `notebook/run.html`."""

    manifest: Manifest
    facts: Sequence[str]
    measured: Sequence[tuple[str, str, str]]
    """The name, the value with its interval, and n of each metric."""


@dataclass(frozen=True)
class GameTranscript:
    """The content of `notebook/game.html`."""

    game: RolloutTranscript
    facts: Sequence[str]
    ending: Sequence[str]


def run_html(manifest: Manifest, metrics: Mapping[str, Any]) -> Markup:
    """Render the facts of a run, its main metrics with their intervals, and its agents."""
    facts = [manifest.status.value, manifest.protocol, f"seed {manifest.seed}"]
    if manifest.rollouts is not None:
        lost = f" ({format_count(manifest.transport_failed)} lost)" if manifest.transport_failed else ""
        facts.append(f"{format_count(manifest.rollouts)} games{lost}")
    if manifest.completions is not None:
        cost = "cost not known" if manifest.cost_usd is None else format_dollars(manifest.cost_usd)
        facts += [f"{format_count(manifest.completions)} calls", cost]
    of_game = {row["metric"]: row for row in metrics.get("metrics", ()) if row["agent"] is None}
    rows = [(name, of_game[name]) for name in metrics_shown(Show.SUMMARY) if name in of_game]
    rows = [(name, row) for name, row in rows if row["value"] is not None]
    rows += [(f"before iteration {test['iteration']}", test["accuracy"]) for test in metrics.get("tests", ())]
    measured = [
        (name, format_interval(row["value"], row["ci_low"], row["ci_high"]), f"n {format_count(row['n'])}")
        for name, row in rows
    ]
    return render_template("notebook/run.html", RunSummary(manifest, facts, measured))


def transcript_html(game: RolloutTranscript) -> Markup:
    """Render a game's messages, with agent, round and channel, and its result."""
    facts = [game.run_id, game.rollout_id, f"right: {game.right_verdict}", *describe_variant(game)]
    verdict = "no verdict" if game.verdict is None else f"verdict: {game.verdict}"
    result = game.outcome if game.verdict is None else _RESULTS[game.correct]
    confidence = describe_confidence(game.confidence_stated, game.confidence_logprob, game.confidence_note)
    rewards = (f"{name} {value:g}" for name, value in game.rewards.items())
    ending = [verdict, result, *([confidence] if confidence else []), *rewards]
    return render_template("notebook/game.html", GameTranscript(game, facts, ending))
