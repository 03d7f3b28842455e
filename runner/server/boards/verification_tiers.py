"""Determines the verification tier of each public run: how far this server and other accounts have verified the run.

A run is `recomputed` if this server has recomputed its numbers, and `self-reported` if the server cannot do this. A run
is `reproduced` if, in addition to `recomputed`, others have published a run of the same game whose accuracy agrees.
`MEANINGS` explains the tiers to readers of the pages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import select

from runner.base.batches import group_pairs
from runner.base.errors import NipRunError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.manifest import Release
from runner.documents.releases.reference import Kind
from runner.registry.board.board import DEFAULT_TIER, LoadedBoard
from runner.registry.board.cache import ROLLOUTS, BoardCache
from runner.registry.bundles.runs import ROWS
from runner.registry.lineage.relations import find_original_link, replayed_run
from runner.registry.release_errors import describe_error, is_temporary
from runner.registry.transports.listing import ReleaseEntry
from runner.registry.verification.outcome import describe_outcome
from runner.results.comparison.comparison import ComparisonOptions, compare_systems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.server.boards.copied_answers import PublishedRun, compare_answers
from runner.server.boards.public_registry import PublicRegistry
from runner.server.store.database import Database
from runner.server.store.schema import accounts, members
from runner.version import __version__

RECOMPUTED, REPRODUCED = "recomputed", "reproduced"

MEANINGS = {
    DEFAULT_TIER: "Only the publisher vouches for the numbers. This server cannot recompute them: the release has no "
    "games (those of a training run are in other releases) or no rows of the dataset, or it contradicts itself.",
    RECOMPUTED: "This server has recomputed the numbers, except metrics of plugins, from the run's journal. Only the "
    "publisher vouches that the games were played.",
    REPRODUCED: "Others, who share no account or organization with the publisher, have published a reproduction: a run "
    "of the same game on the same rows, with other answers, whose accuracy agrees within the margin of nip-run "
    "reproduce. This server has recomputed the numbers of both runs. Only their publishers vouch that a model gave the "
    "answers.",
}


@dataclass(frozen=True)
class Reproduction:
    """A public run that reproduces another one."""

    release: str
    owner: str
    outcome: str
    """The outcome of the comparison: `reproduced`, `drifted` or `undecided`. If the run cannot be compared: `own` (a
    related publisher), `copy` (copied answers) or `other` (another game)."""
    reason: str

    def to_json(self) -> dict[str, str]:
        return {"release": self.release, "owner": self.owner, "outcome": self.outcome, "said": self.reason}


@dataclass(frozen=True)
class RunTier:
    """The verification tier of a run, and the facts that it follows from."""

    tier: str
    reproductions: tuple[Reproduction, ...]
    owner_runs: int
    """Number of runs that the owner has published on the task. Pages show this number, because the best of many runs is
    not a fair sample."""
    reproduced_by: int = 0
    """Number of independent groups of accounts that have reproduced the run."""

    @property
    def text(self) -> str:
        return f"{REPRODUCED} by {self.reproduced_by}" if self.tier == REPRODUCED else self.tier


def assign_tiers(
    database: Database, registry: PublicRegistry, cache: BoardCache, loaded: LoadedBoard
) -> dict[str, RunTier]:
    """Return the tier of each public run with valid facts, by the hash of its release."""
    # The facts of a release that is not in `loaded.nodes` were not checked, and may have any type.
    entries = [entry for entry in loaded.releases if entry.sha256 in loaded.nodes and entry.reference.kind == Kind.RUN]
    runs_on_task = Counter(_owner_and_task(entry, loaded) for entry in entries)
    groups = _account_groups(database, registry)
    recomputed = _find_recomputed(loaded)
    reproductions = _find_reproductions(registry, cache, loaded, groups, recomputed)
    tiers = {}
    for entry in entries:
        run_reproductions = tuple(reproductions.get(entry.sha256, ()))
        successful = [reproduction for reproduction in run_reproductions if reproduction.outcome == REPRODUCED]
        count = _count_independent(successful, groups)
        owner_runs = runs_on_task[_owner_and_task(entry, loaded)]
        recomputed_tier = REPRODUCED if count else RECOMPUTED
        tier = recomputed_tier if entry.sha256 in recomputed else DEFAULT_TIER
        tiers[entry.sha256] = RunTier(tier, run_reproductions, owner_runs, count)
    return tiers


def _find_recomputed(loaded: LoadedBoard) -> set[str]:
    """Return the hashes of the runs whose numbers this server could recompute: not without games or dataset rows.

    The games of a training run are in other releases, its parts, which name it as their parent.
    """
    omitted, runs = loaded.board.omitted_releases(), loaded.nodes
    return {
        entry.sha256
        for entry, release in loaded.releases.items()
        if entry.sha256 in runs and str(entry.reference) not in omitted and release.file(ROWS) is not None
        if runs[entry.sha256].kind == "benchmark" or runs[entry.sha256].parent_run_id is not None
    }


def _owner_and_task(entry: ReleaseEntry, loaded: LoadedBoard) -> tuple[Any, ...]:
    """Return a key that is equal for all runs of an owner on a task, including yanked runs and all versions."""
    facts = loaded.releases[entry].facts
    return entry.reference.kind, entry.reference.owner, facts.get("benchmark"), facts.get("task"), facts.get("kind")


def _find_reproductions(
    registry: PublicRegistry, cache: BoardCache, loaded: LoadedBoard, groups: Mapping[str, set[int]],
    recomputed: AbstractSet[str],
) -> dict[str, list[Reproduction]]:  # fmt: skip
    """Return the reproductions of each release, by its hash, without yanked ones.

    `groups` is from `_account_groups`, and `recomputed` from `_find_recomputed`.
    """
    originals = {entry.sha256: entry for entry in loaded.releases if entry.sha256 in loaded.nodes}
    reproductions: dict[str, list[Reproduction]] = defaultdict(list)
    genuine: dict[str, list[ReleaseEntry]] = defaultdict(list)
    """The reproductions with answers of their own, by the hash of the original, oldest first."""
    for entry in sorted(loaded.releases, key=lambda entry: registry.public_releases[entry.reference].id):
        node = loaded.nodes.get(entry.sha256)
        link = None if node is None else find_original_link(node)
        if node is None or link is None or link.sha256 not in originals or entry.yanked is not None:
            continue
        if replayed_run(node) is not None or node.kind != "benchmark":
            continue
        original = originals[link.sha256]
        if _is_related(original, entry, groups):
            outcome, reason = "own", "published by the same account, or by an account of the same organization"
        elif _is_copy(loaded.releases[original], loaded.releases[entry]):
            outcome, reason = "copy", "the answers are the same, so no game was played again"
        elif not {original.sha256, entry.sha256} <= recomputed:
            outcome, reason = "undecided", "this server cannot recompute the numbers of one of the two runs"
        else:
            pair = (original, loaded.releases[original]), (entry, loaded.releases[entry])
            earlier_runs = [
                (earlier, loaded.releases[earlier])
                for earlier in genuine[link.sha256]
                if not _is_related(earlier, entry, groups)
            ]
            outcome, reason = _find_outcome(registry, cache, *pair, earlier_runs)
        if outcome in ("own", REPRODUCED):
            genuine[link.sha256].append(entry)
        reproduction = Reproduction(str(entry.reference), entry.reference.owner, outcome, reason)
        reproductions[original.sha256].append(reproduction)
    return reproductions


def _account_groups(database: Database, registry: PublicRegistry) -> dict[str, set[int]]:
    """Return the ids of the accounts behind each release: its owner, its publisher, and the publisher's organizations.

    The owner is not always one of these organizations, because the publisher may have left it.
    """
    with database.reading() as connection:
        ids = {row.name: row.id for row in connection.execute(select(accounts.c.name, accounts.c.id))}
        rows = connection.execute(select(members))
        organizations = group_pairs((row.account_id, row.organisation_id) for row in rows)
    return {
        str(reference): {ids[reference.owner], row.publisher_id, *organizations.get(row.publisher_id, ())}
        for reference, row in registry.public_releases.items()
    }


def _count_independent(reproductions: Sequence[Reproduction], groups: Mapping[str, set[int]]) -> int:
    """Return the number of independent publishers of reproductions.

    Publishers who share an account, an owner or an organization count as one. If A shares one with B, and B with C, all
    three count as one.
    """
    clusters: list[set[int]] = []
    for reproduction in reproductions:
        related = [cluster for cluster in clusters if cluster & groups[reproduction.release]]
        unrelated = [cluster for cluster in clusters if cluster not in related]
        clusters = [*unrelated, groups[reproduction.release].union(*related)]
    return len(clusters)


def _is_related(original: ReleaseEntry, reproduction: ReleaseEntry, groups: Mapping[str, set[int]]) -> bool:
    """Return whether the owners or publishers of two runs share an account or an organization."""
    return bool(groups[str(original.reference)] & groups[str(reproduction.reference)])


def _is_copy(original: Release, reproduction: Release) -> bool:
    """Return whether two releases have the same rollouts, or the same run id and times."""
    files = [release.file(ROLLOUTS) for release in (original, reproduction)]
    hashes = {None if file is None else file.sha256 for file in files}
    names = ("run_id", "started_at", "finished_at")
    return len(hashes) == 1 or all(original.facts.get(name) == reproduction.facts.get(name) for name in names)


def _find_outcome(
    registry: PublicRegistry, cache: BoardCache, original: PublishedRun, reproduction: PublishedRun,
    earlier_runs: Sequence[PublishedRun],
) -> tuple[str, str]:  # fmt: skip
    """Compare a run with the original and with earlier reproductions; return the outcome and its reason."""
    outcome, reason = _compare_with_original(registry, cache, original, reproduction)
    if outcome != REPRODUCED:
        return outcome, reason
    try:
        copied = next((run for run in earlier_runs if _is_copy(run[1], reproduction[1])), None) or next(
            (run for run in earlier_runs[:_MAX_COMPARED] if _has_same_answers(registry, cache, run, reproduction)), None
        )
    except (NipRunError, OSError) as error:
        return "undecided", f"the runs cannot be compared: {describe_error(error)}"
    if copied is not None:
        return "copy", f"the answers are equal or nearly equal to those of {copied[0].reference}"
    return outcome, reason


def _has_same_answers(registry: PublicRegistry, cache: BoardCache, first: PublishedRun, second: PublishedRun) -> bool:
    """Return whether most answers of two runs are equal or nearly equal. The result is cached."""
    hashes = [first[0].sha256, second[0].sha256]
    cache_file = cache.path / "compared" / f"{tagged_hash('copied', [*hashes, _RULE_VERSION, __version__])}.json"
    if cache_file.is_file():
        return bool(read_json(cache_file)["copied"])
    overlap = compare_answers(registry, first, second, cache.path / "compared")
    is_copy = overlap.shared_ids > 0 or (overlap.has_enough_pairs and overlap.is_copy)
    atomic_write(cache_file, orjson.dumps({"copied": is_copy}))
    return is_copy


def _compare_with_original(
    registry: PublicRegistry, cache: BoardCache, original: PublishedRun, reproduction: PublishedRun
) -> tuple[str, str]:
    """Compare a run with the original like `nip-run reproduce --fresh`; return the outcome and its reason.

    The outcome is cached, because releases do not change.
    """
    hashes = [original[0].sha256, reproduction[0].sha256]
    folders = [cache.run_folder(sha256) for sha256 in hashes]
    if not all(folder.manifest_path.is_file() for folder in folders):
        return "undecided", "one of the two runs has no metrics to compare"
    cache_file = cache.path / "compared" / f"{tagged_hash('compared', [*hashes, _RULE_VERSION, __version__])}.json"
    if cache_file.is_file():
        cached = read_json(cache_file)
        return str(cached["outcome"]), str(cached["said"])
    try:
        outcome, reason = _compare_runs(registry, cache, original, reproduction, folders)
    except (NipRunError, OSError) as error:
        outcome, reason = "undecided", f"the runs cannot be compared: {describe_error(error)}"
        if isinstance(error, OSError) or is_temporary(error, cache.path):
            return outcome, reason  # not cached, so the next board tries again
    make_folders(cache_file.parent)
    atomic_write(cache_file, orjson.dumps({"outcome": outcome, "said": reason}))
    return outcome, reason


_MAX_COMPARED = 20
"""Maximum number of earlier reproductions whose answers are compared with those of a reproduction."""
_RULE_VERSION = 2
"""Version of the rule in `_compare_runs`. It is part of the cache's key: a new version makes cached outcomes
invalid."""


def _compare_runs(
    registry: PublicRegistry, cache: BoardCache, original: PublishedRun, reproduction: PublishedRun,
    folders: Sequence[RunFolder],
) -> tuple[str, str]:  # fmt: skip
    """Return the outcome and its reason; `folders` has the cached metrics of both runs."""
    manifests = [folder.manifest() for folder in folders]
    if len({(manifest.game_sha256, manifest.dataset_sha256) for manifest in manifests}) > 1:
        return "other", "the rules, prompts, models or rows differ from the original run's"
    overlap = compare_answers(registry, original, reproduction, cache.path / "compared")
    if overlap.shared_ids or (overlap.has_enough_pairs and overlap.is_copy):
        return "copy", f"{overlap}: the run may be a copy"
    systems = [[folder.path] for folder in folders]
    comparison = compare_systems(systems, Results(cache.path), ComparisonOptions(tests_one_system=True)).pairs[0]
    outcome, reason = describe_outcome(comparison, {row["agent"] for row in manifests[0].agents})
    if outcome == REPRODUCED and not overlap.has_enough_pairs:
        return "undecided", f"{reason}; but {overlap}"
    return outcome, f"{reason}; {overlap}"
