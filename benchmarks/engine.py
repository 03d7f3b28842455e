"""Compare the cost of nip-run with all of its outputs to plain coroutines that make the same calls.

A rollout is five completions: nip with a verifier that decides in the last of five rounds. The paths alternate, each in
its own process, against one loopback server; the figures are medians. Time and CPU count from the first call to the
last byte on disk; imports, reading the spec and rendering the plain paths' prompts are not counted.

    official      AsyncOpenAI with default settings, `chat.completions.create`, without retries
    leanest       AsyncOpenAI with its aiohttp transport, `post` of ready bytes, the answer's bytes read by orjson
    prepared      the same client, whose requests have headers and an address that were built once
    direct        only nip-run's transport: prepared headers and an aiohttp session, without games and records
    aiohttp       no OpenAI client
    nip-run       journal, records, tables, metrics, fine-tune files, leaderboard
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import measure_child, median, print_footer, print_table, temporary_folder

if TYPE_CHECKING:
    from runner.spec.assembly import Spec
    from tests.support.servers.client import LoopbackServer

ROUNDS = 5
PROSE_LENGTH = 1150
"""Characters."""
PATHS = ("nip-run", "official", "leanest", "prepared", "direct", "aiohttp")
Ask = Callable[[list[dict[str, str]]], Awaitable[str]]


def write_spec(folder: Path, base_url: str, rollouts: int, concurrency: int, rounds: int = ROUNDS) -> Path:
    """Write a spec with `rollouts` datapoints, whose games all last `rounds` rounds; return its path."""
    rows = (
        {
            "id": f"p{i}", "label": i % 2, "question": f"Write f(x) that returns x + {i}. " + "Mind the limits. " * 20,
            "solution": f"def f(x):\n    return x + {i}\n" * 8,
        }
        for i in range(rollouts)
    )  # fmt: skip
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {
        "name": "benchmark", "seed": 1, "dataset": {"path": "data.jsonl"},
        "protocol": {"use": "nip", "min_message_rounds": rounds, "max_message_rounds": rounds, "verifier_first": True},
        "prompts": "prompts/code_validation/nip",
        "models": {"m": {"model": "tiny", "base_url": base_url}},
        "agents": {"prover": {"model": "m"}, "verifier": {"model": "m"}},
        "rollouts": {"concurrency": concurrency}, "fine_tune": {},
    }  # fmt: skip
    path = folder / "spec.yaml"
    path.write_text(json.dumps(spec))
    return path


def prompt_starts(spec: Spec) -> list[list[list[dict[str, str]]]]:
    """Return the first messages of each turn's prompt, by game and turn."""
    from runner.rollouts.agents.whole_agent import Observation
    from runner.rollouts.plan import Plan

    agents = Plan(spec).agents()
    speakers = ["verifier" if turn % 2 == 0 else "prover" for turn in range(ROUNDS)]
    return [
        [
            agents[name].prompt(Observation(turn, (), p.columns, 0, p.prover_stance))
            for turn, name in enumerate(speakers)
        ]
        for p in spec.dataset.datapoints
    ]


# The children


async def play_games(chats: list[list[list[dict[str, str]]]], ask: Ask, concurrency: int) -> None:
    """Play each game in a coroutine; `chats` has the first messages of each turn's prompt, by game and turn."""
    semaphore = asyncio.Semaphore(concurrency)

    async def play_game(starts: list[list[dict[str, str]]]) -> None:
        texts: list[str] = []
        async with semaphore:
            for turn, start in enumerate(starts):
                messages = start[:1]
                for index, text in enumerate(texts):
                    is_own = (turn - index) % 2 == 0
                    name = "Verifier" if index % 2 == 0 else "Expert"
                    messages.append({"role": "assistant", "content": text} if is_own else
                                    {"role": "user", "name": name, "content": text})  # fmt: skip
                texts.append(await ask(messages + start[1:]))

    await asyncio.gather(*map(play_game, chats))


async def play_official(base_url: str, chats: Any, concurrency: int) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client:

        async def ask(messages: Any) -> str:
            reply = await client.chat.completions.create(model="tiny", messages=messages)
            return reply.choices[0].message.content or ""

        await play_games(chats, ask, concurrency)


