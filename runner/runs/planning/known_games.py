"""What is known of games before they are played: the games of an earlier run, or the shortest and the longest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from runner.rollouts.estimate import estimates
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import used_models
from runner.runs.planning.duration_model import GroupUse, MeanGames, Rate
from runner.runs.planning.earlier_runs import EarlierRun
from runner.runs.planning.loopback_server import WORD_BYTES


def known_games(plan: Plan, earlier: EarlierRun | None) -> tuple[MeanGames, MeanGames]:
    """Return the shortest games and the longest; with an earlier run, its mean game twice."""
    if earlier is not None:
        games = replace(earlier.games, games=plan.size)
        return games, games
    protocol = plan.spec.protocol
    first = next(i for i in range(protocol.max_message_rounds) if protocol.can_ever_decide(i)) + 1
    priced, size = estimates(plan), plan.size
    shortest, longest = (
        MeanGames(
            size,
            {
                row.group: GroupUse(
                    row.calls[end] / size, row.prompt_tokens[end] / size, row.completion_tokens[end] / size
                )
                for row in priced
            },
            steps=rounds,
            waited=None,
            longest=None,
            latency=None,
        )
        for end, rounds in ((0, first), (1, protocol.max_message_rounds))
    )  # fmt: skip
    return shortest, longest


def planned_words(plan: Plan, earlier: EarlierRun | None) -> dict[str, int]:
    """Return the words of an answer of each model group: as in the earlier run, else as agents are asked to write."""
    if earlier is not None:
        return {group: max(round(size / WORD_BYTES), 1) for group, size in earlier.answer_bytes.items()}
    asked: dict[str, list[int]] = {}
    for agent in plan.spec.experiment.agents.values():
        asked.setdefault(agent.model, []).append(agent.max_response_words)
    return {group: round(sum(words) / len(words)) for group, words in asked.items()}


def rates_of(plan: Plan, earlier: EarlierRun | None) -> Mapping[str, Rate]:
    """Return what all servers of each group allow: by the spec, else as they said in the earlier run."""
    found = {}
    for group, settings in used_models(plan).items():
        if not settings.called_live:
            continue
        said = Rate() if earlier is None else earlier.rates.get(group, Rate())
        requests, tokens = settings.requests_per_minute or said.requests, settings.tokens_per_minute or said.tokens
        many = len(settings.base_url) if isinstance(settings.base_url, tuple) else 1
        found[group] = Rate(requests and requests * many, tokens and tokens * many)
    return found
