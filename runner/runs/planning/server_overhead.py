"""What an answer from a server costs on top of one by `dummy`: client, connection, body, a journal that is flushed.

The same requests go through the layers of a run twice: to `dummy`, and to a server of this machine that answers at
once.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from runner.models.costs import CallCosts
from runner.models.interface import Request, SampleKey
from runner.models.settings import ModelSettings
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.agents.agent import Observation
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.shared_resources import Shared
from runner.runs.execution.spending import used_models
from runner.runs.execution.wiring import Wiring
from runner.runs.planning.answering_server import answering

CALLS = 1024
WARM = 256
"""Calls before the time is taken: connections are open by then."""
AT_ONCE = 64


@dataclass(frozen=True)
class LiveCost:
    """What a server's answer costs on top."""

    seconds: float
    """Of a core."""
    journal_bytes: float
    """Of an answer in the journal, in all."""


def live_cost(plan: Plan, results: Results, group: str, *, words: int, prompt_tokens: float) -> LiveCost:
    """Of answers of so many words to chats of so many tokens.

    Raises:
        RunError: a file cannot be written, or no port can be opened here.
    """
    settings = plan.spec.experiment.models[group]
    drawn = ModelSettings(provider="dummy", answer_words=words, chat_format=settings.chat_format)
    with answering(words, int(prompt_tokens)) as address:
        live, size = _through(_with_models(plan, asked_at(settings, address)), results, "live", group, prompt_tokens)
    here, _ = _through(_with_models(plan, drawn), results, "here", group, prompt_tokens)
    return LiveCost(max(live - here, 0.0), size)


def asked_at(settings: ModelSettings, address: str) -> ModelSettings:
    """A model group that the server at this address answers."""
    return replace(
        settings, provider="openai", model=settings.name, base_url=address, api_key_env=None,
        requests_per_minute=None, tokens_per_minute=None, batch=False, logprobs=None, top_logprobs=None,
        headers=None,
    )  # fmt: skip


def _with_models(plan: Plan, settings: ModelSettings) -> Plan:
    experiment = plan.spec.experiment
    models = dict.fromkeys(experiment.models, settings)
    rollouts = replace(experiment.rollouts, concurrency=AT_ONCE)
    return Plan(
        replace(plan.spec, experiment=replace(experiment, models=models, rollouts=rollouts), cache=None, begun_as=None)
    )


def _through(one: Plan, results: Results, run_id: str, group: str, prompt_tokens: float) -> tuple[float, float]:
    """Seconds of this process and bytes of the journal that a call takes through all layers."""
    folder, manifest = results.open(one, run_id)
    folder.write_manifest(manifest)
    requests = iter(_requests(one, group, prompt_tokens))
    shared = Shared([one])
    costs = CallCosts(used_models(one))
    wiring = Wiring(one, folder, costs, Accounting(one, costs), shared, shared.stop, [])
    taken: list[float] = []

    async def play() -> None:
        async with wiring.opened() as wired:

            async def ask(count: int) -> None:
                for _ in range(count):
                    await wired.complete(next(requests))
                    await asyncio.sleep(0)

            async def all_(count: int) -> None:
                await asyncio.gather(*(ask(count // AT_ONCE) for _ in range(AT_ONCE)))

            await all_(WARM)
            begun = time.process_time()
            await all_(CALLS)
            taken.append(time.process_time() - begun)

    shared.play(play)
    return taken[0] / (CALLS // AT_ONCE * AT_ONCE), folder.journal.stat().st_size / (WARM + CALLS)


def _requests(plan: Plan, group: str, prompt_tokens: float) -> Iterator[Request]:
    """What the group's agent is asked first, of one datapoint after the other, made as long as is planned."""
    agents = plan.agents()
    name = next(name for name, agent in agents.items() if agent.model_group == group)
    first = plan.spec.protocol.first_active_round(name) or 0
    points = plan.spec.dataset.datapoints
    number = 0
    while True:
        point = points[number % len(points)]
        chat = list(agents[name].prompt(Observation(first, (), point.columns)))
        missing = int(prompt_tokens * 4) - sum(len(message["content"]) for message in chat)
        if missing > 0:
            chat.append({"role": "user", "content": ("word " * (missing // 5 + 1))[:missing]})
        yield Request(group, chat, SampleKey(point.id, number, first, name, 0), number)
        number += 1
