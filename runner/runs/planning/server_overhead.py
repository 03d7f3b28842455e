"""Measures how much CPU time a call to a server takes in addition to a call to the built-in provider `dummy`.

`dummy` answers within this process. A server also needs an HTTP client, a connection, a body and an fsync. The same
requests are sent to `dummy` and to a server on this machine, through the same layers as in a run, such as retries and
the journal. The forecast of `nip-run plan` adds the difference to each call to a server.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from runner.models.costs import CallCosts
from runner.models.interface import Request, SampleKey
from runner.models.settings import ModelSettings
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.agents.agent import Observation
from runner.rollouts.plan import Plan, used_models
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.layer_builder import LayerBuilder
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.execution.unusable_answers import AnswerCounts
from runner.runs.planning.loopback_server import loopback_server

CALLS = 1024
"""The number of measured calls."""
WARM_UP = 256
"""The number of calls before the measurement, which open the connections."""
CONCURRENCY = 64
"""The number of concurrent calls."""


@dataclass(frozen=True)
class ServerOverhead:
    """The cost of one call to a server: the CPU time beyond a call to `dummy`, and the total size in the journal."""

    seconds: float
    """CPU seconds per call, minus those of a call to `dummy`."""
    journal_bytes: float
    """Bytes per call in the journal, without a subtraction."""


class _MeasurementAccounting(Accounting):
    """Counts calls, but not unusable answers: generated answers follow no format, and no game uses them."""

    def count_new_answers(self, counts: AnswerCounts) -> None:
        del counts


def measure_server_overhead(
    plan: Plan, results: Results, model_group: str, *, words: int, prompt_tokens: float
) -> ServerOverhead:
    """Measure and return the cost of answers of `words` words to chats of `prompt_tokens` tokens.

    The chats are those of an agent that plays with `model_group`.

    Raises:
        RunError: a file cannot be written, or no port can be opened on this machine.
    """
    settings = plan.spec.experiment.models[model_group]
    dummy = ModelSettings(provider="dummy", answer_words=words, chat_format=settings.chat_format)
    live = replace(
        settings, provider="openai", model=settings.name, base_url=None, api_key_env=None, requests_per_minute=None,
        tokens_per_minute=None, batch=False, logprobs=None, top_logprobs=None, headers=None,
    )  # fmt: skip

    def measure(run_id: str, model_settings: ModelSettings, clock: Callable[[], float]) -> tuple[float, float]:
        measurement_plan = _plan_measurement(plan, model_settings)
        return _measure(measurement_plan, results, run_id, model_group, prompt_tokens, clock)

    with loopback_server(words, int(prompt_tokens)) as server:
        server_seconds, journal_bytes = measure(
            "live", replace(live, base_url=server.address), lambda: time.process_time() - server.cpu_seconds
        )
    dummy_seconds, _ = measure("dummy", dummy, time.process_time)
    return ServerOverhead(max(server_seconds - dummy_seconds, 0.0), journal_bytes)


def _plan_measurement(plan: Plan, settings: ModelSettings) -> Plan:
    """Return a new plan with these settings for all model groups, `CONCURRENCY` concurrent games and no cache."""
    experiment = plan.spec.experiment
    models = dict.fromkeys(experiment.models, settings)
    rollouts = replace(experiment.rollouts, concurrency=CONCURRENCY)
    return Plan(
        replace(
            plan.spec, experiment=replace(experiment, models=models, rollouts=rollouts), cache=None, resumed_run_id=None
        )
    )


def _measure(  # noqa: PLR0917 - only `measure_server_overhead` calls this function
    plan: Plan, results: Results, run_id: str, group: str, prompt_tokens: float, clock: Callable[[], float]
) -> tuple[float, float]:
    """Return the average CPU seconds per call (measured with `clock`), and the bytes per call in the journal."""
    folder, manifest = results.open(plan, run_id)
    folder.write_manifest(manifest)
    requests = iter(_generate_requests(plan, group, prompt_tokens))
    shared = SharedResources([plan])
    costs = CallCosts(used_models(plan))
    builder = LayerBuilder(plan, folder, costs, _MeasurementAccounting(plan, costs), shared, shared.stop, [])
    seconds: list[float] = []

    async def send_all_calls() -> None:
        async with builder.open_layers() as layers:

            async def send_calls(count: int) -> None:
                for _ in range(count):
                    await layers.complete(next(requests))
                    await asyncio.sleep(0)

            async def send_concurrently(count: int) -> None:
                await asyncio.gather(*(send_calls(count // CONCURRENCY) for _ in range(CONCURRENCY)))

            await send_concurrently(WARM_UP)
            start_time = clock()
            await send_concurrently(CALLS)
            seconds.append(clock() - start_time)

    shared.run_in_event_loop(send_all_calls)
    return seconds[0] / CALLS, folder.journal.stat().st_size / (WARM_UP + CALLS)


def _generate_requests(plan: Plan, group: str, prompt_tokens: float) -> Iterator[Request]:
    """Yield requests with the first prompt of an agent of the group, for each datapoint in turn, padded to a length."""
    agents = plan.game_agents()
    name = next(name for name, agent in agents.items() if agent.model_group == group)
    first_round = plan.spec.protocol.first_active_round(name.partition(".")[0]) or 0
    points = plan.spec.dataset.datapoints
    number = 0
    while True:
        point = points[number % len(points)]
        observation = Observation(first_round, (), point.columns, candidates=point.answers)
        chat = list(agents[name].prompt(agents[name].example_observation(observation)))
        # A token has about 4 characters.
        missing_characters = int(prompt_tokens * 4) - sum(len(message["content"]) for message in chat)
        if missing_characters > 0:
            chat.append({"role": "user", "content": ("word " * (missing_characters // 5 + 1))[:missing_characters]})
        yield Request(group, chat, SampleKey(point.id, number, first_round, name, 0), number)
        number += 1
