"""Estimates the games of a plan, from the statistics of an earlier run or from the rules of the protocol.

The statistics are calls, tokens, and the time that games waited for servers.

The forecast of `nip-run plan` assumes that the planned games are similar to these games.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from runner.base.batches import group_pairs
from runner.base.errors import RunError, UsageError
from runner.base.hashing import tagged_hash
from runner.base.storage.parquet import read_tables
from runner.base.storage.safe_files import open_to_read
from runner.models.interface import FUNCTION_SUFFIXES
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Manifest
from runner.results.saved_spec import saved_value
from runner.rollouts.estimate import estimate_costs, played_rounds
from runner.rollouts.identity import protocol_content
from runner.rollouts.plan import Plan, used_models
from runner.runs.planning.duration_model import GroupUsage, PlannedGames, Rate
from runner.runs.planning.loopback_server import WORD_BYTES

_BY_MODELS = "latency_ms IS NOT NULL AND " + " AND ".join(f"NOT suffix(agent, '{end}')" for end in FUNCTION_SUFFIXES)
"""SQL for whether a model answered a call."""

_AGENTS_QUERY = f"""
SELECT c.agent, coalesce(r.swapped, false), count(*), sum(c.prompt_tokens), sum(c.completion_tokens),
    sum(c.latency_ms) / 1000, sum(strlen(coalesce(c.raw_message, ''))) + sum(strlen(coalesce(c.reasoning, '')))
FROM completions c JOIN (
    FROM rollouts UNION ALL BY NAME SELECT NULL::BOOLEAN AS swapped WHERE false
) r USING (rollout_id)
WHERE {_BY_MODELS} GROUP BY ALL
"""
"""The query for the answered calls of each agent: their number, tokens, seconds, and bytes of answers.

The nested query adds the column `swapped` to tables of earlier versions, which lack it.
"""

_STEPS_QUERY = f"""
WITH all_calls AS (FROM completions UNION ALL BY NAME SELECT NULL::INTEGER AS vote WHERE false),
votes AS (
    SELECT rollout_id, round, agent, vote, sum(latency_ms) / 1000 AS seconds, count(*) AS calls
    FROM all_calls WHERE {_BY_MODELS} GROUP BY ALL
),
turns AS (SELECT rollout_id, round, agent, max(seconds) AS seconds, max(calls) AS calls FROM votes GROUP BY ALL),
speeches AS (
    SELECT rollout_id, round, sum(seconds) AS seconds, sum(calls) AS calls FROM turns
    GROUP BY rollout_id, round, split_part(agent, '.', 1)
),
steps AS (SELECT rollout_id, round, max(seconds) AS seconds, max(calls) AS calls FROM speeches GROUP BY ALL),
games AS (SELECT rollout_id, sum(seconds) AS seconds, sum(calls) AS calls FROM steps GROUP BY ALL)
SELECT count(*), avg(seconds), max(seconds), avg(calls) FROM games
"""
"""The query for the number of games, the mean and longest time that a game waits, and the mean number of its steps.

A step is a group of concurrent calls: of the speakers of a round, or of the votes or candidates of a speaker. Steps
follow one another, such as two rounds, an answer and its retry, or a speaker's candidates and the choice among them.
"""

_REPORTED_RATE = re.compile(rb"(\S+): the server allows ([0-9]{1,15}) (requests|tokens) (?:a|per) minute")
"""Matches the line of a run's log with a rate limit that a server reported."""


@dataclass(frozen=True)
class EarlierRun:
    """The statistics of an earlier run's games, with their size on disk."""

    run_id: str
    games: PlannedGames
    answer_bytes: Mapping[str, float]
    """The average bytes of an answer of each model group, including its reasoning."""
    journal_bytes: float
    """The average bytes of an answer in the journal."""
    rates: Mapping[str, Rate]
    """The rate limits that the run's servers reported, by model group."""
    in_flight: float | None
    """The average number of calls in flight; None if unknown."""


def find_similar_run(plan: Plan, results: Results, like: str | None) -> EarlierRun | None:
    """Return the statistics of the run `like` or, if `like` is None, of a run with similar games.

    A similar run is the plan's own run if it is finished, or else the newest run of the same game. If there is none, it
    is the newest run with the same rules, votes and models, or None.

    Raises:
        UsageError: the run `like` does not exist, is not finished, or plays another protocol.
        RunError: files of the run are damaged.
    """
    if like is not None:
        folder = results.find(like)
        problem = _explain_mismatch(folder.manifest(), plan)
        if problem is not None:
            raise UsageError(f"--like {like}: {problem}")
        return read_statistics(folder, plan)
    own_run = results.run(plan.run_id)
    if own_run.manifest_path.is_file() and _explain_mismatch(own_run.manifest(), plan) is None:
        return read_statistics(own_run, plan)
    experiment, rules = plan.spec.experiment, tagged_hash("protocol", protocol_content(plan.spec.protocol))
    groups = {name: experiment.models[agent.model] for name, agent in experiment.agents.items()}
    models = {(name, settings.provider, settings.name) for name, settings in groups.items()}
    similar = [
        (manifest.game_sha256 == plan.game_hash, manifest.started_at, folder.run_id, folder)
        for folder, manifest in results.runs_with_manifests()
        if _explain_mismatch(manifest, plan) is None
        and manifest.protocol_sha256 == rules
        and {(row["agent"], row["provider"], row["model"]) for row in manifest.agents} == models
    ]
    for *_, folder in sorted(similar, key=lambda run: run[:-1], reverse=True):
        if (saved_value(folder, "votes") or 1) == experiment.votes:
            return read_statistics(folder, plan)
    return None


