"""Estimates the calls, tokens and cost of a plan, by model group, for `check`, `plan` and the limits of a run.

An estimate has a lower and an upper value: for the shortest and for the longest games that the rules allow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.base.value_class import value_class
from runner.game.protocols.protocol import Protocol
from runner.models.costs import answer_limit
from runner.models.interface import Usage, estimate_prompt_tokens
from runner.models.prices import Pricing, budget_price
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.agents.selectors import selector_name
from runner.rollouts.judging import judged_prompt_tokens, judged_rounds
from runner.rollouts.plan import Plan
from runner.rollouts.template_check import check_templates
from runner.spec.experiment import Experiment

TOKENS_PER_WORD = 1.4
BYTES_PER_TOKEN = 4


@value_class(frozen=True)
class CostEstimate:
    """The expected calls, tokens and cost of one model group, without retries.

    Each pair has the value for the shortest and for the longest possible games.
    """

    group: str
    model: str
    calls: tuple[int, int]
    prompt_tokens: tuple[int, int]
    completion_tokens: tuple[int, int]
    cost_usd: tuple[float, float] | None


def estimate_costs(plan: Plan) -> list[CostEstimate]:
    """Return an estimate of the calls, tokens and cost of each model group in a plan, without retries.

    A prompt token is counted as four bytes. An answer has the length of the word limit in the lower estimate, and of
    the model's output limit in the upper one.

    Raises:
        SpecError: templates cannot be rendered.
    """
    check_templates(plan)
    if plan.debates is not None:
        return _rows(plan, *_judging_counts(plan))
    return _rows(plan, *_usage(plan))


def people_per_game(plan: Plan) -> int:
    """Return the number of different people that a game may need.

    A person plays only one role in a game. Each vote, and each candidate for an answer, needs a person of its own.
    """
    return max(_people_of_agents(plan, plan.game_agents(swapped=swapped)) for swapped in plan.swapped_values)


def _people_of_agents(plan: Plan, agents: Mapping[str, Agent]) -> int:
    """Return the number of people that one game may need if these agents play it."""
    protocol, people = plan.spec.protocol, 0
    for name, agent in agents.items():
        speaker, _, selects_by = name.partition(".")
        is_called = plan.debates is None or name == protocol.verifier_name
        if not agent.model_settings.traits.asks_people or selects_by == "function" or not is_called:
            continue
        answers = 1
        for round_ in range(protocol.max_message_rounds):
            best_of = protocol.step(round_).best_of if speaker in protocol.can_be_active(round_) else None
            candidates = 1 if best_of is None else best_of.answers if selects_by else best_of.n
            answers = max(answers, candidates, agent.votes_in(round_))
        people += answers
    return people


def max_calls(estimates: Iterable[CostEstimate], experiment: Experiment) -> int:
    """Return the number of calls of the longest games, if each answer is unusable until the last allowed attempt."""
    retry = experiment.retry
    attempts = max(retry.invalid_response.attempts, retry.refused.attempts)
    return attempts * sum(estimate.calls[1] for estimate in estimates)


def _judging_counts(plan: Plan) -> tuple[dict[str, _Counts], dict[str, _Counts]]:
    """Return the counts for judging another run's debates: with short answers, and with long ones."""
    prompt_sizes, votes = list(judged_prompt_tokens(plan)), plan.spec.experiment.votes
    judge = plan.agents()[plan.spec.protocol.verifier_name]
    calls, prompt_tokens = len(prompt_sizes) * votes, sum(prompt_sizes) * votes
    low, high = (
        {judge.model_group: _Counts(calls, prompt_tokens, _answer_tokens(judge, longest=longest) * calls)}
        for longest in (False, True)
    )
    return low, high


