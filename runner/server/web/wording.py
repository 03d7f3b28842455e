"""What pages say of rows, releases and lineages, in words; what a board has of them are numbers and texts."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from markupsafe import Markup

from runner.base import text
from runner.base.text import dollars
from runner.documents.releases.reference import Kind
from runner.pages.boards.page import bar, outcomes_in_words
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.lineage import GraphLink, GraphNode, lineage

MOST_SAID = 160
"""Characters of a description in a list; the release's own page has all of it."""
MOST_DRAWN = 40
"""Runs of a lineage; the table below the drawing has all."""


def href_of(reference: str) -> str:
    """The page of a release: of a run its own, of a component that of all its releases."""
    kind, _, rest = reference.partition("/")
    name, _, version = rest.partition("@")
    at = f"/{kind}/{quote(name)}"
    return f"{at}/{quote(version, safe='')}" if kind == Kind.RUN else at


def label_of(reference: str) -> str:
    return reference.partition("/")[2]


def day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def decimal(value: Any) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return text.decimal(value) if is_number else "–"


def interval(said: Mapping[str, Any]) -> str:
    ends = [said.get(end) for end in ("ci_low", "ci_high")]
    low, high = (end if decimal(end) != "–" else None for end in ends)
    return "–".join(text.interval_ends(low, high) or ())


def rank(row: Mapping[str, Any]) -> str:
    first, last = row["rank"], row["rank_last"]
    return "–" if first is None else f"{first:,}" if first == last else f"{first:,}–{last:,}"


def board_line(row: Mapping[str, Any], domain: Sequence[float] | None) -> dict[str, Any]:
    """A row's cells."""
    return {
        "rank": rank(row), "href": row["href"], "run": row["run"], "point": row["short_point"] or "",
        "accuracy": decimal(row["accuracy"]), "interval": interval(row), "bar": bar(row, domain),
        "n": "–" if row["n"] is None else f"{row['n']:,}",
        "clusters": f"{row['clusters']:,}" if row["clusters"] else "",
        "repeats": row["per_datapoint"] if (row["per_datapoint"] or 1) != 1 else "",
        "tier": row["tier_words"], "protocol": row["protocol"], "models": row["models"] or "–",
        "outcomes": outcomes_in_words(row["outcomes"]), "cost": dollars(row["cost_usd"]),
        "trained_on": row["trained_on"] or "–", "finished": (row["finished_at"] or "–")[:10],
        "owner_runs": f"{row['owner_runs']:,}", "marks": row["marks"],
    }  # fmt: skip


def task_line(task: Mapping[str, Any]) -> dict[str, Any]:
    """A list as the first page has it."""
    leader = task["leader"]
    ties = 0 if leader is None else leader["rank_last"] - leader["rank"]
    return {
        "page": task["page"], "benchmark": task["benchmark"], "task": (task["task"] or "unknown")[:8],
        "selection": task["selection"] or "all of it", "runs": f"{task['rows']:,}", "owners": f"{task['owners']:,}",
        "leader": leader, "ties": f"tied with {ties:,} more" if ties else "",
        "accuracy": "–" if leader is None else decimal(leader["accuracy"]),
        "interval": "" if leader is None else interval(leader), "newest": task["newest"][:10],
    }  # fmt: skip


def release_line(said: Mapping[str, Any], href: str | None = None) -> dict[str, Any]:
    """A release in a list."""
    accuracy = said.get("accuracy")
    what = [said["kind"] if said["kind"] != Kind.RUN else said.get("what") or "run", said.get("benchmark")]
    return {
        "href": href or href_of(said["reference"]), "label": label_of(said["reference"]), "owner": said["owner"],
        "what": ", ".join(str(one) for one in what if one),
        "accuracy": decimal(accuracy.get("value")) if isinstance(accuracy, dict) else "–",
        "published": day(said["created"]), "tier": said.get("tier_words") or "–", "yanked": said["yanked"],
        "description": _begins(said["description"]),
    }  # fmt: skip


def version_line(said: Mapping[str, Any], used: Mapping[str, int]) -> dict[str, Any]:
    """One release of a name, where all of them are listed."""
    return {
        "version": said["version"], "published": day(said["created"]), "used": f"{used.get(said['version'], 0):,}",
        "licence": said["licence"], "signed": said["signed"], "sha256": said["sha256"], "yanked": said["yanked"],
        "description": _begins(said["description"]),
        "href": href_of(said["reference"]) if said["kind"] == Kind.RUN else None,
    }  # fmt: skip


