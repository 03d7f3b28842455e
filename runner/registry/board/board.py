"""The leaderboard of a registry, called *board*: ranks the published runs of each task, and shows their training.

`nip-run leaderboard --from` and servers show boards. Two runs have the same task if they have the same datapoints,
labels and groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError, UsageError
from runner.base.storage.duckdb_connections import reuse_connections
from runner.base.text import comma_join, did_you_mean
from runner.documents.releases.manifest import MANIFEST, Release
from runner.documents.releases.reference import Kind, Reference
from runner.registry.board.cache import ROLLOUTS, BoardCache, CachedRun
from runner.registry.board.run_check import NOT_RECOMPUTED
from runner.registry.bundles.withheld_rows import MARK as WITHHELD
from runner.registry.lineage.descriptions import describe_marks, origin_to_json, total_to_json
from runner.registry.lineage.lineage import Lineage
from runner.registry.lineage.nodes import LineageNode
from runner.registry.lineage.relations import describe_relations, replayed_run
from runner.registry.release_errors import describe_error
from runner.registry.transports.registry import Registry, ReleaseEntry
from runner.results.leaderboard.database import Leaderboard
from runner.results.leaderboard.model import LeaderboardRow, rows_of_view
from runner.results.leaderboard.unranked import OTHER_TASK

DEFAULT_TIER = "self-reported"
"""The tier (level of verification) of a row if the registry states none. It does not prove that the run's games
were played: a board does not replay journals, and a publisher can invent records that agree with each other."""
RECOMPUTED, AS_PUBLISHED = "recomputed from its records", "as published"
"""Values of `PublishedRow.numbers`."""


@dataclass(slots=True, kw_only=True)
class PublishedRow(LeaderboardRow):
    """A run on the board of a registry, with its release and the training behind it."""

    release: str
    release_sha256: str
    owner: str
    signed: bool
    effort: Mapping[str, Any]
    """Games, tokens and cost of all training behind the run; see `total_to_json`."""
    trained_on: Mapping[str, Any] | None
    """How many of the run's datapoints also trained its models: a `TrainingOverlap` as JSON; None if unknown."""
    lineage: Sequence[Mapping[str, Any]]
    """The origins of the models; see `origin_to_json`."""
    tier: str
    """The level of verification; see `DEFAULT_TIER`."""
    numbers: str
    """The source of the run's metrics (not the metrics themselves): `RECOMPUTED` or `AS_PUBLISHED`."""
    marks: Sequence[str]
    """Short remarks about the run, such as "yanked: a leak"."""


@dataclass
class RegistryBoard:
    """The board of a registry. The names of its fields cannot change, because they are keys of its JSON."""

    where: str
    """The address of the registry."""
    rows: list[PublishedRow] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    """Releases that are omitted because they are damaged or contradict themselves, each with the reason."""
    private: int = 0
    """Number of runs that are not shown because they are private."""
    yanked: int = 0
    """Number of runs that are not shown because they were yanked."""
    older: int = 0
    """Number of runs that are not shown because the board has a newer version of the same release."""

    def omitted_releases(self) -> frozenset[str]:
        """Return the references of the releases that are omitted because they are damaged or contradict themselves."""
        return frozenset(release for release, _ in self.left_out)

    def to_json(self) -> dict[str, Any]:
        left_out = [{"release": release, "why": reason} for release, reason in self.left_out]
        return {**vars(self), "rows": [row.to_json() for row in self.rows], "left_out": left_out}


@dataclass(frozen=True)
class LoadedBoard:
    """A board, and the releases that were read for it."""

    board: RegistryBoard
    releases: Mapping[ReleaseEntry, Release]
    """The manifest of each run and model, by its entry in the registry's list, whether or not the board shows it."""
    nodes: Mapping[str, LineageNode]
    """The nodes of the lineage graph: runs and models, by the hash of the release.

    A release is omitted if the `facts` in its manifest are invalid; they describe, for example, its training."""