def _rows(plan: Plan, low: Mapping[str, _Counts], high: Mapping[str, _Counts]) -> list[CostEstimate]:
    rows, unconfirmed = [], plan.spec.unconfirmed_prices
    for group in sorted(low.keys() | high.keys()):
        settings = plan.spec.experiment.models[group]
        lower, upper = low.get(group, _Counts()), high.get(group, _Counts())
        price = budget_price(settings, unconfirmed=group in unconfirmed)
        tier = settings.requested_tier
        cost = None if price is None else (_cost(price, lower, tier), _cost(price, upper, tier))
        calls, prompt_tokens = (lower.calls, upper.calls), (lower.prompt, upper.prompt)
        completion_tokens = lower.completion, upper.completion
        rows.append(CostEstimate(group, settings.name, calls, prompt_tokens, completion_tokens, cost))
    return rows


def _cost(price: Pricing, counts: _Counts, tier: str | None) -> float:
    """Return the cost if all calls have the average length. (A price may depend on the prompt's length.)"""
    calls = max(counts.calls, 1)
    usage = Usage(round(counts.prompt / calls), round(counts.completion / calls), service_tier=tier)
    return calls * price.cost_of(usage)


def _answer_tokens(agent: Agent, *, longest: bool) -> int:
    """Return an answer's length in tokens: by the agent's word limit or, if `longest`, by the model's output limit."""
    tokens = int(agent.agent_params.max_response_words * TOKENS_PER_WORD)
    limit = answer_limit(agent.model_settings)
    if limit is None:
        return tokens
    return limit if longest else min(tokens, limit)


def answer_bytes(plan: Plan) -> int:
    """Return the bytes of all answers in the shortest possible games, if each answer is as long as its word limit."""
    if plan.debates is not None:
        return _judging_bytes(plan)
    shortest, _ = played_rounds(plan.spec.protocol)
    total_words = 0
    for swapped in plan.swapped_values:
        agents = plan.agents(swapped=swapped)
        for round_ in range(shortest):
            games_by_agent = _games_by_speaker(plan, round_, swapped=swapped)
            answers = 1 if plan.tree_shape is None else plan.tree_shape.responses ** (round_ + 1)
            for name, games in games_by_agent.items():
                best_of = plan.spec.protocol.step(round_).best_of
                answers_each = answers if best_of is None else answers * best_of.n + best_of.answers
                total_words += games * answers_each * agents[name].agent_params.max_response_words
    return int(total_words * TOKENS_PER_WORD) * BYTES_PER_TOKEN


def _judging_bytes(plan: Plan) -> int:
    words_per_answer = plan.spec.experiment.agents[plan.spec.protocol.verifier_name].max_response_words
    calls = sum(len(judged_rounds(plan, job)) for job in plan.jobs()) * plan.spec.experiment.votes
    return int(calls * words_per_answer * TOKENS_PER_WORD) * BYTES_PER_TOKEN


def sum_by_group(estimates: Iterable[CostEstimate]) -> list[CostEstimate]:
    """Return the sum of the estimates of each model group."""
    rows: dict[str, CostEstimate] = {}
    for new in estimates:
        old = rows.get(new.group)
        rows[new.group] = new if old is None else _sum(old, new)
    return list(rows.values())


def _sum(first: CostEstimate, second: CostEstimate) -> CostEstimate:
    def add(name: str) -> Any:
        pairs = getattr(first, name), getattr(second, name)
        if None in pairs:
            return None
        (first_low, first_high), (second_low, second_high) = pairs
        return first_low + second_low, first_high + second_high

    return replace(first, **{name: add(name) for name in ("calls", "prompt_tokens", "completion_tokens", "cost_usd")})


@dataclass
class _Counts:
    """The number of calls of a model group, and of their prompt and completion tokens."""

    calls: int = 0
    prompt: int = 0
    completion: int = 0

    def add(self, other: _Counts) -> None:
        """Add other counts to these."""
        self.calls += other.calls
        self.prompt += other.prompt
        self.completion += other.completion


def played_rounds(protocol: Protocol) -> tuple[int, int]:
    """Return the number of rounds of the shortest and of the longest game."""
    rounds = range(protocol.max_message_rounds)
    first = max(next(i for i in rounds if protocol.can_ever_decide(i, judge)) for judge in protocol.verifier_names)
    return first + 1, protocol.max_message_rounds


