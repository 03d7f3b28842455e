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
from runner.registry.board.board import Read
from runner.registry.board.cache import DATA, BoardCache
from runner.registry.lineage.relations import replayed_run, reproduced_by
from runner.registry.records import ROLLOUTS_FILE
from runner.registry.skipped_releases import in_words, is_passing
from runner.registry.transports.listing import ReleaseEntry
from runner.registry.verification.fresh_play import outcome_of
from runner.results.comparison.comparison import compare_systems
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.server.boards.public_registry import PublicRegistry
from runner.server.boards.replays import alike
from runner.server.store.database import Database
from runner.server.store.schema import accounts, checks, members
from runner.version import __version__

SELF_REPORTED, RECOMPUTED, REPRODUCED = "self-reported", "recomputed", "reproduced"

MEANINGS = {
    SELF_REPORTED: "Its numbers are what its publisher says; this server has not computed them again.",
    RECOMPUTED: "This server has computed its numbers again from its journal. That the games were played is its "
    "publisher's word.",
    REPRODUCED: "Others, who share no account or organisation with its publisher, have published a run of the same "
    "game on the same rows: this server has computed its numbers, too, its answers are others, and its accuracy "
    "differs by no more than nip-run reproduce takes as the same. That a model gave those answers is their word.",
}


@dataclass(frozen=True)
class Reproduction:
    """A public run that reproduces another one."""

    release: str
    owner: str
    outcome: str
    """`reproduced`, `drifted`, `undecided`; of no weight: `own` publisher's, `copy` of answers, `other` game."""
    said: str
    by: int = 0
    """The account that published it."""

    def to_json(self) -> dict[str, str]:
        """Return the fields without the account's number, which is not public."""
        return {"release": self.release, "owner": self.owner, "outcome": self.outcome, "said": self.said}


@dataclass(frozen=True)
class Vouched:
    """What the server knows of a run beyond the run's own claims."""

    tier: str
    reproductions: tuple[Reproduction, ...]
    owner_runs: int
    """The runs that its owner has published on its task: the best of many is not a fair sample."""
    by: int = 0
    """The others that have reproduced it and share no account or organisation with each other."""

    @property
    def words(self) -> str:
        return f"{REPRODUCED} by {self.by}" if self.tier == REPRODUCED else self.tier


def vouched(database: Database, registry: PublicRegistry, cache: BoardCache, read: Read) -> dict[str, Vouched]:
    """Return the tier of each public run whose facts can be read, by the hash of its release."""
    with database.reading() as connection:
        checked = {row.release_id: row.tier for row in connection.execute(select(checks))}
    # The facts of other releases have types that cannot be relied on.
    entries = [entry for entry in read.releases if entry.sha256 in read.sessions]
    counted = Counter(_tried(entry, read) for entry in entries)
    again = _reproductions(database, registry, cache, read)
    groups = _groups(database) if again else {}
    found = {}
    for entry in entries:
        tier = checked.get(registry.listed[entry.reference].id, SELF_REPORTED)
        plays = tuple(again.get(entry.sha256, ()))
        by = (
            _count_independent([one for one in plays if one.outcome == REPRODUCED], groups) if tier == RECOMPUTED else 0
        )
        found[entry.sha256] = Vouched(REPRODUCED if by else tier, plays, counted[_tried(entry, read)], by)
    return found


def _tried(entry: ReleaseEntry, read: Read) -> tuple[Any, ...]:
    """Return the owner and task of a release; every version counts, yanked ones too."""
    facts = read.releases[entry].facts
    return entry.reference.kind, entry.reference.owner, facts.get("benchmark"), facts.get("task"), facts.get("kind")


def _reproductions(
    database: Database, registry: PublicRegistry, cache: BoardCache, read: Read
) -> dict[str, list[Reproduction]]:
    """Return the reproductions of each release, without yanked ones."""
    originals = {entry.sha256: entry for entry in read.releases if entry.sha256 in read.sessions}
    found: dict[str, list[Reproduction]] = defaultdict(list)
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
        if _related(registry, original, entry, groups):
            outcome, said = "own", "by its own publisher, or by an account of the same organisation"
        elif _is_copy(read.releases[original], read.releases[entry]):
            outcome, said = "copy", "it has the same answers, so nothing was played again"
        else:
            outcome, said = _outcome(
                registry, cache, (original, read.releases[original]), (entry, read.releases[entry])
            )
        by = registry.listed[entry.reference].publisher
        found[original.sha256].append(Reproduction(str(entry.reference), entry.reference.owner, outcome, said, by))
    return found