def registry_board(registry: Registry, benchmark: str | None = None, cache: Path | None = None) -> RegistryBoard:
    """Rank the published runs of a registry. Only releases that are not in the cache are read.

    If a release is damaged, or its numbers do not follow from its records, the board omits it and gives the reason.

    Raises:
        ReleaseError: the registry cannot be read, or the cache cannot be written.
        LeaderboardError: another process keeps the board in the cache locked.
        UsageError: nothing is published for the benchmark.
    """
    return load_board(registry, BoardCache.for_registry(registry, cache), benchmark).board


def load_board(registry: Registry, cache: BoardCache, benchmark: str | None = None) -> LoadedBoard:
    """Return the board of a registry and the releases that were read for it. Raises as `registry_board`."""
    board = RegistryBoard(registry.address)
    releases = dict(_read_manifests(registry, cache, board))
    nodes = dict(_read_nodes(registry, cache, releases, board))
    lineage = Lineage(nodes.values())
    entries_by_hash = {entry.sha256: entry for entry in _listed_runs(releases, board) if entry.sha256 in nodes}
    with reuse_connections():
        runs = dict(_read_runs(registry, cache, releases, entries_by_hash, board))
    rows = _rank_runs(cache, runs, entries_by_hash, board, registry)
    # Replays are excluded, because `describe_relations` marks each replay with the name of the replayed run.
    played_entries = [entries_by_hash[sha256] for sha256 in runs if replayed_run(nodes[sha256]) is None]
    repeats = _repeat_marks(releases, played_entries)
    _check_benchmark(benchmark, rows, registry.address)
    for row in rows:
        if benchmark not in (None, row.benchmark):
            continue
        sha256 = row.run_id  # in the cache, a run's id is the hash of its release
        entry = entries_by_hash[sha256]
        with _omit_on_error(board, entry):
            published_row = _published_row(row, entry, runs[sha256], lineage, nodes)
            published_row.marks = [*repeats.get(sha256, ()), *published_row.marks]
            board.rows.append(published_row)
    return LoadedBoard(board, releases, nodes)


@contextmanager
def _omit_on_error(board: RegistryBoard, entry: ReleaseEntry) -> Iterator[None]:
    """If an error occurs in a `with` block, omit the release from the board, so that the others are still shown."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - a malformed release can cause any error
        board.left_out.append((str(entry.reference), describe_error(error)))


def _read_manifests(
    registry: Registry, cache: BoardCache, board: RegistryBoard
) -> Iterator[tuple[ReleaseEntry, Release]]:
    """Yield each run and model release with its manifest."""
    entries = [entry for entry in registry.entries() if entry.reference.kind in (Kind.RUN, Kind.MODEL)]
    registry.plan_prefetch((entry, MANIFEST) for entry in entries if not cache.has_manifest(entry))
    for entry in entries:
        with _omit_on_error(board, entry):
            yield entry, cache.load_release(registry, entry)


def _read_nodes(
    registry: Registry, cache: BoardCache, releases: Mapping[ReleaseEntry, Release], board: RegistryBoard
) -> Iterator[tuple[str, LineageNode]]:
    """Yield the hash of each release of a run or model, and its node. A run's datapoints are looked up on demand."""
    for entry, release in releases.items():
        with _omit_on_error(board, entry):
            node = cache.lineage_node(entry, release)
            is_public_run = entry.reference.kind == Kind.RUN and not node.private
            if is_public_run and node.trains_models:
                cache.check_training(registry, entry, release)
            if is_public_run:
                node = replace(node, look_up_datapoints=_datapoint_lookup(registry, cache, entry, release))
            yield entry.sha256, node


def _datapoint_lookup(
    registry: Registry, cache: BoardCache, entry: ReleaseEntry, release: Release
) -> Callable[[], frozenset[str] | None]:
    """Return a function that reads a run's datapoints from its inputs; without inputs, from the manifest's facts."""
    return lambda: cache.load_datapoints(registry, entry, release) or cache.lineage_node(entry, release).datapoints


