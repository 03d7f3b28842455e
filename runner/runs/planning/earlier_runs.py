"""What the games of an earlier run were like: calls, tokens, and how long they waited for servers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from runner.base.errors import RunError, UsageError
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest
from runner.rollouts.plan import Plan
from runner.runs.planning.duration_model import GroupUse, MeanGames, Rate

_AGENTS = """
SELECT c.agent, coalesce(r.swapped, false), count(*), sum(c.prompt_tokens), sum(c.completion_tokens),
    sum(c.latency_ms) / 1000, sum(strlen(coalesce(c.raw_message, ''))) + sum(strlen(coalesce(c.reasoning, '')))
FROM completions c JOIN (
    FROM rollouts UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped WHERE false
) r USING (rollout_id)
WHERE c.latency_ms IS NOT NULL GROUP BY ALL
"""
_CHAINS = """
WITH known AS (FROM completions UNION ALL BY NAME SELECT NULL::INTEGER AS vote WHERE false),
votes AS (
    SELECT rollout_id, round, agent, vote, sum(latency_ms) / 1000 AS seconds, count(*) AS calls
    FROM known WHERE latency_ms IS NOT NULL GROUP BY ALL
),
steps AS (SELECT rollout_id, round, max(seconds) AS seconds, max(calls) AS calls FROM votes GROUP BY ALL),
games AS (SELECT rollout_id, sum(seconds) AS seconds, sum(calls) AS calls FROM steps GROUP BY ALL)
SELECT count(*), avg(seconds), max(seconds), avg(calls) FROM games
"""
"""Speakers of a round, and votes, are asked at once; what is asked again, after what it follows."""

_ALLOWS = re.compile(rb"(\S+): the server allows ([0-9]{1,15}) (requests|tokens) a minute")


@dataclass(frozen=True)
class EarlierRun:
    """A run's games, and what they took of the disk."""

    run_id: str
    games: MeanGames
    answer_bytes: Mapping[str, float]
    """Of an answer of each model group, its reasoning included."""
    journal_bytes: float
    """Of an answer, in the journal."""
    rates: Mapping[str, Rate]
    """What its servers said that they allow."""
    in_flight: float | None
    """Calls that waited for an answer, on average over the run."""


def earlier_like(plan: Plan, results: Results, like: str | None) -> EarlierRun | None:
    """The run that is named; else this spec's own, where it was played; else the newest with the same rules and models.

    Raises:
        UsageError: the run that is named is not there, not finished, or plays other rules.
        RunError: its files are damaged.
    """
    if like is not None:
        folder = results.find(like)
        wrong = _wrong(folder.manifest(), plan)
        if wrong is not None:
            raise UsageError(f"--like {like}: {wrong}")
        return of_run(folder, plan)
    own = results.run(plan.run_id)
    if own.manifest_path.is_file() and _wrong(own.manifest(), plan) is None:
        return of_run(own, plan)
    models = _models(plan)
    alike = [
        (manifest.started_at, folder.run_id, folder)
        for folder in results.runs()
        if _wrong(manifest := folder.manifest(), plan) is None and _models_of(manifest) == models
    ]
    return of_run(max(alike, key=lambda one: one[:2])[-1], plan) if alike else None


def _wrong(manifest: Manifest, plan: Plan) -> str | None:
    """Why a run says nothing of a plan's games."""
    if manifest.status not in PLAYED:
        return f"run {manifest.run_id} is {manifest.status}; its games are known once it is done"
    if manifest.protocol != plan.spec.protocol.name:
        return f"run {manifest.run_id} plays {manifest.protocol}, and this spec {plan.spec.protocol.name}"
    if not manifest.completions:
        return f"run {manifest.run_id} has no calls"
    return None


def of_run(folder: RunFolder, plan: Plan) -> EarlierRun:
    """What a finished run's tables, journal and log say of a plan's games.

    Raises:
        RunError: they are damaged.
    """
    tables = {name: folder.intact_table(name) for name in ("rollouts", "completions")}
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    known = set(plan.spec.protocol.agent_names)
    calls = seconds = 0.0
    for agent, swapped, count, prompt, completion, waited, size in read_tables(_AGENTS, tables, {}):
        if agent not in known:
            raise RunError(f"{folder.path} has an agent {agent!r} that this spec has not; name another run with --like")
        use = groups[plan.groups(swapped=swapped)[agent]]
        use.update(calls=count, prompt=prompt or 0, completion=completion or 0, said=size or 0)
        calls, seconds = calls + count, seconds + waited
    ((games, waits, longest, steps),) = read_tables(_CHAINS, tables, {})
    if not calls or not games:
        raise RunError(f"{folder.path} has no answers; name another run with --like")
    uses = {
        name: GroupUse(one["calls"] / games, one["prompt"] / games, one["completion"] / games)
        for name, one in groups.items()
    }
    journal = folder.journal.stat().st_size if folder.journal.is_file() else 0
    return EarlierRun(
        folder.run_id,
        MeanGames(plan.size, uses, steps, waits, longest, seconds / calls),
        {name: one["said"] / one["calls"] for name, one in groups.items()},
        journal / calls,
        _allowed(folder),
        _in_flight(folder.manifest(), seconds),
    )


def _models(plan: Plan) -> set[tuple[str, str, str]]:
    agents, models = plan.spec.experiment.agents, plan.spec.experiment.models
    return {(name, models[agent.model].provider, models[agent.model].name) for name, agent in agents.items()}


def _models_of(manifest: Manifest) -> set[tuple[str, str, str]]:
    return {(row["agent"], row["provider"], row["model"]) for row in manifest.agents}


def _in_flight(manifest: Manifest, seconds: float) -> float | None:
    if manifest.finished_at is None:
        return None
    took = datetime.fromisoformat(manifest.finished_at) - datetime.fromisoformat(manifest.started_at)
    return seconds / took.total_seconds() if took.total_seconds() > 0 else None


def _allowed(folder: RunFolder) -> dict[str, Rate]:
    """The rates that servers said they allow, the last one of each, by the run's log."""
    found: dict[str, dict[str, float]] = defaultdict(dict)
    with suppress(OSError), open_to_read(folder.log) as file:
        for line in file:
            said = _ALLOWS.search(line)
            if said is not None:
                found[said[1].decode("utf-8", "replace")][said[3].decode()] = float(said[2])
    return {group: Rate(rates.get("requests"), rates.get("tokens")) for group, rates in found.items()}
