"""A run and a game as a notebook shows them: HTML without a script, a style sheet or a link, complete in itself.

Styles stand in the elements, so that nothing of a notebook's own is touched; colours are those of the notebook, so that
its dark scheme is ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from runner.game.protocols.protocol import label_word, stance_word
from runner.pages.charts.labels import counted, money, told_between
from runner.pages.html import shown
from runner.results.manifest import Manifest
from runner.results.metric_table import Show, metrics_shown
from runner.rollouts.transcript import RolloutTranscript, confidence_words, variant_words

_LINE = "1px solid rgba(128,128,128,.35)"
_BOX = Markup("font-family:system-ui,sans-serif;font-size:14px;line-height:1.5;color:inherit;max-width:60rem")
_CELL = Markup("text-align:left;padding:2px 14px 2px 0;border:0;background:none;color:inherit;vertical-align:baseline")
_SOFT = Markup("opacity:.75")
_TEXT = Markup("white-space:pre-wrap;overflow-wrap:anywhere;margin:0 0 10px;padding:0;color:inherit;text-align:left")
_SAID = Markup("border-left:{};padding-left:14px;margin:10px 0").format(_LINE)
_RESULTS = {True: "✓ right", False: "✗ wrong", None: "decided"}


def run_html(manifest: Manifest, metrics: Mapping[str, Any]) -> Markup:
    """What a run is and came to: its facts, its shares with their intervals, who played."""
    facts = [manifest.status.value, manifest.protocol, f"seed {manifest.seed}"]
    if manifest.rollouts is not None:
        facts.append(f"{counted(manifest.rollouts)} games")
    if manifest.completions is not None:
        cost = "cost not known" if manifest.cost_usd is None else money(manifest.cost_usd)
        facts += [f"{counted(manifest.completions)} calls", cost]
    rows: Sequence[Mapping[str, Any]] = metrics.get("metrics", ())
    of_game = {row["metric"]: row for row in rows if row["agent"] is None}
    measured = [
        (name, told_between(row["value"], row["ci_low"], row["ci_high"]), f"n {counted(row['n'])}")
        for name in metrics_shown(Show.SUMMARY)
        if (row := of_game.get(name)) is not None and row["value"] is not None
    ]
    measured += [
        (
            f"before iteration {test['iteration']}",
            told_between(one["value"], one["ci_low"], one["ci_high"]),
            f"n {one['n']}",
        )
        for test in metrics.get("tests", ())
        for one in (test["accuracy"],)
    ]
    agents = [(agent["agent"], agent["model"] or "", agent["provider"]) for agent in manifest.agents]
    why = Markup("<p>{}</p>").format(shown(manifest.why_stopped)) if manifest.why_stopped else Markup("")
    return Markup('<div style="{}"><p><strong>{}</strong> <span style="{}">{}</span></p>{}{}{}</div>').format(
        _BOX, shown(manifest.run_id), _SOFT, shown(" · ".join(facts)), why,
        _table(("", "95 % interval", ""), measured), _table(("agent", "model", "provider"), agents),
    )  # fmt: skip


def transcript_html(game: RolloutTranscript) -> Markup:
    """A game as a conversation: rounds, who said what in which channel, and how it ended."""
    facts = [f"right: {label_word(game.label)}", *variant_words(game)]
    verdict = "no verdict" if game.decision is None else f"verdict: {stance_word(game.decision)}"
    result = game.outcome if game.decision is None else _RESULTS[game.correct]
    said = Markup("").join(
        Markup('<p style="{}"><strong>{}</strong> <span style="{}">{}</span></p><div style="{}">{}</div>').format(
            Markup("margin:0"),
            shown(one.agent),
            _SOFT,
            shown(f"round {one.round}, {one.channel}"),
            _TEXT,
            shown(one.text),
        )
        for one in game.messages
    )
    sure = confidence_words(game.confidence_stated, game.confidence_logprob, game.confidence_note)
    end = [verdict, result, *([sure] if sure else []), *(f"{name} {value:g}" for name, value in game.rewards.items())]
    error = Markup('<div style="{}">{}</div>').format(_TEXT, shown(game.error)) if game.error else Markup("")
    columns = Markup("").join(
        Markup('<details><summary>{}</summary><div style="{}">{}</div></details>').format(
            shown(str(name)), _TEXT, shown(str(value))
        )
        for name, value in game.columns.items()
    )
    head = Markup('<p><strong>{}</strong> <span style="{}">{}</span></p>').format(
        shown(game.datapoint_id), _SOFT, shown(" · ".join([game.run_id, game.rollout_id, *facts]))
    )
    return Markup('<div style="{}">{}{}<div style="{}">{}</div><p>{}</p>{}</div>').format(
        _BOX, head, columns, _SAID, said, shown(" · ".join(end)), error
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_cell("td", value) for value in row)) for row in rows
    )
    names = Markup("").join(_cell("th", name) for name in head)
    return Markup('<table style="{}"><thead><tr>{}</tr></thead><tbody>{}</tbody></table>').format(
        Markup("border-collapse:collapse;margin:6px 0;color:inherit;font-variant-numeric:tabular-nums"), names, body
    ) if body else Markup("")  # fmt: skip


def _cell(kind: str, value: str) -> Markup:
    return Markup('<{} style="{}">{}</{}>').format(kind, _CELL, shown(value), kind)