def _listed_runs(releases: Mapping[ReleaseEntry, Release], board: RegistryBoard) -> Iterator[ReleaseEntry]:
    """Yield the benchmark runs to show: for each name, the newest version that is public and not yanked."""
    newest_entries: dict[Reference, ReleaseEntry] = {}
    for entry, release in releases.items():  # older versions of a name come first
        if entry.reference.kind != Kind.RUN or release.facts.get("kind") == "training":
            continue
        if release.visibility == "private":
            board.private += 1
        elif entry.yanked is not None:
            board.yanked += 1
        else:
            name = entry.reference.unversioned
            board.older += name in newest_entries
            newest_entries[name] = entry
    yield from newest_entries.values()


def _read_runs(
    registry: Registry,
    cache: BoardCache,
    releases: Mapping[ReleaseEntry, Release],
    entries_by_hash: Mapping[str, ReleaseEntry],
    board: RegistryBoard,
) -> Iterator[tuple[str, CachedRun]]:
    """Yield the hash of each listed release, and its run after checking the run's metrics."""
    entries = entries_by_hash.values()
    registry.plan_prefetch((entry, path) for entry in entries for path in cache.files_to_read(entry, releases[entry]))
    for sha256, entry in entries_by_hash.items():
        with _omit_on_error(board, entry):
            yield sha256, cache.load_run(registry, entry, releases[entry])


def _rank_runs(
    cache: BoardCache,
    runs: Mapping[str, CachedRun],
    entries_by_hash: Mapping[str, ReleaseEntry],
    board: RegistryBoard,
    registry: Registry,
) -> list[LeaderboardRow]:
    """Update the leaderboard database in the cache so that it has these runs and no others; return its ranked rows."""
    database = Leaderboard(cache.path, cache.list_checked_runs)
    order = registry.publication_order()
    cached_positions: dict[str, int | None] = {}
    if database.path.is_file():
        with suppress(NipRunError):
            rows_of_runs = database.query("SELECT run_id, published FROM runs")[1]
            cached_positions = {str(run_id): position for run_id, position in rows_of_runs}
    added_folders = [run.folder for sha256, run in runs.items() if sha256 not in cached_positions]
    removed_ids = cached_positions.keys() - runs.keys()
    # Earlier versions did not store the order of publication for a server's board.
    lacks_order = any(position is None and run_id in order for run_id, position in cached_positions.items())
    if added_folders or removed_ids or lacks_order or not database.path.is_file():
        for sha256, reason in database.update(added_folders, removed_ids, order).items():
            board.left_out.append((str(entries_by_hash[sha256].reference), reason))
    rows = rows_of_view(*database.query("SELECT * FROM leaderboard"))
    return separate_tasks([_replace_shared_hash(row, entries_by_hash) for row in rows])


def _replace_shared_hash(row: LeaderboardRow, entries_by_hash: Mapping[str, ReleaseEntry]) -> LeaderboardRow:
    """Return a row with a release's name instead of its hash in `shared_with`, and in the reason for having no rank.

    `shared_with` is another run with the same answers. The database only knows its id, which is the release's hash.
    """
    if (sha256 := row.shared_with) is None or sha256 not in entries_by_hash:
        return row
    release = str(entries_by_hash[sha256].reference)
    return replace(row, shared_with=release, reason=row.reason and row.reason.replace(sha256, release))


def separate_tasks(rows: Sequence[LeaderboardRow]) -> list[LeaderboardRow]:
    """Split the rows of each benchmark into one list for each task, and set `row.list` to the number of the list.

    In the database, a list can also have rows of another task than its first row. They have no rank in this list.
    """
    last_list_numbers: dict[str | None, int] = {}  # by benchmark
    list_numbers: dict[tuple[str | None, str | None], int] = {}  # by benchmark and task
    known_lists: set[tuple[str | None, int]] = set()
    for row in rows:
        last_list_numbers[row.benchmark] = max(last_list_numbers.get(row.benchmark, 0), row.list)
        if (row.benchmark, row.list) not in known_lists:  # the first row of a list defines the list's task
            known_lists.add((row.benchmark, row.list))
            list_numbers[row.benchmark, row.task] = row.list
    separated_rows = []
    for row in rows:
        key = row.benchmark, row.task
        if key not in list_numbers:
            last_list_numbers[row.benchmark] += 1
            list_numbers[key] = last_list_numbers[row.benchmark]
        # A row that has no rank only because the database lists it under another task gets rank 1 in its task's list.
        has_other_task = any(template.matches(row.reason) for template in OTHER_TASK)
        own_rank: dict[str, Any] = {"rank": 1, "rank_last": 1, "reason": None} if has_other_task else {}
        if own_rank or row.list != list_numbers[key]:  # unchanged rows are not copied, because copying is slow
            row = replace(row, list=list_numbers[key], **own_rank)  # noqa: PLW2901
        separated_rows.append(row)
    return sorted(separated_rows, key=lambda row: (str(row.benchmark), row.list))