def _usage(plan: Plan) -> tuple[Mapping[str, _Counts], Mapping[str, _Counts]]:
    """Return the counts of all games by model group: if they are the shortest games, and if they are the longest.

    The length of a prompt follows from the datapoint's rendered system message and the lengths of earlier answers. An
    answer has the length of its word limit, or in the longest games of its model's output limit.
    """
    low: dict[str, _Counts] = {}
    high: dict[str, _Counts] = {}
    for swapped in plan.swapped_values:
        agents = plan.game_agents(swapped=swapped)
        first_prompt_tokens = _first_prompt_tokens(plan, agents)
        for totals in (low, high):
            _add_usage(totals, plan, agents, first_prompt_tokens, longest=totals is high, swapped=swapped)
    return low, high


def _add_usage(
    totals: dict[str, _Counts],
    plan: Plan,
    agents: Mapping[str, Agent],
    first_prompt_tokens: Mapping[str, int],
    *,
    longest: bool,
    swapped: bool | None,
) -> None:
    """Add the counts of all games with this value of `swapped` to `totals`."""
    protocol, points, repeats = plan.spec.protocol, plan.points, plan.spec.experiment.rollouts.per_datapoint
    rounds = played_rounds(protocol)[longest]
    earlier_tokens = 0
    last_verdicts = {
        (max((i for i in range(rounds) if protocol.can_ever_decide(i, judge)), default=-1), judge)
        for judge in protocol.verifier_names
    }
    for round_ in range(rounds):
        round_tokens = 0
        answers = 1 if plan.tree_shape is None else plan.tree_shape.responses ** (round_ + 1)
        for name, games in _games_by_speaker(plan, round_, swapped=swapped).items():
            agent = agents[name]
            answer = _answer_tokens(agent, longest=longest)
            counts = totals.setdefault(agent.model_group, _Counts())
            votes = plan.spec.experiment.votes if (round_, name) in last_verdicts else 1
            best_of = protocol.step(round_).best_of
            candidates = 1 if best_of is None else best_of.n
            calls = games * answers * votes * candidates
            prompt_tokens = (first_prompt_tokens[name] + earlier_tokens * len(points)) * repeats
            counts.add(_Counts(calls, prompt_tokens * calls // plan.block_count, answer * calls))
            if best_of is not None and best_of.by != "function":
                selector = selector_name(name, best_of)
                prompt_tokens = (first_prompt_tokens[selector] + earlier_tokens * len(points)) * repeats
                calls = games * best_of.answers
                judged = answer * (best_of.n if best_of.compares_all else 1)
                selection = _Counts(calls, calls * judged, calls * _answer_tokens(agents[selector], longest=longest))
                selection.prompt += prompt_tokens * calls // plan.block_count
                totals.setdefault(agents[selector].model_group, _Counts()).add(selection)
            message = _answer_tokens(agent, longest=False)
            round_tokens = max(round_tokens, message) if protocol.step(round_).draw == "one" else round_tokens + message
        earlier_tokens += round_tokens


def _first_prompt_tokens(plan: Plan, agents: Mapping[str, Agent]) -> dict[str, int]:
    """Return, for all datapoints, the estimated tokens of each agent's first prompt, before any message."""
    tokens: dict[str, int] = {}
    for name, agent in agents.items():
        first = plan.spec.protocol.first_active_round(name.partition(".")[0])
        if first is not None:
            observations = (Observation(first, (), point.columns, candidates=point.answers) for point in plan.points)
            prompts = (agent.prompt(agent.example_observation(observation)) for observation in observations)
            tokens[name] = sum(map(estimate_prompt_tokens, prompts))
    return tokens


def _games_by_speaker(plan: Plan, round_: int, *, swapped: bool | None) -> Mapping[str, int]:
    """Return, by agent, the number of games where the agent speaks in a round, if all games reach this round.

    Only games with this value of `swapped` are counted.
    """
    protocol = plan.spec.protocol
    if protocol.step(round_).draw == "all":
        return dict.fromkeys(protocol.can_be_active(round_), plan.size // len(plan.swapped_values))
    jobs = (job for job in plan.jobs() if job.swapped == swapped)
    return Counter(name for job in jobs for name in protocol.speakers(round_, job.seed))
