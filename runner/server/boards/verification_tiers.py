"""The verification tier of each public run: self-reported, recomputed by this server, or reproduced by others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import select

from runner.base.errors import NipRunError
from runner.base.hashing import tagged_hash
from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.storage.safe_files import make_folders
from runner.documents.releases.manifest import Release
from runner.registry.board.board import LoadedBoard
from runner.registry.board.cache import DATA, BoardCache
from runner.registry.lineage.relations import replayed_run, reproduced_by
from runner.registry.records import ROLLOUTS_FILE
from runner.registry.skipped_releases import describe_error, is_temporary
from runner.registry.transports.listing import ReleaseEntry
from runner.registry.verification.fresh_play import describe_outcome
from runner.results.comparison.comparison import compare_systems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.server.boards.copied_answers import PublishedRun, compare_answers
from runner.server.boards.public_registry import PublicRegistry
from runner.server.store.database import Database
from runner.server.store.schema import accounts, checks, members
from runner.version import __version__

SELF_REPORTED, RECOMPUTED, REPRODUCED = "self-reported", "recomputed", "reproduced"

MEANINGS = {
    SELF_REPORTED: "The publisher reports these numbers; this server has not recomputed them.",
    RECOMPUTED: "This server has recomputed the numbers from the run's journal. Only the publisher vouches that the "
    "games were played.",
    REPRODUCED: "Others, who share no account or organisation with the publisher, have published a run of the same "
    "game on the same rows. This server has recomputed its numbers, too, its answers are different ones, and its "
    "accuracy is the same within the margin of nip-run reproduce. Only they vouch that a model gave those answers.",
}


@dataclass(frozen=True)
class Reproduction:
    """A public run that reproduces another one."""

    release: str
    owner: str
    outcome: str
    """`reproduced`, `drifted`, `undecided`; not counted: `own` (same publisher), `copy` (answers), `other` (game)."""
    reason: str
    account_id: int = 0
    """Row id of the account that published it."""

    def to_json(self) -> dict[str, str]:
        """Return the fields except the account's id, which is not public."""
        return {"release": self.release, "owner": self.owner, "outcome": self.outcome, "said": self.reason}


@dataclass(frozen=True)
class RunTier:
    """The server's own findings about a run."""

    tier: str
    reproductions: tuple[Reproduction, ...]
    owner_runs: int
    """Number of runs that the owner has published on the task: the best of many is not a fair sample."""
    reproduced_by: int = 0
    """Number of others who reproduced it and share no account or organisation with each other."""

    @property
    def text(self) -> str:
        return f"{REPRODUCED} by {self.reproduced_by}" if self.tier == REPRODUCED else self.tier


def assign_tiers(
    database: Database, registry: PublicRegistry, cache: BoardCache, read: LoadedBoard
) -> dict[str, RunTier]:
    """Return the tier of each public run whose facts can be read, by the hash of its release."""
    with database.reading() as connection:
        checked = {row.release_id: row.tier for row in connection.execute(select(checks))}
    # Without a session, the types of a release's facts are unchecked.
    entries = [entry for entry in read.releases if entry.sha256 in read.sessions]
    runs_on_task = Counter(_owner_and_task(entry, read) for entry in entries)
    reproductions = _reproductions(database, registry, cache, read)
    groups = _groups(database) if reproductions else {}
    verified = {}
    for entry in entries:
        tier = checked.get(registry.listed[entry.reference].id, SELF_REPORTED)
        plays = tuple(reproductions.get(entry.sha256, ()))
        successes = [play for play in plays if play.outcome == REPRODUCED]
        by = _count_independent(successes, groups) if tier == RECOMPUTED else 0
        owner_runs = runs_on_task[_owner_and_task(entry, read)]
        verified[entry.sha256] = RunTier(REPRODUCED if by else tier, plays, owner_runs, by)
    return verified


def _owner_and_task(entry: ReleaseEntry, read: LoadedBoard) -> tuple[Any, ...]:
    """Return the owner and task of a release, to count all its versions, yanked ones too."""
    facts = read.releases[entry].facts
    return entry.reference.kind, entry.reference.owner, facts.get("benchmark"), facts.get("task"), facts.get("kind")


def _reproductions(
    database: Database, registry: PublicRegistry, cache: BoardCache, read: LoadedBoard
) -> dict[str, list[Reproduction]]:
    """Return the reproductions of each release, without yanked ones."""
    originals = {entry.sha256: entry for entry in read.releases if entry.sha256 in read.sessions}
    reproductions: dict[str, list[Reproduction]] = defaultdict(list)
    groups: dict[int, set[int]] | None = None
    for entry in read.releases:
        session = read.sessions.get(entry.sha256)
        link = None if session is None else reproduced_by(session)
        if session is None or link is None or link.sha256 not in originals or entry.yanked is not None:
            continue
        if replayed_run(session) is not None or session.kind != "benchmark":
            continue
        original = originals[link.sha256]
        groups = _groups(database) if groups is None else groups
        if _is_related(registry, original, entry, groups):
            outcome, reason = "own", "by its own publisher, or by an account of the same organisation"
        elif _is_copy(read.releases[original], read.releases[entry]):
            outcome, reason = "copy", "it has the same answers, so no game was played again"
        else:
            outcome, reason = _outcome(
                registry, cache, (original, read.releases[original]), (entry, read.releases[entry])
            )
        publisher = registry.listed[entry.reference].publisher
        reproduction = Reproduction(str(entry.reference), entry.reference.owner, outcome, reason, publisher)
        reproductions[original.sha256].append(reproduction)
    return reproductions


