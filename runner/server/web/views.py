"""The contents of the templates of the server's pages, and functions that format numbers, links and commands for them.

The modules in `web/pages/` use this module. Methods named `from_row`, `from_task` and `from_facts` read the JSON that
`runner.server.boards.builder` wrote: the row of a run on a board, the summary of a board, and the facts about a
release.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import quote

from markupsafe import Markup

from runner.base import text
from runner.base.text import dollars
from runner.documents.releases.reference import Kind, Reference
from runner.pages.boards.page import accuracy_bar, format_outcomes
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.lineage import GraphLink, GraphNode, lineage
from runner.pages.charts.styles import ChartFrame

MAX_DESCRIPTION = 160
"""Maximum characters of a description in a list; the release's own page shows the full text."""
MAX_LINEAGE_NODES = 40
"""Maximum runs in the drawing of a lineage; the table below the drawing shows all runs."""

Command = tuple[str, str]
"""A description of a shell command, and the command."""


def href_of(reference: str) -> str:
    """Return the path of a release's page. Each run has its own page; all releases of a component share one."""
    kind, _, rest = reference.partition("/")
    name, _, version = rest.partition("@")
    path = f"/{kind}/{quote(name)}"
    return f"{path}/{quote(version, safe='')}" if kind == Kind.RUN else path


def private_href(reference: Reference) -> str:
    """Return the path of a private run's page or, for a component, of the list of private releases."""
    return f"/mine{href_of(str(reference))}" if reference.kind == Kind.RUN else "/mine"


def label_of(reference: str) -> str:
    """Return the name that pages show for a release."""
    return reference.partition("/")[2]


def format_day(timestamp: float) -> str:
    """Return the date, in UTC, of a time in seconds since 1970."""
    return datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d")


def format_decimal(value: Any) -> str:
    """Return a number as tables show it, or a dash for anything else."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return text.decimal(value) if is_number else "–"


def format_interval(facts: Mapping[str, Any]) -> str:
    """Return a confidence interval as tables show it; "" if there is none."""
    ends = [facts.get(end) for end in ("ci_low", "ci_high")]
    low, high = (end if format_decimal(end) != "–" else None for end in ends)
    return "–".join(text.interval_ends(low, high) or ())


def format_rank(row: Mapping[str, object]) -> str:
    """Return a row's rank or range of ranks, or a dash if it is unranked."""
    first, last = row["rank"], row["rank_last"]
    return "–" if first is None else f"{first:,}" if first == last else f"{first:,}–{last:,}"


@dataclass(frozen=True, kw_only=True)
class BoardTableRow:
    """The cells of a run's row on a board."""

    rank: str
    href: str
    run: str
    point: str
    accuracy: str
    interval: str
    bar: Markup
    n: str
    clusters: str
    repeats: int | str
    tier: str
    protocol: str
    models: str
    outcomes: str
    cost: str
    trained_on: str
    finished: str
    owner_runs: str
    marks: Sequence[str]

    @classmethod
    def from_row(cls, row: Mapping[str, Any], domain: Sequence[float] | None) -> Self:
        return cls(
            rank=format_rank(row), href=row["href"], run=row["run"], point=row["short_point"] or "",
            accuracy=format_decimal(row["accuracy"]), interval=format_interval(row), bar=accuracy_bar(row, domain),
            n="–" if row["n"] is None else f"{row['n']:,}",
            clusters=f"{row['clusters']:,}" if row["clusters"] else "",
            repeats=row["per_datapoint"] if (row["per_datapoint"] or 1) != 1 else "",
            tier=row["tier_words"], protocol=row["protocol"], models=row["models"] or "–",
            outcomes=format_outcomes(row["outcomes"]), cost=dollars(row["cost_usd"]),
            trained_on=row["trained_on"] or "–", finished=(row["finished_at"] or "–")[:10],
            owner_runs=f"{row['owner_runs']:,}", marks=row["marks"],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class TaskLine:
    """The line of a board on the server's first page."""

    page: str
    benchmark: str
    task: str
    selection: str
    runs: str
    owners: str
    leader: str | None
    """The run that is ranked first; None if no run is ranked."""
    leader_href: str
    ties: str
    accuracy: str
    interval: str
    newest: str

    @classmethod
    def from_task(cls, task: Mapping[str, Any]) -> Self:
        leader = task["leader"]
        ties = 0 if leader is None else leader["rank_last"] - leader["rank"]
        return cls(
            page=task["page"], benchmark=task["benchmark"], task=(task["task"] or "unknown")[:8],
            selection=task["selection"] or "all rows", runs=f"{task['rows']:,}", owners=f"{task['owners']:,}",
            leader=leader and leader["run"], leader_href=leader["href"] if leader else "",
            ties=f"tied with {ties:,} more" if ties else "",
            accuracy="–" if leader is None else format_decimal(leader["accuracy"]),
            interval="" if leader is None else format_interval(leader), newest=task["newest"][:10],
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ReleaseLine:
    """A release in a list."""

    href: str
    label: str
    owner: str
    kind: str
    """The kind of the release and, for a run, its benchmark."""
    accuracy: str
    published: str
    tier: str
    yanked: str | None
    description: str
    uses: str
    """On the page of a component: the version of the component that this release uses."""

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], href: str | None = None, uses: str = "") -> Self:
        accuracy = facts.get("accuracy")
        details = [facts["kind"] if facts["kind"] != Kind.RUN else facts.get("what") or "run", facts.get("benchmark")]
        return cls(
            href=href or href_of(facts["reference"]), label=label_of(facts["reference"]), owner=facts["owner"],
            kind=", ".join(str(detail) for detail in details if detail),
            accuracy=format_decimal(accuracy.get("value")) if isinstance(accuracy, dict) else "–",
            published=format_day(facts["created"]), tier=facts.get("tier_words") or "–", yanked=facts["yanked"],
            description=_shorten(facts["description"]), uses=uses,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class VersionLine:
    """A release in the list of all versions of its name."""

    version: str
    published: str
    used: str
    license: str | None
    signed: bool
    sha256: str
    yanked: str | None
    description: str
    href: str | None

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], used: Mapping[str, int]) -> Self:
        return cls(
            version=facts["version"], published=format_day(facts["created"]), used=f"{used.get(facts['version'], 0):,}",
            license=facts["licence"], signed=facts["signed"], sha256=facts["sha256"], yanked=facts["yanked"],
            description=_shorten(facts["description"]),
            href=href_of(facts["reference"]) if facts["kind"] == Kind.RUN else None,
        )  # fmt: skip