def _check_benchmark(benchmark: str | None, rows: Sequence[LeaderboardRow], address: str) -> None:
    names = sorted({str(row.benchmark) for row in rows})
    if benchmark is not None and benchmark not in names:
        alternatives = f"; published are runs of {comma_join(names)}" if names else "; publish one with nip-run publish"
        hint = did_you_mean(benchmark, names) or alternatives
        raise UsageError(f"no run of benchmark {benchmark!r} is published in {address}{hint}")


def _repeat_marks(releases: Mapping[ReleaseEntry, Release], entries: Sequence[ReleaseEntry]) -> dict[str, list[str]]:
    """Return marks for runs that repeat a spec and for releases that copy a run, by the hash of the release.

    Runs with the same identity have played the same spec. If their rollouts differ, each run is a new sample of the
    models' answers, and keeps its own row and rank. If their rollouts are the same, they are copies of one sample.
    """
    runs_of_spec: dict[str, list[ReleaseEntry]] = defaultdict(list)
    for entry in entries:
        runs_of_spec[releases[entry].identity.get("run") or entry.sha256].append(entry)
    marks: dict[str, list[str]] = defaultdict(list)
    for runs in runs_of_spec.values():
        samples: dict[str | None, list[ReleaseEntry]] = defaultdict(list)
        for entry in runs:
            file = releases[entry].file(ROLLOUTS)
            samples[None if file is None else file.sha256].append(entry)
        first_copies = [copies[0] for copies in samples.values()]
        for copies in samples.values():
            other_sample = first_copies[0] if first_copies[0] is not copies[0] else first_copies[-1]
            for entry in copies if len(copies) > 1 else ():
                twin = copies[0] if entry is not copies[0] else copies[1]
                marks[entry.sha256].append(f"the same rollouts as {twin.reference}{_and_more(len(copies) - 2)}")
            for entry in copies if len(samples) > 1 else ():
                marks[entry.sha256].append(f"another play of {other_sample.reference}{_and_more(len(samples) - 2)}")
    return marks


def _and_more(count: int) -> str:
    return f" and {count} more" if count else ""


def _published_row(
    row: LeaderboardRow, entry: ReleaseEntry, cached_run: CachedRun, lineage: Lineage,
    nodes: Mapping[str, LineageNode],
) -> PublishedRow:  # fmt: skip
    """Return a row of the board: the row of the database, the run's release, and the training behind its models."""
    node = nodes[entry.sha256]
    ancestry = lineage.ancestry(node)
    overlap = lineage.training_overlap(node, ancestry)
    has_unrecomputed_metrics = any(mark.startswith((NOT_RECOMPUTED, WITHHELD)) for mark in cached_run.marks)
    shared_marks = () if row.shared_note is None else (row.shared_note,)
    return PublishedRow(
        **{**row.to_json(), "run_id": cached_run.run_id},
        release=str(entry.reference),
        release_sha256=entry.sha256,
        owner=entry.reference.owner,
        signed=entry.signed,
        effort=total_to_json(ancestry),
        trained_on=None if overlap is None else {**vars(overlap), "shown": str(overlap)},
        lineage=[origin_to_json(origin) for origin in ancestry.origins],
        tier=entry.tier or DEFAULT_TIER,
        numbers=AS_PUBLISHED if has_unrecomputed_metrics else RECOMPUTED,
        marks=[*cached_run.marks, *shared_marks, *describe_relations(node), *describe_marks(node, ancestry, overlap)],
    )