def _explain_mismatch(manifest: Manifest, plan: Plan) -> str | None:
    """Return why a run's games are not similar to a plan's games, or None if they are."""
    if manifest.status not in PLAYED:
        return f"run {manifest.run_id} is {manifest.status}; finish this run first, or name another one"
    if manifest.protocol != plan.spec.protocol.name:
        return (
            f"run {manifest.run_id} plays {manifest.protocol}, but this spec plays {plan.spec.protocol.name}; name a "
            "run with the same protocol"
        )
    if manifest.rejudge_of is not None:
        return f"run {manifest.run_id} judges the debates of {manifest.rejudge_of.run_id}; name a run that plays games"
    if not manifest.completions:
        return f"run {manifest.run_id} has no calls; name another run"
    return None


def read_statistics(folder: RunFolder, plan: Plan) -> EarlierRun:
    """Return the statistics of a finished run from its tables, journal and log, by the model groups of a plan.

    Raises:
        RunError: a file is damaged.
    """
    tables = {name: folder.intact_table(name) for name in ("rollouts", "completions")}
    counts_by_group: dict[str, Counter[str]] = defaultdict(Counter)
    calls = seconds = 0.0
    for agent, swapped, count, prompt, completion, agent_seconds, size in read_tables(_AGENTS_QUERY, tables, {}):
        group = plan.groups(swapped=swapped).get(agent)
        if group is None:
            raise RunError(
                f"{folder.path} has an agent {agent!r} that is not in this spec; name another run with --like RUN"
            )
        counts_by_group[group].update(
            calls=count, prompt=prompt or 0, completion=completion or 0, answer_bytes=size or 0
        )
        calls, seconds = calls + count, seconds + agent_seconds
    ((games, wait_seconds, longest_wait_seconds, steps),) = read_tables(_STEPS_QUERY, tables, {})
    if not calls or not games:
        raise RunError(f"{folder.path} has no answers; name another run with --like RUN")
    usage_by_group = {
        name: GroupUsage(counts["calls"] / games, counts["prompt"] / games, counts["completion"] / games)
        for name, counts in counts_by_group.items()
    }
    journal = folder.journal.stat().st_size if folder.journal.is_file() else 0
    return EarlierRun(
        folder.run_id,
        PlannedGames(plan.size, usage_by_group, steps, wait_seconds, longest_wait_seconds, seconds / calls),
        {name: counts["answer_bytes"] / counts["calls"] for name, counts in counts_by_group.items()},
        journal / calls,
        _reported_rates(folder),
        _mean_in_flight(folder.manifest(), seconds),
    )


def _mean_in_flight(manifest: Manifest, seconds: float) -> float | None:
    """Return the average number of calls in flight, given the total seconds of all calls; None if unknown."""
    if manifest.finished_at is None:
        return None
    duration = datetime.fromisoformat(manifest.finished_at) - datetime.fromisoformat(manifest.started_at)
    return seconds / duration.total_seconds() if duration.total_seconds() > 0 else None


def _reported_rates(folder: RunFolder) -> dict[str, Rate]:
    """Return the last rate limit that servers reported for each model group, from the run's log."""
    rates_by_group: dict[str, dict[str, float]] = defaultdict(dict)
    with suppress(OSError), open_to_read(folder.log) as file:
        for line in file:
            match = _REPORTED_RATE.search(line)
            if match is not None:
                rates_by_group[match[1].decode("utf-8", "replace")][match[3].decode()] = float(match[2])
    return {group: Rate(rates.get("requests"), rates.get("tokens")) for group, rates in rates_by_group.items()}


def expected_games(plan: Plan, earlier: EarlierRun | None) -> tuple[PlannedGames, PlannedGames]:
    """Return the shortest and the longest game of a plan; with an earlier run, both are this run's average game."""
    if earlier is not None:
        games = replace(earlier.games, game_count=plan.size)
        return games, games
    estimates, size = estimate_costs(plan), plan.size

    def games_at(bound: int, rounds: int) -> PlannedGames:
        """Return the shortest games for bound 0, and the longest for bound 1."""
        usage_by_group = {
            row.group: GroupUsage(
                row.calls[bound] / size, row.prompt_tokens[bound] / size, row.completion_tokens[bound] / size
            )
            for row in estimates
        }
        return PlannedGames(size, usage_by_group, rounds, None, None, None)

    fewest_rounds, most_rounds = played_rounds(plan.spec.protocol)
    return games_at(0, fewest_rounds), games_at(1, most_rounds)


def planned_words(plan: Plan, earlier: EarlierRun | None) -> dict[str, int]:
    """Return the number of words in an answer of each model group.

    The numbers come from the earlier run or, without one, from the agents' word limits.
    """
    if earlier is not None:
        return {group: max(round(size / WORD_BYTES), 1) for group, size in earlier.answer_bytes.items()}
    word_limits = group_pairs((agent.model, agent.max_response_words) for agent in plan.spec.experiment.agents.values())
    return {group: round(sum(limits) / len(limits)) for group, limits in word_limits.items()}


def rates_of(plan: Plan, earlier: EarlierRun | None) -> Mapping[str, Rate]:
    """Return the total rate limits of each group's servers, from the spec or as reported in the earlier run."""
    rates = {}
    for group, settings in used_models(plan).items():
        if not settings.sends_requests:
            continue
        reported = Rate() if earlier is None else earlier.rates.get(group, Rate())
        requests = settings.requests_per_minute or reported.requests
        tokens = settings.tokens_per_minute or reported.tokens
        servers = len(settings.base_url) if isinstance(settings.base_url, tuple) else 1
        rates[group] = Rate(requests and requests * servers, tokens and tokens * servers)
    return rates
