"""A plan into calls, tokens and cost by model group, before anything is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from runner.game.protocols.protocol import Protocol
from runner.models.costs import answer_limit
from runner.models.interface import Usage, estimated_prompt_tokens
from runner.models.prices import Pricing, budget_price
from runner.rollouts.agents.agent import Agent, Observation
from runner.rollouts.judging import judged_prompts, judged_rounds
from runner.rollouts.plan import Plan
from runner.rollouts.template_check import check_templates

WORDS_TO_TOKENS = 1.4


@dataclass(frozen=True)
class CostEstimate:
    """What one model group will be asked, from the shortest possible games to the longest without retries."""

    group: str
    model: str
    calls: tuple[int, int]
    prompt_tokens: tuple[int, int]
    completion_tokens: tuple[int, int]
    cost_usd: tuple[float, float] | None


def estimates(plan: Plan) -> list[CostEstimate]:
    """Calls, tokens and cost of a plan by model group, without retries.

    Tokens of prompts are rough: four bytes each. Answers go from the word limit to the most a model may say.

    Raises:
        SpecError: templates fail when they are rendered.
    """
    check_templates(plan)
    if plan.debates is not None:
        return _rows(plan, *_judging(plan))
    shortest, longest = _played_rounds(plan.spec.protocol)
    low, high = _usage(plan, shortest, most=False), _usage(plan, longest, most=True)
    return _rows(plan, low, high)


def _judging(plan: Plan) -> tuple[dict[str, _Counts], dict[str, _Counts]]:
    """What the judge of another run's debates will be asked: its prompts are known, its answers short or long."""
    prompts, votes = list(judged_prompts(plan)), plan.spec.experiment.votes
    judge = plan.agents()[plan.spec.protocol.verifier_name]
    calls, said = len(prompts) * votes, sum(prompts) * votes
    short, long = (
        {judge.model_group: _Counts(calls, said, _answer_tokens(judge, most=most) * calls)} for most in (False, True)
    )
    return short, long


def _rows(plan: Plan, low: Mapping[str, _Counts], high: Mapping[str, _Counts]) -> list[CostEstimate]:
    rows, doubted = [], plan.spec.unconfirmed_prices
    for group in sorted(low.keys() | high.keys()):
        settings = plan.spec.experiment.models[group]
        a, b = low.get(group, _Counts()), high.get(group, _Counts())
        price = budget_price(settings, doubted=group in doubted)
        cost = None if price is None else (_cost(price, a), _cost(price, b))
        rows.append(
            CostEstimate(
                group, settings.name, (a.calls, b.calls), (a.prompt, b.prompt), (a.completion, b.completion), cost
            )
        )
    return rows


def _cost(price: Pricing, counts: _Counts) -> float:
    """The cost of calls that are all like the average one: a price may depend on the length of a call's prompt."""
    calls = max(counts.calls, 1)
    return calls * price.cost_of(Usage(round(counts.prompt / calls), round(counts.completion / calls)))


def _answer_tokens(agent: Agent, *, most: bool) -> int:
    """How long an answer is: as long as the agent is asked to make it, or, at most, as its model's limit allows."""
    words = int(agent.agent_params.max_response_words * WORDS_TO_TOKENS)
    limit = answer_limit(agent.model_settings)
    return words if limit is None else limit if most else min(words, limit)


BYTES_PER_TOKEN = 4


def answer_bytes(plan: Plan) -> int:
    """What is said in the shortest possible games, if every answer is as long as its agent is asked to make it."""
    if plan.debates is not None:
        return _judging_bytes(plan)
    shortest, _ = _played_rounds(plan.spec.protocol)
    said = 0
    for swapped in plan.casts:
        agents = plan.agents(swapped=swapped)
        for round_ in range(shortest):
            speaking = _speaking(plan, round_, swapped=swapped)
            words = sum(games * agents[name].agent_params.max_response_words for name, games in speaking.items())
            said += words * (1 if plan.shape is None else plan.shape.responses ** (round_ + 1))
    return int(said * WORDS_TO_TOKENS) * BYTES_PER_TOKEN