def _shorten(description: str) -> str:
    is_short = len(description) <= MAX_DESCRIPTION
    return description if is_short else f"{description[:MAX_DESCRIPTION].rstrip()}…"


def commands_of(reference: str, kind: str, address: str, *, trains: bool = False) -> list[Command]:
    """Return the commands that download, check and reproduce a release.

    `trains` means that the release is a training run, which cannot be played again.
    """

    def command_line(*args: str) -> str:
        return shlex.join(["nip-run", *args, "--from", address])

    if kind != Kind.RUN:
        return [
            ("Install this release for specs that use it", command_line("install", reference)),
            ("Check all hashes of this release", command_line("verify", reference)),
        ]
    play_again = ("Play the run again with your API key, and compare", command_line("reproduce", reference, "--fresh"))
    return [
        ("Download the run as a folder and check every file", command_line("get", reference)),
        ("Recompute every number from the transcripts, without calling a model", command_line("reproduce", reference)),
        *(() if trains else (play_again,)),
        ("Check all hashes and records of this run", command_line("verify", reference)),
    ]


def home_commands(address: str) -> list[Command]:
    """Return the commands of the first page."""
    url = shlex.quote(address)
    return [
        ("Publish a run", f"nip-run publish RUN --as OWNER --license MIT --to {url}"),
        ("Download a run with all releases that it uses", f"nip-run get OWNER/NAME@VERSION --from {url}"),
        ("Show the boards in a terminal", f"nip-run leaderboard --from {url}"),
    ]


def board_commands(address: str) -> list[Command]:
    """Return the commands of a board's page."""
    url = shlex.quote(address)
    return [
        ("Show these rows as JSON", f"nip-run leaderboard --from {url} --json"),
        ("Download a run as a folder and check every file", f"nip-run get REF --from {url}"),
        ("Recompute a run's numbers from its transcripts", f"nip-run reproduce REF --from {url}"),
    ]


# Lineage


@dataclass(frozen=True, kw_only=True)
class FamilyLine:
    """A row in the table of a run's lineage (training history): a run or a model."""

    href: str | None
    label: str
    kind: str
    sources: str
    outputs: str
    accuracy: str
    rollouts: str
    cost: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        published, effort = row["published"], row["cumulative"]
        at_least = "at least " if "rollouts" in effort["at_least"] else ""
        return cls(
            href=href_of(published[0]) if published else None,
            label=label_of(published[0]) if published else row["run_id"],
            kind=row["kind"], sources=", ".join(map(str, row["from"])), outputs=", ".join(map(str, row["to"])),
            accuracy=format_decimal(_accuracy(row).get("value")), rollouts=f"{at_least}{effort['rollouts'] or 0:,}",
            cost=dollars(effort["cost_usd"]),
        )  # fmt: skip


def draw_lineage(family: Sequence[Mapping[str, Any]], key: str) -> Markup:
    """Draw the graph of runs and the runs that they were trained from. `key` makes the ids in the SVG image unique."""
    rows = family[:MAX_LINEAGE_NODES]
    nodes = [GraphNode(row["run_id"], row["run_id"], _node_text(row)) for row in rows]
    links = [GraphLink(earlier_id, row["run_id"]) for row in rows for earlier_id in row["after"]]
    return lineage(nodes, links, ChartFrame("Runs and the runs that they were trained from", key=f"lineage-{key}"))


def _node_text(row: Mapping[str, Any]) -> str:
    value = _accuracy(row).get("value")
    return row["kind"] if value is None else f"{row['kind']} {format_decimal(value)}"


def _accuracy(row: Mapping[str, object]) -> Mapping[str, object]:
    accuracy = row.get("accuracy")
    return accuracy if isinstance(accuracy, dict) else {}


def draw_learning_curve(family: Sequence[Mapping[str, Any]], key: str) -> Markup | None:
    """Draw each benchmark's accuracy after each number of training iterations.

    Return None if no benchmark has runs at two or more numbers of iterations. `key` makes the ids in the image unique.
    """
    points: dict[str, list[tuple[float, ChartEstimate]]] = {}
    for row in family:
        accuracy = _accuracy(row)
        if row["kind"] == "benchmark" and format_decimal(accuracy.get("value")) != "–":
            estimate = ChartEstimate.of(row["run_id"], accuracy)
            points.setdefault(str(row["benchmark"]), []).append((float(row["cumulative"]["iterations"]), estimate))
    series = [
        Series(name, sorted(estimates, key=lambda point: point[0]))
        for name, estimates in points.items()
        if len({iterations for iterations, _ in estimates}) > 1
    ]
    if not series:
        return None
    return curve(series, ChartFrame("Accuracy by training iterations", key=f"curve-{key}"), x="iterations")