async def play_leanest(base_url: str, chats: Any, concurrency: int) -> None:
    import openai

    await play_with_client(openai.AsyncOpenAI, base_url, chats, concurrency)


async def play_prepared(base_url: str, chats: Any, concurrency: int) -> None:
    import copy

    import httpx2
    import openai

    class PreparedClient(openai.AsyncOpenAI):
        first_request: httpx2.Request | None = None

        def _build_request(self, options: Any, *, retries_taken: int = 0) -> httpx2.Request:
            if self.first_request is None:
                self.first_request = super()._build_request(options, retries_taken=retries_taken)
            request = copy.copy(self.first_request)
            request.headers = self.first_request.headers.copy()
            request.headers["content-length"] = str(len(options.content))
            request.stream, request._content = httpx2.ByteStream(options.content), options.content
            return request

    await play_with_client(PreparedClient, base_url, chats, concurrency)


async def play_with_client(make_client: Any, base_url: str, chats: Any, concurrency: int) -> None:
    import httpx2
    import openai
    import orjson

    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)
    transport = openai.DefaultAioHttpClient(limits=limits)
    async with make_client(base_url=base_url, api_key="none", max_retries=0, http_client=transport) as client:

        async def ask(messages: Any) -> str:
            body = orjson.dumps({"model": "tiny", "messages": messages})
            response = await client.post("/chat/completions", content=body, cast_to=httpx2.Response)
            return str(orjson.loads(response.content)["choices"][0]["message"]["content"])

        await play_games(chats, ask, concurrency)


async def play_direct(base_url: str, chats: Any, concurrency: int) -> None:
    import orjson

    from runner.models.interface import Request, SampleKey
    from runner.models.providers.body_limits import BodySlots
    from runner.models.providers.openai import OpenAiModel
    from runner.models.providers.openai_http import HELD_SLOT
    from runner.models.settings import ModelSettings

    model = OpenAiModel(ModelSettings(model="tiny", base_url=base_url), "m", concurrency)
    request, slots = Request("m", (), SampleKey("p", 0, 0, "verifier", 0)), BodySlots(concurrency)

    async def ask(messages: Any) -> str:
        with slots.slot() as slot:
            HELD_SLOT.set(slot)
            answer = await model._send(orjson.dumps({"model": "tiny", "messages": messages}), request)
        return str(orjson.loads(answer.content)["choices"][0]["message"]["content"])

    await play_games(chats, ask, concurrency)
    await model.close()


async def play_with_aiohttp(base_url: str, chats: Any, concurrency: int) -> None:
    import aiohttp
    import orjson

    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency), headers=headers) as session:

        async def ask(messages: Any) -> str:
            body = orjson.dumps({"model": "tiny", "messages": messages})
            async with session.post(base_url + "/chat/completions", data=body) as response:
                return str(orjson.loads(await response.read())["choices"][0]["message"]["content"])

        await play_games(chats, ask, concurrency)


