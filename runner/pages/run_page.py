"""The pages of runs: what was played, what it came to, and all of its games."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.pages.games import FORMAT, GamesData, games_of, row_of
from runner.pages.packing import packed
from runner.pages.page import rendered
from runner.pages.site import Keep, Section, Site
from runner.protocols.protocol import Protocol, stance_word
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.results.notes import Notes
from runner.runs.reconstruct import saved_plan
from runner.storage.atomic import read_json

FIRST = 100
"""So many games stand in the page for a browser without JavaScript."""


@dataclass(frozen=True)
class Gathered:
    """The games of a run that its page has."""

    about: Mapping[str, Any]
    """How many there are and where they stand: see `GamesData.about`."""
    first: Sequence[Mapping[str, Any]]
    """The rows of the first of them."""


Gather = Callable[[RunFolder, str], Gathered]
"""Finds the games of a run, whose pieces have this slug in their names."""


def runs_site(folders: Sequence[RunFolder], keep: Keep, gather: Gather | None = None) -> Site:
    """Runs as a site; their games are kept as they come, or are those that `gather` finds.

    Raises:
        RunError, JournalError, SpecError: a file of a run is gone or damaged.
    """
    sections, about, links = [], [], []
    for place, folder in enumerate(folders):
        slug = f"r{place}"
        games = gathered(folder, slug, keep) if gather is None else gather(folder, slug)
        section, facts = _run(folder, slug, games)
        sections.append(section)
        about.append(facts)
        links.append((section.route, "Summary" if len(folders) == 1 else folder.run_id))
        links.append((f"{section.route}/games", "Games"))
    title = " · ".join(folder.run_id for folder in folders)
    return Site(title, links, sections, {"format": FORMAT, "runs": about, "live": False, "notes": None})


def gathered(folder: RunFolder, slug: str, keep: Keep) -> Gathered:
    """All finished games of a run, and the notes of it, kept as they come. Raises as `runs_site`."""
    games = GamesData(slug, keep)
    first: list[dict[str, Any]] = []
    if folder.journal.is_file():
        for game in games_of(folder):
            row = row_of(game)
            games.add(game, row)
            if len(first) < FIRST:
                first.append(row)
    notes = Notes(folder).all()
    if notes:
        keep(notes_name(slug), packed([note.to_json() for note in notes]))
    return Gathered({**games.about(), "notes": len(notes)}, first)


def notes_name(slug: str) -> str:
    """The name of the piece that has the notes of a run."""
    return f"{slug}-notes"


def _run(folder: RunFolder, slug: str, games: Gathered) -> tuple[Section, dict[str, Any]]:
    manifest = folder.manifest()
    metrics = read_json(folder.metrics) if folder.metrics.is_file() else None
    about = {"slug": slug, **_about(manifest, saved_plan(folder).spec.protocol), **games.about}
    facts = {**_facts(manifest, metrics, games.first), "count": games.about["count"]}
    return Section(f"run/{manifest.run_id}", rendered("run.html", facts)), about


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
        "first": [_first(row) for row in rows],
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