def _groups(database: Database) -> dict[int, set[int]]:
    """Return for each account the ids of itself and of its organisations."""
    with database.reading() as connection:
        groups = {row.id: {row.id} for row in connection.execute(select(accounts.c.id))}
        for row in connection.execute(select(members)):
            groups[row.account_id].add(row.organisation_id)
    return groups


def _count_independent(plays: Sequence[Reproduction], groups: Mapping[int, set[int]]) -> int:
    """Return the number of reproductions that share no account, owner or organisation with each other."""
    clusters: list[tuple[set[int], set[str]]] = []
    for play in plays:
        account_ids, owners = set(groups.get(play.account_id, {play.account_id})), {play.owner}
        unrelated = []
        for cluster_ids, cluster_owners in clusters:
            if cluster_ids & account_ids or cluster_owners & owners:
                account_ids, owners = account_ids | cluster_ids, owners | cluster_owners
            else:
                unrelated.append((cluster_ids, cluster_owners))
        clusters = [*unrelated, (account_ids, owners)]
    return len(clusters)


def _is_related(
    registry: PublicRegistry, original: ReleaseEntry, again: ReleaseEntry, groups: Mapping[int, set[int]]
) -> bool:
    if original.reference.owner == again.reference.owner:
        return True
    first, second = (registry.listed[entry.reference].publisher for entry in (original, again))
    return bool(groups[first] & groups[second])


def _is_copy(original: Release, again: Release) -> bool:
    """Return whether a run is a copy of another one, with the same rollouts or the same id and times."""
    files = [release.file(DATA + ROLLOUTS_FILE) for release in (original, again)]
    hashes = {None if file is None else file.sha256 for file in files}
    same = all(original.facts.get(name) == again.facts.get(name) for name in ("run_id", "started_at", "finished_at"))
    return len(hashes) == 1 or same


def _outcome(
    registry: PublicRegistry, cache: BoardCache, original: PublishedRun, again: PublishedRun
) -> tuple[str, str]:
    """Compare a run with the original like `nip-run reproduce --fresh`; return the outcome and its reason.

    The outcome is cached, since releases do not change.
    """
    hashes = [original[0].sha256, again[0].sha256]
    base, reproduction = (RunFolder(cache.path / "kept" / sha256) for sha256 in hashes)
    if not (base.manifest_path.is_file() and reproduction.manifest_path.is_file()):
        return "undecided", "it has no numbers to compare"
    cache_file = cache.path / "compared" / f"{tagged_hash('compared', [*hashes, _RULE_VERSION, __version__])}.json"
    if cache_file.is_file():
        cached = read_json(cache_file)
        return str(cached["outcome"]), str(cached["said"])
    try:
        outcome, reason = _compare(registry, cache, original, again)
    except (NipRunError, OSError) as error:
        outcome, reason = "undecided", f"cannot be compared: {describe_error(error)}"
        if isinstance(error, OSError) or is_temporary(error, cache.path):
            return outcome, reason  # the next board tries again
    make_folders(cache_file.parent)
    atomic_write(cache_file, orjson.dumps({"outcome": outcome, "said": reason}))
    return outcome, reason


_RULE_VERSION = 2
"""Version of the rule in `_compare`, part of the cache key: outcomes of earlier versions are computed again."""


def _compare(
    registry: PublicRegistry, cache: BoardCache, original: PublishedRun, again: PublishedRun
) -> tuple[str, str]:
    base, reproduction = (RunFolder(cache.path / "kept" / entry.sha256) for entry, _ in (original, again))
    first, second = base.manifest(), reproduction.manifest()
    if (first.game_sha256, first.dataset_sha256) != (second.game_sha256, second.dataset_sha256):
        return "other", "its rules, prompts, models or rows are different"
    common = compare_answers(registry, original, again, cache.path / "compared")
    if common.shared_ids or (common.is_enough and common.is_copy):
        return "copy", f"{common}: it may be a copy"
    pair = compare_systems([[base.path], [reproduction.path]], Results(cache.path), tests_one_system=True).pairs[0]
    outcome, reason = describe_outcome(pair, {row["agent"] for row in first.agents})
    if outcome == REPRODUCED and not common.is_enough:
        return "undecided", f"{reason}; but {common}"
    return outcome, f"{reason}; {common}"