def _judging_bytes(plan: Plan) -> int:
    words = plan.spec.experiment.agents[plan.spec.protocol.verifier_name].max_response_words
    calls = sum(len(judged_rounds(plan, job)) for job in plan.jobs()) * plan.spec.experiment.votes
    return int(calls * words * WORDS_TO_TOKENS) * BYTES_PER_TOKEN


def total_cost(estimates: Iterable[CostEstimate]) -> list[CostEstimate]:
    """The sums by model group."""
    rows: dict[str, CostEstimate] = {}
    for new in estimates:
        old = rows.get(new.group)
        rows[new.group] = new if old is None else _sum(old, new)
    return list(rows.values())


def _sum(one: CostEstimate, other: CostEstimate) -> CostEstimate:
    def pair(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]

    cost = None
    if one.cost_usd is not None and other.cost_usd is not None:
        cost = (one.cost_usd[0] + other.cost_usd[0], one.cost_usd[1] + other.cost_usd[1])
    return replace(
        one,
        calls=pair(one.calls, other.calls),
        prompt_tokens=pair(one.prompt_tokens, other.prompt_tokens),
        completion_tokens=pair(one.completion_tokens, other.completion_tokens),
        cost_usd=cost,
    )


@dataclass
class _Counts:
    calls: int = 0
    prompt: int = 0
    completion: int = 0


def _played_rounds(protocol: Protocol) -> tuple[int, int]:
    """The number of rounds of the shortest and of the longest game."""
    first = next(i for i in range(protocol.max_message_rounds) if protocol.can_ever_decide(i))
    return first + 1, protocol.max_message_rounds


def _usage(plan: Plan, rounds: int, *, most: bool) -> Mapping[str, _Counts]:
    """Tokens of all games of so many rounds, from each datapoint's rendered system message.

    An answer is as long as its word limit; with `most`, as long as its model may make it.
    """
    totals: dict[str, _Counts] = {}
    for swapped in plan.casts:
        _add_usage(totals, plan, rounds, most=most, swapped=swapped)
    return totals


def _add_usage(totals: dict[str, _Counts], plan: Plan, rounds: int, *, most: bool, swapped: bool | None) -> None:
    """Add the tokens of all games with these seats."""
    protocol, agents = plan.spec.protocol, plan.agents(swapped=swapped)
    points, repeats = plan.points, plan.spec.experiment.rollouts.per_datapoint
    system: dict[str, int] = {}
    for name, agent in agents.items():
        first = protocol.first_active_round(name)
        if first is not None:
            system[name] = sum(estimated_prompt_tokens(agent.prompt(Observation(first, (), p.columns))) for p in points)
    said = 0
    last_verdict = max(i for i in range(rounds) if protocol.can_ever_decide(i))
    for round_ in range(rounds):
        spoken = 0
        answers = 1 if plan.shape is None else plan.shape.responses ** (round_ + 1)
        for name, games in _speaking(plan, round_, swapped=swapped).items():
            agent = agents[name]
            answer = _answer_tokens(agent, most=most)
            row = totals.setdefault(agent.model_group, _Counts())
            row.calls += games * answers
            row.prompt += (system[name] * repeats + said * len(points) * repeats) * games * answers // plan.blocks
            row.completion += answer * games * answers
            if round_ == last_verdict and name == protocol.verifier_name:
                more = games * answers * (plan.spec.experiment.votes - 1)
                row.calls += more
                row.prompt += (system[name] * repeats + said * len(points) * repeats) * more // plan.size
                row.completion += answer * more
            message = _answer_tokens(agent, most=False)
            spoken = max(spoken, message) if protocol.step(round_).draw == "one" else spoken + message
        said += spoken


def _speaking(plan: Plan, round_: int, *, swapped: bool | None) -> Mapping[str, int]:
    """How many games with these seats each agent speaks in, in a round that all of them reach."""
    protocol = plan.spec.protocol
    if protocol.step(round_).draw == "all":
        return dict.fromkeys(protocol.can_be_active(round_), plan.size // len(plan.casts))
    jobs = (job for job in plan.jobs() if job.swapped == swapped)
    return Counter(name for job in jobs for name in protocol.speakers(round_, job.seed))