def _begins(text: str) -> str:
    return text if len(text) <= MOST_SAID else f"{text[:MOST_SAID].rstrip()}…"


def commands_of(reference: str, kind: str, address: str, *, trains: bool = False) -> list[tuple[str, str]]:
    """Return the commands that get a release, and of a run make it again; `trains`: it is a training run."""

    def line(*words: str) -> str:
        return shlex.join(["nip-run", *words, "--from", address])

    if kind != Kind.RUN:
        return [
            ("Install it, for specs that name it", line("install", reference)),
            ("Check every hash of it", line("verify", reference)),
        ]
    return [
        ("Get all that it was made of as a folder, every file checked", line("get", reference)),
        ("Make every number again from its transcripts; nobody is called", line("reproduce", reference)),
        *(() if trains else (("Play it anew with your key, and compare", line("reproduce", reference, "--fresh")),)),
        ("Check every hash and record of it", line("verify", reference)),
    ]


def home_commands(address: str) -> list[tuple[str, str]]:
    at = shlex.quote(address)
    return [
        ("Publish a run", f"nip-run publish RUN --as OWNER --licence MIT --to {at}"),
        ("Get one, with all that it was made of", f"nip-run get OWNER/NAME@VERSION --from {at}"),
        ("The boards in a terminal", f"nip-run leaderboard --from {at}"),
    ]


def board_commands(address: str) -> list[tuple[str, str]]:
    at = shlex.quote(address)
    return [
        ("The same rows in a terminal, or for a machine", f"nip-run leaderboard --from {at} --json"),
        ("A release as a folder, every file checked", f"nip-run get REF --from {at}"),
        ("Its numbers again from its transcripts, or all of it played anew", f"nip-run reproduce REF --from {at}"),
    ]


# Lineage


def lineage_facts(family: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    """The drawing, the learning curve and the table of what was trained from what; of a run that stands alone none."""
    if len(family) < 2:
        return {"lineage": None, "curve": None, "family": []}
    drawn = family[:MOST_DRAWN]
    nodes = [GraphNode(row["run_id"], row["run_id"], _below(row)) for row in drawn]
    links = [GraphLink(before, row["run_id"]) for row in drawn for before in row["after"]]
    return {
        "lineage": lineage(nodes, links, title="What was trained from what", key=f"lineage-{key}"),
        "curve": _curve(family, key),
        "family": [_family_line(row) for row in family],
    }


def _below(row: Mapping[str, Any]) -> str:
    value = _accuracy(row).get("value")
    return row["kind"] if value is None else f"{row['kind']} {decimal(value)}"


def _accuracy(row: Mapping[str, Any]) -> Mapping[str, Any]:
    said = row.get("accuracy")
    return said if isinstance(said, dict) else {}


def _curve(family: Sequence[Mapping[str, Any]], key: str) -> Markup | None:
    """Accuracy by how many iterations of training are behind a run, a line for each benchmark."""
    points: dict[str, list[tuple[float, ChartEstimate]]] = {}
    for row in family:
        said = _accuracy(row)
        if row["kind"] == "benchmark" and decimal(said.get("value")) != "–":
            estimate = ChartEstimate.of(row["run_id"], said)
            points.setdefault(str(row["benchmark"]), []).append((float(row["cumulative"]["iterations"]), estimate))
    series = [
        Series(name, sorted(found, key=lambda one: one[0]))
        for name, found in points.items()
        if len({place for place, _ in found}) > 1
    ]
    if not series:
        return None
    return curve(series, title="Accuracy by iterations of training behind it", x="iterations", key=f"curve-{key}")


def _family_line(row: Mapping[str, Any]) -> dict[str, Any]:
    published, effort = row["published"], row["cumulative"]
    least = "at least " if "rollouts" in effort["at_least"] else ""
    return {
        "href": href_of(published[0]) if published else None,
        "label": label_of(published[0]) if published else row["run_id"],
        "kind": row["kind"], "from": ", ".join(map(str, row["from"])), "to": ", ".join(map(str, row["to"])),
        "accuracy": decimal(_accuracy(row).get("value")), "rollouts": f"{least}{effort['rollouts'] or 0:,}",
        "cost": dollars(effort["cost_usd"]),
    }  # fmt: skip
