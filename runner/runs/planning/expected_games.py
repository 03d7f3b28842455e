"""Estimates the games of a plan before they are played, from an earlier run or from the rules of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.rollouts.estimate import estimate_costs, played_rounds
from runner.rollouts.plan import Plan, used_models
from runner.runs.planning.duration_model import GroupUsage, PlannedGames, Rate
from runner.runs.planning.earlier_runs import EarlierRun
from runner.runs.planning.loopback_server import WORD_BYTES


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
    word_limits: dict[str, list[int]] = {}
    for agent in plan.spec.experiment.agents.values():
        word_limits.setdefault(agent.model, []).append(agent.max_response_words)
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
