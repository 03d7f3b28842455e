"""The page of one run: what was played, what it came to, and all of its games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.pages.games import ROWS, by_column, games_of, pieces
from runner.pages.packing import packed
from runner.pages.page import page
from runner.protocols.protocol import Protocol, stance_word
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.runs.reconstruct import saved_plan
from runner.storage.atomic import read_json

FIRST = 100
"""So many games stand in the page for a browser without JavaScript."""


def run_page(folder: RunFolder) -> str:
    """A run as one page that needs nothing else.

    Raises:
        RunError, JournalError, SpecError: a file of the run is gone or damaged.
    """
    manifest = folder.manifest()
    metrics = read_json(folder.metrics) if folder.metrics.is_file() else None
    data: dict[str, bytes] = {}
    rows: list[dict[str, Any]] = []
    firsts: list[int] = []
    if folder.journal.is_file():
        for piece, its_rows in pieces(games_of(folder)):
            data[f"games-{len(firsts)}"] = packed(piece.to_json())
            firsts.append(piece.first)
            rows.extend(its_rows)
    lists = range(0, len(rows), ROWS)
    for number, first in enumerate(lists):
        some = rows[first : first + ROWS]
        data[f"list-{number}"] = packed({"first": first, "count": len(some), "columns": by_column(some)})
    about = {
        **_about(manifest, saved_plan(folder).spec.protocol),
        "count": len(rows),
        "lists": list(lists),
        "pieces": firsts,
    }
    return page("run.html", f"{manifest.run_id} · nip-run", _facts(manifest, metrics, rows), about=about, data=data)


def _about(manifest: Manifest, protocol: Protocol) -> dict[str, Any]:
    names = protocol.agent_names
    members = {
        channel: [name for name in names if channel in protocol.visible_channels(name)]
        for channel in protocol.channel_names
    }
    return {
        "run_id": manifest.run_id,
        "agents": [
            {
                "name": name,
                "verifier": name == protocol.verifier_name,
                "channels": list(protocol.visible_channels(name)),
            }
            for name in names
        ],
        "channels": [
            {"name": channel, "members": heard, "private": len(heard) < len(names)}
            for channel, heard in members.items()
        ],
    }


def _facts(manifest: Manifest, metrics: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    hashes = ("identity", "game_sha256", "spec_sha256", "protocol_sha256", "dataset_sha256")
    return {
        "run": manifest,
        "headline": _headline(manifest, metrics),
        "metrics": [] if metrics is None else [_metric(row) for row in metrics["metrics"]],
        "outcomes": [] if metrics is None else list(metrics["outcomes"].items()),
        "agents": manifest.agents,
        "commands": [f"nip-run show {manifest.run_id}", f"nip-run results/runs/{manifest.run_id}"],
        "hashes": [(name, getattr(manifest, name)) for name in hashes],
        "first": [_first(row) for row in rows[:FIRST]],
    }


def _headline(manifest: Manifest, metrics: Mapping[str, Any] | None) -> list[tuple[str, str, str]]:
    found = {row["metric"]: row for row in (metrics or {"metrics": ()})["metrics"] if row["agent"] is None}
    shown = []
    if (accuracy := found.get("accuracy")) is not None and accuracy["value"] is not None:
        shown.append(("Accuracy", f"{accuracy['value']:.3f}", _interval(accuracy)))
    if manifest.rollouts is not None:
        shown.append(("Games", f"{manifest.rollouts:,}", ""))
    if manifest.completions is not None:
        cost = "cost not known" if manifest.cost_usd is None else f"${manifest.cost_usd:,.2f}"
        shown.append(("Calls", f"{manifest.completions:,}", cost))
    return shown


def _interval(row: Mapping[str, Any]) -> str:
    ends = [None if row[end] is None else f"{row[end]:.3f}" for end in ("ci_low", "ci_high")]
    return "" if ends == [None, None] else f"{ends[0] or '-∞'} to {ends[1] or '∞'}"


def _metric(row: Mapping[str, Any]) -> dict[str, Any]:
    value = "–" if row["value"] is None else f"{row['value']:.3f}"
    shown = {"of": row["agent"] or "game", "metric": row["metric"], "value": value, "interval": _interval(row)}
    return {**shown, "n": row["n"], "clusters": row["clusters"]}


def _first(row: Mapping[str, Any]) -> dict[str, Any]:
    decision = row["decision"]
    result = row["outcome"] if decision is None else "right" if row["correct"] else "wrong"
    verdict = "none" if decision is None else stance_word(decision)
    return {**row, "label": stance_word(row["label"]), "verdict": verdict, "result": result}