def run_child(path: str, base_url: str, rollouts: int, concurrency: int, rounds: int) -> None:
    """Play one path and print its figures."""
    # Import what any path needs before the clock starts.
    import aiohttp  # noqa: F401
    import openai  # noqa: F401
    import scipy.special  # noqa: F401

    from runner import run
    from runner.spec.loader import load_spec

    with temporary_folder() as folder:
        spec = load_spec(write_spec(folder, base_url, rollouts, concurrency, rounds))
        if path == "nip-run":
            from runner.models.providers import openai as _  # noqa: F401
            from runner.results.leaderboard import database  # noqa: F401

            work: Callable[[], Any] = lambda: run(spec, folder / "results")  # noqa: E731
        else:
            play_path = {
                "official": play_official, "leanest": play_leanest, "prepared": play_prepared, "direct": play_direct,
                "aiohttp": play_with_aiohttp,
            }[path]  # fmt: skip
            chats = prompt_starts(spec)
            work = lambda: asyncio.run(play_path(base_url, chats, concurrency))  # noqa: E731
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        print(json.dumps({"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}))


# The parent


def measure(latency: float, rollouts: int, concurrency: int, paths: tuple[str, ...], repeat: int) -> dict[str, Any]:
    """Return the medians of each path, with the requests and bytes that the server received from it."""
    from tests.support.servers.chat_client import run_chat_server

    measurements: dict[str, list[dict[str, Any]]] = {path: [] for path in paths}
    with run_chat_server(latency=latency, decide=0.0) as server:
        before = server.stats()
        for _ in range(repeat):
            for path in paths:
                row = measure_child(__file__, path, server.base_url, rollouts, concurrency, ROUNDS)
                after = server.stats()
                row["calls"] = after["requests"] - before["requests"]
                row["bytes"] = after["body_bytes"] - before["body_bytes"]
                row["max_open"] = after["max_open"]
                before = after
                measurements[path].append(row)
    names = ("wall", "cpu", "calls", "bytes", "max_open", "peak_mb")
    return {path: {name: median([row[name] for row in rows]) for name in names} for path, rows in measurements.items()}


def compare(title: str, medians: dict[str, Any], rollouts: int) -> None:
    nip_run = medians["nip-run"]
    rows = [
        (
            path, row["wall"], row["cpu"] * 1000 / rollouts, nip_run["wall"] / row["wall"], nip_run["cpu"] / row["cpu"],
            int(row["calls"]), int(row["bytes"] / rollouts), int(row["peak_mb"]),
        )
        for path, row in medians.items()
    ]  # fmt: skip
    columns = (
        "path", "wall s", "CPU ms/rollout", "nip-run's wall", "nip-run's CPU", "calls", "bytes/rollout", "peak MB",
    )  # fmt: skip
    print_table(title, columns, rows)


def measure_slopes(small: int, large: int, concurrency: int, paths: tuple[str, ...], repeat: int) -> None:
    """Measure the CPU time of each additional rollout, answered at once; constant costs of a run cancel out."""
    from tests.support.servers.chat_client import run_chat_server

    cpu: dict[str, list[float]] = {path: [] for path in paths}
    with run_chat_server(latency=0.0, decide=0.0) as server:
        for _ in range(repeat):
            for path in paths:
                small_cpu, large_cpu = (
                    measure_child(__file__, path, server.base_url, size, concurrency, ROUNDS)["cpu"]
                    for size in (small, large)
                )
                cpu[path].append((large_cpu - small_cpu) * 1000 / (large - small))
    ratios = {
        path: [nip_run_cpu / path_cpu for nip_run_cpu, path_cpu in zip(cpu["nip-run"], path_cpus, strict=True)]
        for path, path_cpus in cpu.items()
    }
    path_cpus = [
        (path, median(cpu[path]), median(ratios[path]), min(ratios[path]), max(ratios[path])) for path in paths
    ]
    columns = ("path", "CPU ms/rollout", "nip-run's CPU over it", "lowest", "highest")
    print_table(f"slopes between {small} and {large} rollouts, {repeat} times", columns, path_cpus)


def wall_row(latency: float, rollouts: int, concurrency: int, wall: float) -> tuple[object, ...]:
    """Return a row that compares the wall time with that of an ideal client, which only waits for answers."""
    ideal = math.ceil(rollouts / concurrency) * ROUNDS * latency
    return concurrency, rollouts, ideal, wall, wall / ideal


def measure_many_in_flight(counts: Sequence[int], latency: float, repeat: int) -> None:
    """Measure runs with as many games as calls in flight. Failed calls are repeated, so the server gets more calls."""
    rows = []
    for count in counts:
        row = measure(latency, count, count, ("nip-run",), repeat)["nip-run"]
        repeated_calls = int(row["calls"]) - count * ROUNDS
        rows.append(
            (count, int(row["max_open"]), count * ROUNDS, repeated_calls, row["wall"], row["cpu"], int(row["peak_mb"]))
        )
    columns = ("in flight", "most at the server", "calls", "repeated calls", "wall s", "CPU s", "peak MB")
    print_table(f"nip-run with many calls in flight, answered in {latency:g} s", columns, rows)


def measure_long_chats(turns: Sequence[int], rollouts: int, concurrency: int, repeat: int) -> None:
    """Measure the CPU time and request size of one more call by a game's turns, with answers of 200 words."""
    from tests.support.servers.chat_client import run_chat_server

    costs: dict[int, list[tuple[float, float]]] = {count: [] for count in turns}
    with run_chat_server(latency=0.0, decide=0.0, prose=PROSE_LENGTH) as server:
        for _ in range(repeat):
            for count in turns:
                small_cpu, _ = _measure_long_chat(server, rollouts, concurrency, count)
                large_cpu, size = _measure_long_chat(server, 3 * rollouts, concurrency, count)
                costs[count].append(((large_cpu - small_cpu) * 1000 / (2 * rollouts * count), size))
    rows = []
    for count, measurements in costs.items():
        cpu, size = (median([pair[i] for pair in measurements]) for i in (0, 1))
        first_cpu, first_size = rows[0][1:3] if rows else (cpu, size)
        rows.append((count, cpu, size, cpu / first_cpu, size / first_size))
    columns = ("turns", "CPU ms/call", "KB/call", "CPU over the first", "KB over the first")
    print_table(
        f"games of many turns of 200 words, between {rollouts} and {3 * rollouts} games, {repeat} times", columns, rows
    )


def _measure_long_chat(server: LoopbackServer, rollouts: int, concurrency: int, turns: int) -> tuple[float, float]:
    """Return the CPU seconds of nip-run with games of that many turns, and the mean KB of a request."""
    before = server.stats()["body_bytes"]
    cpu = measure_child(__file__, "nip-run", server.base_url, rollouts, concurrency, turns)["cpu"]
    return cpu, (server.stats()["body_bytes"] - before) / (rollouts * turns * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--latency", type=float, default=0.2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument(
        "--slopes", type=int, nargs=2, metavar=("SMALL", "LARGE"), help="only the CPU of one more rollout"
    )
    parser.add_argument("--turns", type=int, nargs="+", metavar="N", help="only games of that many turns of 200 words")
    parser.add_argument(
        "--in-flight", type=int, nargs="+", metavar="N", help="only nip-run, with that many calls at once"
    )
    parser.add_argument("--child", nargs=5, metavar=("PATH", "URL", "ROLLOUTS", "CONCURRENCY", "ROUNDS"))
    args = parser.parse_args()
    if args.child:
        path, url, *numbers = args.child
        run_child(path, url, *map(int, numbers))
        return
    if args.slopes or args.turns or args.in_flight:
        if args.slopes:
            small, large = args.slopes
            measure_slopes(small, large, args.concurrency, PATHS, args.repeat)
        if args.turns:
            measure_long_chats(args.turns, args.rollouts // 10, args.concurrency, args.repeat)
        if args.in_flight:
            measure_many_in_flight(args.in_flight, args.latency, args.repeat)
        print_footer(__file__)
        return
    title = f"{args.rollouts} rollouts of {ROUNDS} completions, {args.concurrency} in flight"
    instant = measure(0.0, args.rollouts, args.concurrency, PATHS, args.repeat)
    compare(f"{title}, answered at once (ratios: nip-run over the path)", instant, args.rollouts)
    slow = measure(args.latency, args.rollouts, args.concurrency, PATHS, args.repeat)
    compare(f"{title}, answered in {args.latency * 1000:g} ms", slow, args.rollouts)
    rows = [wall_row(args.latency, args.rollouts, args.concurrency, slow["nip-run"]["wall"])]
    # With a lower concurrency or more games, the start and the end of the run weigh less.
    for rollouts, concurrency in ((args.rollouts, 64), (args.rollouts * args.concurrency // 64, args.concurrency)):
        wall = measure(args.latency, rollouts, concurrency, ("nip-run",), args.repeat)["nip-run"]["wall"]
        rows.append(wall_row(args.latency, rollouts, concurrency, wall))
    columns = ("in flight", "rollouts", "ideal s", "nip-run s", "over the ideal")
    print_table(f"wall time at {args.latency * 1000:g} ms", columns, rows)
    print_footer(__file__)


if __name__ == "__main__":
    main()