def _groups(database: Database) -> dict[int, set[int]]:
    """Return the ids of each account and its organisations, by account."""
    with database.reading() as connection:
        found = {row.id: {row.id} for row in connection.execute(select(accounts.c.id))}
        for row in connection.execute(select(members)):
            found[row.account_id].add(row.organisation_id)
    return found


def _count_independent(plays: Sequence[Reproduction], groups: Mapping[int, set[int]]) -> int:
    """Return the number of reproductions that share no account, owner or organisation with each other."""
    heads: list[tuple[set[int], set[str]]] = []
    for one in plays:
        who, owners = set(groups.get(one.by, {one.by})), {one.owner}
        apart = []
        for known, named in heads:
            if known & who or named & owners:
                who, owners = who | known, owners | named
            else:
                apart.append((known, named))
        heads = [*apart, (who, owners)]
    return len(heads)


def _related(registry: PublicRegistry, one: ReleaseEntry, other: ReleaseEntry, groups: Mapping[int, set[int]]) -> bool:
    if one.reference.owner == other.reference.owner:
        return True
    first, second = (registry.listed[entry.reference].publisher for entry in (one, other))
    return bool(groups[first] & groups[second])


def _is_copy(original: Release, again: Release) -> bool:
    """Return whether a run is a copy of another one: a new play has other times and other rollouts."""
    files = [release.file(DATA + ROLLOUTS_FILE) for release in (original, again)]
    hashes = {None if file is None else file.sha256 for file in files}
    same = all(original.facts.get(name) == again.facts.get(name) for name in ("run_id", "started_at", "finished_at"))
    return len(hashes) == 1 or same


def _outcome(
    registry: PublicRegistry,
    cache: BoardCache,
    original: tuple[ReleaseEntry, Release],
    again: tuple[ReleaseEntry, Release],
) -> tuple[str, str]:
    """Return the outcome of `nip-run reproduce --fresh` for two plays of one game; cached, since neither changes."""
    hashes = [original[0].sha256, again[0].sha256]
    base, other = (RunFolder(cache.path / "kept" / sha256) for sha256 in hashes)
    if not (base.manifest_path.is_file() and other.manifest_path.is_file()):
        return "undecided", "it has no numbers to compare"
    place = cache.path / "compared" / f"{tagged_hash('compared', [*hashes, _RULE, __version__])}.json"
    if place.is_file():
        said = read_json(place)
        return str(said["outcome"]), str(said["said"])
    try:
        outcome, words = _compared(registry, cache, original, again)
    except (NipRunError, OSError) as error:
        outcome, words = "undecided", f"cannot be compared: {in_words(error)}"
        if isinstance(error, OSError) or is_passing(error, cache.path):
            return outcome, words  # the next board looks again
    make_folders(place.parent)
    atomic_write(place, orjson.dumps({"outcome": outcome, "said": words}))
    return outcome, words


_RULE = 2
"""The version of this rule; outcomes of earlier versions are computed again."""


def _compared(
    registry: PublicRegistry,
    cache: BoardCache,
    original: tuple[ReleaseEntry, Release],
    again: tuple[ReleaseEntry, Release],
) -> tuple[str, str]:
    base, other = (RunFolder(cache.path / "kept" / entry.sha256) for entry, _ in (original, again))
    first, second = base.manifest(), other.manifest()
    if (first.game_sha256, first.dataset_sha256) != (second.game_sha256, second.dataset_sha256):
        return "other", "it plays other rules, prompts or models, or on other rows"
    common = alike(registry, original, again, cache.path / "compared")
    if common.named or (common.is_enough and common.is_copy):
        return "copy", f"{common}: it may be a copy"
    pair = compare_systems([[base.path], [other.path]], Results(cache.path)).pairs[0]
    outcome, words = outcome_of(pair, {row["agent"] for row in first.agents})
    if outcome == REPRODUCED and not common.is_enough:
        return "undecided", f"{words}; but {common}"
    return outcome, f"{words}; {common}"
